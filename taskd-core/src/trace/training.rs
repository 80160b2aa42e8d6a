//! What records say of training: a rank's steps, and where it stands in its process groups.
//!
//! Plain data, from reducers to detectors. It judges nothing.

use crate::job::seconds::Seconds;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Where the time of one rank's training step went.
///
/// In a synchronous job all ranks' steps are equally long: who is slow is seen in what is left when the waiting for others
/// is taken off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTimes {
    /// The step's number, as the program counts.
    pub step: u64,
    /// From its beginning to its end, in nanoseconds.
    pub wall_ns: u64,
    /// Of these its thread was on a CPU; `None` where that is not known.
    pub cpu_ns: Option<u64>,
    /// Of `wall_ns`: nothing was left to do but to wait for a communication, from the last one begun until none was under
    /// way. What is left of the step is the rank's own.
    pub wait_ns: u64,
    /// Of `wall_ns`: at least one communication was under way, hidden behind other work or not.
    pub communication_ns: u64,
    /// Of `wall_ns`: waiting for data.
    pub data_loader_ns: u64,
    /// Of `wall_ns`: saving a checkpoint.
    pub save_checkpoint_ns: u64,
    /// Of `wall_ns`: in the forward pass.
    pub forward_ns: u64,
    /// Communications begun.
    pub communications: u32,
    /// Records that were lost since the step before: its figures may be too small.
    pub lost: u64,
}

impl StepTimes {
    /// What the rank itself needed, in nanoseconds: the step without the waiting for others.
    #[must_use]
    pub const fn own_ns(&self) -> u64 {
        self.wall_ns.saturating_sub(self.wait_ns)
    }
}

/// One communication of a rank in a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Its number in the group, from 0, in the order of the calls.
    pub sequence: u64,
    /// What was called, such as `allreduce`.
    pub operation: String,
    /// Elements of the input on this rank.
    pub elements: u64,
    /// The type of an element, such as `f32`.
    pub data_type: String,
    /// How long ago it began.
    #[serde(with = "Seconds")]
    pub begun: Duration,
    /// Whether it is still under way.
    pub is_pending: bool,
}

/// Where a rank stands in one process group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupPosition {
    /// The group's name.
    pub group: String,
    /// Its members by global rank, in their order in the group; empty where they are not known.
    pub members: Vec<u32>,
    /// The rank's last calls, oldest first, [`RECENT_CALLS`] at most.
    pub recent: Vec<Call>,
}

/// So many calls of each group are told.
pub const RECENT_CALLS: usize = 16;
