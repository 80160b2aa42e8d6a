//! Which ends of a launcher's processes come of a lack of memory, and which kills for that explain none of them.
//!
//! It reads counters when it is asked to, and keeps a few numbers.

use super::control_groups::control_groups;
use super::guard::proc_cgroups::without_own;
use super::oom::OomCounter;
use crate::job::{ErrorReport, Termination};
use rustix::process::Pid;
use std::time::{Duration, Instant};

/// Most places in which kills are counted: usually all processes of a launcher are in one.
const PLACES_MAX: usize = 64;
/// How often kills are looked for that explain no end.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How long a kill may wait for the process that it was to be reaped: until its memory is given back.
const REAPED_WITHIN: Duration = Duration::from_secs(30);

/// The places in which kills are counted.
#[derive(Debug, Default)]
pub(super) struct Ooms {
    places: Vec<Counted>,
    /// When to look next for kills that explain no end.
    look_at: Option<Instant>,
}

#[derive(Debug)]
struct Counted {
    counter: OomCounter,
    /// The control groups of the first process that was found in this place, as Linux lists them.
    groups: String,
    /// Since when there is one that explains no end.
    since: Option<Instant>,
}

impl Ooms {
    /// The place of a process that has just started, by its number here.
    pub(super) fn place_of(&mut self, pid: Pid) -> Option<usize> {
        let groups = without_own(&control_groups(pid));
        if let Some(known) = self.places.iter().position(|known| known.groups == groups) {
            return Some(known); // a start waits for this: mounts and counters are read for new groups only
        }
        let counter = OomCounter::of(pid)?;
        let known = self.places.iter().position(|known| known.counter.is_same_place(&counter));
        known.or_else(|| {
            (self.places.len() < PLACES_MAX).then(|| {
                self.places.push(Counted { counter, groups, since: None });
                self.places.len() - 1
            })
        })
    }

    /// Why a process ended that its launcher has not killed, if it was for that.
    pub(super) fn explain(&mut self, place: Option<usize>, pid: Pid, how: Termination) -> Option<ErrorReport> {
        let counted = self.places.get_mut(place?)?;
        let report = counted.counter.explain(pid, how)?;
        counted.since = None;
        Some(report)
    }

    /// What is to be told of kills that explain no end: a helper of a rank was killed, most likely. Each once. May be asked often: it
    /// looks every [`LOOK_EVERY`].
    pub(super) fn unexplained(&mut self, now: Instant) -> Vec<String> {
        if self.look_at.is_some_and(|at| now < at) {
            return Vec::new();
        }
        self.look_at = Some(now + LOOK_EVERY);
        let told = self.places.iter_mut().filter_map(|Counted { counter, since, .. }| {
            if counter.pending() == 0 {
                *since = None;
                return None;
            }
            let waits = now.saturating_duration_since(*since.get_or_insert(now)) < REAPED_WITHIN;
            if waits { None } else { counter.unexplained() }
        });
        told.collect()
    }
}
