//! Ranges of one process: a beginning and an end become one event.

use super::EVENTS_MAX;
use crate::model::{Communication, Event, Group, GroupRole, Kind, RankTrace, StepRecord, StepSpan};
use std::collections::BTreeMap;
use taskd_runtime::trace::recorder::{self, Detail, NameId, Op};
use taskd_runtime::trace::reduce::{self, EndedStep, Reducer};
use taskd_runtime::trace::{NameTable, RecordBatch, TimedRecord};

/// Maximum number of ranges of a process that are open at one time. When one more begins, the oldest is closed as if its
/// end were lost.
const OPEN_MAX: usize = 4096;

/// State of one process while its records are read.
#[derive(Debug, Default)]
pub(super) struct Process {
    /// Open ranges by their numbers.
    open: BTreeMap<u64, Open>,
    /// Time of the process's newest record.
    newest: i64,
    /// Number of ends without a beginning.
    pub(super) orphan_ends: u64,
    /// Number of ranges closed without an end.
    unfinished: u64,
    /// The reducer of running jobs: its steps are what the detectors got, or would have got.
    reducer: Reducer,
    /// Time of the newest record of the batches before the latest one, in nanoseconds since 1970.
    read_until: u64,
}

/// An open range.
#[derive(Clone, Copy, Debug)]
struct Open {
    start_ns: i64,
    what: What,
}

/// What an event becomes once its length is known.
#[derive(Clone, Copy, Debug)]
enum What {
    Step(u64),
    Event { kind: Kind, lane: u32, name: crate::model::NameId, communication: Option<u32> },
}

impl Process {
    /// Reduces a batch to the times of steps. As while the job ran, a step is complete once the next batch was read, which
    /// may contain some of the step's records. `number` is the number of this process.
    pub(super) fn reduce(&mut self, batch: &RecordBatch, number: u64, to: &mut RankTrace) {
        self.reducer.take(batch);
        let ended = self.reducer.settle(self.read_until);
        to.step_records.extend(ended.into_iter().map(|step| step_record(number, step)));
        let newest = batch.records.iter().map(|record| record.unix_nanos).max();
        self.read_until = self.read_until.max(newest.unwrap_or(0));
    }

    /// Adds a record to the rank's trace. Instants and counters are not events of the model.
    pub(super) fn record(&mut self, record: &TimedRecord, names: &NameTable, to: &mut RankTrace, left_out: &mut u64) {
        let at = i64::try_from(record.unix_nanos).unwrap_or(i64::MAX);
        match record.event {
            recorder::Event::Begin { range } => {
                self.newest = self.newest.max(at);
                if self.open.len() >= OPEN_MAX {
                    self.close_oldest(to, left_out);
                }
                let what = what(record, names, to);
                if let Some(twin) = self.open.insert(range, Open { start_ns: at, what }) {
                    self.close(twin, at, to, left_out);
                }
            }
            recorder::Event::End { range } => {
                self.newest = self.newest.max(at);
                match self.open.remove(&range) {
                    Some(open) => add(open, at, to, left_out),
                    None => self.orphan_ends += 1,
                }
            }
            recorder::Event::Span { nanos } if at > 0 => {
                let what = what(record, names, to);
                add(Open { start_ns: at, what }, at.saturating_add_unsigned(nanos), to, left_out);
            }
            recorder::Event::Span { .. } | recorder::Event::Instant | recorder::Event::Counter { .. } => (),
        }
    }

    /// Closes all open ranges at the process's newest record, and returns the number of ranges without an end.
    pub(super) fn finish(mut self, number: u64, to: &mut RankTrace, left_out: &mut u64) -> u64 {
        let ended = self.reducer.settle(u64::MAX);
        to.step_records.extend(ended.into_iter().map(|step| step_record(number, step)));
        for open in std::mem::take(&mut self.open).into_values() {
            self.close(open, self.newest, to, left_out);
        }
        self.unfinished
    }

    fn close_oldest(&mut self, to: &mut RankTrace, left_out: &mut u64) {
        let oldest = self.open.iter().min_by_key(|(_, open)| open.start_ns).map(|(range, _)| *range);
        if let Some(open) = oldest.and_then(|range| self.open.remove(&range)) {
            self.close(open, self.newest, to, left_out);
        }
    }

    /// Closes a range without a known end. A step without an end has no length, and is dropped.
    fn close(&mut self, open: Open, at: i64, to: &mut RankTrace, left_out: &mut u64) {
        self.unfinished += 1;
        if matches!(open.what, What::Event { .. }) {
            add(open, at, to, left_out);
        }
    }
}

fn step_record(process: u64, step: EndedStep) -> StepRecord {
    let end_ns = i64::try_from(step.unix_nanos).unwrap_or(i64::MAX);
    StepRecord { process, end_ns, times: step.times, device: step.device, transfers: step.transfers }
}

/// Adds a range that ended at a time.
fn add(open: Open, end_ns: i64, to: &mut RankTrace, left_out: &mut u64) {
    let Open { start_ns, what } = open;
    let duration_ns = end_ns.checked_sub(start_ns).and_then(|length| u64::try_from(length).ok()).unwrap_or(0);
    match what {
        _ if to.events.len() + to.steps.len() >= EVENTS_MAX => *left_out += 1,
        What::Step(number) => to.steps.push(StepSpan { number, start_ns, duration_ns }),
        What::Event { kind, lane, name, communication } => {
            to.events.push(Event { start_ns, duration_ns, kind, lane, name, communication });
        }
    }
}

fn what(record: &TimedRecord, names: &NameTable, to: &mut RankTrace) -> What {
    let text = match names.get(record.name) {
        "" => kind_name(record.kind),
        name => name,
    };
    let (kind, lane, communication) = match record.detail {
        Detail::Step { number, .. } if record.kind == recorder::Kind::Step => return What::Step(number),
        Detail::Communication(c) => {
            let known = Known {
                op: c.op,
                group: c.group,
                bytes: c.bytes,
                peer: c.peer,
                sequence: c.sequence,
                is_host_call: true,
            };
            (direction(c.op), record.thread, Some(known))
        }
        Detail::DeviceCommunication(c) => {
            let known = Known {
                op: c.op,
                group: c.group,
                bytes: c.work.bytes,
                peer: c.peer,
                sequence: None,
                is_host_call: false,
            };
            (direction(c.op), c.work.stream, Some(known))
        }
        Detail::Device(work) => (kind_of(record.kind), work.stream, None),
        Detail::Step { .. } | Detail::None => (kind_of(record.kind), record.thread, None),
    };
    let communication = communication.and_then(|known| known.add(names, to));
    What::Event { kind, lane, name: to.names.intern(text), communication }
}

/// Details of a communication record, of the host or of the device.
struct Known {
    op: Op,
    group: NameId,
    bytes: u64,
    peer: Option<u32>,
    sequence: Option<u64>,
    is_host_call: bool,
}

impl Known {
    /// Adds the details to the trace, and returns their index.
    fn add(self, names: &NameTable, to: &mut RankTrace) -> Option<u32> {
        let group = group(names.get(self.group), to);
        let operation = to.names.intern(self.op.name());
        let index = u32::try_from(to.communications.len()).ok()?;
        let Known { bytes, sequence, peer, is_host_call, .. } = self;
        let details =
            Communication { operation, group, sequence, bytes, peer, is_host_call, ..Communication::default() };
        to.communications.push(details);
        Some(index)
    }
}

/// Returns the index of a process group, which is added if the rank does not have it yet.
fn group(text: &str, to: &mut RankTrace) -> Option<u32> {
    if text.is_empty() {
        return None;
    }
    let (name, members) = reduce::split_group_name(text);
    if let Some(known) = to.groups.iter().position(|known| known.name == name && known.members == members) {
        return u32::try_from(known).ok();
    }
    let index = u32::try_from(to.groups.len()).ok()?;
    let (of_all, _generation) = name.rsplit_once('#').unwrap_or((name, ""));
    to.groups.push(Group { name: name.to_owned(), role: GroupRole::of_name(of_all), members });
    Some(index)
}

const fn direction(op: Op) -> Kind {
    match op {
        Op::Send => Kind::Send,
        Op::Recv => Kind::Receive,
        _ => Kind::Collective,
    }
}

const fn kind_of(kind: recorder::Kind) -> Kind {
    match kind {
        recorder::Kind::Kernel => Kind::Compute,
        recorder::Kind::Copy => Kind::Copy,
        recorder::Kind::DataLoader => Kind::DataLoader,
        recorder::Kind::SaveCheckpoint => Kind::SaveCheckpoint,
        recorder::Kind::Forward => Kind::Forward,
        recorder::Kind::Communication => Kind::Collective,
        _ => Kind::Host,
    }
}

/// Returns the name of an event if its record has none.
const fn kind_name(kind: recorder::Kind) -> &'static str {
    match kind {
        recorder::Kind::Step => "step",
        recorder::Kind::DataLoader => "data loader",
        recorder::Kind::SaveCheckpoint => "save checkpoint",
        recorder::Kind::Forward => "forward",
        recorder::Kind::Communication => "communication",
        recorder::Kind::Kernel => "kernel",
        recorder::Kind::Copy => "copy",
        recorder::Kind::Api => "call of the device's runtime",
        recorder::Kind::Marker => "marker",
        recorder::Kind::User(_) => "user",
    }
}
