//! Writer of batches as lines.
//!
//! Each batch is written immediately, with one call, and ends with a complete line.

use super::LINE_BYTES_MAX;
use super::line::{
    BEGIN, BEGIN_ON_DEVICE, DeviceAndStream, END, END_ON_DEVICE, Extra, INSTANT, Line, MARKER, ObjectId,
    ProcessAndThread,
};
use super::plain;
use crate::job::Incarnation;
use crate::trace::recorder::{Detail, Event};
use crate::trace::{RecordBatch, TimedRecord};
use std::io::{self, Write};

/// The incarnation that is not stored: the first.
pub(super) const FIRST: Incarnation = Incarnation(1);

/// Writer of trace records in the compatible format, which existing tools read: one JSON object per line.
#[derive(Debug)]
pub struct CompatibleWriter<W> {
    out: W,
    lines: Vec<u8>,
    /// Lost records that are not yet stored in a line.
    lost: u64,
    /// Number of spans so far: their numbers in the file, which no range of a recorder has.
    spans: u64,
    written: u64,
}

impl<W: Write> CompatibleWriter<W> {
    /// Creates a writer that appends to the existing contents of `out`, which must end with a complete line.
    #[must_use]
    pub const fn new(out: W) -> CompatibleWriter<W> {
        CompatibleWriter { out, lines: Vec::new(), lost: 0, spans: 0, written: 0 }
    }

    /// Writes a batch: one line per record, two lines for a span. Losses of a batch without records are stored with the
    /// next record.
    ///
    /// # Errors
    /// Returns an error if the write fails, or if a line would be longer than [`LINE_BYTES_MAX`]. In the latter case,
    /// no line of the batch is written. If the write failed after a part of the batch, truncate the file to
    /// [`written`](Self::written) bytes: then the next batch can be written.
    pub fn append(&mut self, batch: &RecordBatch) -> io::Result<()> {
        self.lines.clear();
        let all_lost = self.lost.saturating_add(batch.lost);
        let mut lost = Some(all_lost).filter(|lost| *lost > 0);
        for record in &batch.records {
            let mut first = line(batch, record, lost.take());
            if let Event::Span { nanos } = record.event {
                self.spans += 1;
                first.id = self.spans;
                let second = second(&first, nanos);
                self.push(&first)?;
                self.push(&second)?;
            } else {
                self.push(&first)?;
            }
        }
        self.out.write_all(&self.lines)?;
        self.lost = if self.lines.is_empty() { all_lost } else { 0 };
        self.written += self.lines.len() as u64;
        Ok(())
    }

    fn push(&mut self, line: &Line) -> io::Result<()> {
        let from = self.lines.len();
        serde_json::to_writer(&mut self.lines, line)?;
        self.lines.push(b'\n');
        let length = self.lines.len() - from;
        if length <= LINE_BYTES_MAX {
            return Ok(());
        }
        let why = format!("a record with its names takes {length} bytes, and at most {LINE_BYTES_MAX} can be stored");
        Err(io::Error::new(io::ErrorKind::InvalidInput, why))
    }

    /// Returns the length of all complete batches written by this writer, in bytes.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Flushes the output.
    ///
    /// # Errors
    /// Returns the error of the output if the output cannot be flushed.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Returns the output.
    #[must_use]
    pub fn into_inner(self) -> W {
        self.out
    }

    /// Returns a reference to the output.
    #[must_use]
    pub const fn get_ref(&self) -> &W {
        &self.out
    }
}

fn line(batch: &RecordBatch, record: &TimedRecord, lost: Option<u64>) -> Line {
    let actual = plain::of_record(record, &batch.names);
    let (name, domain) = plain::texts(&actual);
    let place = match record.detail {
        Detail::Device(work) => Some(work),
        Detail::DeviceCommunication(communication) => Some(communication.work),
        _ => None,
    };
    let place = place.filter(|work| work.device != u32::MAX); // the launching call belongs to the host
    let (flag, id) = match record.event {
        Event::Begin { range } => (BEGIN, range),
        Event::End { range } => (END, range),
        Event::Instant | Event::Counter { .. } => (INSTANT, 0),
        Event::Span { .. } => (if place.is_some() { BEGIN_ON_DEVICE } else { BEGIN }, 0),
    };
    let pt = ProcessAndThread { process_id: batch.origin.pid, thread_id: record.thread };
    let ds = place.map(|work| DeviceAndStream { device_id: work.device, stream_id: work.stream }).unwrap_or_default();
    let mut line = Line {
        kind: MARKER,
        flag,
        source_kind: i32::from(flag == BEGIN_ON_DEVICE),
        timestamp: record.unix_nanos,
        id,
        mspti_object_id: ObjectId { pt, ds },
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

/// Returns the line of a span's end, as other readers expect it.
fn second(first: &Line, nanos: u64) -> Line {
    Line {
        flag: if first.flag == BEGIN_ON_DEVICE { END_ON_DEVICE } else { END },
        timestamp: first.timestamp.saturating_add(nanos),
        name: Some(String::new()),
        domain: Some(String::new()),
        taskd: Some(Extra { of_a_span: Some(true), ..Extra::default() }),
        ..*first
    }
}
