//! Exact mode: integer nanoseconds of the whole trace.

use super::annotations::{self, Annotations};
use super::bandwidth::Copies;
use super::idle::Gaps;
use super::intervals::{Intervals, length, length_within, running, union};
use super::kernels::Kernels;
use super::launches::Launches;
use super::{Class, Label, RankBreakdown, StepRow};
use crate::kineto::classify;
use crate::kineto::decimal;
use crate::kineto::document::Sink;
use crate::kineto::event::{RawEvent, step_number};

/// What is kept of a file while it is read.
#[derive(Debug, Default)]
pub(super) struct Exact {
    compute: Intervals,
    communication: Intervals,
    memory: Intervals,
    other: Intervals,
    kernels: Kernels,
    pub(super) gaps: Gaps,
    pub(super) launches: Launches,
    pub(super) copies: Copies,
    annotations: Annotations,
    steps: Vec<(u64, i64, i64)>,
    count: u64,
    /// Kernels and annotations without a readable start or duration.
    pub(super) unreadable: u64,
}

/// Kernels, annotations and launches without a place of their own in the tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beyond {
    /// Kernels without a kept name.
    pub(super) kernels: u64,
    /// Annotations without a kept name.
    pub(super) annotations: u64,
    /// Launches on streams beyond the limit.
    pub(super) queues: u64,
}

impl Sink for Exact {
    #[inline]
    fn event(&mut self, event: &RawEvent<'_>) {
        let category = event.category();
        if let Some(device) = classify::device(category) {
            self.device(event, device);
        } else if let Some(is_on_device) = annotations::place(category) {
            self.annotation(event, is_on_device);
        } else if classify::is_runtime(category)
            && let (Some(correlation), Some(start)) = (event.correlation.and_then(decimal::integer), event.start_ns())
        {
            self.launches.call(correlation, start, event.duration_ns());
        }
    }
}

impl Exact {
    fn annotation(&mut self, event: &RawEvent<'_>, is_on_device: bool) {
        let (Some(start), Some(duration)) = (event.start_ns(), event.duration_ns()) else {
            self.unreadable += 1;
            return;
        };
        let end = start.saturating_add_unsigned(duration);
        if !is_on_device && let Some(number) = step_number(event.name.raw) {
            self.steps.push((number, start, end));
        }
        self.annotations.add(is_on_device, &event.name.bytes(), end.saturating_sub(start));
    }

    fn device(&mut self, event: &RawEvent<'_>, device: classify::Device) {
        let (Some(start), Some(duration)) = (event.start_ns(), event.duration_ns()) else {
            self.unreadable += 1;
            return;
        };
        let end = start.saturating_add_unsigned(duration);
        let name = event.name.bytes();
        let name = &*name;
        let (number, class) = match device {
            classify::Device::Memory => self.kernels.number(1, name, || Class::Memory),
            classify::Device::Kernel => self.kernels.number(0, name, || {
                if classify::is_communication_kernel(name) { Class::Communication } else { Class::Compute }
            }),
        };
        if let Some(stream) = event.stream.and_then(decimal::integer) {
            let correlation = event.correlation.and_then(decimal::integer);
            self.gaps.kernel(stream, start, end, correlation.unwrap_or(-1));
            if let Some(correlation) = correlation {
                self.launches.kernel(correlation, stream, start, end.saturating_sub(start));
            }
        }
        if device == classify::Device::Memory {
            self.copies.add(number, start, end, event);
        }
        self.count += 1;
        self.kernels.record(number, end.saturating_sub(start), 1);
        match class {
            Class::Compute => self.compute.insert(start, end),
            Class::Communication => self.communication.insert(start, end),
            Class::Memory => self.memory.insert(start, end),
            Class::Other => self.other.insert(start, end),
        }
    }

    /// Returns the breakdown, and the numbers of what its tables have no place of its own for.
    pub(super) fn finish(mut self, rank: u32) -> (RankBreakdown, Beyond) {
        let [compute, communication, memory, other] =
            [self.compute, self.communication, self.memory, self.other].map(Intervals::finish);
        let either = union(&compute, &communication);
        let busy = union(&union(&either, &memory), &other);
        let range = |from: i64, to: i64| {
            let within = |intervals: &[(i64, i64)]| length_within(intervals, from, to);
            let (compute, communication) = (within(&compute), within(&communication));
            (compute, communication, compute.saturating_add(communication) - within(&either), within(&busy))
        };
        let first = busy.first().map_or(0, |interval| interval.0);
        let last = busy.last().map_or(0, |interval| interval.1);
        let (compute_ns, communication_ns, overlap_ns, busy_ns) = range(first, last);
        self.steps.sort_unstable_by_key(|step| (step.1, step.0));
        self.steps.dedup();
        let step = |(number, start, end): &(u64, i64, i64)| {
            let (compute_ns, communication_ns, overlap_ns, busy_ns) = range(*start, *end);
            let duration_ns = end - start;
            StepRow { number: *number, duration_ns, busy_ns, compute_ns, communication_ns, overlap_ns }
        };
        self.launches.sort();
        let has_launches = self.launches.has_calls();
        let idle = self.gaps.finish(&self.launches);
        let (launches, queues, lost) = self.launches.finish();
        let (kernels, annotations) = (self.kernels.beyond, self.annotations.beyond());
        let beyond = Beyond { kernels, annotations, queues: lost };
        let breakdown = RankBreakdown {
            rank,
            count: self.count,
            kernel_time_ns: last - first,
            busy_ns,
            idle_ns: last - first - busy_ns,
            compute_ns,
            communication_ns,
            memory_ns: length(&memory),
            overlap_ns,
            types: running(&[
                (Label::COMPUTE, &*compute),
                (Label::COMMUNICATION, &communication),
                (Label::MEMORY, &memory),
            ])
            .into_iter()
            .filter(|row| row.0 > 0)
            .map(|(status, time)| (Label::from_status(status), time))
            .collect(),
            has_launches,
            idle,
            launches: Some(launches).filter(|launches| launches.call_ns.count > 0),
            queues,
            bandwidth: self.copies.finish(|number| self.kernels.name(number)),
            annotations: self.annotations.into_rows(rank),
            steps: self.steps.iter().map(step).collect(),
            kernels: self.kernels.into_rows(rank),
        };
        (breakdown, beyond)
    }
}
