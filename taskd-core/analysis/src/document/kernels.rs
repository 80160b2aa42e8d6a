//! Kernels of each rank's device: busy and idle time, and durations by name.

use super::LaunchRules;
use serde::{Deserialize, Serialize};

/// Rows of kernels that a document keeps for each set of rules; each rank keeps its equal share, and at least ten.
pub const KERNEL_ROWS_MAX: usize = 20_000;
/// Names of kernels of which a document keeps the sums over all ranks.
pub const KERNEL_TOTALS_MAX: usize = 2_000;
/// Letters of a kernel's name that are kept.
pub const KERNEL_NAME_MAX: usize = 240;

/// Figures of kernels, by one or two sets of rules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelFigures {
    /// The figures by each set of rules, those of this tool first; empty: the trace has no kernels.
    pub rules: Vec<KernelRules>,
    /// Where the sets of rules differ, and why, each as a sentence; empty for one set.
    pub differences: Vec<String>,
}

/// Figures by one set of rules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelRules {
    /// Name of the rules: `exact` (integer nanoseconds of the whole trace), or the name of the tool that has the rules,
    /// such as `hta`.
    pub name: String,
    /// The ranks with kernels, sorted by number.
    pub devices: Vec<DeviceTimes>,
    /// Mean number of steps in the ranks' traces; 0: unknown.
    pub steps: f64,
    /// Names to which the kernels refer by index. A longer name than [`KERNEL_NAME_MAX`] letters ends with an ellipsis.
    pub names: Vec<String>,
    /// The kernels of each rank, sorted by rank, class and sum.
    pub kernels: Vec<KernelTimes>,
    /// Number of rows that `kernels` lacks because of [`KERNEL_ROWS_MAX`].
    pub left_out: u64,
    /// The kernels of all ranks together, those with the largest sums first.
    pub totals: Vec<KernelTotal>,
    /// Number of names that `totals` lacks because of [`KERNEL_TOTALS_MAX`].
    pub totals_left_out: u64,
    /// Launches, queues, copies and annotations; empty if the reader of the trace does not have them.
    #[serde(default)]
    pub host: LaunchRules,
}

/// Busy and idle time of a rank's device from the start of its first kernel to the end of its last one, in
/// microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceTimes {
    /// Global rank.
    pub rank: u32,
    /// Number of kernels, copies and fills that count.
    pub kernels: u64,
    /// The whole time.
    pub range_us: f64,
    /// Time in which at least one kernel, copy or fill runs.
    pub busy_us: f64,
    /// Time in which none runs.
    pub idle_us: f64,
    /// Time in which at least one computation runs.
    pub compute_us: f64,
    /// Time in which at least one communication runs.
    pub communication_us: f64,
    /// Time in which at least one copy or fill runs.
    pub memory_us: f64,
    /// Time in which computation and communication run.
    pub overlap_us: f64,
    /// Sum over the streams: time in which a stream waits because the host has not launched its next kernel yet;
    /// `None`: the trace does not have the launches.
    pub host_wait_us: Option<f64>,
    /// Sum over the streams: short time between kernels that were launched in time.
    pub kernel_wait_us: Option<f64>,
    /// Sum over the streams: other gaps, such as a wait for another stream.
    pub other_wait_us: Option<f64>,
}

/// Kernels, or annotations, of one name on one rank. Times are in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelTimes {
    /// Global rank.
    pub rank: u32,
    /// Class of the kernel: `communication`, `compute`, `memory` or `other`; place of the annotation: `device` or
    /// `host`.
    pub class: String,
    /// Index in [`KernelRules::names`].
    pub name: u32,
    /// Number of kernels. By HTA's rules the number of sums, in a class of which HTA puts names together.
    pub count: u64,
    /// Sum of the durations.
    pub sum_us: f64,
    /// Shortest duration.
    pub min_us: f64,
    /// Longest duration.
    pub max_us: f64,
    /// Mean of the durations.
    pub mean_us: f64,
    /// Standard deviation of the durations, of a sample; 0 for one kernel.
    pub deviation_us: f64,
}

/// Kernels of one name on all ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelTotal {
    /// Class of the kernel, as in [`KernelTimes`].
    pub class: String,
    /// Index in [`KernelRules::names`].
    pub name: u32,
    /// Number of kernels, as in [`KernelTimes::count`].
    pub count: u64,
    /// Sum of the durations in microseconds.
    pub sum_us: f64,
}
