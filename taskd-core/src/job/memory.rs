//! Checkpoints in the memory of the ranks' hosts: how often one is made, and what gives way when one takes long.
//!
//! It makes none; the training processes do.

use serde::{Deserialize, Serialize};
use std::num::NonZeroU64;

/// Copies of each rank's state in memory that outlives the rank's process, for programs that load one when they start (in Python
/// `taskd.load_dump`). Even when all replicas of some rank are lost, the job loses no more than `every` steps and the one in flight,
/// or twice as many where a copy was dropped, and no storage is touched. Each rank takes twice its state of its host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct MemoryCheckpoints {
    /// A copy is made at the start of each step that this divides.
    pub every: NonZeroU64,
    /// What becomes of a copy that is not finished when its step is about to change parameters.
    #[serde(default)]
    pub late: LateCopy,
}

impl MemoryCheckpoints {
    /// One every so many steps, for which training waits if it has to.
    #[must_use]
    pub const fn every(steps: NonZeroU64) -> MemoryCheckpoints {
        MemoryCheckpoints { every: steps, late: LateCopy::Wait }
    }

    /// The same, with another way to go on when a copy takes long.
    #[must_use]
    pub const fn with_late(self, late: LateCopy) -> MemoryCheckpoints {
        MemoryCheckpoints { late, ..self }
    }
}

/// What becomes of a copy that is not finished in time. Both are counted by the rank that does it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LateCopy {
    /// Training waits for it.
    #[default]
    Wait,
    /// It is dropped, and the checkpoint before it stays the newest.
    Drop,
}

impl LateCopy {
    /// As it stands in the environment of ranks.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            LateCopy::Wait => "wait",
            LateCopy::Drop => "drop",
        }
    }
}
