//! HTA mode: the rules of `HolisticTraceAnalysis` 0.5.0, so that its tables can be compared with.
//!
//! Source of each rule is the file of HTA that is named beside it. The rules that change a figure most:
//! times become whole microseconds, starts upwards and ends downwards, so a short kernel has the duration 0 or -1
//! (`common/trace_parser.py`); a kernel counts only if a call before the start of the last `ProfilerStep` launched it
//! (`common/trace.py`); the type of a kernel follows from its name alone (`utils/utils.py`).

use super::hta_idle::{FirstRow, Rows};
use super::intervals::running;
use super::kernels::Kernels;
use super::{Class, KernelRow, Label, RankBreakdown, StreamIdle};
use crate::kineto::classify;
use crate::kineto::decimal;
use crate::kineto::document::Sink;
use crate::kineto::event::{DURATION_MAX_NS, RawEvent};
use memchr::memmem::Finder;
use std::collections::BTreeSet;
use taskd_core::analysis::decimal::ns_from_us;
use taskd_core::analysis::kernels::Durations;

/// Kernels and launches that are kept per rank, each. Further ones are counted and reported.
pub const HTA_KERNELS_MAX: usize = 20_000_000;

/// Distinct names of steps that are kept: HTA only asks for more than one.
const STEP_NAMES_MAX: usize = 2;

/// Kernel names of a class that HTA's table lists on their own, unless it is configured.
const NAMES_LISTED: usize = 10;

/// Name of the row in which HTA's table puts the other names of a class together.
pub(super) const OTHERS: &str = "others";

/// A kernel in whole microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) correlation: i64,
    /// -1: none; the row only has a number.
    pub(super) stream: i64,
    name: u32,
    /// Selected by the launch, not by the start.
    pub(super) is_launched: bool,
    /// A kernel, copy or fill by its category.
    pub(super) is_activity: bool,
}

/// A call of the device's runtime, in whole microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Launch {
    pub(super) correlation: i64,
    pub(super) start: i64,
    /// Number of the event in the file.
    pub(super) row: u32,
}

/// Figures that depend on the order of HTA's sort.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ambiguous {
    /// Equal starts for the busy time.
    pub(super) starts: u64,
    /// Equal starts for the idle time per stream.
    pub(super) gaps: u64,
    /// Synchronizations without a correlation: HTA repeats each once for every call without one, which this mode does
    /// not keep.
    pub(super) repeated: u64,
}

/// What is kept of a file while it is read.
#[derive(Debug)]
pub(super) struct Hta {
    kernels: Vec<Kernel>,
    names: Kernels,
    launches: Vec<Launch>,
    /// Events up to now.
    rows: u32,
    first_row: Option<FirstRow>,
    last_step: Option<i64>,
    /// First names of steps.
    pub(super) step_names: BTreeSet<Box<[u8]>>,
    step_name: Finder<'static>,
    /// HTA rounds the times of a file if one start is not an integer.
    is_rounded: bool,
    /// Durations with a fraction.
    fractions: u64,
    /// Kernels and launches that were not kept.
    pub(super) lost: u64,
    pub(super) unreadable: u64,
}

impl Default for Hta {
    fn default() -> Self {
        Self {
            kernels: Vec::new(),
            names: Kernels::default(),
            launches: Vec::new(),
            rows: 0,
            first_row: None,
            last_step: None,
            step_names: BTreeSet::new(),
            step_name: Finder::new("ProfilerStep"),
            is_rounded: false,
            fractions: 0,
            lost: 0,
            unreadable: 0,
        }
    }
}

impl Sink for Hta {
    #[inline]
    fn event(&mut self, event: &RawEvent<'_>) {
        let row = self.rows;
        self.rows = row.saturating_add(1);
        self.is_rounded = self.is_rounded || event.start.is_none_or(decimal::is_float);
        let (Some(duration), Some(category)) = (event.duration, event.category) else { return };
        if category.raw == b"Trace" {
            return;
        }
        let name = event.name.bytes();
        let name = &*name;
        let is_step = self.step_name.find(name).is_some();
        let (stream, correlation) = (number(event.stream), number(event.correlation));
        if row > 0 && !is_step && stream == -1 && correlation == -1 {
            return;
        }
        let Some((start, end)) = rounded(event, duration) else {
            self.unreadable += 1;
            return;
        };
        self.fractions += u64::from(decimal::is_float(duration));
        if is_step && self.step_names.len() < STEP_NAMES_MAX && !self.step_names.contains(name) {
            self.step_names.insert(name.into());
        }
        // common/trace_filter.py: GPUKernelFilter, CPUOperatorFilter
        let is_launched = stream >= 0 && correlation >= 0 || matches!(name, b"Event Sync" | b"Context Sync");
        if row == 0 {
            self.first_row = Some(FirstRow { start, is_launched });
        }
        if !is_launched {
            if is_step {
                self.last_step = self.last_step.max(Some(start));
            }
            if correlation != -1 {
                self.keep_launch(Launch { correlation, start, row });
            }
        }
        if stream != -1 || is_launched {
            let (name, _) = self.names.number(0, name, || class(name));
            let is_activity = classify::device(category.raw).is_some() || category.raw == b"mtia_ccp_events";
            self.keep_kernel(Kernel { start, end, correlation, stream, name, is_launched, is_activity });
        }
    }
}

/// Returns an argument as an integer, as HTA reads it; -1 if it is absent or no number.
#[inline]
fn number(value: Option<&[u8]>) -> i64 {
    value.and_then(decimal::integer).unwrap_or(-1)
}

/// Returns the start, rounded up, and the end, rounded down, in microseconds. As in HTA the end is a sum of two floats.
#[inline]
fn rounded(event: &RawEvent<'_>, duration: &[u8]) -> Option<(i64, i64)> {
    let start = decimal::as_float(event.start?, event.start_ns()?);
    let nanoseconds = ns_from_us(duration).filter(|duration| duration.unsigned_abs() <= DURATION_MAX_NS)?;
    let duration = decimal::as_float(duration, nanoseconds);
    #[allow(clippy::cast_possible_truncation, reason = "a cast of a float saturates; times are below 2^53")]
    Some((start.ceil() as i64, (start + duration).floor() as i64))
}

/// Returns the type of a kernel by HTA's regular expressions (`utils/utils.py`): `^nccl.*Kernel`, `^Memcpy`, `^Memset`,
/// `^dma`; and no computation if it matches `.*Memcpy` or `.*Sync`.
fn class(name: &[u8]) -> Class {
    let line = name.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let has = |part: &str| memchr::memmem::find(line, part.as_bytes()).is_some();
    if line.strip_prefix(b"nccl").is_some_and(|rest| memchr::memmem::find(rest, b"Kernel").is_some()) {
        Class::Communication
    } else if [b"Memcpy".as_slice(), b"Memset", b"dma"].iter().any(|prefix| line.starts_with(prefix)) {
        Class::Memory
    } else if has("Memcpy") || has("Sync") {
        Class::Other
    } else {
        Class::Compute
    }
}

impl Hta {
    fn keep_launch(&mut self, launch: Launch) {
        if self.launches.len() < HTA_KERNELS_MAX {
            self.launches.push(launch);
        } else {
            self.lost += 1;
        }
    }

    fn keep_kernel(&mut self, kernel: Kernel) {
        if self.kernels.len() < HTA_KERNELS_MAX {
            self.kernels.push(kernel);
        } else {
            self.lost += 1;
        }
    }

    /// Returns true if HTA's own reading of the file gives fractions of microseconds, which this mode does not reproduce:
    /// all starts are integers, and a duration is not.
    pub(super) const fn has_fractions(&self) -> bool {
        !self.is_rounded && self.fractions > 0
    }

    /// Returns the number of rows that each kernel has after HTA dropped the last step: one for each call with its
    /// correlation (`common/trace.py`, `_filter_irrelevant_gpu_kernels`).
    fn times(&self, last_step: i64) -> Vec<u32> {
        let times = |kernel: &Kernel| {
            if kernel.is_launched && kernel.correlation >= 0 {
                let first = self.launches.partition_point(|launch| launch.correlation < kernel.correlation);
                let of_kernel =
                    self.launches.iter().skip(first).take_while(|launch| launch.correlation == kernel.correlation);
                u32::try_from(of_kernel.filter(|launch| launch.start < last_step).count()).unwrap_or(u32::MAX)
            } else {
                u32::from(kernel.is_launched || kernel.start < last_step)
            }
        };
        self.kernels.iter().map(times).collect()
    }

    /// Returns the idle time per stream and its ambiguous starts, and drops and repeats the kernels as HTA does.
    fn select(&mut self, drops_last_step: bool) -> (Vec<StreamIdle>, u64) {
        self.launches.sort_unstable();
        let last_step = self.last_step.unwrap_or(i64::MIN);
        let times = drops_last_step.then(|| self.times(last_step));
        let dropped = times.as_deref().map(|times| (times, last_step));
        let rows = Rows { kernels: &self.kernels, launches: &self.launches, first_row: self.first_row, dropped };
        let idle = rows.idle();
        self.launches = Vec::new();
        if let Some(times) = times {
            let kernels = std::mem::take(&mut self.kernels);
            let repeated = kernels.iter().zip(times);
            self.kernels = repeated.flat_map(|(kernel, times)| std::iter::repeat_n(*kernel, times as usize)).collect();
        }
        self.kernels.retain(|kernel| kernel.stream != -1);
        idle
    }

    /// Returns the breakdown, and what of it depends on the order of equal starts in HTA's own figures;
    /// `None` if no kernel is left. `drops_last_step` is true if the traces of all ranks together have at least two
    /// steps.
    pub(super) fn finish(mut self, rank: u32, drops_last_step: bool) -> Option<(RankBreakdown, Ambiguous)> {
        let is_repeated = |kernel: &&Kernel| {
            drops_last_step && kernel.is_launched && kernel.is_activity && kernel.correlation < 0 && kernel.stream != -1
        };
        let repeated = self.kernels.iter().filter(is_repeated).count() as u64;
        let has_launches = !self.launches.is_empty();
        let (streams, gaps) = self.select(drops_last_step);
        // HTA's sort is not stable; this one is.
        self.kernels.sort_by_key(|kernel| kernel.start);
        let is_ambiguous = |tied: &&[Kernel]| {
            let first = tied.first().map(|kernel| kernel.end);
            tied.iter().any(|kernel| kernel.end < kernel.start) && tied.iter().any(|kernel| Some(kernel.end) != first)
        };
        let ambiguous =
            self.kernels.chunk_by(|one, other| one.start == other.start).filter(is_ambiguous).count() as u64;
        let ambiguous = Ambiguous { starts: ambiguous, gaps, repeated };
        for kernel in &self.kernels {
            self.names.record(kernel.name, kernel.end - kernel.start, 1);
        }
        let of = |class: Option<Class>| {
            let wanted = |kernel: &&Kernel| class.is_none_or(|class| self.names.class(kernel.name) == class);
            merged(self.kernels.iter().filter(wanted).map(|kernel| (kernel.start, kernel.end)))
        };
        let all = of(None);
        let kernel_time = all.last()?.1 - all.first()?.0;
        let idle = kernel_time - sum(&all);
        let [compute, communication, memory] =
            [Class::Compute, Class::Communication, Class::Memory].map(|class| of(Some(class)));
        let compute_time = sum(&compute);
        // analyzers/communication_analysis.py: the time in which exactly one interval of each type runs.
        let both = running(&[(Label::COMPUTE, &compute), (Label::COMMUNICATION, &communication)]);
        let overlap =
            both.iter().filter(|row| row.0 == (Label::COMPUTE | Label::COMMUNICATION).status()).map(|row| row.1);
        let overlap: i64 = overlap.sum();
        // analyzers/breakdown_analysis.py: _get_gpu_kernel_type_time
        let lists = [(Label::COMPUTE, &*compute), (Label::COMMUNICATION, &communication), (Label::MEMORY, &memory)];
        let mut types: Vec<(Label, i64)> = Vec::new();
        for (status, time) in running(&lists).into_iter().filter(|row| row.0 > 0) {
            let label = Label::from_status(status);
            match types.iter_mut().find(|row| row.0 == label) {
                Some(row) => row.1 += time * 1000,
                None => types.push((label, time * 1000)),
            }
        }
        let breakdown = RankBreakdown {
            rank,
            count: self.kernels.len() as u64,
            kernel_time_ns: kernel_time * 1000,
            busy_ns: (kernel_time - idle) * 1000,
            idle_ns: idle * 1000,
            compute_ns: compute_time * 1000,
            communication_ns: sum(&communication) * 1000,
            memory_ns: sum(&memory) * 1000,
            overlap_ns: overlap * 1000,
            types,
            idle: streams,
            has_launches,
            steps: Vec::new(),
            kernels: table(&self.names, rank),
        };
        Some((breakdown, ambiguous))
    }
}

/// Merges intervals in the order of their starts (`utils/utils.py`, `merge_kernel_intervals`). Intervals may end before
/// they start.
fn merged(intervals: impl Iterator<Item = (i64, i64)>) -> Vec<(i64, i64)> {
    let mut out: Vec<(i64, i64)> = Vec::new();
    let mut latest = i64::MIN;
    for (start, end) in intervals {
        match out.last_mut() {
            Some(last) if start <= latest => last.1 = last.1.max(end),
            _ => out.push((start, end)),
        }
        latest = latest.max(end);
    }
    out
}

fn sum(intervals: &[(i64, i64)]) -> i64 {
    intervals.iter().map(|(start, end)| end - start).sum()
}

/// Returns HTA's table of kernels (`analyzers/breakdown_analysis.py`, `_aggr_gpu_kernel_time`). With more than ten names of
/// a type, its columns are statistics of the sums per name, not of durations.
fn table(names: &Kernels, rank: u32) -> Vec<KernelRow> {
    let mut rows = Vec::new();
    for class in [Class::Communication, Class::Compute, Class::Memory] {
        let mut of_class: Vec<(&[u8], Durations)> =
            names.iter().filter(|row| row.0 == class).map(|(_, name, durations)| (name, *durations)).collect();
        of_class.sort_by(|one, other| (-one.1.sum, one.0).cmp(&(-other.1.sum, other.0)));
        if of_class.len() > NAMES_LISTED {
            of_class = collapsed(&of_class);
        }
        of_class.sort_by(|one, other| one.0.cmp(other.0));
        rows.extend(of_class.into_iter().map(|(name, durations)| KernelRow {
            rank,
            class,
            name: String::from_utf8_lossy(name).into_owned(),
            count: durations.count,
            sum_ns: i64::try_from(durations.sum * 1000).unwrap_or(i64::MAX),
            min_ns: durations.min.saturating_mul(1000),
            max_ns: durations.max.saturating_mul(1000),
            mean_ns: durations.mean() * 1000.0,
            deviation_ns: durations.deviation() * 1000.0,
        }));
    }
    rows
}

/// Collapses the names beyond the tenth, or beyond the 80 % quantile of the running sum, into `others`.
fn collapsed<'a>(rows: &[(&'a [u8], Durations)]) -> Vec<(&'a [u8], Durations)> {
    let mut running = 0_i128;
    let sums: Vec<i128> = rows
        .iter()
        .map(|row| {
            running += row.1.sum;
            running
        })
        .collect();
    // Sums below zero, of kernels that last -1 us, make the running sum fall at the end.
    let mut sorted = sums.clone();
    sorted.sort_unstable();
    let limit = quantile(&sorted);
    let mut others = Durations::default();
    let mut out = Vec::new();
    for (index, ((name, durations), running)) in rows.iter().zip(&sums).enumerate() {
        let sum = i64::try_from(durations.sum).unwrap_or(i64::MAX);
        #[allow(clippy::cast_precision_loss, reason = "compared as floats, as HTA does")]
        let is_small = index >= NAMES_LISTED || *running as f64 > limit;
        // Its list of names that are never collapsed is `sum < 0`, which short kernels make true.
        if is_small && sum >= 0 {
            others.add(sum, 1);
        } else {
            let mut single = Durations::default();
            single.add(sum, 1);
            out.push((*name, single));
        }
    }
    out.push((OTHERS.as_bytes(), others));
    out
}

/// Returns the 80 % quantile of sorted values with linear interpolation.
#[allow(clippy::cast_precision_loss, reason = "compared as floats, as HTA does")]
fn quantile(sorted: &[i128]) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let (below, rest) = (last * 4 / 5, last * 4 % 5);
    let at = |index: usize| sorted.get(index.min(last)).map_or(0.0, |value| *value as f64);
    let fraction = rest as f64 / 5.0;
    at(below) + (at(below + 1) - at(below)) * fraction
}
