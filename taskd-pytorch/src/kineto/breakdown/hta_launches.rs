//! Launches, queues and bandwidth of copies by the rules of `HolisticTraceAnalysis` 0.5.0
//! (`analyzers/cuda_kernel_analysis.py`, `analyzers/trace_counters.py`).
//!
//! HTA joins rows by their correlation. A correlation counts for launches if a call of one of five names has it; all
//! rows of the host with it are then joined with all rows of the device. A call of one of eleven names counts for
//! queues; HTA fails if two of them have one correlation, or if a call has no row of a stream any more.

use super::bandwidth::{self, Copy, CopyBandwidth};
use super::hta::{Kernel, Launch};
use super::hta_idle::Rows;
use super::idle::STREAMS_MAX;
use super::kernels::Kernels;
use super::launches::{LAUNCHES_MAX, LaunchList, LaunchTimes};
use super::queues::{QueueLengths, Queues};

/// Calls by their names, as HTA selects them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CallName {
    /// Counts neither for launches nor for queues.
    Other,
    /// Counts for queues only.
    Queue,
    /// Counts for both.
    Launch,
}

impl CallName {
    /// Returns what a call of this name counts for (`get_runtime_launch_events_query`, `cuda_kernel_launch_stats`).
    #[inline]
    pub(super) fn of(name: &[u8]) -> Self {
        match name {
            b"cudaLaunchKernel"
            | b"cudaLaunchKernelExC"
            | b"cudaMemcpyAsync"
            | b"cudaMemsetAsync"
            | b"runFunction - job_prep_and_submit_for_execution" => Self::Launch,
            b"cuLaunchKernel"
            | b"hipLaunchKernel"
            | b"hipExtModuleLaunchKernel"
            | b"hipMemsetAsync"
            | b"hipMemcpyAsync"
            | b"hipMemcpyWithStream" => Self::Queue,
            _ => Self::Other,
        }
    }
}

/// A copy by its name, with the index of its row among the kernels.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyRow {
    pub(super) kernel: u32,
    pub(super) bytes: u64,
    /// GB/s.
    pub(super) rate: f64,
}

/// Figures of launches and queues.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) launches: LaunchTimes,
    /// `None`: HTA's own computation fails.
    pub(super) queues: Option<Vec<QueueLengths>>,
    /// Correlations at which it fails.
    pub(super) fails: u64,
    /// Joined rows that were not kept.
    pub(super) lost: u64,
}

impl Rows<'_> {
    /// Returns the number of rows that a kernel has after HTA dropped the last step.
    fn times_of(&self, index: usize) -> usize {
        self.dropped.map_or(1, |(times, _)| times.get(index).copied().unwrap_or(0)) as usize
    }

    /// Joins calls and kernels.
    pub(super) fn join(&self) -> Joined {
        let mut order: Vec<u32> = (0..).take(self.kernels.len()).collect();
        order.retain(|index| self.kernels.get(*index as usize).is_some_and(|kernel| kernel.correlation >= 0));
        order.sort_by_key(|index| self.kernels.get(*index as usize).map_or(0, |kernel| kernel.correlation));
        let mut joining = Joining::default();
        let mut rest = order.as_slice();
        for calls in self.launches.chunk_by(|one, other| one.correlation == other.correlation) {
            let Some(correlation) = calls.first().map(|call| call.correlation).filter(|number| *number >= 0) else {
                continue;
            };
            let skipped = rest.partition_point(|index| self.correlation(*index) < correlation);
            let (_, from) = rest.split_at(skipped);
            let (of_calls, after) =
                from.split_at(from.partition_point(|index| self.correlation(*index) == correlation));
            rest = after;
            self.join_correlation(calls, of_calls, &mut joining);
        }
        let Joining { list, queues, fails, lost, .. } = joining;
        let lost = lost + queues.lost;
        Joined { launches: list.finish(), queues: (fails == 0).then(|| queues.finish(1000)), fails, lost }
    }

    fn correlation(&self, index: u32) -> i64 {
        self.kernels.get(index as usize).map_or(-1, |kernel| kernel.correlation)
    }

    /// Joins the calls and the kernels of one correlation.
    fn join_correlation(&self, calls: &[Launch], kernels: &[u32], joining: &mut Joining) {
        let is_kept = |call: &&Launch| self.dropped.is_none_or(|(_, last_step)| call.start < last_step);
        let kernel = |index: &u32| Some((self.kernels.get(*index as usize)?, self.times_of(*index as usize)));
        let (host, device): (Vec<_>, Vec<_>) = kernels.iter().filter_map(kernel).partition(|row| row.0.stream == -1);
        let rows: usize = device.iter().map(|row| row.1).sum();
        if calls.iter().filter(is_kept).any(|call| call.name == CallName::Launch) {
            let synchronizations = host.iter().flat_map(|row| std::iter::repeat_n((row.0.start, row.0.end), row.1));
            for (start, end) in calls.iter().filter(is_kept).map(|call| (call.start, call.end)).chain(synchronizations)
            {
                if joining.list.len() >= LAUNCHES_MAX {
                    joining.lost += rows as u64;
                    continue;
                }
                for (kernel, times) in &device {
                    joining.launch(end - start, kernel.end - kernel.start, kernel.start - end, *times);
                }
            }
        }
        // `index_correlation > 0`: the call has a row of the device, which may be in a step that is dropped.
        if !kernels.is_empty() {
            let mut queued = calls.iter().filter(is_kept).filter(|call| call.name != CallName::Other);
            match (queued.next(), queued.next()) {
                (None, _) => {}
                (Some(call), None) if rows > 0 => {
                    device.iter().for_each(|(kernel, times)| joining.queue(kernel, call.start, *times));
                }
                _ => joining.fails += 1,
            }
        }
    }

    /// Returns the bandwidth of copies. `copies` are in the order of the kernels.
    pub(super) fn bandwidth(&self, copies: &[CopyRow], names: &Kernels) -> Vec<CopyBandwidth> {
        let row = |copy: &CopyRow| {
            let kernel = self.kernels.get(copy.kernel as usize).filter(|kernel| kernel.stream != -1)?;
            let Kernel { name, start, end, is_launched, .. } = *kernel;
            let row = Copy { name, start, end, bytes: copy.bytes, rate: copy.rate };
            Some((is_launched || self.dropped.is_none(), row, self.times_of(copy.kernel as usize)))
        };
        // HTA appends what no call launched to the launched kernels when it drops a step.
        let (launched, others): (Vec<_>, Vec<_>) = copies.iter().filter_map(row).partition(|row| row.0);
        let rows = launched.into_iter().chain(others);
        let rows = rows.flat_map(|(_, row, times)| std::iter::repeat_n(row, times)).take(bandwidth::COPIES_MAX);
        bandwidth::of_hta(rows.collect(), |number| names.name(number))
    }
}

/// State of the join.
#[derive(Debug)]
struct Joining {
    list: LaunchList,
    queues: Queues,
    fails: u64,
    lost: u64,
    queued: usize,
}

impl Default for Joining {
    fn default() -> Self {
        Self { list: LaunchList::default(), queues: Queues::new(STREAMS_MAX), fails: 0, lost: 0, queued: 0 }
    }
}

impl Joining {
    /// Adds equal rows of a queue. Times are in microseconds.
    fn queue(&mut self, kernel: &Kernel, call: i64, times: usize) {
        let kept = times.min(LAUNCHES_MAX.saturating_sub(self.queued));
        self.queued += kept;
        self.lost += (times - kept) as u64;
        (0..kept).for_each(|_| self.queues.add(kernel.stream, call, kernel.start));
    }

    /// Adds equal rows of launches. Times are in microseconds.
    fn launch(&mut self, call: i64, kernel: i64, delay: i64, times: usize) {
        let kept = times.min(LAUNCHES_MAX.saturating_sub(self.list.len()));
        self.lost += (times - kept) as u64;
        for _ in 0..kept {
            self.list.add(call.saturating_mul(1000), kernel.saturating_mul(1000), delay.saturating_mul(1000));
        }
    }
}
