//! Attributes OOM kills to the exits of a launcher's processes, and reports kills that explain no exit.
//!
//! The counters are read only on request.

use super::control_groups::control_groups;
use super::guard::proc_cgroups::without_own;
use super::oom::OomCounter;
use crate::job::{ErrorReport, Termination};
use rustix::process::Pid;
use std::time::{Duration, Instant};

/// Maximum number of places in which kills are counted: usually all processes of a launcher share one.
const PLACES_MAX: usize = 64;
/// Interval at which kills that explain no exit are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Time that a kill may wait for the exit that it explains: the process is reaped only after its memory is freed.
const REAPED_WITHIN: Duration = Duration::from_secs(30);

/// The places in which kills are counted.
#[derive(Debug, Default)]
pub(super) struct Ooms {
    places: Vec<Counted>,
    /// Time of the next check for OOM kills that explain no exit.
    look_at: Option<Instant>,
}

#[derive(Debug)]
struct Counted {
    counter: OomCounter,
    /// Control groups of the first process found in this place, in the format of Linux.
    groups: String,
    /// Time since which there is an OOM kill that explains no exit.
    since: Option<Instant>,
}

impl Ooms {
    /// Returns the place of a process that has just started, given its pid here.
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

    /// Returns the OOM report of a process that ended without being killed by its launcher, if that was the reason.
    pub(super) fn explain(&mut self, place: Option<usize>, pid: Pid, how: Termination) -> Option<ErrorReport> {
        let counted = self.places.get_mut(place?)?;
        let report = counted.counter.explain(pid, how)?;
        counted.since = None;
        Some(report)
    }

    /// Returns messages about kills that explain no exit: most likely a helper of a rank was killed. Each is returned
    /// once. May be called often: the check runs every [`LOOK_EVERY`].
    pub(super) fn unexplained(&mut self, now: Instant) -> Vec<String> {
        if self.look_at.is_some_and(|at| now < at) {
            return Vec::new();
        }
        self.look_at = Some(now + LOOK_EVERY);
        let kills = self.places.iter_mut().filter_map(|Counted { counter, since, .. }| {
            if counter.pending() == 0 {
                *since = None;
                return None;
            }
            let waits = now.saturating_duration_since(*since.get_or_insert(now)) < REAPED_WITHIN;
            if waits { None } else { counter.unexplained() }
        });
        kills.collect()
    }
}
