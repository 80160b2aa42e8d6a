//! Records as a file for [ui.perfetto.dev](https://ui.perfetto.dev) and its trace processor.
//!
//! It writes batches as they come and keeps no records: only which ranges are open. It reads no such file.
//!
//! # What it shows
//! Each rank is a process, `rank 3`, with tracks for its kinds: `Step`, `DataLoader`, `SaveCheckpoint`, `FP`,
//! `Communication`, `User 0` and so on, one for each of its counters, and one for each stream of its devices. Ranges of a kind that overlap, as asynchronous
//! communications do, stand below each other. What is known of a record stands in its arguments: `step`, `cpu_ms`, `op`,
//! `data_type`, `group`, `members`, `elements`, `bytes`, `peer`, `sequence`, `device`, `stream`, `correlation` and the `thread`. The track `Recorder` says
//! when a process of the rank began to record, and where records are missing. Times are those of the calendar.
//!
//! # Why Perfetto's own format
//! It could have been the JSON of Chrome's tracing, which more programs read. There times are decimal microseconds:
//! nanoseconds since 1970 do not fit into the floating-point numbers that readers make of them, and a range that then seems
//! to begin before its predecessor's end is dropped. It has no tracks but threads, on which ranges must not overlap.
//! In Perfetto's format times are exact, tracks are named and merged, a range whose end is missing is shown as what it is,
//! and a file is half as long. It is written by hand, as protocol buffers: a few fields of four messages need no library.
//!
//! # When something is missing
//! - A process that dies while it writes leaves a file that can be opened: it ends with the last batch, or within one.
//! - A range without an end lasts until the last record of its process and says `unfinished`. That is settled when the
//!   rank starts anew, or by [`PerfettoWriter::finish`].
//! - An end without a beginning is not shown, but counted.

mod open;
mod packets;
mod tracks;
mod wire;

use super::words;
use crate::job::Incarnation;
use crate::trace::recorder::{Communication, Detail, DeviceCommunication, DeviceWork, Event, NameId};
use crate::trace::{NameTable, Origin, RecordBatch, TimedRecord};
pub use open::EARLY_ENDS_MAX;
use open::{Open, Process};
use packets::{EventType, Packets};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;
pub use tracks::{COUNTER_TRACKS_MAX, SPAN_TRACKS_MAX, STREAMS_MAX};
use tracks::{Line, Tracks};

/// So many ranges a process can have open; when one more begins, the oldest is shown as unfinished.
pub const OPEN_RANGES_MAX: usize = 1024;

/// Writes records into a file that Perfetto opens. The usual name of such a file ends in `.pftrace`.
///
/// Batches of several processes may come in any order; those of one process, as they were recorded. Memory is bounded by
/// what is open ([`OPEN_RANGES_MAX`], [`EARLY_ENDS_MAX`], [`COUNTER_TRACKS_MAX`]) and by the longest batch.
///
/// ```
/// use taskd_core::job::{Incarnation, Rank};
/// use taskd_core::trace::export::perfetto::PerfettoWriter;
/// use taskd_core::trace::recorder::{Detail, Event, Kind, NameId};
/// use taskd_core::trace::{NameTable, Origin, RecordBatch, TimedRecord};
///
/// # fn main() -> std::io::Result<()> {
/// let moment = |unix_nanos, event| TimedRecord {
///     unix_nanos,
///     thread: 4711,
///     kind: Kind::Step,
///     event,
///     name: NameId(0),
///     detail: Detail::Step { number: 17, cpu_nanos: 0 },
/// };
/// let batch = RecordBatch {
///     origin: Origin { rank: Rank(0), incarnation: Incarnation(1), pid: 4711 },
///     names: NameTable::default().into(),
///     lost: 0,
///     records: vec![moment(1_000, Event::Begin { range: 1 }), moment(9_000, Event::End { range: 1 })],
/// };
/// let mut writer = PerfettoWriter::new(Vec::new());
/// writer.batch(&batch)?;
/// let (file, summary) = writer.finish()?;
/// assert_eq!((file.is_empty(), summary.ranges), (false, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PerfettoWriter<W> {
    out: W,
    packets: Packets,
    tracks: Tracks,
    processes: BTreeMap<Origin, Process>,
    has_begun: bool,
    summary: Summary,
}

/// What a file holds, and what it does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Ranges and spans shown, the unfinished ones among them.
    pub ranges: u64,
    /// Ranges whose end is missing.
    pub unfinished: u64,
    /// Ends whose beginning is missing. They are not shown.
    pub orphan_ends: u64,
    /// Moments shown.
    pub instants: u64,
    /// Figures shown.
    pub counters: u64,
    /// What is not shown: figures of counters beyond [`COUNTER_TRACKS_MAX`], those that are no finite number, and spans beyond
    /// [`STREAMS_MAX`] or [`SPAN_TRACKS_MAX`].
    pub left_out: u64,
    /// Records that were lost before they came here, as the batches say.
    pub lost: u64,
}

impl<W: Write> PerfettoWriter<W> {
    /// A writer into an empty file. It writes batch by batch, so `out` needs no buffer.
    pub fn new(out: W) -> PerfettoWriter<W> {
        PerfettoWriter {
            out,
            packets: Packets::default(),
            tracks: Tracks::default(),
            processes: BTreeMap::new(),
            has_begun: false,
            summary: Summary::default(),
        }
    }

    /// Writes a batch.
    ///
    /// # Errors
    /// When the file cannot be written; the writer is of no use then.
    pub fn batch(&mut self, batch: &RecordBatch) -> io::Result<()> {
        let mut records: Vec<&TimedRecord> = batch.records.iter().collect();
        records.sort_by_key(|record| record.unix_nanos); // the threads' records stood side by side
        self.summary.lost = self.summary.lost.saturating_add(batch.lost);
        let Some(first) = records.first().map(|record| shown(record.unix_nanos)) else { return Ok(()) };
        if !std::mem::replace(&mut self.has_begun, true) {
            self.packets.head(first);
        }
        let mut process = self.process(batch.origin, first);
        if batch.lost > 0 {
            let track = self.tracks.recorder(batch.origin.rank, &mut self.packets);
            self.packets.event(first, EventType::Instant, track, |event| {
                event.name("records lost");
                event.number(packets::RECORDS, batch.lost);
            });
        }
        for record in records {
            self.record(batch.origin, &mut process, record, &batch.names);
        }
        self.processes.insert(batch.origin, process);
        self.out.write_all(self.packets.drain().as_ref())
    }

    /// Ends what is open, and returns the file with an account of what is in it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn finish(mut self) -> io::Result<(W, Summary)> {
        for (_, process) in std::mem::take(&mut self.processes) {
            self.close(process);
        }
        self.out.write_all(self.packets.drain().as_ref())?;
        self.out.flush()?;
        Ok((self.out, self.summary))
    }

    /// What is open in a process. When it is new, it says so, and what its predecessors left open has ended.
    fn process(&mut self, origin: Origin, first: u64) -> Process {
        if let Some(known) = self.processes.remove(&origin) {
            return known;
        }
        let eldest = Origin { incarnation: Incarnation(0), pid: 0, ..origin };
        let own = Origin { pid: 0, ..origin };
        while let Some(elder) = self.processes.range(eldest..own).next().map(|(elder, _)| *elder) {
            if let Some(process) = self.processes.remove(&elder) {
                self.close(process);
            }
        }
        let track = self.tracks.recorder(origin.rank, &mut self.packets);
        self.packets.event(first, EventType::Instant, track, |event| {
            event.name("first record");
            event.number(packets::INCARNATION, u64::from(origin.incarnation.0));
            event.number(packets::PID, u64::from(origin.pid));
        });
        Process::default()
    }

    fn record(&mut self, origin: Origin, process: &mut Process, record: &TimedRecord, names: &NameTable) {
        let nanos = shown(record.unix_nanos);
        process.last_nanos = process.last_nanos.max(nanos);
        match record.event {
            Event::Begin { range } => self.begin(origin, process, record, range, names),
            Event::End { range } => match process.open.remove(&range) {
                Some(open) => self.end(open, record),
                None => self.summary.orphan_ends += process.early.keep(range, *record),
            },
            Event::Instant => {
                self.summary.instants += 1;
                let track = self.tracks.moments(origin.rank, record.kind, &mut self.packets);
                self.packets.event(nanos, EventType::Instant, track, |event| describe(event, record, names));
            }
            Event::Counter { value } => self.counter(origin, record, value, names),
            Event::Span { nanos: length } => {
                let end = shown(record.unix_nanos.saturating_add(length));
                process.last_nanos = process.last_nanos.max(end);
                self.span(origin, record, nanos..end, names);
            }
        }
    }

    fn span(&mut self, origin: Origin, record: &TimedRecord, span: Range<u64>, names: &NameTable) {
        let line = Line::of(record.kind, &record.detail);
        let Some(place) = self.tracks.fit(origin.rank, line, span.clone(), &mut self.packets) else {
            self.summary.left_out += 1;
            return;
        };
        self.summary.ranges += 1;
        self.packets.event(span.start, EventType::Begin, place.track, |event| describe(event, record, names));
        self.packets.event(span.end, EventType::End, place.track, |_| ());
    }

    fn counter(&mut self, origin: Origin, record: &TimedRecord, value: f64, names: &NameTable) {
        let name = called(record, names);
        let track = if value.is_finite() { self.tracks.counter(origin.rank, &name, &mut self.packets) } else { None };
        let Some(track) = track else {
            self.summary.left_out += 1;
            return;
        };
        self.summary.counters += 1;
        self.packets.event(shown(record.unix_nanos), EventType::Counter, track, |event| event.value(value));
    }

    fn begin(&mut self, origin: Origin, process: &mut Process, record: &TimedRecord, range: u64, names: &NameTable) {
        let begun = shown(record.unix_nanos);
        if let Some(former) = process.open.remove(&range) {
            self.cut(former, begun); // its number is another's now
        }
        let oldest = || process.open.iter().min_by_key(|(_, open)| open.begun).map(|(range, _)| *range);
        if process.open.len() >= OPEN_RANGES_MAX
            && let Some(oldest) = oldest().and_then(|range| process.open.remove(&range))
        {
            self.cut(oldest, begun); // its end was lost, most likely
        }
        self.summary.ranges += 1;
        let place = self.tracks.take(origin.rank, record.kind, begun, &mut self.packets);
        self.packets.event(begun, EventType::Begin, place.track, |event| describe(event, record, names));
        let open = Open { place, begun };
        match process.early.find(range) {
            Some(end) => self.end(open, &end),
            None => _ = process.open.insert(range, open),
        }
    }

    /// A range has ended.
    fn end(&mut self, open: Open, end: &TimedRecord) {
        let nanos = shown(end.unix_nanos).max(open.begun);
        self.tracks.leave(open.place, nanos);
        self.packets.event(nanos, EventType::End, open.place.track, |event| {
            if let Detail::Step { cpu_nanos: cpu_nanos @ 1.., .. } = end.detail {
                event.figure(packets::CPU_MS, cpu_nanos as f64 / 1e6);
            }
        });
    }

    /// A range has no end: it lasted until then at least.
    fn cut(&mut self, open: Open, nanos: u64) {
        self.summary.unfinished += 1;
        let nanos = nanos.max(open.begun);
        self.tracks.leave(open.place, nanos);
        self.packets.event(nanos, EventType::End, open.place.track, |event| event.flag(packets::UNFINISHED));
    }

    /// Nothing more comes of a process.
    fn close(&mut self, process: Process) {
        self.summary.orphan_ends += process.early.len();
        for (_, open) in process.open {
            self.cut(open, process.last_nanos);
        }
    }
}

/// The time as the file can tell it: until the year 2262.
fn shown(nanos: u64) -> u64 {
    nanos.min(i64::MAX.unsigned_abs())
}

/// How a record is called; what has no name is called by what it is.
fn called<'a>(record: &TimedRecord, names: &'a NameTable) -> Cow<'a, str> {
    match (names.get(record.name), record.detail) {
        ("", Detail::Step { number, .. }) => Cow::Owned(format!("step {number}")),
        ("", Detail::Communication(Communication { op, .. })) => Cow::Borrowed(op.name()),
        ("", Detail::DeviceCommunication(DeviceCommunication { op, .. })) => Cow::Borrowed(op.name()),
        ("", Detail::None | Detail::Device(_)) => words::kind(record.kind),
        (name, _) => Cow::Borrowed(name),
    }
}

/// Name and arguments of a record that is shown.
fn describe(event: &mut packets::Event<'_>, record: &TimedRecord, names: &NameTable) {
    event.name(&called(record, names));
    if record.thread != 0 || matches!(record.event, Event::Begin { .. } | Event::Instant) {
        event.number(packets::THREAD, u64::from(record.thread));
    }
    arguments(event, &record.detail, names);
}

fn arguments(event: &mut packets::Event<'_>, detail: &Detail, names: &NameTable) {
    match *detail {
        Detail::None => {}
        Detail::Step { number, .. } => event.number(packets::STEP, number),
        Detail::Communication(c) => {
            event.text(packets::OP, c.op.name());
            event.text(packets::DATA_TYPE, c.data_type.name());
            group(event, c.group, names);
            event.number(packets::ELEMENTS, c.elements);
            event.number(packets::BYTES, c.bytes);
            if let Some(peer) = c.peer {
                event.number(packets::PEER, u64::from(peer));
            }
            if let Some(sequence) = c.sequence {
                event.number(packets::SEQUENCE_NUMBER, sequence);
            }
        }
        Detail::Device(work) => device(event, work),
        Detail::DeviceCommunication(c) => {
            event.text(packets::OP, c.op.name());
            event.text(packets::DATA_TYPE, c.data_type.name());
            group(event, c.group, names);
            if let Some(peer) = c.peer {
                event.number(packets::PEER, u64::from(peer));
            }
            device(event, c.work);
        }
    }
}

fn group(event: &mut packets::Event<'_>, group: NameId, names: &NameTable) {
    let group = names.get(group);
    let (group, members) = group.rsplit_once('|').unwrap_or((group, ""));
    for (argument, text) in [(packets::GROUP, group), (packets::MEMBERS, members)] {
        if !text.is_empty() {
            event.text(argument, text);
        }
    }
}

fn device(event: &mut packets::Event<'_>, work: DeviceWork) {
    for (argument, number) in [(packets::DEVICE, work.device), (packets::STREAM, work.stream)] {
        if number != u32::MAX {
            event.number(argument, u64::from(number));
        }
    }
    for (argument, number) in [(packets::CORRELATION, work.correlation), (packets::BYTES, work.bytes)] {
        if number != 0 {
            event.number(argument, number);
        }
    }
}
