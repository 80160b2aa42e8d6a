//! Idle time of each stream of a device, by cause.
//!
//! A gap between two kernels of a stream is a *host wait* if the call that launched the second kernel began after the
//! first one had ended: the host was late. Otherwise it is a *kernel wait* if it is shorter than [`KERNEL_WAIT_NS`]: the
//! device needs that to begin a queued kernel. Any other gap is *other*: for example a wait for an event of another
//! stream. The rules are those of `HolisticTraceAnalysis` 0.5.0 (`analyzers/breakdown_analysis.py`,
//! `_analyze_idle_time_for_stream`).

use super::launches::Launches;
use serde::Serialize;
use std::collections::BTreeMap;

/// Gaps below this length are kernel waits, in nanoseconds. HTA documents 30 ns, but compares the number with
/// microseconds: in effect its limit is 30 us, and a limit of 30 ns would find no gap.
pub const KERNEL_WAIT_NS: i64 = 30_000;

/// Gaps that are kept per rank in the exact mode. Further ones are counted and reported.
pub const IDLE_MAX: usize = 20_000_000;

/// Streams that are kept per rank. Kernels of further ones are counted and reported.
pub const STREAMS_MAX: usize = 4096;

/// Idle time of one stream between its first and its last kernel. Times are in nanoseconds; in HTA mode they are
/// multiples of 1000 and can be negative, because HTA subtracts overlaps of kernels of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StreamIdle {
    /// Number of the stream.
    pub stream: i64,
    /// Time in which the stream waited for the host.
    pub host_wait_ns: i64,
    /// Number of these gaps.
    pub host_waits: u64,
    /// Time between kernels that were queued in time.
    pub kernel_wait_ns: i64,
    /// Number of these gaps.
    pub kernel_waits: u64,
    /// Time of the other gaps.
    pub other_ns: i64,
    /// Number of the other gaps.
    pub others: u64,
}

impl StreamIdle {
    /// Adds a gap. `launch` is the start of the call that launched the kernel after the gap, if it is known.
    pub(super) fn add(&mut self, end_before: i64, start: i64, launch: Option<i64>, kernel_wait: i64) {
        let gap = start.saturating_sub(end_before);
        let (sum, count) = if launch.is_some_and(|launch| launch > end_before) {
            (&mut self.host_wait_ns, &mut self.host_waits)
        } else if gap < kernel_wait {
            (&mut self.kernel_wait_ns, &mut self.kernel_waits)
        } else {
            (&mut self.other_ns, &mut self.others)
        };
        *sum = sum.saturating_add(gap);
        *count += 1;
    }
}

/// Kernels without a gap between them, as one.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: i64,
    end: i64,
    /// Correlation of the first kernel; -1: it has none.
    correlation: i64,
}

/// Collects what the exact mode needs. Memory: 24 bytes for each gap of a stream.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    streams: BTreeMap<i64, Vec<Run>>,
    runs: usize,
    /// Kernels that were not kept.
    pub(super) lost: u64,
}

impl Gaps {
    /// Adds a kernel, copy or fill.
    #[inline]
    pub(super) fn kernel(&mut self, stream: i64, start: i64, end: i64, correlation: i64) {
        if let Some(runs) = self.streams.get_mut(&stream) {
            // Kernels of a stream are almost always in order.
            if let Some(last) = runs.last_mut()
                && last.start <= start
                && start <= last.end
            {
                last.end = last.end.max(end);
                return;
            }
            if self.runs < IDLE_MAX {
                self.runs += 1;
                runs.push(Run { start, end, correlation });
                return;
            }
        } else if self.streams.len() < STREAMS_MAX && self.runs < IDLE_MAX {
            self.runs += 1;
            self.streams.insert(stream, vec![Run { start, end, correlation }]);
            return;
        }
        self.lost += 1;
    }

    /// Returns the idle time of each stream, in the order of their numbers. The calls are sorted.
    pub(super) fn finish(self, launches: &Launches) -> Vec<StreamIdle> {
        let idle_of = |(stream, mut runs): (i64, Vec<Run>)| {
            runs.sort_by_key(|run| run.start);
            let mut idle = StreamIdle { stream, ..StreamIdle::default() };
            let mut busy_until = None;
            for run in runs {
                if let Some(end) = busy_until
                    && run.start > end
                {
                    idle.add(end, run.start, launches.call_of(run.correlation), KERNEL_WAIT_NS);
                }
                busy_until = busy_until.max(Some(run.end));
            }
            idle
        };
        self.streams.into_iter().map(idle_of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_assigned_to_host_device_and_others() {
        let (mut gaps, mut launches) = (Gaps::default(), Launches::default());
        // The second kernel is launched late, the third in time, the fourth in time but begins 50 us later.
        for (correlation, launch) in [(1, 0), (2, 25_000), (3, 26_000), (4, 27_000)] {
            launches.call(correlation, launch, None);
        }
        launches.sort();
        for (start, end, correlation) in [(10_000, 20_000, 1), (30_000, 40_000, 2), (41_000, 50_000, 3)] {
            gaps.kernel(7, start, end, correlation);
        }
        gaps.kernel(7, 100_000, 110_000, 4);
        let idle = StreamIdle {
            stream: 7,
            host_wait_ns: 10_000,
            host_waits: 1,
            kernel_wait_ns: 1_000,
            kernel_waits: 1,
            other_ns: 50_000,
            others: 1,
        };
        assert_eq!(gaps.finish(&launches), [idle]);
    }

    #[test]
    fn overlapping_kernels_leave_no_gap_in_any_order() {
        let kernels = [(0, 100), (20, 30), (50, 140), (140, 150), (160, 170)];
        for first in 0..kernels.len() {
            let mut gaps = Gaps::default();
            for (start, end) in kernels.iter().cycle().skip(first).take(kernels.len()) {
                gaps.kernel(1, *start, *end, -1);
            }
            let idle = gaps.finish(&Launches::default());
            assert_eq!((idle[0].kernel_wait_ns, idle[0].kernel_waits), (10, 1), "from {first}");
            assert_eq!(idle[0].host_waits + idle[0].others, 0);
        }
    }
}
