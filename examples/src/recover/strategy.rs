//! By which rung of the ladder a job is to be mended.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU64;
use taskd_core::job::Name;

/// How the job is to be mended.
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
    /// Whether the job ends by it.
    #[must_use]
    pub fn ends_job(self) -> bool {
        matches!(self, Strategy::DumpExit | Strategy::Exit)
    }

    /// Whether as many ranks train throughout: only then it is the undisturbed training.
    #[must_use]
    pub fn keeps_world(self) -> bool {
        self != Strategy::Shrink
    }

    /// Whether the runtime calls it so.
    pub(super) fn is(self, name: &Name) -> bool {
        self.to_possible_value().is_some_and(|value| value.get_name() == name.as_str())
    }

    /// After how many steps each a copy of the state is kept in memory, where the strategy is to start all ranks from there.
    pub(super) fn memory_every(self) -> Option<NonZeroU64> {
        NonZeroU64::new(10).filter(|_| self == Strategy::Restart)
    }

    /// Whether it leaves a checkpoint behind, with which the job goes on when it starts again.
    #[must_use]
    pub fn saves(self) -> bool {
        matches!(self, Strategy::Dump | Strategy::DumpExit)
    }

    /// Rungs of the ladder that the job does without, so that it comes to this one.
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
