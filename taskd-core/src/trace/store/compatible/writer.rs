//! Batches as lines.
//!
//! Every batch is written at once, with one call, and ends with a whole line.

use super::LINE_BYTES_MAX;
use super::line::{BEGIN, DeviceAndStream, END, Extra, INSTANT, Line, MARKER, ObjectId, ProcessAndThread};
use super::plain;
use crate::job::Incarnation;
use crate::trace::recorder::Event;
use crate::trace::{RecordBatch, TimedRecord};
use std::io::{self, Write};

/// An incarnation that is not told: the first.
pub(super) const FIRST: Incarnation = Incarnation(1);

/// Writes batches in the compatible format.
#[derive(Debug)]
pub struct CompatibleWriter<W> {
    out: W,
    lines: Vec<u8>,
    /// Missing records that no line has told of yet.
    lost: u64,
    written: u64,
}

impl<W: Write> CompatibleWriter<W> {
    /// Goes on at the end of what was written before, which must be a whole line.
    #[must_use]
    pub const fn new(out: W) -> CompatibleWriter<W> {
        CompatibleWriter { out, lines: Vec::new(), lost: 0, written: 0 }
    }

    /// Writes a line for each record. What a batch without a record says to be missing is told with the next record.
    ///
    /// # Errors
    /// When they cannot be written, or a line would be longer than [`LINE_BYTES_MAX`]: then no line of the batch is. The next
    /// batch can be written all the same, once a file that took a part of this one is cut to [`written`](Self::written).
    pub fn append(&mut self, batch: &RecordBatch) -> io::Result<()> {
        self.lines.clear();
        let all_lost = self.lost.saturating_add(batch.lost);
        let mut lost = Some(all_lost).filter(|lost| *lost > 0);
        for record in &batch.records {
            let from = self.lines.len();
            serde_json::to_writer(&mut self.lines, &line(batch, record, lost.take()))?;
            self.lines.push(b'\n');
            let length = self.lines.len() - from;
            if length > LINE_BYTES_MAX {
                let why =
                    format!("a record with its names takes {length} bytes, and at most {LINE_BYTES_MAX} can be stored");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
        }
        self.out.write_all(&self.lines)?;
        self.lost = if self.lines.is_empty() { all_lost } else { 0 };
        self.written += self.lines.len() as u64;
        Ok(())
    }

    /// The length of all whole batches written here, in bytes.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Passes on what a buffering file holds back.
    ///
    /// # Errors
    /// Those of the file.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// The file.
    #[must_use]
    pub fn into_inner(self) -> W {
        self.out
    }

    /// The file.
    #[must_use]
    pub const fn get_ref(&self) -> &W {
        &self.out
    }
}

fn line(batch: &RecordBatch, record: &TimedRecord, lost: Option<u64>) -> Line {
    let actual = plain::of_record(record, &batch.names);
    let (name, domain) = plain::texts(&actual);
    let (flag, id) = match record.event {
        Event::Begin { range } => (BEGIN, range),
        Event::End { range } => (END, range),
        Event::Instant | Event::Counter { .. } | Event::Span { .. } => (INSTANT, 0),
    };
    let pt = ProcessAndThread { process_id: batch.origin.pid, thread_id: record.thread };
    let mut line = Line {
        kind: MARKER,
        flag,
        source_kind: 0,
        timestamp: record.unix_nanos,
        id,
        mspti_object_id: ObjectId { pt, ds: DeviceAndStream::default() },
        name: Some(name),
        domain: Some(domain.to_owned()),
        taskd: None,
    };
    let understood = plain::of_line(&line);
    let mut extra = understood.map(|understood| plain::difference(&understood, &actual)).unwrap_or_default();
    extra.incarnation = Some(batch.origin.incarnation).filter(|one| *one != FIRST).map(|one| one.0);
    extra.lost = lost;
    line.taskd = Some(extra).filter(|extra| *extra != Extra::default());
    line
}
