//! Checks which jobs the in-process recoveries can never work for, as far as that is known before any rank has started.
//!
//! The checks look at no process: what a rank supports is read from its control link after a failure.

use super::replicas;
use crate::job::{JobSpec, Name};
use crate::recover::JobProfile;

/// Reason text for a job without a rendezvous service.
pub(super) const NO_RENDEZVOUS: &str = "the job has no `rendezvous_service`; add that of its framework";

/// Returns the reason why surviving ranks can never be kept, if there is one.
pub(super) fn cannot_meet(job: &JobProfile) -> Option<String> {
    let is_there = |service: &Name| job.spec.services.contains_key(service);
    job.rendezvous_service.as_ref().is_some_and(|service| !is_there(service)).then(|| NO_RENDEZVOUS.to_owned())
}

/// Returns the same, or the reason why no other rank holds what a lost rank held.
pub(super) fn cannot_replace(job: &JobProfile) -> Option<String> {
    let why = match replicas::has_replicas(&job.spec) {
        true => return cannot_meet(job),
        false if job.spec.ranks < 2 => "there is no other rank from which a lost rank could copy its state",
        false => "no rank has a replica to copy its state from: every data-parallel group has one member",
    };
    Some(why.to_owned())
}

/// Returns the reason why the world can never shrink, if there is one.
pub(super) fn cannot_shrink(job: &JobProfile) -> Option<String> {
    let JobSpec { ranks, policy, .. } = &*job.spec;
    let all = || format!("the job needs all of its {ranks} ranks; set policy.min_ranks to allow fewer");
    (*ranks > 1 && policy.min_ranks_of(*ranks) >= *ranks).then(all).or_else(|| cannot_replace(job))
}

#[cfg(test)]
mod tests;
