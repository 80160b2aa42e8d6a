//! One pass over a process's records in the order of their times.
//!
//! The sweep tracks open ranges, and adds their time to the open steps.

use super::groups::Groups;
use super::transfers::{Operation, Transfers};
use super::{EndedStep, OPEN_RANGES_MAX, OPEN_STEPS_MAX, RANGE_STEPS_MAX, ReducerCounts};
use crate::trace::recorder::{Communication, Detail, Event, Kind, NameId};
use crate::trace::{NameTable, StepTimes, TimedRecord};
use std::collections::BTreeMap;

/// Open ranges and steps, and the results.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Time of the record that was processed last.
    pub(super) now: u64,
    /// Open ranges by their numbers, not including steps.
    open: BTreeMap<u64, Open>,
    steps: BTreeMap<u64, OpenStep>,
    communication: Busy,
    /// Number of records lost before the latest gap, by which records of the current batch may be affected.
    threads: BTreeMap<u32, Thread>,
    /// Number of steps ended so far.
    steps_ended: u64,
    /// Number of losses before those that the current batch may be affected by.
    lost_before: u64,
    pub(super) groups: Groups,
    pub(super) ended: Vec<EndedStep>,
    /// Beginnings of steps, in ascending order, until they are taken.
    pub(super) begins: Vec<u64>,
    pub(super) counts: ReducerCounts,
}

/// An open range.
#[derive(Clone, Copy, Debug)]
struct Open {
    kind: Kind,
    thread: u32,
    /// Process group of a collective.
    group: Option<NameId>,
    /// A send or receive that shows the time of its transfer.
    transfer: Option<Operation>,
    /// Number of steps that had ended when it began.
    steps_ended: u64,
}

/// An open step.
#[derive(Debug)]
struct OpenStep {
    begun: u64,
    thread: u32,
    lost_before: u64,
    steps_ended: u64,
    times: StepTimes,
    transfers: Transfers,
}

/// Open ranges of one kind, which may overlap and nest.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    open: u32,
    /// Time at which the first of the open ranges began.
    since: u64,
    /// Time at which the last of the open ranges began.
    last: u64,
}

/// Open ranges of one thread.
#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    data_loader: Busy,
    save_checkpoint: Busy,
    forward: Busy,
}

impl Busy {
    fn begin(&mut self, now: u64) {
        if self.open == 0 {
            self.since = now;
        }
        self.last = now;
        self.open += 1;
    }

    /// Ends one range. Returns true if none is open any more.
    fn end(&mut self) -> bool {
        self.open = self.open.saturating_sub(1);
        self.open == 0
    }
}

impl Thread {
    fn of(&mut self, kind: Kind) -> Option<&mut Busy> {
        match kind {
            Kind::DataLoader => Some(&mut self.data_loader),
            Kind::SaveCheckpoint => Some(&mut self.save_checkpoint),
            Kind::Forward => Some(&mut self.forward),
            _ => None,
        }
    }

    fn is_idle(&self) -> bool {
        [self.data_loader, self.save_checkpoint, self.forward].iter().all(|busy| busy.open == 0)
    }
}

impl OpenStep {
    /// Returns the part of the time since a moment that lies in this step.
    fn part(&self, since: u64, now: u64) -> u64 {
        now.saturating_sub(since.max(self.begun))
    }

    /// Adds the time that the thread spent on a kind since a moment.
    fn add(&mut self, kind: Kind, since: u64, now: u64) {
        let part = self.part(since, now);
        match kind {
            Kind::DataLoader => self.times.data_loader_ns += part,
            Kind::SaveCheckpoint => self.times.save_checkpoint_ns += part,
            Kind::Forward => self.times.forward_ns += part,
            _ => (),
        }
    }
}

impl Sweep {
    /// Processes the next record. A record that arrives too late for its time counts as current.
    pub(super) fn record(&mut self, record: &TimedRecord, names: &NameTable) {
        self.counts.late += u64::from(record.unix_nanos < self.now);
        self.now = self.now.max(record.unix_nanos);
        match (record.event, record.kind) {
            (Event::Begin { range }, Kind::Step) => self.begin_step(range, record),
            (Event::Begin { range }, _) => self.begin(range, record, names),
            (Event::End { range }, Kind::Step) => self.end_step(range, record),
            (Event::End { range }, _) => self.end(range),
            (Event::Instant | Event::Counter { .. } | Event::Span { .. }, _) => (),
        }
    }

    /// Handles a gap in the records, or the end of one: see the losses of [`Reducer`](super::Reducer).
    pub(super) fn gap(&mut self, lost: u64) {
        self.forget_all();
        self.lost_before = self.counts.lost;
        self.counts.lost = self.counts.lost.saturating_add(lost);
    }

    /// Returns the beginning of the oldest open step.
    pub(super) fn oldest_open(&self) -> Option<u64> {
        self.steps.values().map(|step| step.begun).min()
    }

    fn begin_step(&mut self, range: u64, record: &TimedRecord) {
        if self.steps.len() >= OPEN_STEPS_MAX
            && let Some(oldest) = self.steps.iter().min_by_key(|(_, step)| step.begun).map(|(range, _)| *range)
        {
            self.steps.remove(&oldest);
            self.counts.forgotten_steps += 1;
        }
        self.begins.push(self.now);
        let step = if let Detail::Step { number, .. } = record.detail { number } else { 0 };
        let times = StepTimes { step, ..StepTimes::default() };
        let (lost_before, steps_ended) = (self.lost_before, self.steps_ended);
        let (begun, thread, transfers) = (self.now, record.thread, Transfers::default());
        let open = OpenStep { begun, thread, lost_before, steps_ended, times, transfers };
        self.counts.forgotten_steps += u64::from(self.steps.insert(range, open).is_some());
    }

    fn end_step(&mut self, range: u64, record: &TimedRecord) {
        let Some(mut step) = self.steps.remove(&range) else {
            self.counts.orphan_ends += 1;
            return;
        };
        if self.communication.open > 0 {
            step.times.communication_ns += step.part(self.communication.since, self.now);
        }
        let mut thread = self.threads.get(&step.thread).copied().unwrap_or_default();
        for kind in [Kind::DataLoader, Kind::SaveCheckpoint, Kind::Forward] {
            if let Some(busy) = thread.of(kind).filter(|busy| busy.open > 0) {
                step.add(kind, busy.since, self.now);
            }
        }
        step.times.wall_ns = self.now.saturating_sub(step.begun);
        step.times.lost = self.counts.lost.saturating_sub(step.lost_before);
        if let Detail::Step { cpu_nanos: cpu @ 1.., .. } = record.detail
            && record.thread == step.thread
        {
            step.times.cpu_ns = Some(cpu.min(step.times.wall_ns)); // measured by different clocks
        }
        let transfers = step.transfers.finish(step.times.step, self.now);
        self.ended.push(EndedStep { unix_nanos: self.now, times: step.times, device: None, transfers });
        self.steps_ended += 1;
        self.forget_old();
    }

    fn begin(&mut self, range: u64, record: &TimedRecord, names: &NameTable) {
        if self.open.len() >= OPEN_RANGES_MAX {
            self.forget_all();
        }
        let communication = match record.detail {
            Detail::Communication(communication) if record.kind == Kind::Communication => Some(communication),
            _ => None,
        };
        let collective = communication.and_then(|communication| communication.sequence.map(|_| communication.group));
        let (kind, thread, steps_ended) = (record.kind, record.thread, self.steps_ended);
        let transfer = communication.and_then(|what| Operation::of(record, &what, names));
        let twin = self.open.insert(range, Open { kind, thread, group: collective, transfer, steps_ended });
        if let Some(twin) = twin {
            self.forget(range, twin);
        }
        if kind == Kind::Communication {
            self.communication.begin(self.now);
            self.steps.values_mut().for_each(|step| step.times.communications += 1);
            self.call(range, record.name, communication);
        } else if let Some(busy) = self.threads.entry(thread).or_default().of(kind) {
            busy.begin(self.now);
        }
    }

    fn call(&mut self, range: u64, name: NameId, communication: Option<Communication>) {
        if let Some(what) = communication
            && self.groups.call(range, name, &what, self.now)
        {
            self.counts.forgotten_groups += 1;
        }
    }

    fn end(&mut self, range: u64) {
        let Some(Open { kind, thread, group, transfer, .. }) = self.open.remove(&range) else {
            self.counts.orphan_ends += 1;
            return;
        };
        if kind == Kind::Communication {
            self.groups.over(group, range);
            if let Some(transfer) = &transfer {
                self.steps.values_mut().for_each(|step| step.transfers.add(transfer, self.now));
            }
            if self.communication.end() {
                let Busy { since, last, .. } = self.communication;
                for step in self.steps.values_mut() {
                    step.times.communication_ns += step.part(since, self.now);
                    step.times.wait_ns += step.part(last, self.now);
                }
            }
        } else if let Some(since) = self.end_on(thread, kind) {
            let steps = self.steps.values_mut().filter(|step| step.thread == thread);
            steps.for_each(|step| step.add(kind, since, self.now));
        }
    }

    /// Ends a range of a thread. If it was the last open one of its kind, returns the time since which the kind was
    /// open.
    fn end_on(&mut self, thread: u32, kind: Kind) -> Option<u64> {
        let open = self.threads.get_mut(&thread)?;
        let busy = open.of(kind)?;
        let since = busy.end().then_some(busy.since);
        if open.is_idle() {
            self.threads.remove(&thread);
        }
        since
    }

    /// Forgets a range whose end is unknown: its time is not added to any step.
    fn forget(&mut self, range: u64, open: Open) {
        self.counts.forgotten += 1;
        if open.kind == Kind::Communication {
            self.groups.over(open.group, range);
            self.communication.end();
        } else {
            self.end_on(open.thread, open.kind);
        }
    }

    fn forget_all(&mut self) {
        for (range, open) in std::mem::take(&mut self.open) {
            self.forget(range, open);
        }
    }

    /// Forgets ranges and steps that have outlasted too many steps.
    fn forget_old(&mut self) {
        let is_old = |steps_ended: u64| self.steps_ended - steps_ended > RANGE_STEPS_MAX;
        let old: Vec<(u64, Open)> = self
            .open
            .iter()
            .filter(|(_, open)| is_old(open.steps_ended))
            .map(|(range, open)| (*range, *open))
            .collect();
        let steps = self.steps.len();
        self.steps.retain(|_, step| !is_old(step.steps_ended));
        self.counts.forgotten_steps += (steps - self.steps.len()) as u64;
        for (range, open) in old {
            self.open.remove(&range);
            self.forget(range, open);
        }
    }
}
