//! A slow and simple model of the reducer: it examines every range for every step.

use crate::trace::recorder::{Detail, Event, Kind};
use crate::trace::reduce::EndedStep;
use crate::trace::{StepTimes, TimedRecord};

/// A range of a trace; `end` is `u64::MAX` if it has no end.
#[derive(Clone, Copy, Debug)]
struct Interval {
    kind: Kind,
    thread: u32,
    begin: u64,
    end: u64,
}

/// Returns the steps of a complete trace in the order of their ends. All times of the trace must be distinct.
pub(super) fn steps(trace: &[TimedRecord]) -> Vec<EndedStep> {
    let intervals: Vec<Interval> = trace.iter().filter_map(|record| interval(record, trace)).collect();
    let is_step = |record: &&TimedRecord| record.kind == Kind::Step && matches!(record.event, Event::Begin { .. });
    let begins = trace.iter().filter(is_step);
    let mut steps: Vec<EndedStep> = begins.filter_map(|begin| step(begin, trace, &intervals)).collect();
    steps.sort_by_key(|step| step.unix_nanos);
    steps
}

fn end_of<'a>(begin: &TimedRecord, trace: &'a [TimedRecord]) -> Option<&'a TimedRecord> {
    let Event::Begin { range } = begin.event else { return None };
    trace.iter().find(|record| record.event == Event::End { range })
}

fn interval(begin: &TimedRecord, trace: &[TimedRecord]) -> Option<Interval> {
    matches!(begin.event, Event::Begin { .. }).then(|| Interval {
        kind: begin.kind,
        thread: begin.thread,
        begin: begin.unix_nanos,
        end: end_of(begin, trace).map_or(u64::MAX, |end| end.unix_nanos),
    })
}

fn step(begin: &TimedRecord, trace: &[TimedRecord], intervals: &[Interval]) -> Option<EndedStep> {
    let end = end_of(begin, trace)?;
    let (from, to) = (begin.unix_nanos, end.unix_nanos);
    let Detail::Step { number, .. } = begin.detail else { return None };
    let Detail::Step { cpu_nanos, .. } = end.detail else { return None };
    let of = |kind: Kind| -> Vec<Interval> {
        let counts = |i: &&Interval| i.kind == kind && (kind == Kind::Communication || i.thread == begin.thread);
        intervals.iter().filter(counts).copied().collect()
    };
    let communications = of(Kind::Communication);
    let times = StepTimes {
        step: number,
        wall_ns: to - from,
        cpu_ns: (end.thread == begin.thread && cpu_nanos > 0).then_some(cpu_nanos.min(to - from)),
        wait_ns: waits(&communications).iter().filter(|(_, end)| *end <= to).map(|wait| within(*wait, from, to)).sum(),
        communication_ns: covered(&communications, from, to),
        data_loader_ns: covered(&of(Kind::DataLoader), from, to),
        save_checkpoint_ns: covered(&of(Kind::SaveCheckpoint), from, to),
        forward_ns: covered(&of(Kind::Forward), from, to),
        communications: u32::try_from(communications.iter().filter(|c| (from..to).contains(&c.begin)).count()).unwrap(),
        lost: 0,
    };
    Some(EndedStep { unix_nanos: to, times, device: None, transfers: None })
}

/// Returns the length of the part of an interval that lies between two moments.
fn within((begin, end): (u64, u64), from: u64, to: u64) -> u64 {
    end.min(to).saturating_sub(begin.max(from))
}

/// Returns the part of the time between two moments in which at least one of the intervals was open.
fn covered(intervals: &[Interval], from: u64, to: u64) -> u64 {
    (from..to).filter(|at| intervals.iter().any(|i| (i.begin..i.end).contains(at))).count() as u64
}

/// Returns, per uninterrupted period of open intervals, the time from the last beginning to the end of all.
fn waits(communications: &[Interval]) -> Vec<(u64, u64)> {
    let is_open = |at: u64| communications.iter().any(|c| (c.begin..c.end).contains(&at));
    let ends = communications.iter().map(|c| c.end).filter(|end| *end != u64::MAX && !is_open(*end));
    ends.map(|end| (communications.iter().map(|c| c.begin).filter(|begin| *begin < end).max().unwrap(), end)).collect()
}
