//! Launches of kernels, queues of streams, bandwidth of copies and annotations of each rank.

use super::KernelTimes;
use serde::{Deserialize, Serialize};

/// Rows of queues, of copies and of annotations that a document keeps for each set of rules, each; each rank keeps its
/// equal share, and at least ten.
pub const LAUNCH_ROWS_MAX: usize = 20_000;

/// What the host launched, and what the program named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LaunchRules {
    /// Launches of the ranks, sorted by number. Ranks without a recorded launch are left out.
    pub launches: Vec<LaunchFigures>,
    /// Queues, sorted by rank and stream.
    pub queues: Vec<QueueFigures>,
    /// Number of rows that `queues` lacks because of [`LAUNCH_ROWS_MAX`]: those of the fewest launches.
    pub queues_left_out: u64,
    /// Copies and fills of memory, sorted by rank and kind.
    pub copies: Vec<CopyFigures>,
    /// Number of rows that `copies` lacks because of [`LAUNCH_ROWS_MAX`]: those of the fewest bytes.
    pub copies_left_out: u64,
    /// Annotations of each rank, sorted by rank, place and sum. Their class is their place: `device` or `host`.
    pub annotations: Vec<KernelTimes>,
    /// Number of rows that `annotations` lacks because of [`LAUNCH_ROWS_MAX`]: those of the smallest sums.
    pub annotations_left_out: u64,
}

/// Statistics of values, in the unit of the figure; all 0 without values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Number of values.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation of a sample; 0 for one value.
    pub deviation: f64,
    /// Smallest value.
    pub min: f64,
    /// Quantile of 25 %. Quantiles between two values are interpolated.
    pub lower_quartile: f64,
    /// Quantile of 50 %.
    pub median: f64,
    /// Quantile of 75 %.
    pub upper_quartile: f64,
    /// Largest value.
    pub max: f64,
}

/// Calls of the runtime that launched kernels, on one rank. Times are in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LaunchFigures {
    /// Global rank.
    pub rank: u32,
    /// Time of the call on the host. The count is that of launches.
    pub call_us: Spread,
    /// Time of the kernels of a launch on the device.
    pub kernel_us: Spread,
    /// Time from the end of the call to the start of its kernel; 0 if the kernel started before.
    pub delay_us: Spread,
    /// Launches that take less time on the device than on the host, with a call of at most 50 us.
    pub short_kernels: u64,
    /// Launches with a call of more than 50 us.
    pub slow_calls: u64,
    /// Launches with a delay of more than 100 us.
    pub late_kernels: u64,
}

/// Queue of one stream: operations that were launched and have not begun.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueFigures {
    /// Global rank.
    pub rank: u32,
    /// Number of the stream.
    pub stream: i64,
    /// Lengths after each change.
    pub lengths: Spread,
    /// Time in microseconds in which the queue has 1024 operations or more, so that the next call blocks.
    pub full_us: f64,
}

/// Copies and fills of memory of one kind on one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CopyFigures {
    /// Global rank.
    pub rank: u32,
    /// Kind, such as `Memcpy HtoD` or `Memset`.
    pub kind: String,
    /// Number of copies.
    pub copies: u64,
    /// Sum of the bytes that the trace states.
    pub bytes: u64,
    /// Time in microseconds in which at least one of them runs.
    pub busy_us: f64,
    /// Bandwidth of those that run together in GB/s (1e9 bytes), after each change at which it is above zero.
    pub gb_per_s: Spread,
}
