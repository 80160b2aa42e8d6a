//! Activity of a process's devices, reduced to the time of each step.
//!
//! # Order
//! The vendors' trace interfaces deliver an activity after its end, in buffers of their own: up to 0.2 s later with
//! CUPTI, up to 1 s later with mspti. The spans of a step therefore arrive after the step has ended, in any order. A
//! step of a process with devices waits for them for [`DEVICE_LATENESS`]; later ones are counted
//! ([`ReducerCounts::late_spans`](super::ReducerCounts::late_spans)), and so marked in the next step
//! ([`DeviceTimes::lost`]). A step of a process without devices does not wait.
//!
//! # Clock
//! Times of spans are those of the device's clock. The vendor converts them to the calendar of the system (the CUPTI
//! probe adds the difference from CUPTI's clock), and the import to the calendar of the process's other records, which
//! does not move when the system's calendar is set. Both conversions use one difference for each buffer, so an error of
//! the conversion moves a step's spans together: it shifts time between neighbouring steps, and adds none.
//!
//! # Cost
//! Spans are sorted when they are needed, and each is visited once per step that it touches.

mod measure;

use super::{EndedStep, ReducerCounts};
use crate::trace::recorder::{Detail, Kind, NameId};
use crate::trace::{DeviceTimes, NameTable, TimedRecord};
use measure::{Class, Span, measure};
use std::collections::VecDeque;
use std::time::Duration;

/// Time for which an ended step of a process with devices waits for their spans. It is also the maximum time from the
/// end of a step to the beginning of the next one in which the device's work counts for the earlier one.
pub const DEVICE_LATENESS: Duration = Duration::from_secs(2);
/// Maximum number of spans of a process that wait for the end of a step. Further spans are dropped, and counted in
/// [`ReducerCounts::dropped_spans`](super::ReducerCounts::dropped_spans).
pub const DEVICE_SPANS_MAX: usize = 1 << 17;
/// Maximum number of ended steps of a process that wait for spans. When one more ends, the oldest does not wait any
/// longer; [`ReducerCounts::hurried_steps`](super::ReducerCounts::hurried_steps) counts this.
pub const HELD_STEPS_MAX: usize = 4096;
/// Maximum duration of a span. A longer one is an error of its source: it is ignored, and counted in
/// [`ReducerCounts::false_spans`](super::ReducerCounts::false_spans).
pub const DEVICE_SPAN_MAX: Duration = Duration::from_secs(3600);

/// Number of steps without spans after which steps do not wait for spans any more.
const QUIET_STEPS: u32 = 8;

#[allow(clippy::cast_possible_truncation, reason = "constants of some seconds and hours")]
const LATENESS: u64 = DEVICE_LATENESS.as_nanos() as u64;
#[allow(clippy::cast_possible_truncation, reason = "constants of some seconds and hours")]
const SPAN_MAX: u64 = DEVICE_SPAN_MAX.as_nanos() as u64;

/// Spans of a process's devices, and the ended steps that wait for them.
#[derive(Debug, Default)]
pub(super) struct Device {
    /// Spans from `first` on: the first ones up to `sorted` in the order of their beginnings.
    spans: Vec<Span>,
    first: usize,
    sorted: usize,
    /// True for each name in the process's table that names a kernel of a communication library.
    is_communication: Vec<bool>,
    held: VecDeque<Held>,
    /// Beginnings of steps, in ascending order.
    begins: VecDeque<u64>,
    /// End of the windows that were measured.
    measured_until: u64,
    /// Number of lost records and dropped spans so far, and at the latest end of a step.
    missing: u64,
    marked: u64,
    /// Number of spans that were too late since the previous step was measured.
    late: u64,
    /// Number of steps in sequence that had no span.
    quiet: u32,
    is_active: bool,
}

/// An ended step that waits for spans.
#[derive(Debug)]
struct Held {
    step: EndedStep,
    /// Number of missing records and spans when the step before ended. Those that are missing since may lie in this step.
    since: u64,
}

/// What is known of the process's time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Time up to which all records are known, except for late ones; `u64::MAX` if no further ones will come.
    pub(super) until: u64,
    /// Time of the latest record that was processed.
    pub(super) now: u64,
    /// Beginning of the oldest open step.
    pub(super) open: Option<u64>,
}

impl Device {
    /// Adds a span of a device. Spans of the host and of other kinds are left out.
    #[inline]
    pub(super) fn take(&mut self, record: &TimedRecord, nanos: u64, names: &NameTable, counts: &mut ReducerCounts) {
        let class = match (record.kind, &record.detail) {
            (Kind::Kernel, Detail::Device(_)) if self.names_communication(record.name, names) => Class::Communication,
            (Kind::Kernel, Detail::Device(_)) => Class::Compute,
            (Kind::Communication, Detail::DeviceCommunication(_)) => Class::Communication,
            (Kind::Copy, Detail::Device(_)) => Class::Copy,
            _ => return,
        };
        let begin = record.unix_nanos;
        let Some(end) = begin.checked_add(nanos).filter(|_| begin > 0 && nanos <= SPAN_MAX) else {
            counts.false_spans += 1;
            return;
        };
        if nanos == 0 {
            return; // it changes no figure
        }
        if begin < self.measured_until {
            counts.late_spans += 1;
            self.late += 1;
            if end <= self.measured_until {
                return;
            }
        }
        if self.spans.len() - self.first >= DEVICE_SPANS_MAX {
            counts.dropped_spans += 1;
            self.missing += 1;
            return;
        }
        self.spans.push(Span { begin, end, class });
        self.is_active = true;
    }

    /// Returns true if the name is that of a kernel of a communication library. Those are records of computation while
    /// the switch for communication is off.
    #[inline]
    fn names_communication(&mut self, name: NameId, names: &NameTable) -> bool {
        let known = self.is_communication.len();
        if known < names.len() {
            self.is_communication.extend(names.iter().skip(known).map(|(_, name)| is_communication(name)));
        }
        name.0.checked_sub(1).and_then(|at| self.is_communication.get(at as usize)).copied().unwrap_or(false)
    }

    /// Handles lost records, which may be spans of the steps that wait and of the next one.
    pub(super) const fn gap(&mut self, lost: u64) {
        self.missing = self.missing.saturating_add(lost);
    }

    /// Takes the steps that have ended, in the order of their ends, and the beginnings of steps since the last call.
    /// Returns the steps that wait no longer.
    pub(super) fn settle(
        &mut self,
        ended: Vec<EndedStep>,
        begins: Vec<u64>,
        times: Times,
        counts: &mut ReducerCounts,
    ) -> Vec<EndedStep> {
        if !self.is_active && self.held.is_empty() {
            self.marked = self.missing;
            return ended;
        }
        self.begins.extend(begins);
        for step in ended {
            self.held.push_back(Held { step, since: std::mem::replace(&mut self.marked, self.missing) });
        }
        self.order(times.until, counts);
        let mut floors = self.floors(times);
        self.forget(floors.pop());
        let mut released = Vec::new();
        while let Some(held) = self.held.front() {
            let is_hurried = self.held.len() > HELD_STEPS_MAX;
            let end = held.step.unix_nanos;
            let (window_end, is_due) = self.window_end(end, times.until);
            if !is_due && !is_hurried {
                break;
            }
            counts.hurried_steps += u64::from(!is_due);
            if let Some(Held { mut step, since }) = self.held.pop_front() {
                self.measure(&mut step, self.missing - since, window_end);
                released.push(step);
            }
            self.forget(floors.pop());
        }
        let ended = self.held.front().map_or(times.now, |held| held.step.unix_nanos);
        self.begins.drain(..self.begins.partition_point(|begin| *begin < ended));
        if self.quiet >= QUIET_STEPS && self.spans.len() == self.first && self.held.is_empty() {
            *self = Device { is_communication: std::mem::take(&mut self.is_communication), ..Device::default() };
        }
        released
    }

    /// Returns the times before which spans are needed no longer: last the present one, before it the one after the
    /// first step is released, and so on.
    fn floors(&self, times: Times) -> Vec<u64> {
        let settled = if times.until == u64::MAX { times.now } else { times.until };
        let mut floor = times.open.unwrap_or(settled).min(settled);
        let mut floors = vec![floor];
        for held in self.held.iter().rev() {
            floor = floor.min(held.step.unix_nanos.saturating_sub(held.step.times.wall_ns));
            floors.push(floor);
        }
        floors
    }

    /// Returns the end of the window of a step with this end, and true if its spans have arrived.
    fn window_end(&self, end: u64, until: u64) -> (u64, bool) {
        let next = self.begins.get(self.begins.partition_point(|begin| *begin < end)).copied();
        let end = next.filter(|next| next - end <= LATENESS).unwrap_or(end);
        (end, until == u64::MAX || end.saturating_add(LATENESS) <= until)
    }

    fn measure(&mut self, step: &mut EndedStep, lost: u64, end: u64) {
        let begin = step.unix_nanos.saturating_sub(step.times.wall_ns);
        let times = measure(&self.spans[self.first..], step.times.step, begin, end);
        self.measured_until = self.measured_until.max(end);
        if times.spans == 0 {
            self.quiet = self.quiet.saturating_add(1);
            return;
        }
        self.quiet = 0;
        let lost = lost.saturating_add(std::mem::take(&mut self.late));
        step.device = Some(DeviceTimes { lost, ..times });
    }

    /// Sorts the spans that have arrived, and drops those that begin in the future.
    fn order(&mut self, until: u64, counts: &mut ReducerCounts) {
        let (known, fresh) = self.spans.split_at_mut(self.sorted);
        fresh.sort_unstable_by_key(|span| span.begin);
        if let Some(first) = fresh.first() {
            let from = known[self.first..].partition_point(|span| span.begin <= first.begin) + self.first;
            self.spans[from..].sort_by_key(|span| span.begin); // two sorted runs, which the sort merges
        }
        let latest = until.saturating_add(LATENESS);
        while self.spans.len() > self.first && self.spans.last().is_some_and(|span| span.begin > latest) {
            self.spans.pop();
            counts.false_spans += 1;
        }
        self.sorted = self.spans.len();
    }

    /// Forgets spans that ended before a time. Those that began before it and continue are moved behind the forgotten
    /// ones.
    fn forget(&mut self, floor: Option<u64>) {
        let floor = floor.unwrap_or_default();
        let before = self.spans[self.first..].partition_point(|span| span.begin < floor) + self.first;
        let mut first = before;
        for at in (self.first..before).rev() {
            if self.spans[at].end > floor {
                first -= 1;
                self.spans[first] = self.spans[at];
            }
        }
        self.first = first;
        if self.first * 2 > self.spans.len() {
            self.spans.drain(..self.first);
            self.sorted -= self.first;
            self.first = 0;
        }
    }
}

/// Returns true for the name of a kernel of NCCL or HCCL: `ncclDevKernel_AllReduce_Sum_f32_RING_LL`,
/// `hcom_allReduce__428_0_1`, `HcclAllReduce`.
fn is_communication(name: &str) -> bool {
    ["nccl", "hcom_", "hccl", "Hccl"].iter().any(|part| name.contains(part))
}
