//! Training data derived from records: the steps of a rank and of its device, and its position in its process groups.
//!
//! Plain data, passed from reducers to detectors.

use crate::job::seconds::Seconds;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Breakdown of the time of one rank's training step.
///
/// In a synchronous job the steps of all ranks take equally long. A slow rank is visible in its own time only: the
/// time of its step without the waiting for other ranks (see [`own_ns`](Self::own_ns)).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTimes {
    /// The step's number, as counted by the training script.
    pub step: u64,
    /// Time from the step's beginning to its end, in nanoseconds.
    pub wall_ns: u64,
    /// Part of `wall_ns` in which the step's thread was on a CPU, in nanoseconds; `None` if unknown.
    pub cpu_ns: Option<u64>,
    /// Part of `wall_ns`, in nanoseconds, in which the rank only waited for communication: from the beginning of the
    /// step's last collective until no collective was pending. The rest of the step is the rank's own time.
    pub wait_ns: u64,
    /// Part of `wall_ns`, in nanoseconds, in which at least one collective was pending, overlapped with other work or
    /// not.
    pub communication_ns: u64,
    /// Part of `wall_ns` spent waiting for the next batch of data, in nanoseconds.
    pub data_loader_ns: u64,
    /// Part of `wall_ns` spent saving a checkpoint, in nanoseconds.
    pub save_checkpoint_ns: u64,
    /// Part of `wall_ns` spent in the forward pass, in nanoseconds.
    pub forward_ns: u64,
    /// Number of collectives that the rank began in the step.
    pub communications: u32,
    /// Number of trace records lost since the previous step; if not zero, this step's figures may be too small.
    pub lost: u64,
}

impl StepTimes {
    /// Returns the rank's own time in nanoseconds: the step without the waiting for other ranks.
    #[must_use]
    pub const fn own_ns(&self) -> u64 {
        self.wall_ns.saturating_sub(self.wait_ns)
    }
}

/// Breakdown of the time of a rank's device in one training step, measured by the device itself.
///
/// A program launches the work of a device ahead of time, and often returns from a step before the device has done its
/// work. The times of the process ([`StepTimes`]) then contain the launches only, or they look equal on all ranks because
/// each of them waits for its device at the end of the step. These times come from the activity that the vendor's trace
/// interface (CUPTI, mspti) has recorded on the device's clock.
///
/// The *window* of a step begins with the step in the process. It ends with the beginning of the process's next step, if
/// that follows within two seconds, and otherwise with the end of the step. Work of the device counts in the window in
/// which it ran, also if an earlier step launched it. Activity that overlaps, such as that of several streams, counts
/// once, and activity beyond the window does not count. All devices of a process count as one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceTimes {
    /// The step's number, as counted by the training script.
    pub step: u64,
    /// Length of the window, in nanoseconds.
    pub wall_ns: u64,
    /// Part of `wall_ns` in which at least one kernel ran, in nanoseconds. Kernels of communication libraries do not count.
    pub compute_ns: u64,
    /// Part of `wall_ns` in which at least one communication was active on the device, in nanoseconds, overlapped with
    /// computation or not. It contains the waiting for other ranks.
    pub communication_ns: u64,
    /// Part of `communication_ns` in which the device neither computed nor copied, in nanoseconds: the rank transferred
    /// data, or waited for other ranks.
    pub wait_ns: u64,
    /// Part of `wall_ns` in which at least one copy or fill of memory was active, in nanoseconds.
    pub copy_ns: u64,
    /// Part of `wall_ns` without any of these activities, in nanoseconds.
    pub idle_ns: u64,
    /// Number of activities that lie in the window, at least in part.
    pub spans: u32,
    /// Number of records and activities that were lost, or arrived too late, since the previous step; if not zero, the
    /// figures of this step may be too small.
    pub lost: u64,
}

/// One collective call of a rank in a process group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Sequence number of the call in its process group, from 0, in the order of the calls.
    pub sequence: u64,
    /// Name of the operation, such as `allreduce`.
    pub operation: String,
    /// Number of input elements on this rank.
    pub elements: u64,
    /// Type of an element, such as `f32`.
    pub data_type: String,
    /// Time since the collective call began.
    #[serde(with = "Seconds")]
    pub begun: Duration,
    /// True if the collective call has not completed.
    pub is_pending: bool,
}

/// Position of a rank in one process group: the latest collective calls that it made there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupPosition {
    /// Name of the process group.
    pub group: String,
    /// Global ranks of the members, in group order; empty if unknown.
    pub members: Vec<u32>,
    /// The rank's latest collective calls in the group, oldest first, at most [`RECENT_CALLS`].
    pub recent: Vec<Call>,
}

/// Maximum number of collective calls in one [`GroupPosition`]: the latest calls of the rank in the process group.
/// Older calls are dropped.
pub const RECENT_CALLS: usize = 16;
