//! Lines as batches, ours and those of others.
//!
//! What cannot be read is skipped and told. It never takes more memory than a line and a batch may have.

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

/// Records of a batch, at most.
const BATCH_RECORDS_MAX: usize = 4096;
/// Different names of a file, at most; records with others are without.
const NAMES_MAX: usize = 1 << 18;
/// Ranges that are open at one time, at most, of those whose number does not tell their kind; the end of an older one is not
/// understood.
const OPEN_MAX: usize = 1 << 16;

/// Reads batches in the compatible format, whoever wrote them. A batch ends where another process's records follow or some
/// are missing, and after some thousand records.
#[derive(Debug)]
pub struct CompatibleReader<R> {
    input: BufReader<R>,
    rank: Rank,
    at: u64,
    line: Vec<u8>,
    names: Names,
    /// Kinds of ranges that others began.
    open: BTreeMap<u64, Kind>,
    /// The record that the next batch begins with.
    ahead: Option<Told>,
    understood: u64,
    skipped: Skipped,
}

/// The names of one file.
#[derive(Debug, Default)]
struct Names {
    table: Arc<NameTable>,
    ids: BTreeMap<Box<str>, NameId>,
}

/// A record, and what its line says of its batch.
#[derive(Debug)]
struct Told {
    origin: Origin,
    lost: u64,
    record: TimedRecord,
}

impl<R: Read> CompatibleReader<R> {
    /// Reads a file of a rank: which one, its directory says.
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

    /// What was left out so far; all of it when there are no more batches.
    #[must_use]
    pub const fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// The next record that is understood.
    fn read_record(&mut self) -> Option<Told> {
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
            if let Some(told) = self.record(&line) {
                return Some(told);
            }
        }
    }

    /// Reads a line with its end. `None`: there is none; false: it is too long to be one, and was passed over.
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

    fn record(&mut self, line: &Line) -> Option<Told> {
        if line.kind != MARKER {
            self.skipped.other_records += 1;
            return None;
        }
        if line.taskd.as_ref().and_then(|extra| extra.of_a_span).is_some() {
            return None; // its beginning has told it
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
        Some(Told { origin, lost, record })
    }

    /// The kind of a record; of an end that does not tell, that of its beginning.
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

    /// All that is left is read: a file in which nothing was understood is none of this format.
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
        let Told { origin, lost, record } = first;
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
    /// The number of a name; 0 of none, and where there are too many.
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
