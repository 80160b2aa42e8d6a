//! Configuration of in-memory checkpoints: their interval, and what happens when a copy takes too long.
//!
//! The training processes make the copies.

use serde::{Deserialize, Serialize};
use std::num::NonZeroU64;

/// Configuration of in-memory checkpoints: copies of each rank's state in the memory of the rank's host, which outlive
/// the rank's process. Only programs that load a checkpoint when they start (in Python `taskd.load_checkpoint`) can use
/// them. If the processes of a rank and of all its replicas are lost, the job loses at most `every` steps and the step
/// in progress (twice `every` if a copy was dropped), and reads no storage. The copies of one rank occupy twice the
/// size of its state.
///
/// In a job with several hosts, a rank on another host, of another fault domain if possible, holds a second copy of each.
/// If a host is lost with all its ranks, they resume from these. A second copy is sent while training continues: the job
/// loses in addition the steps that are trained until the copy has arrived, at most `every` (a copy that is due before
/// the last one has arrived is dropped, and counted). Each host then has twice as much in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct InMemoryCheckpoints {
    /// Interval in steps: each rank copies its state at the start of each step whose number is a multiple of this
    /// value.
    pub every: NonZeroU64,
    /// What happens if the copy of a rank's state is unfinished when the training step is about to change parameters.
    #[serde(default)]
    pub late: LateCopyPolicy,
}

impl InMemoryCheckpoints {
    /// Creates a configuration: ranks copy their state every `steps` steps, and a rank waits for an unfinished copy
    /// before the training step changes parameters ([`LateCopyPolicy::Wait`]).
    #[must_use]
    pub const fn every(steps: NonZeroU64) -> InMemoryCheckpoints {
        InMemoryCheckpoints { every: steps, late: LateCopyPolicy::Wait }
    }

    /// Sets what happens to a copy that is unfinished when the training step is about to change parameters.
    #[must_use]
    pub const fn with_late(self, late: LateCopyPolicy) -> InMemoryCheckpoints {
        InMemoryCheckpoints { late, ..self }
    }
}

/// What happens to the copy of a rank's state (in-memory checkpoint) that is unfinished when its training step is
/// about to change parameters. Each rank counts its waits and its dropped copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LateCopyPolicy {
    /// Training waits until the copy is finished.
    #[default]
    Wait,
    /// The copy is dropped, and the previous checkpoint remains the newest.
    Drop,
}

impl LateCopyPolicy {
    /// Returns the name of the policy, `wait` or `drop`: the value of the ranks' environment variable
    /// [`TASKD_IN_MEMORY_CHECKPOINT_LATE`](crate::state::IN_MEMORY_CHECKPOINT_LATE_VARIABLE).
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            LateCopyPolicy::Wait => "wait",
            LateCopyPolicy::Drop => "drop",
        }
    }
}
