//! What the fail-slow engine reports: components, causes and verdicts.

use crate::detect::Evidence;
use crate::job::GroupId;
use serde::{Deserialize, Serialize};

/// Component of a job that a verdict names. Ranks, hosts, stages and replicas are the numbers of the
/// [`Layout`](super::Layout).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Component {
    /// One rank.
    Rank(u32),
    /// All ranks of a host.
    Host(u32),
    /// A pipeline stage.
    Stage(u32),
    /// A data-parallel replica.
    Replica(u32),
    /// A communication group.
    Group(GroupId),
    /// The connection between two ranks.
    Link(u32, u32),
    /// The whole job.
    Job,
}

/// Why steps are longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// A rank computes longer than its peers.
    SlowRank,
    /// All ranks of a host compute longer than their peers.
    SlowHost,
    /// Transfers of a group, of a pair of ranks or of the job take longer, while their computation is normal.
    SlowLink,
    /// The next batch arrives late.
    SlowInput,
    /// Saving a checkpoint takes longer.
    SlowCheckpoint,
    /// A stage computes longer than other stages: an uneven partition. No component is at fault.
    SlowStage,
    /// All ranks of a group compute longer, on a part of a host or on several hosts: one of them may be slow, or their
    /// load has changed. No component is blamed.
    UnevenLoad,
    /// All ranks compute longer. No component is blamed.
    GlobalSlowdown,
}

impl Cause {
    /// Returns true if a verdict with this cause blames its component.
    #[must_use]
    pub const fn is_blame(self) -> bool {
        !matches!(self, Cause::SlowStage | Cause::UnevenLoad | Cause::GlobalSlowdown)
    }

    /// Returns the name, such as `slow-rank`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Cause::SlowRank => "slow-rank",
            Cause::SlowHost => "slow-host",
            Cause::SlowLink => "slow-link",
            Cause::SlowInput => "slow-input",
            Cause::SlowCheckpoint => "slow-checkpoint",
            Cause::SlowStage => "slow-stage",
            Cause::UnevenLoad => "uneven-load",
            Cause::GlobalSlowdown => "global-slowdown",
        }
    }
}

/// A persistent slow-down, with the component that has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The component.
    pub component: Component,
    /// The cause.
    pub cause: Cause,
    /// Positions of the affected ranks, sorted.
    pub ranks: Vec<u32>,
    /// Number of the step at which the slow-down began.
    pub onset_step: u64,
    /// Excess time over the usual time, in percent: of the usual time of the same figure; for
    /// [`SlowInput`](Cause::SlowInput), of the usual computation of a step.
    pub slowdown_percent: f32,
    /// Confidence that the component is the cause, in permille; below 500 if the cause blames no component.
    pub confidence_permille: u16,
    /// Figures.
    pub evidence: Vec<Evidence>,
}

/// A result of the engine.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A slow-down was found.
    Found(Verdict),
    /// The component has its usual times again, or a verdict on a larger component replaces this one.
    Cleared {
        /// Component of the earlier verdict.
        component: Component,
        /// Cause of the earlier verdict.
        cause: Cause,
    },
}
