//! Idle time per stream by the rules of `HolisticTraceAnalysis` 0.5.0 (`analyzers/breakdown_analysis.py`,
//! `get_idle_time_breakdown`).
//!
//! HTA looks for the launch of a kernel by the number of its row (`common/trace.py`, `transform_correlation_to_index`). Of
//! several calls with the kernel's correlation the last one in the file counts, and a kernel without one is linked to the
//! first row of the file.

use super::hta::{Kernel, Launch};
use super::idle::{KERNEL_WAIT_NS, StreamIdle};

/// The first event of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstRow {
    pub(super) start: i64,
    /// HTA selects the row by its launch.
    pub(super) is_launched: bool,
}

/// What HTA knows when it looks for launches. `launches` are in the order of correlation.
pub(super) struct Rows<'a> {
    pub(super) kernels: &'a [Kernel],
    pub(super) launches: &'a [Launch],
    pub(super) first_row: Option<FirstRow>,
    /// Number of rows of each kernel and start of the last step, if HTA drops the last step.
    pub(super) dropped: Option<(&'a [u32], i64)>,
}

/// A row of a stream, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    stream: i64,
    start: i64,
    end: i64,
    launch: Option<i64>,
}

impl Rows<'_> {
    /// Returns the idle time of each stream, and the number of equal starts for which it depends on the order of HTA's
    /// sort, which is not stable.
    pub(super) fn idle(&self) -> (Vec<StreamIdle>, u64) {
        let mut rows = self.rows();
        rows.sort_by_key(|row| (row.stream, row.start));
        let mut ambiguous = 0;
        let idle = rows
            .chunk_by_mut(|one, other| one.stream == other.stream)
            .map(|rows| {
                let idle = of_stream(rows);
                ambiguous += reordered(rows, &idle);
                idle
            })
            .collect();
        (idle, ambiguous)
    }

    /// Returns the rows in HTA's order.
    fn rows(&self) -> Vec<Row> {
        let times = |index: usize| self.dropped.map_or(1, |(times, _)| times.get(index).copied().unwrap_or(0));
        let mut rows = Vec::with_capacity(self.kernels.len());
        let mut add = |index: usize, kernel: &Kernel| {
            if !kernel.is_activity || kernel.stream == -1 {
                return;
            }
            let Kernel { stream, start, end, .. } = *kernel;
            let row = Row { stream, start, end, launch: self.launch_of(kernel) };
            rows.extend(std::iter::repeat_n(row, times(index) as usize));
        };
        // HTA appends the calls, and kernels that no call launched, to the launched kernels when it drops a step.
        for is_launched in [true, false] {
            for (index, kernel) in self.kernels.iter().enumerate() {
                if self.dropped.is_none() && is_launched || self.dropped.is_some() && kernel.is_launched == is_launched
                {
                    add(index, kernel);
                }
            }
        }
        rows
    }

    /// Returns the start of the row that HTA takes for the kernel's launch, unless HTA dropped that row.
    fn launch_of(&self, kernel: &Kernel) -> Option<i64> {
        if !kernel.is_launched || kernel.correlation < 0 {
            return None;
        }
        let is_kept = |start: &i64| self.dropped.is_none_or(|(_, last_step)| *start < last_step);
        let first = self.launches.partition_point(|launch| launch.correlation < kernel.correlation);
        let of_kernel = self.launches.iter().skip(first).take_while(|launch| launch.correlation == kernel.correlation);
        match of_kernel.max_by_key(|launch| launch.row) {
            Some(last) => Some(last.start).filter(is_kept),
            None => self.first_row.filter(|row| row.is_launched || is_kept(&row.start)).map(|row| row.start),
        }
    }
}

fn of_stream(rows: &[Row]) -> StreamIdle {
    let mut idle = StreamIdle { stream: rows.first().map_or(-1, |row| row.stream), ..StreamIdle::default() };
    for pair in rows.windows(2) {
        let [before, row] = pair else { continue };
        idle.add(before.end, row.start, row.launch, KERNEL_WAIT_NS / 1000);
    }
    for time in [&mut idle.host_wait_ns, &mut idle.kernel_wait_ns, &mut idle.other_ns] {
        *time = time.saturating_mul(1000);
    }
    idle
}

/// Returns the number of equal starts if another order of their rows yields other figures. The order of the rows changes.
fn reordered(rows: &mut [Row], idle: &StreamIdle) -> u64 {
    let mut ties = 0;
    let mut large = 0;
    for tied in rows.chunk_by_mut(|one, other| one.start == other.start).filter(|tied| tied.len() > 1) {
        ties += 1;
        // Two rows have two orders; of more rows not all orders are tried.
        large += u64::from(tied.len() > 2 && tied.windows(2).any(|pair| pair[0] != pair[1]));
        tied.reverse();
    }
    if ties > 0 && of_stream(rows) != *idle { ties } else { large }
}
