//! Since when, and for how long, the job trained with fewer ranks than it has: its result is another one then, and people are told.
//!
//! It only keeps books: nothing is decided from it.

use super::{Kernel, State};
use crate::job::JobTime;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Most times that a report names one by one; of more the newest stand in it, and how many there were.
pub const SMALLER_REPORTED_MAX: usize = 64;

/// A time in which the job trained with fewer ranks than it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Smaller {
    /// From when.
    pub since: JobTime,
    /// Until when; `None`: it still does, or did at its end.
    pub until: Option<JobTime>,
    /// With how many ranks.
    pub ranks: u32,
    /// Of how many.
    pub of: u32,
    /// The first and the last step that were completed then, as far as steps are seen.
    pub steps: Option<(u64, u64)>,
}

impl Smaller {
    /// The same in words, at this time: `2 of its 3 ranks from 5.000 s for 1.0 s, steps 81 to 90`.
    #[must_use]
    pub fn text(&self, now: JobTime) -> String {
        let Smaller { since, until, ranks, of, steps } = self;
        let time = until.unwrap_or(now).since(*since).as_secs_f64();
        let steps = steps.map_or_else(String::new, |(first, last)| format!(", steps {first} to {last}"));
        format!("{ranks} of its {of} ranks from {since} for {time:.1} s{steps}")
    }
}

impl fmt::Display for Smaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Smaller { since, ranks, of, .. } = self;
        write!(f, "{ranks} of its {of} ranks from {since} on")
    }
}

/// The times so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct SmallerTimes {
    times: Vec<Smaller>,
    /// How many there were besides, which were dropped.
    more: u64,
}

impl SmallerTimes {
    pub(super) fn all(&self) -> Vec<Smaller> {
        self.times.clone()
    }

    /// What is told of them in the sentence with which a job ends; nothing, where its world was whole throughout.
    pub(super) fn text(&self, now: JobTime) -> Option<String> {
        let (last, before) = self.times.split_last()?;
        let others = before.len() as u64 + self.more;
        let others = if others > 0 { format!(", and {others} times before") } else { String::new() };
        Some(format!("it trained with {}{others}", last.text(now)))
    }

    fn running(&mut self) -> Option<&mut Smaller> {
        self.times.last_mut().filter(|time| time.until.is_none())
    }

    /// A rank has completed a step.
    pub(super) fn stepped(&mut self, step: u64) {
        if let Some(time) = self.running() {
            let (first, last) = time.steps.unwrap_or((step, step));
            time.steps = Some((first.min(step), last.max(step)));
        }
    }
}

impl Kernel {
    /// Another world is in force.
    pub(super) fn note_size(&mut self) {
        let State { view, smaller, .. } = &mut self.state;
        let (now, world) = (view.now, &view.world);
        let of = u32::try_from(world.places().count()).unwrap_or(u32::MAX);
        let ranks = world.size();
        if smaller.running().is_some_and(|time| (time.ranks, time.of) == (ranks, of)) {
            return;
        }
        if let Some(time) = smaller.running() {
            time.until = Some(now);
        }
        if ranks < of {
            smaller.times.push(Smaller { since: now, until: None, ranks, of, steps: None });
        }
        if smaller.times.len() > SMALLER_REPORTED_MAX {
            smaller.times.remove(0);
            smaller.more += 1;
        }
    }
}
