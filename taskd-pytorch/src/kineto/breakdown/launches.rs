//! Launches: how long the calls of the runtime take, how long their kernels run, and how long a kernel waits for its
//! begin after its call has ended.
//!
//! The rules are those of `HolisticTraceAnalysis` 0.5.0 (`analyzers/cuda_kernel_analysis.py`,
//! `cuda_kernel_launch_stats`). The exact mode counts every call that launched a kernel, HTA only calls of certain
//! names; a call of several kernels (a CUDA graph) is one launch in the exact mode, with the first start and the sum of
//! the durations of its kernels.

use super::idle::STREAMS_MAX;
use super::queues::{QueueLengths, Queues};
use super::statistics::Statistics;
use serde::Serialize;

/// Calls that last longer are slow: HTA's default, in nanoseconds.
pub const SLOW_CALL_NS: i64 = 50_000;

/// Kernels that begin later than this after the end of their call are late: HTA's default, in nanoseconds.
pub const LATE_KERNEL_NS: i64 = 100_000;

/// Calls and kernels that are kept per rank in the exact mode, each. Further ones are counted and reported.
pub const LAUNCHES_MAX: usize = 20_000_000;

/// Calls of one rank that launched kernels. Times are in nanoseconds; in HTA mode they are multiples of 1000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LaunchTimes {
    /// Time of the call on the host. The count is that of launches.
    pub call_ns: Statistics,
    /// Time of its kernels on the device. In HTA mode a kernel of 0.3 us can last -1 us.
    pub kernel_ns: Statistics,
    /// Time from the end of the call to the start of its kernel; 0 if the kernel started before the call ended.
    pub delay_ns: Statistics,
    /// Launches with a shorter time on the device than on the host, and a call that is not slow.
    pub short_kernels: u64,
    /// Launches with a call of more than [`SLOW_CALL_NS`].
    pub slow_calls: u64,
    /// Launches with a delay of more than [`LATE_KERNEL_NS`].
    pub late_kernels: u64,
}

/// Times of launches, one by one, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct LaunchList {
    calls: Vec<i64>,
    kernels: Vec<i64>,
    delays: Vec<i64>,
    times: LaunchTimes,
}

impl LaunchList {
    pub(super) const fn len(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn add(&mut self, call: i64, kernel: i64, delay: i64) {
        let delay = delay.max(0);
        self.calls.push(call);
        self.kernels.push(kernel);
        self.delays.push(delay);
        self.times.short_kernels += u64::from(call <= SLOW_CALL_NS && kernel < call);
        self.times.slow_calls += u64::from(call > SLOW_CALL_NS);
        self.times.late_kernels += u64::from(delay > LATE_KERNEL_NS);
    }

    pub(super) fn finish(mut self) -> LaunchTimes {
        let [call_ns, kernel_ns, delay_ns] =
            [&mut self.calls, &mut self.kernels, &mut self.delays].map(|values| Statistics::of(values));
        LaunchTimes { call_ns, kernel_ns, delay_ns, ..self.times }
    }
}

/// A call of the runtime. The order is that of correlations, then of starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Call {
    correlation: i64,
    start: i64,
    /// -1: unknown.
    duration: i64,
}

/// A kernel, copy or fill. The order is that of correlations, then of streams, then of starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kernel {
    correlation: i64,
    stream: i64,
    start: i64,
    duration: i64,
}

/// Collects what the exact mode needs. Memory: 24 bytes for each call of the runtime, 32 for each kernel.
#[derive(Debug, Default)]
pub(super) struct Launches {
    calls: Vec<Call>,
    kernels: Vec<Kernel>,
    /// Kernels and calls that were not kept.
    pub(super) lost: u64,
}

impl Launches {
    /// Adds a call of the runtime. `duration` is `None` if it is unknown.
    #[inline]
    pub(super) fn call(&mut self, correlation: i64, start: i64, duration: Option<u64>) {
        if self.calls.len() < LAUNCHES_MAX {
            let duration = duration.map_or(-1, |duration| i64::try_from(duration).unwrap_or(i64::MAX));
            self.calls.push(Call { correlation, start, duration });
        } else {
            self.lost += 1;
        }
    }

    /// Adds a kernel, copy or fill.
    #[inline]
    pub(super) fn kernel(&mut self, correlation: i64, stream: i64, start: i64, duration: i64) {
        if self.kernels.len() < LAUNCHES_MAX {
            self.kernels.push(Kernel { correlation, stream, start, duration });
        } else {
            self.lost += 1;
        }
    }

    /// Sorts the calls. Of several calls with one correlation only the first one counts: the outermost.
    pub(super) fn sort(&mut self) {
        self.calls.sort_unstable();
        self.calls.dedup_by_key(|call| call.correlation);
    }

    /// Returns true if there are calls of the runtime.
    pub(super) const fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Returns the start of the call with this correlation. The calls are sorted.
    pub(super) fn call_of(&self, correlation: i64) -> Option<i64> {
        let found = self.calls.binary_search_by_key(&correlation, |call| call.correlation).ok()?;
        self.calls.get(found).map(|call| call.start)
    }

    /// Returns the times of the launches, the queue of each stream, and the number of launches in queues beyond the
    /// limit. The calls are sorted.
    pub(super) fn finish(mut self) -> (LaunchTimes, Vec<QueueLengths>, u64) {
        self.kernels.sort_unstable();
        let mut list = LaunchList::default();
        let mut queues = Queues::new(STREAMS_MAX);
        let mut calls = self.calls.iter().peekable();
        for kernels in self.kernels.chunk_by(|one, other| one.correlation == other.correlation) {
            let Some(correlation) = kernels.first().map(|kernel| kernel.correlation) else { continue };
            while calls.next_if(|call| call.correlation < correlation).is_some() {}
            let Some(call) = calls.next_if(|call| call.correlation == correlation && call.duration >= 0) else {
                continue;
            };
            let first = kernels.iter().map(|kernel| kernel.start).min().unwrap_or(call.start);
            let duration = kernels.iter().map(|kernel| kernel.duration).fold(0, i64::saturating_add);
            list.add(call.duration, duration, first.saturating_sub(call.start.saturating_add(call.duration)));
            for of_stream in kernels.chunk_by(|one, other| one.stream == other.stream) {
                if let Some(kernel) = of_stream.first() {
                    queues.add(kernel.stream, call.start, kernel.start);
                }
            }
        }
        drop(calls);
        (self.calls, self.kernels) = (Vec::new(), Vec::new());
        let lost = queues.lost;
        (list.finish(), queues.finish(1), lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_has_the_times_of_its_call_and_kernels() {
        let mut launches = Launches::default();
        // In time; late, after a slow call; a graph of two kernels on two streams; a call without a kernel.
        launches.call(1, 0, Some(5_000));
        launches.call(2, 10_000, Some(60_000));
        launches.call(3, 80_000, Some(8_000));
        launches.call(4, 90_000, Some(9_000));
        launches.kernel(3, 20, 200_000, 2_000);
        launches.kernel(1, 7, 4_000, 1_000);
        launches.kernel(3, 7, 190_000, 3_000);
        launches.kernel(2, 7, 170_001, 90_000);
        launches.kernel(9, 7, 0, 90_000);
        launches.sort();
        let (times, queues, lost) = launches.finish();
        assert_eq!((times.call_ns.count, times.kernel_ns.count, lost), (3, 3, 0));
        assert_eq!((times.call_ns.min, times.call_ns.max), (5_000.0, 60_000.0));
        assert_eq!((times.kernel_ns.min, times.kernel_ns.median, times.kernel_ns.max), (1_000.0, 5_000.0, 90_000.0));
        assert_eq!((times.delay_ns.min, times.delay_ns.median, times.delay_ns.max), (0.0, 100_001.0, 102_000.0));
        assert_eq!((times.short_kernels, times.slow_calls, times.late_kernels), (2, 1, 2));
        let streams: Vec<(i64, u64, f64)> =
            queues.iter().map(|queue| (queue.stream, queue.lengths.count, queue.lengths.max)).collect();
        assert_eq!(streams, [(7, 6, 2.0), (20, 2, 1.0)]);
    }

    #[test]
    fn the_outermost_call_of_a_correlation_counts() {
        let mut launches = Launches::default();
        launches.call(1, 20, Some(5));
        launches.call(1, 10, Some(30));
        launches.call(2, 50, None);
        launches.kernel(1, 7, 45, 3);
        launches.kernel(2, 7, 60, 3);
        launches.sort();
        assert_eq!((launches.call_of(1), launches.call_of(2), launches.call_of(3)), (Some(10), Some(50), None));
        let (times, ..) = launches.finish();
        assert_eq!((times.call_ns.count, times.call_ns.max, times.delay_ns.max), (1, 30.0, 5.0));
    }
}
