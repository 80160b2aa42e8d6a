//! Records as a file for [ui.perfetto.dev](https://ui.perfetto.dev) and its trace processor.
//!
//! The writer writes batches as they arrive and keeps no records, only the open ranges. This module does not read such
//! files.
//!
//! # Tracks and arguments
//! Each rank is a process, `rank 3`, with one track per kind (`Step`, `DataLoader`, `SaveCheckpoint`, `FP`,
//! `Communication`, `User 0` and so on), one per counter, and one per stream of its devices. Overlapping ranges of a
//! kind, as of asynchronous communications, are shown below each other. Further data of a record is in its arguments:
//! `step`, `cpu_ms`, `op`, `data_type`, `group`, `members`, `elements`, `bytes`, `peer`, `sequence`, `device`,
//! `stream`, `correlation` and the `thread`. The track `Recorder` shows when a process of the rank began to record, and
//! where records were lost. Times are calendar times.
//!
//! # Why Perfetto's own format
//! The alternative is the JSON of Chrome's tracing, which more programs read. Its times are decimal microseconds:
//! nanoseconds since 1970 exceed the precision of the floating-point numbers to which readers convert them, and a range
//! that then seems to begin before its predecessor's end is dropped. It has no tracks except threads, on which ranges
//! must not overlap. In Perfetto's format times are exact, tracks are named and merged, a range without an end is shown
//! as such, and a file is half as long. The protocol buffers are encoded by hand: a few fields of four messages need no
//! library.
//!
//! # Missing data
//! - If the process dies while it writes, the file can still be opened: it ends after the last batch, or within one.
//! - A range without an end lasts until the last record of its process and has the argument `unfinished`. It is written
//!   when the rank is restarted, or by [`PerfettoWriter::finish`].
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

/// Maximum number of open ranges of one process in a Perfetto export; when one more begins, the oldest open range
/// is shown as unfinished.
pub const OPEN_RANGES_MAX: usize = 1024;

/// Writes records to a file that Perfetto opens. The usual extension of such a file is `.pftrace`.
///
/// Batches of several processes may come in any order; those of one process in the order of recording. Memory is
/// bounded by the open ranges and tracks ([`OPEN_RANGES_MAX`], [`EARLY_ENDS_MAX`], [`COUNTER_TRACKS_MAX`]) and by the
/// longest batch.
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

/// Counts of the trace data that a Perfetto file shows, and of the trace data that it lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of ranges and spans shown, including unfinished ones.
    pub ranges: u64,
    /// Number of ranges without a recorded end, which are shown as unfinished.
    pub unfinished: u64,
    /// Number of recorded ends of ranges whose beginnings are missing. The file does not show these ends.
    pub orphan_ends: u64,
    /// Number of instants shown.
    pub instants: u64,
    /// Number of values of counters that the file shows.
    pub counters: u64,
    /// Number of records that the file does not show: values of counters beyond [`COUNTER_TRACKS_MAX`], values that are
    /// not finite, and spans beyond [`STREAMS_MAX`] or [`SPAN_TRACKS_MAX`].
    pub left_out: u64,
    /// Number of records lost before the export, as recorded in the batches.
    pub lost: u64,
}

impl<W: Write> PerfettoWriter<W> {
    /// Creates a writer to an empty file. It writes batch by batch, so `out` needs no buffer.
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

    /// Writes the records of a batch to the file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written. The writer is unusable afterwards.
    pub fn batch(&mut self, batch: &RecordBatch) -> io::Result<()> {
        let mut records: Vec<&TimedRecord> = batch.records.iter().collect();
        records.sort_by_key(|record| record.unix_nanos); // the threads' records are interleaved
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

    /// Ends the open ranges, and returns the file with its counts.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn finish(mut self) -> io::Result<(W, Summary)> {
        for (_, process) in std::mem::take(&mut self.processes) {
            self.close(process);
        }
        self.out.write_all(self.packets.drain().as_ref())?;
        self.out.flush()?;
        Ok((self.out, self.summary))
    }

    /// Returns the state of a process. For a new process, writes an event, and ends the open ranges of its
    /// predecessors.
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
            self.cut(former, begun); // its number was reused
        }
        let oldest = || process.open.iter().min_by_key(|(_, open)| open.begun).map(|(range, _)| *range);
        if process.open.len() >= OPEN_RANGES_MAX
            && let Some(oldest) = oldest().and_then(|range| process.open.remove(&range))
        {
            self.cut(oldest, begun); // its end was probably lost
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

    /// Ends a range.
    fn end(&mut self, open: Open, end: &TimedRecord) {
        let nanos = shown(end.unix_nanos).max(open.begun);
        self.tracks.leave(open.place, nanos);
        self.packets.event(nanos, EventType::End, open.place.track, |event| {
            if let Detail::Step { cpu_nanos: cpu_nanos @ 1.., .. } = end.detail {
                event.figure(packets::CPU_MS, cpu_nanos as f64 / 1e6);
            }
        });
    }

    /// Ends a range without an end: it lasted at least until this time.
    fn cut(&mut self, open: Open, nanos: u64) {
        self.summary.unfinished += 1;
        let nanos = nanos.max(open.begun);
        self.tracks.leave(open.place, nanos);
        self.packets.event(nanos, EventType::End, open.place.track, |event| event.flag(packets::UNFINISHED));
    }

    /// Closes a process, of which no further records come.
    fn close(&mut self, process: Process) {
        self.summary.orphan_ends += process.early.len();
        for (_, open) in process.open {
            self.cut(open, process.last_nanos);
        }
    }
}

/// Clamps a time to the range of the format, which ends in the year 2262.
fn shown(nanos: u64) -> u64 {
    nanos.min(i64::MAX.unsigned_abs())
}

/// Returns the name of a record; by default, the name of its operation or kind.
fn called<'a>(record: &TimedRecord, names: &'a NameTable) -> Cow<'a, str> {
    match (names.get(record.name), record.detail) {
        ("", Detail::Step { number, .. }) => Cow::Owned(format!("step {number}")),
        ("", Detail::Communication(Communication { op, .. })) => Cow::Borrowed(op.name()),
        ("", Detail::DeviceCommunication(DeviceCommunication { op, .. })) => Cow::Borrowed(op.name()),
        ("", Detail::None | Detail::Device(_)) => words::kind(record.kind),
        (name, _) => Cow::Borrowed(name),
    }
}

/// Writes name and arguments of a record.
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
