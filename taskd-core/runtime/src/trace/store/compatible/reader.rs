//! Reader of lines, whether written by this program or by others.
//!
//! Unreadable parts are skipped and reported. Memory is bounded by one line, one batch and the tables of names and open
//! ranges.

use super::LINE_BYTES_MAX;
use super::line::{Line, MARKER};
use super::plain::{self, Plain};
use super::writer::FIRST;
use crate::job::{Incarnation, Rank};
use crate::trace::recorder::{Detail, Event, Kind, NameId, Range};
use crate::trace::store::{Problem, Skipped};
use crate::trace::{NameTable, Origin, RecordBatch, TimedRecord};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;

/// Maximum number of records in a batch.
const BATCH_RECORDS_MAX: usize = 4096;
/// Maximum number of different names in a file; records with further names get no name.
const NAMES_MAX: usize = 1 << 18;
/// Maximum number of open ranges whose number does not contain their kind; beyond it the end of the range with the
/// lowest number is not understood.
const OPEN_MAX: usize = 1 << 16;

/// Reads batches from a file in the compatible format (one JSON object per line); the input is not trusted. A batch
/// ends before a record of another process, before a record with losses, and after some thousand records.
#[derive(Debug)]
pub struct CompatibleReader<R> {
    input: BufReader<R>,
    rank: Rank,
    at: u64,
    line: Vec<u8>,
    names: Names,
    /// Kinds of open ranges of other writers.
    open: BTreeMap<u64, Kind>,
    /// The first record of the next batch.
    ahead: Option<Entry>,
    understood: u64,
    skipped: Skipped,
}

/// The names of one file.
#[derive(Debug, Default)]
struct Names {
    table: Arc<NameTable>,
    ids: BTreeMap<Box<str>, NameId>,
}

/// A record, with the data in its line that belongs to the batch.
#[derive(Debug)]
struct Entry {
    origin: Origin,
    lost: u64,
    record: TimedRecord,
}

impl<R: Read> CompatibleReader<R> {
    /// Creates a reader of a file with trace records of `rank`. The caller knows the rank from the file's directory.
    pub fn new(input: R, rank: Rank) -> CompatibleReader<R> {
        CompatibleReader {
            input: BufReader::new(input),
            rank,
            at: 0,
            line: Vec::new(),
            names: Names::default(),
            open: BTreeMap::new(),
            ahead: None,
            understood: 0,
            skipped: Skipped::default(),
        }
    }

    /// Returns the parts of the file that this reader has skipped so far; complete once there are no more batches.
    #[must_use]
    pub const fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// Returns the next valid record.
    fn read_record(&mut self) -> Option<Entry> {
        loop {
            let (from, is_whole) = (self.at, self.read_line()?);
            let bytes = self.at - from;
            let line = serde_json::from_slice::<Line>(&self.line).ok().filter(|_| is_whole);
            let Some(line) = line else {
                let is_at_end = self.line.last() != Some(&b'\n') && self.line.len() <= LINE_BYTES_MAX;
                let at = from;
                self.skipped.push(if is_at_end { Problem::Torn { at, bytes } } else { Problem::Damaged { at, bytes } });
                continue;
            };
            self.understood += 1;
            if let Some(record) = self.record(&line) {
                return Some(record);
            }
        }
    }

    /// Reads a line including its end. `None`: end of input; false: the line is too long and was skipped.
    fn read_line(&mut self) -> Option<bool> {
        self.line.clear();
        let longest = LINE_BYTES_MAX as u64 + 1;
        let mut length = self.read_until_end_of_line(longest)?;
        self.at += length;
        let is_whole = length < longest;
        while length == longest && self.line.last() != Some(&b'\n') {
            self.line.clear();
            let Some(more) = self.read_until_end_of_line(longest) else { break };
            (length, self.at) = (more, self.at + more);
        }
        Some(is_whole)
    }

    fn read_until_end_of_line(&mut self, longest: u64) -> Option<u64> {
        match (&mut self.input).take(longest).read_until(b'\n', &mut self.line) {
            Ok(0) => None,
            Ok(length) => Some(length as u64),
            Err(error) => {
                self.skipped.push(Problem::Unreadable { at: self.at, reason: error.to_string() });
                None
            }
        }
    }

    fn record(&mut self, line: &Line) -> Option<Entry> {
        if line.kind != MARKER {
            self.skipped.other_records += 1;
            return None;
        }
        if line.taskd.as_ref().and_then(|extra| extra.of_a_span).is_some() {
            return None; // its beginning contains all its data
        }
        let is_ours = line.taskd.as_ref().is_some_and(|extra| extra.span.is_some());
        if (line.source_kind != 0 || line.flag >= 8) && !is_ours {
            self.skipped.device_records += 1;
            return None;
        }
        let plain = plain::of_line(line);
        let plain = plain.and_then(|plain| match &line.taskd {
            Some(extra) => plain::combine(plain, extra),
            None => Some(plain),
        });
        let Some(Plain { kind, event, name, detail, group }) = plain else {
            self.skipped.other_records += 1;
            return None;
        };
        let Some(kind) = self.kind(kind, event) else {
            self.skipped.unpaired_records += 1;
            return None;
        };
        let detail = match detail {
            Detail::Communication(mut communication) => {
                communication.group = self.names.id(&group);
                Detail::Communication(communication)
            }
            Detail::DeviceCommunication(mut communication) => {
                communication.group = self.names.id(&group);
                Detail::DeviceCommunication(communication)
            }
            other => other,
        };
        let pt = &line.mspti_object_id.pt;
        let incarnation = line.taskd.as_ref().and_then(|extra| extra.incarnation).map_or(FIRST, Incarnation);
        let origin = Origin { rank: self.rank, incarnation, pid: pt.process_id };
        let lost = line.taskd.as_ref().and_then(|extra| extra.lost).unwrap_or(0);
        let name = self.names.id(&name);
        let record = TimedRecord { unix_nanos: line.timestamp, thread: pt.thread_id, kind, event, name, detail };
        Some(Entry { origin, lost, record })
    }

    /// Returns the kind of a record; for an end without one, the kind of its beginning.
    fn kind(&mut self, kind: Option<Kind>, event: Event) -> Option<Kind> {
        match (event, kind) {
            (Event::Begin { range }, Some(kind)) if Range::of_number(range).is_none() => {
                self.open.insert(range, kind);
                if self.open.len() > OPEN_MAX {
                    self.open.pop_first();
                }
                Some(kind)
            }
            (Event::End { range }, kind) => kind.or_else(|| self.open.remove(&range)),
            (_, kind) => kind,
        }
    }

    /// Ends the reading: a file without any valid line is not of this format.
    fn finish(&mut self) {
        if self.understood == 0 && self.at > 0 && !self.skipped.is_empty() {
            self.skipped = Skipped::default();
            self.skipped.push(Problem::Foreign { bytes: self.at });
        }
    }
}

impl<R: Read> Iterator for CompatibleReader<R> {
    type Item = RecordBatch;

    fn next(&mut self) -> Option<RecordBatch> {
        let Some(first) = self.ahead.take().or_else(|| self.read_record()) else {
            self.finish();
            return None;
        };
        let Entry { origin, lost, record } = first;
        let mut records = vec![record];
        while records.len() < BATCH_RECORDS_MAX {
            match self.read_record() {
                Some(next) if next.origin == origin && next.lost == 0 => records.push(next.record),
                next => {
                    self.ahead = next;
                    break;
                }
            }
        }
        Some(RecordBatch { origin, names: Arc::clone(&self.names.table), lost, records })
    }
}

impl Names {
    /// Returns the number of a name; 0 for an empty name, and if there are too many.
    fn id(&mut self, name: &str) -> NameId {
        if name.is_empty() {
            return NameId(0);
        }
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        if self.ids.len() >= NAMES_MAX {
            return NameId(0);
        }
        let id = Arc::make_mut(&mut self.table).push(name);
        self.ids.insert(name.into(), id);
        id
    }
}
