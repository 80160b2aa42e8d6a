//! The kinds of faults, and which of them suit which strategy.
//!
//! It touches nothing.

use clap::ValueEnum;
use serde::Serialize;
use taskd_examples::recover::Strategy;

/// The victim, the fault and the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Any rank is killed.
    Kill,
    /// Rank 0 is killed.
    RankZero,
    /// Any rank is stopped and stays stopped.
    Stop,
    /// A rank's program raises MemoryError.
    Exception,
    /// A rank's connections fail in the backward pass, while the first bucket is reduced.
    Collective,
    /// A rank's gradient is not a number.
    Nan,
    /// Packets between two neighbours in the ring are dropped, without FIN or RST.
    Cut,
    /// The store is killed.
    Store,
    /// A standby is killed.
    Standby,
    /// Two ranks are killed at once.
    TwoAtOnce,
    /// During a recovery a rank is killed, or the store if no rank may be lost.
    MidRecovery,
    /// A rank fails or is killed while one has committed a step and another has not.
    BetweenCommits,
    /// All ranks, and with them all replicas, are killed at once.
    AllAtOnce,
    /// The supervisor is killed; the guard keeps the job, and another supervisor attaches.
    Supervisor,
    /// The same during a recovery, which the next supervisor continues.
    SupervisorMidRecovery,
    /// A rank's guard is killed, and all ranks of that host with it.
    Guard,
    /// A rank is killed, and another one while the surviving ranks save their state.
    MidDump,
}

/// Faults that no process dies of, except the store.
const SOFT: [Kind; 5] = [Kind::Exception, Kind::Collective, Kind::Nan, Kind::Store, Kind::Cut];

impl Kind {
    /// Returns one deck for a strategy, in which the kinds that it is meant for occur more than once.
    pub(crate) fn deck(strategy: Strategy) -> Vec<Kind> {
        use Kind::{
            AllAtOnce, BetweenCommits, Guard, Kill, MidDump, MidRecovery, RankZero, Stop, Supervisor,
            SupervisorMidRecovery, TwoAtOnce,
        };
        match strategy {
            Strategy::Retry => {
                let more = [BetweenCommits, BetweenCommits, MidRecovery, Supervisor, SupervisorMidRecovery];
                [&SOFT[..], &SOFT[..4], &more].concat()
            }
            Strategy::Restart | Strategy::Dump | Strategy::DumpExit | Strategy::Exit => {
                let hard =
                    [Kill, RankZero, Stop, TwoAtOnce, AllAtOnce, MidRecovery, Supervisor, SupervisorMidRecovery, Guard];
                let own: &[Kind] = if strategy == Strategy::Dump { &[MidDump, MidDump, BetweenCommits] } else { &[] };
                [&hard[..], own, &SOFT[..4]].concat()
            }
            Strategy::RecoverInPlace | Strategy::Recover | Strategy::Shrink | Strategy::Auto => {
                let often = [Kill, RankZero, TwoAtOnce, MidRecovery, BetweenCommits];
                [&often[..], &often, &[Kill, Stop, Supervisor, SupervisorMidRecovery, AllAtOnce, Guard], &SOFT].concat()
            }
        }
    }

    /// Returns true if another supervisor has to attach to the job.
    pub(crate) const fn is_of_supervisor(self) -> bool {
        matches!(self, Kind::Supervisor | Kind::SupervisorMidRecovery)
    }
}
