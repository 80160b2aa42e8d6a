//! HTA mode: the rules of `HolisticTraceAnalysis` 0.5.0, so that its tables can be compared with.
//!
//! Source of each rule is the file of HTA that is named beside it. The rules that change a figure most:
//! times become whole microseconds, starts upwards and ends downwards, so a short kernel has the duration 0 or -1
//! (`common/trace_parser.py`); a kernel counts only if a call before the start of the last `ProfilerStep` launched it
//! (`common/trace.py`); the type of a kernel follows from its name alone (`utils/utils.py`).

use super::annotations::{self, AnnotationRow};
use super::bandwidth::{self, CopyBandwidth};
use super::hta_idle::{FirstRow, Rows};
use super::hta_launches::{CallName, CopyRow, Joined};
use super::hta_table::{Annotated, annotation_table, kernel_table, place};
use super::intervals::running;
use super::kernels::Kernels;
use super::{Class, Label, RankBreakdown, StreamIdle};
use crate::kineto::classify;
use crate::kineto::decimal;
use crate::kineto::document::Sink;
use crate::kineto::event::{DURATION_MAX_NS, RawEvent};
use memchr::memmem::Finder;
use std::collections::BTreeSet;
use taskd_core::analysis::decimal::ns_from_us;

/// Kernels and launches that are kept per rank, each. Further ones are counted and reported.
pub const HTA_KERNELS_MAX: usize = 20_000_000;

/// Distinct names of steps that are kept: HTA only asks for more than one.
const STEP_NAMES_MAX: usize = 2;

/// A kernel in whole microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) correlation: i64,
    /// -1: none; the row only has a number.
    pub(super) stream: i64,
    pub(super) name: u32,
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
    pub(super) name: CallName,
    pub(super) end: i64,
}

/// Figures that depend on the order of HTA's sort, or that HTA or this mode does not have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ambiguous {
    /// Equal starts for the busy time.
    pub(super) starts: u64,
    /// Equal starts for the idle time per stream.
    pub(super) gaps: u64,
    /// Synchronizations without a correlation: HTA repeats each once for every call without one, which this mode does
    /// not keep.
    pub(super) repeated: u64,
    /// Correlations at which HTA's queue lengths fail.
    pub(super) fails: u64,
    /// Rows of launches and queues that were not kept.
    pub(super) lost: u64,
}

/// Figures that need the calls of the host.
struct Selected {
    idle: Vec<StreamIdle>,
    /// Equal starts on which the idle time depends.
    gaps: u64,
    joined: Joined,
    bandwidth: Vec<CopyBandwidth>,
    annotations: Vec<AnnotationRow>,
}

/// What is kept of a file while it is read.
#[derive(Debug)]
pub(super) struct Hta {
    kernels: Vec<Kernel>,
    names: Kernels,
    launches: Vec<Launch>,
    copies: Vec<CopyRow>,
    annotations: Vec<Annotated>,
    annotation_names: Kernels,
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
            copies: Vec::new(),
            annotations: Vec::new(),
            annotation_names: Kernels::default(),
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
        let annotation = annotations::place(category.raw);
        if row > 0 && !is_step && stream == -1 && correlation == -1 && annotation.is_none() {
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
                self.keep_launch(Launch { correlation, start, row, name: CallName::of(name), end });
            }
        }
        if let Some(is_on_device) = annotation {
            let (name, _) = self.annotation_names.number(u64::from(is_on_device), name, || place(is_on_device));
            self.keep_annotation(Annotated { is_launched, name, start, end, correlation });
        }
        if stream != -1 || is_launched {
            let (name, class) = self.names.number(0, name, || class(name));
            if class == Class::Memory {
                self.keep_copy(event);
            }
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

    /// Keeps the copy of the kernel that is kept next.
    fn keep_copy(&mut self, event: &RawEvent<'_>) {
        let (bytes, rate) = bandwidth::stated(event);
        match u32::try_from(self.kernels.len()) {
            Ok(kernel) if self.copies.len() < bandwidth::COPIES_MAX => {
                self.copies.push(CopyRow { kernel, bytes, rate })
            }
            _ => self.lost += 1,
        }
    }

    fn keep_annotation(&mut self, annotated: Annotated) {
        if self.annotations.len() < HTA_KERNELS_MAX {
            self.annotations.push(annotated);
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
                u32::try_from(self.calls_of(kernel.correlation, last_step)).unwrap_or(u32::MAX)
            } else {
                u32::from(kernel.is_launched || kernel.start < last_step)
            }
        };
        self.kernels.iter().map(times).collect()
    }

    /// Returns the number of calls with this correlation before the last step.
    fn calls_of(&self, correlation: i64, last_step: i64) -> usize {
        let first = self.launches.partition_point(|launch| launch.correlation < correlation);
        let calls = self.launches.iter().skip(first).take_while(|launch| launch.correlation == correlation);
        calls.filter(|launch| launch.start < last_step).count()
    }

    /// Returns what needs the calls that launched the kernels, and drops and repeats the kernels as HTA does.
    fn select(&mut self, drops_last_step: bool, rank: u32) -> Selected {
        self.launches.sort_unstable();
        let last_step = self.last_step.unwrap_or(i64::MIN);
        let times = drops_last_step.then(|| self.times(last_step));
        let dropped = times.as_deref().map(|times| (times, last_step));
        let rows = Rows { kernels: &self.kernels, launches: &self.launches, first_row: self.first_row, dropped };
        let (idle, gaps) = rows.idle();
        let joined = rows.join();
        let bandwidth = rows.bandwidth(&self.copies, &self.names);
        let is_dropped = times.is_some();
        for annotated in std::mem::take(&mut self.annotations) {
            let count = match annotated {
                _ if !is_dropped => 1,
                Annotated { is_launched: true, correlation, .. } => self.calls_of(correlation, last_step),
                Annotated { start, .. } => usize::from(start < last_step),
            };
            self.annotation_names.record(annotated.name, annotated.end - annotated.start, count as u64);
        }
        let annotations = annotation_table(&self.annotation_names, rank);
        (self.launches, self.copies) = (Vec::new(), Vec::new());
        if let Some(times) = times {
            let kernels = std::mem::take(&mut self.kernels);
            let repeated = kernels.iter().zip(times);
            self.kernels = repeated.flat_map(|(kernel, times)| std::iter::repeat_n(*kernel, times as usize)).collect();
        }
        self.kernels.retain(|kernel| kernel.stream != -1);
        Selected { idle, gaps, joined, bandwidth, annotations }
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
        let Selected { idle: streams, gaps, joined, bandwidth, annotations } = self.select(drops_last_step, rank);
        // HTA's sort is not stable; this one is.
        self.kernels.sort_by_key(|kernel| kernel.start);
        let is_ambiguous = |tied: &&[Kernel]| {
            let first = tied.first().map(|kernel| kernel.end);
            tied.iter().any(|kernel| kernel.end < kernel.start) && tied.iter().any(|kernel| Some(kernel.end) != first)
        };
        let ambiguous =
            self.kernels.chunk_by(|one, other| one.start == other.start).filter(is_ambiguous).count() as u64;
        let ambiguous = Ambiguous { starts: ambiguous, gaps, repeated, fails: joined.fails, lost: joined.lost };
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
            launches: Some(joined.launches).filter(|launches| launches.call_ns.count > 0),
            queues: joined.queues.unwrap_or_default(),
            bandwidth,
            annotations,
            steps: Vec::new(),
            kernels: kernel_table(&self.names, rank),
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
