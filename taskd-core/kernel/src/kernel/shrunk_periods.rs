//! Records when and for how long the job trained with fewer ranks than specified.
//!
//! The training result changes then, so people are informed. This is bookkeeping: nothing is decided from it.

use crate::job::{JobTime, World};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Maximum number of shrunk periods (with fewer ranks than specified) in a job report. If there were more, the
/// report lists the newest ones. The reason of a completed job states how many periods there were before the last
/// one.
pub const SHRUNK_PERIODS_REPORTED_MAX: usize = 64;

/// A period in which the job trained with fewer ranks than specified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShrunkPeriod {
    /// Start of the period.
    pub since: JobTime,
    /// End of the period. `None`: it has not ended, or the job ended in it.
    pub until: Option<JobTime>,
    /// Number of ranks that trained in the period.
    pub ranks: u32,
    /// Number of ranks that the job specifies.
    pub of: u32,
    /// Numbers of the first and last step completed in the period, as far as steps are reported.
    pub steps: Option<(u64, u64)>,
}

impl ShrunkPeriod {
    /// Returns the period as text, for example `2 of its 3 ranks from 5.000 s for 1.0 s, steps 81 to 90`. If the period
    /// has not ended, its length is counted up to `now`.
    #[must_use]
    pub fn text(&self, now: JobTime) -> String {
        let ShrunkPeriod { since, until, ranks, of, steps } = self;
        let time = until.unwrap_or(now).since(*since).as_secs_f64();
        let steps = steps.map_or_else(String::new, |(first, last)| format!(", steps {first} to {last}"));
        format!("{ranks} of its {of} ranks from {since} for {time:.1} s{steps}")
    }
}

impl fmt::Display for ShrunkPeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ShrunkPeriod { since, ranks, of, .. } = self;
        write!(f, "{ranks} of its {of} ranks from {since} on")
    }
}

/// The periods so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct SmallerTimes {
    times: Vec<ShrunkPeriod>,
    /// Number of older periods that were dropped.
    more: u64,
}

impl SmallerTimes {
    pub(crate) fn all(&self) -> Vec<ShrunkPeriod> {
        self.times.clone()
    }

    /// Returns the text for the final reason of a job. `None` if its world was always complete.
    pub(super) fn text(&self, now: JobTime) -> Option<String> {
        let (last, before) = self.times.split_last()?;
        let others = before.len() as u64 + self.more;
        let others = if others > 0 { format!(", and {others} times before") } else { String::new() };
        Some(format!("it trained with {}{others}", last.text(now)))
    }

    fn running(&mut self) -> Option<&mut ShrunkPeriod> {
        self.times.last_mut().filter(|time| time.until.is_none())
    }

    /// Another world was put in force.
    pub(super) fn entered(&mut self, world: &World, now: JobTime) {
        let of = u32::try_from(world.places().count()).unwrap_or(u32::MAX);
        let ranks = world.size();
        if self.running().is_some_and(|time| (time.ranks, time.of) == (ranks, of)) {
            return;
        }
        if let Some(time) = self.running() {
            time.until = Some(now);
        }
        if ranks < of {
            self.times.push(ShrunkPeriod { since: now, until: None, ranks, of, steps: None });
        }
        if self.times.len() > SHRUNK_PERIODS_REPORTED_MAX {
            self.times.remove(0);
            self.more += 1;
        }
    }

    /// A rank has completed a step.
    pub(super) fn stepped(&mut self, step: u64) {
        if let Some(time) = self.running() {
            let (first, last) = time.steps.unwrap_or((step, step));
            time.steps = Some((first.min(step), last.max(step)));
        }
    }
}
