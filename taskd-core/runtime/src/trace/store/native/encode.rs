//! Encoding of records to the payload of a block.
//!
//! Encoding cannot fail: the caller has split the batch into blocks and checked its names.

use super::model::{KIND_AT, Model, Shape};
use super::varint::{put, put_bytes};
use super::{KNOWN_MAX, model};
use crate::trace::recorder::{Detail, DeviceCommunication, DeviceWork, Event};
use crate::trace::{NameTable, Origin, TimedRecord};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of entries in the cache of recent shapes.
const RECENT: usize = 256;

/// Encodes records to blocks; each block depends on the earlier ones.
#[derive(Debug)]
pub(super) struct Encoder {
    model: Model,
    shapes: BTreeMap<Shape, u32>,
    threads: BTreeMap<u32, u32>,
    recent: Box<[u32; RECENT]>,
    block: Block,
}

/// The parts of one block; the buffers are reused for the next one.
#[derive(Debug, Default)]
struct Block {
    runs: Vec<(u32, u64)>,
    shapes: Vec<u8>,
    times: Vec<u8>,
    ranges: Vec<u8>,
    figures: Vec<u8>,
}

/// Input of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    /// If set, makes a key block for this process.
    pub(super) key: Option<Origin>,
    pub(super) names: &'a Arc<NameTable>,
    pub(super) lost: u64,
    /// At most [`BLOCK_RECORDS_MAX`](super::BLOCK_RECORDS_MAX).
    pub(super) records: &'a [TimedRecord],
}

impl Encoder {
    pub(super) fn new() -> Encoder {
        Encoder {
            model: Model::default(),
            shapes: BTreeMap::new(),
            threads: BTreeMap::new(),
            recent: Box::new([0; RECENT]),
            block: Block::default(),
        }
    }

    /// Returns true if the model exceeds its bound, so that a key block is due.
    pub(super) fn is_full(&self) -> bool {
        self.model.shapes.len().max(self.model.threads.len()) > KNOWN_MAX
    }

    /// Returns true if the names are the known ones, possibly followed by new ones.
    pub(super) fn continues(&self, names: &Arc<NameTable>) -> bool {
        let known = &self.model.names;
        Arc::ptr_eq(known, names)
            || known.len() <= names.len() && known.iter().zip(names.iter()).all(|(known, name)| known == name)
    }

    /// Appends the payload of a block. Returns the number of bytes before the records: new names, threads and shapes.
    pub(super) fn encode(&mut self, part: &Part<'_>, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        put(out, part.lost);
        if let Some(origin) = part.key {
            (self.model, self.shapes, self.threads) = Default::default();
            [origin.rank.0, origin.incarnation.0, origin.pid].iter().for_each(|number| put(out, u64::from(*number)));
        }
        let (shapes, threads) = (self.model.shapes.len(), self.model.threads.len());
        self.block.clear();
        self.fill(part.records);
        self.put_names(part.names, out);
        put(out, (self.model.threads.len() - threads) as u64);
        self.model.threads[threads..].iter().for_each(|thread| put(out, u64::from(thread.id)));
        put(out, (self.model.shapes.len() - shapes) as u64);
        self.model.shapes[shapes..].iter().for_each(|known| put_shape(out, &known.shape));
        let new = out.len() - start;
        self.block.put(out);
        self.model.now = part.records.last().map_or(self.model.now, |last| last.unix_nanos);
        new
    }

    fn put_names(&mut self, names: &Arc<NameTable>, out: &mut Vec<u8>) {
        let known = self.model.names.len();
        put(out, names.len().saturating_sub(known) as u64);
        names.iter().skip(known).for_each(|(_, name)| put_bytes(out, name.as_bytes()));
        self.model.names = Arc::clone(names);
    }

    fn fill(&mut self, records: &[TimedRecord]) {
        for run in records.chunk_by(|one, next| one.thread == next.thread) {
            let Some(first) = run.first() else { continue };
            let thread = self.thread(first.thread);
            self.block.runs.push((thread, run.len() as u64));
            let mut state = self.model.threads[thread as usize];
            run.iter().for_each(|record| self.push(&mut state, record));
            self.model.threads[thread as usize] = state;
        }
    }

    #[inline]
    fn push(&mut self, thread: &mut model::Thread, record: &TimedRecord) {
        let shape = self.shape(&Shape::of(record));
        let Encoder { model, block, .. } = self;
        let known = &mut model.shapes[shape as usize];
        put(&mut block.shapes, u64::from(shape));
        put(&mut block.times, thread.time.difference(record.unix_nanos, 0));
        match record.event {
            Event::Begin { range } => {
                let count = range.wrapping_sub(u64::from(record.kind.number()) << KIND_AT);
                put(&mut block.ranges, thread.begun.difference(count, 1));
            }
            Event::End { range } => {
                let ended = &mut model.ended[usize::from(record.kind.number())];
                put(&mut block.ranges, ended.difference(range, 1));
            }
            Event::Instant => {}
            Event::Counter { value } => put(&mut block.figures, known.figure.bits_difference(value.to_bits())),
            Event::Span { nanos } => put(&mut block.figures, known.figure.difference(nanos, 0)),
        }
        match record.detail {
            Detail::None => {}
            Detail::Step { number, cpu_nanos } => {
                put(&mut block.figures, model.step.difference(number, 0));
                put(&mut block.figures, model.cpu.difference(cpu_nanos, 0));
            }
            Detail::Communication(communication) => {
                if let Some(number) = communication.sequence {
                    put(&mut block.figures, model.sequences[known.sequence].difference(number, 1));
                }
            }
            Detail::Device(DeviceWork { correlation, .. })
            | Detail::DeviceCommunication(DeviceCommunication { work: DeviceWork { correlation, .. }, .. }) => {
                let last = &mut model.correlations[usize::from(record.kind.number())];
                put(&mut block.figures, last.difference(correlation, 1));
            }
        }
    }

    fn thread(&mut self, id: u32) -> u32 {
        let next = place(self.model.threads.len());
        let place = *self.threads.entry(id).or_insert(next);
        if place == next {
            self.model.meet_thread(id);
        }
        place
    }

    #[inline]
    fn shape(&mut self, shape: &Shape) -> u32 {
        let recent = &mut self.recent[recent(shape)];
        if self.model.shapes.get(*recent as usize).is_some_and(|known| known.shape == *shape) {
            return *recent;
        }
        let next = place(self.model.shapes.len());
        *recent = *self.shapes.entry(*shape).or_insert(next);
        if *recent == next {
            self.model.meet_shape(*shape);
        }
        *recent
    }
}

impl Block {
    fn clear(&mut self) {
        self.runs.clear();
        [&mut self.shapes, &mut self.times, &mut self.ranges, &mut self.figures].into_iter().for_each(Vec::clear);
    }

    fn put(&self, out: &mut Vec<u8>) {
        put(out, self.runs.len() as u64);
        for (thread, records) in &self.runs {
            put(out, u64::from(*thread));
            put(out, *records);
        }
        let columns = [&self.shapes, &self.times, &self.ranges, &self.figures];
        columns.into_iter().for_each(|column| put_bytes(out, column));
    }
}

fn put_shape(out: &mut Vec<u8>, shape: &Shape) {
    out.extend_from_slice(&shape.codes);
    [shape.name, shape.group, shape.peer].iter().for_each(|number| put(out, u64::from(*number)));
    [shape.elements, shape.bytes].iter().for_each(|number| put(out, *number));
}

/// Returns the cache entry of a shape.
#[inline]
fn recent(shape: &Shape) -> usize {
    let [kind, event, detail, op, data_type, has] = shape.codes;
    let codes = u64::from_le_bytes([kind, event, detail, op, data_type, has, 0, 0]);
    let mixed = (codes ^ u64::from(shape.name) << 16 ^ u64::from(shape.peer) << 40)
        .wrapping_add(u64::from(shape.group) << 8)
        .wrapping_add(shape.bytes.rotate_left(24))
        .wrapping_add(shape.elements.rotate_left(44))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15); // 2^64 divided by the golden ratio: spreads neighbours
    (mixed >> 56) as usize
}

/// Returns the index of the next entry. It is below 2^32 because of [`KNOWN_MAX`] and the records of a block.
fn place(known: usize) -> u32 {
    u32::try_from(known).unwrap_or(u32::MAX)
}
