//! Which jobs recoveries of this kind can never work for, as far as that is known before any rank has started.
//!
//! It looks at no process: what a rank can do is asked of its link, when something has failed.

use super::replicas;
use crate::job::{JobSpec, Name};
use crate::recover::Beforehand;

/// What becomes of a job whose ranks could not be told where to meet.
pub(super) const NO_MEETING: &str =
    "the job has no service at which ranks meet anew (its `meeting`); add its framework's";

/// Why ranks that live can never be kept, if they cannot.
pub(super) fn cannot_meet(job: &Beforehand) -> Option<String> {
    let is_there = |service: &Name| job.spec.services.contains_key(service);
    job.meets_at.as_ref().is_some_and(|service| !is_there(service)).then(|| NO_MEETING.to_owned())
}

/// The same, or why nobody has what a lost rank held.
pub(super) fn cannot_replace(job: &Beforehand) -> Option<String> {
    let why = match replicas::has_replicas(&job.spec) {
        true => return cannot_meet(job),
        false if job.spec.ranks < 2 => "there is no other rank, which a lost one could take its state from",
        false => "no rank has a replica to take its state from: every data-parallel group has one member",
    };
    Some(why.to_owned())
}

/// Why the world can never be smaller, if it cannot.
pub(super) fn cannot_shrink(job: &Beforehand) -> Option<String> {
    let JobSpec { ranks, policy, .. } = &*job.spec;
    let all =
        || format!("the job trains with all of its {ranks} ranks; policy.ranks_min says with how few it may go on");
    (*ranks > 1 && policy.ranks_at_least(*ranks) >= *ranks).then(all).or_else(|| cannot_replace(job))
}

#[cfg(test)]
mod tests;
