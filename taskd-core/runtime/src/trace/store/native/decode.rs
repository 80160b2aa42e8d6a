//! Decoding of a block's payload to records.
//!
//! Decoding ends for any input, with or without records, and its memory is bounded by the limits of blocks.

use super::model::{KIND_AT, Model, Shape};
use super::varint::Bytes;
use super::{BLOCK_RECORDS_MAX, KNOWN_MAX, NAMES_BYTES_MAX, NAMES_MAX, model};
use crate::job::{Incarnation, Rank};
use crate::trace::recorder::{Detail, DeviceCommunication, DeviceWork, Event};
use crate::trace::{Origin, RecordBatch, TimedRecord};
use std::sync::Arc;

/// Decodes blocks to records.
#[derive(Debug)]
pub(super) struct Decoder {
    model: Model,
    /// The process of the last key block; `None` if only a key block can be read next.
    origin: Option<Origin>,
}

/// The unread parts of a block's columns.
struct Columns<'a> {
    shapes: Bytes<'a>,
    times: Bytes<'a>,
    ranges: Bytes<'a>,
    figures: Bytes<'a>,
}

impl Decoder {
    pub(super) fn new() -> Decoder {
        Decoder { model: Model::default(), origin: None }
    }

    /// Resets the decoder after a skipped block: nothing is readable before the next key block.
    pub(super) fn lose_track(&mut self) {
        self.origin = None;
    }

    /// Decodes a payload to a batch. `None` if no writer of this version makes such a payload, or it depends on a block
    /// that was skipped; then nothing is readable before the next key block.
    pub(super) fn decode(&mut self, is_key: bool, payload: &[u8]) -> Option<RecordBatch> {
        let origin = self.origin.take();
        let mut bytes = Bytes(payload);
        let lost = bytes.next()?;
        let origin = if is_key {
            self.model = Model::default();
            let (rank, incarnation) = (Rank(bytes.next_u32()?), Incarnation(bytes.next_u32()?));
            Origin { rank, incarnation, pid: bytes.next_u32()? }
        } else {
            origin?
        };
        self.take_names(&mut bytes)?;
        self.take_threads(&mut bytes)?;
        self.take_shapes(&mut bytes)?;
        let records = self.take_records(&mut bytes)?;
        self.model.now = records.last().map_or(self.model.now, |last| last.unix_nanos);
        self.origin = Some(origin);
        Some(RecordBatch { origin, names: Arc::clone(&self.model.names), lost, records })
    }

    fn take_names(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let count = bytes.next_count()?;
        if count == 0 {
            return Some(());
        }
        let names = Arc::make_mut(&mut self.model.names);
        for _ in 0..count {
            let name = std::str::from_utf8(bytes.next_bytes()?).ok()?;
            self.model.names_bytes += name.len();
            if names.len() >= NAMES_MAX || self.model.names_bytes > NAMES_BYTES_MAX {
                return None;
            }
            names.push(name);
        }
        Some(())
    }

    fn take_threads(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let count =
            bytes.next_count().filter(|count| self.model.threads.len() + count <= KNOWN_MAX + BLOCK_RECORDS_MAX)?;
        for _ in 0..count {
            self.model.meet_thread(bytes.next_u32()?);
        }
        Some(())
    }

    fn take_shapes(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let count =
            bytes.next_count().filter(|count| self.model.shapes.len() + count <= KNOWN_MAX + BLOCK_RECORDS_MAX)?;
        for _ in 0..count {
            let codes = *bytes.take(6)?.first_chunk()?;
            let (name, group, peer) = (bytes.next_u32()?, bytes.next_u32()?, bytes.next_u32()?);
            let shape = Shape { codes, name, group, peer, elements: bytes.next()?, bytes: bytes.next()? };
            if !self.model.meet_shape(shape) {
                return None;
            }
        }
        Some(())
    }

    fn take_records(&mut self, bytes: &mut Bytes<'_>) -> Option<Vec<TimedRecord>> {
        let count = bytes.next_count()?;
        let mut runs = *bytes;
        let mut total = 0usize;
        for _ in 0..count {
            bytes.next()?;
            total = total.saturating_add(usize::try_from(bytes.next()?).ok()?);
        }
        let [shapes, times, ranges, figures] =
            [bytes.next_bytes()?, bytes.next_bytes()?, bytes.next_bytes()?, bytes.next_bytes()?];
        if total > BLOCK_RECORDS_MAX || total > times.len() {
            return None;
        }
        let mut columns =
            Columns { shapes: Bytes(shapes), times: Bytes(times), ranges: Bytes(ranges), figures: Bytes(figures) };
        let mut records = Vec::with_capacity(total);
        for _ in 0..count {
            let thread = usize::try_from(runs.next()?).ok()?;
            let length = runs.next()?;
            let mut state = *self.model.threads.get(thread)?;
            for _ in 0..length {
                records.push(columns.next(&mut self.model, &mut state)?);
            }
            self.model.threads[thread] = state;
        }
        Some(records)
    }
}

impl Columns<'_> {
    #[inline]
    fn next(&mut self, model: &mut Model, thread: &mut model::Thread) -> Option<TimedRecord> {
        let shape = usize::try_from(self.shapes.next()?).ok()?;
        let known = model.shapes.get_mut(shape)?;
        let mut record = known.record;
        record.thread = thread.id;
        record.unix_nanos = thread.time.value(self.times.next()?, 0);
        match &mut record.event {
            Event::Begin { range } => {
                let count = thread.begun.value(self.ranges.next()?, 1);
                *range = count.wrapping_add(u64::from(record.kind.number()) << KIND_AT);
            }
            Event::End { range } => {
                *range = model.ended.get_mut(usize::from(record.kind.number()))?.value(self.ranges.next()?, 1);
            }
            Event::Instant => {}
            Event::Counter { value } => *value = f64::from_bits(known.figure.bits_value(self.figures.next()?)),
            Event::Span { nanos } => *nanos = known.figure.value(self.figures.next()?, 0),
        }
        match &mut record.detail {
            Detail::None => {}
            Detail::Step { number, cpu_nanos } => {
                *number = model.step.value(self.figures.next()?, 0);
                *cpu_nanos = model.cpu.value(self.figures.next()?, 0);
            }
            Detail::Communication(communication) => {
                if let Some(number) = &mut communication.sequence {
                    *number = model.sequences.get_mut(known.sequence)?.value(self.figures.next()?, 1);
                }
            }
            Detail::Device(DeviceWork { correlation, .. })
            | Detail::DeviceCommunication(DeviceCommunication { work: DeviceWork { correlation, .. }, .. }) => {
                let last = model.correlations.get_mut(usize::from(record.kind.number()))?;
                *correlation = last.value(self.figures.next()?, 1);
            }
        }
        Some(record)
    }
}
