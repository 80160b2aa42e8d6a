//! The strategy that is to recover a job, and the rungs of the ladder that the job omits for it.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU64;
use taskd_core::job::Name;

/// The strategy that is to recover the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// The same processes repeat the step.
    Retry,
    /// The lost rank is started again where it was, the others stay.
    RecoverInPlace,
    /// The lost rank is started again on another host, the others stay. There are two hosts, each with a guard of its own, which
    /// dies with the victim while ranks run on the other one.
    Recover,
    /// The others continue without the lost rank, which joins again later.
    Shrink,
    /// The surviving ranks save their state, and all ranks restart from it.
    Dump,
    /// All ranks restart from copies of the state in memory.
    Restart,
    /// The surviving ranks save their state, and the job ends.
    DumpExit,
    /// The job ends.
    Exit,
    /// The cheapest one that can recover the job.
    Auto,
}

impl Strategy {
    /// Returns true if this strategy ends the job.
    #[must_use]
    pub fn ends_job(self) -> bool {
        matches!(self, Strategy::DumpExit | Strategy::Exit)
    }

    /// Returns true if the number of ranks stays the same: only then the result is that of the undisturbed training.
    #[must_use]
    pub fn keeps_world(self) -> bool {
        self != Strategy::Shrink
    }

    /// Returns true if `name` is the runtime's name of this strategy.
    pub(super) fn is(self, name: &Name) -> bool {
        self.to_possible_value().is_some_and(|value| value.get_name() == name.as_str())
    }

    /// Returns the number of steps between two copies of the state in memory, if the strategy restarts all ranks from
    /// them.
    pub(super) fn memory_every(self) -> Option<NonZeroU64> {
        NonZeroU64::new(10).filter(|_| self == Strategy::Restart)
    }

    /// Returns true if this strategy leaves a checkpoint, from which the job continues when it is started again.
    #[must_use]
    pub fn saves(self) -> bool {
        matches!(self, Strategy::Dump | Strategy::DumpExit)
    }

    /// Returns the rungs of the ladder that the job omits, so that the decision falls on this one.
    pub(super) fn without(self) -> &'static [&'static str] {
        match self {
            Strategy::Auto => &[],
            Strategy::Retry => &["recover-in-place", "recover"],
            Strategy::RecoverInPlace => &["recover"],
            Strategy::Recover => &["recover-in-place"],
            Strategy::Shrink => &["retry", "recover-in-place", "recover"],
            Strategy::Restart => &["retry", "recover-in-place", "recover"],
            Strategy::Dump => &["retry", "recover-in-place", "recover"],
            Strategy::DumpExit => &["retry", "recover-in-place", "recover", "dump", "restart"],
            Strategy::Exit => &["retry", "recover-in-place", "recover", "dump", "restart", "dump-exit"],
        }
    }
}
