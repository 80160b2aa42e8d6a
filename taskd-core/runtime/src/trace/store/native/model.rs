//! The state that writer and reader share before each record, so that only new data has to be written.
//!
//! Both sides apply the same changes to the model; a key block resets it on both.

use super::varint::{un_zig_zag, zig_zag};
use crate::trace::recorder::{
    Communication, DataType, Detail, DeviceCommunication, DeviceWork, Event, Kind, NameId, Op,
};
use crate::trace::{NameTable, TimedRecord};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A quantity that mostly changes as predicted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Series(pub(super) u64);

impl Series {
    /// Returns the difference of a value from the previous value plus the predicted step.
    #[inline]
    pub(super) const fn difference(&mut self, value: u64, step: u64) -> u64 {
        let short = zig_zag(value.wrapping_sub(self.0).wrapping_sub(step));
        self.0 = value;
        short
    }

    /// Restores the value from the difference.
    #[inline]
    pub(super) const fn value(&mut self, short: u64, step: u64) -> u64 {
        self.0 = self.0.wrapping_add(step).wrapping_add(un_zig_zag(short));
        self.0
    }

    /// Returns the bits in which a figure differs from the previous figure; short for round figures.
    #[inline]
    pub(super) const fn bits_difference(&mut self, bits: u64) -> u64 {
        let short = (bits ^ self.0).swap_bytes();
        self.0 = bits;
        short
    }

    /// Restores the bits.
    #[inline]
    pub(super) const fn bits_value(&mut self, short: u64) -> u64 {
        self.0 ^= short.swap_bytes();
        self.0
    }
}

/// The part of a record that tends to repeat; the rest is times and increasing numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape {
    /// The kind's number; [`BEGIN`] and so on; [`PLAIN`] and so on; operation; element type; and `HAS_` bits.
    pub(super) codes: [u8; 6],
    pub(super) name: u32,
    pub(super) group: u32,
    pub(super) peer: u32,
    /// Elements of a communication; for a device's work, the device in the lower and the stream in the upper half.
    pub(super) elements: u64,
    pub(super) bytes: u64,
}

pub(super) const BEGIN: u8 = 1;
pub(super) const END: u8 = 2;
pub(super) const INSTANT: u8 = 3;
pub(super) const COUNTER: u8 = 4;
pub(super) const SPAN: u8 = 5;

pub(super) const PLAIN: u8 = 0;
pub(super) const OF_A_STEP: u8 = 1;
pub(super) const OF_A_COMMUNICATION: u8 = 2;
pub(super) const OF_A_DEVICE: u8 = 3;
pub(super) const OF_A_DEVICES_COMMUNICATION: u8 = 4;

const HAS_PEER: u8 = 1;
const HAS_SEQUENCE: u8 = 2;

impl Shape {
    /// Returns the shape of a record.
    #[inline]
    pub(super) fn of(record: &TimedRecord) -> Shape {
        let event = match record.event {
            Event::Begin { .. } => BEGIN,
            Event::End { .. } => END,
            Event::Instant => INSTANT,
            Event::Counter { .. } => COUNTER,
            Event::Span { .. } => SPAN,
        };
        let (kind, name) = (record.kind.number(), record.name.0);
        let plain = Shape { codes: [kind, event, PLAIN, 0, 0, 0], name, ..Shape::default() };
        match record.detail {
            Detail::None => plain,
            Detail::Step { .. } => Shape { codes: [kind, event, OF_A_STEP, 0, 0, 0], ..plain },
            Detail::Communication(c) => {
                let has_peer = if c.peer.is_some() { HAS_PEER } else { 0 };
                let has = if c.sequence.is_some() { has_peer | HAS_SEQUENCE } else { has_peer };
                Shape {
                    codes: [kind, event, OF_A_COMMUNICATION, c.op.code(), c.data_type.code(), has],
                    name,
                    group: c.group.0,
                    peer: c.peer.unwrap_or(0),
                    elements: c.elements,
                    bytes: c.bytes,
                }
            }
            Detail::Device(work) => {
                let codes = [kind, event, OF_A_DEVICE, 0, 0, 0];
                Shape { codes, elements: place(work), bytes: work.bytes, ..plain }
            }
            Detail::DeviceCommunication(c) => Shape {
                codes: [
                    kind,
                    event,
                    OF_A_DEVICES_COMMUNICATION,
                    c.op.code(),
                    c.data_type.code(),
                    if c.peer.is_some() { HAS_PEER } else { 0 },
                ],
                name,
                group: c.group.0,
                peer: c.peer.unwrap_or(0),
                elements: place(c.work),
                bytes: c.work.bytes,
            },
        }
    }

    /// Returns a record of this shape with 0 for the other values; `None` for codes that this version does not know.
    pub(super) fn record(&self) -> Option<TimedRecord> {
        let [kind, event, detail, op, data_type, has] = self.codes;
        let event = match event {
            BEGIN => Event::Begin { range: 0 },
            END => Event::End { range: 0 },
            INSTANT => Event::Instant,
            COUNTER => Event::Counter { value: 0.0 },
            SPAN => Event::Span { nanos: 0 },
            _ => return None,
        };
        let detail = match detail {
            PLAIN => Detail::None,
            OF_A_STEP => Detail::Step { number: 0, cpu_nanos: 0 },
            OF_A_COMMUNICATION => Detail::Communication(Communication {
                op: Op::of_code(op),
                data_type: DataType::of_code(data_type),
                group: NameId(self.group),
                elements: self.elements,
                bytes: self.bytes,
                peer: (has & HAS_PEER != 0).then_some(self.peer),
                sequence: (has & HAS_SEQUENCE != 0).then_some(0),
            }),
            OF_A_DEVICE => Detail::Device(self.work()),
            OF_A_DEVICES_COMMUNICATION => Detail::DeviceCommunication(DeviceCommunication {
                op: Op::of_code(op),
                data_type: DataType::of_code(data_type),
                group: NameId(self.group),
                peer: (has & HAS_PEER != 0).then_some(self.peer),
                work: self.work(),
            }),
            _ => return None,
        };
        let kind = Kind::of_number(kind)?;
        Some(TimedRecord { unix_nanos: 0, thread: 0, kind, event, name: NameId(self.name), detail })
    }
}

impl Shape {
    fn work(&self) -> DeviceWork {
        let [a, b, c, d, e, f, g, h] = self.elements.to_le_bytes();
        let (device, stream) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        DeviceWork { device, stream, correlation: 0, bytes: self.bytes }
    }
}

/// Encodes device and stream in one number.
fn place(work: DeviceWork) -> u64 {
    u64::from(work.device) | u64::from(work.stream) << 32
}

/// A known shape, and the last values of its records.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) shape: Shape,
    /// A record of this shape, with 0 for the other values.
    pub(super) record: TimedRecord,
    /// Index in [`Model::sequences`] for its sequence numbers.
    pub(super) sequence: usize,
    /// Bits of its last figure, or its last duration.
    pub(super) figure: Series,
}

/// A known thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thread {
    pub(super) id: u32,
    pub(super) time: Series,
    /// The last range that it began, without the kind in its number.
    pub(super) begun: Series,
}

/// Bit position of the kind in a range's number; the bits below increase in a thread.
pub(super) const KIND_AT: u32 = 58;

/// All shared state.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) names: Arc<NameTable>,
    /// Length of all names, in bytes.
    pub(super) names_bytes: usize,
    pub(super) shapes: Vec<Known>,
    pub(super) threads: Vec<Thread>,
    /// Time of the last record of the previous block, which is the predicted time for a new thread.
    pub(super) now: u64,
    groups: BTreeMap<u32, usize>,
    /// Last sequence number per group.
    pub(super) sequences: Vec<Series>,
    /// Last range that ended, per kind.
    pub(super) ended: Box<[Series; 64]>,
    /// Last correlation, per kind.
    pub(super) correlations: Box<[Series; 64]>,
    pub(super) step: Series,
    pub(super) cpu: Series,
}

impl Default for Model {
    fn default() -> Model {
        Model {
            names: Arc::default(),
            names_bytes: 0,
            shapes: Vec::new(),
            threads: Vec::new(),
            now: 0,
            groups: BTreeMap::new(),
            sequences: Vec::new(),
            ended: Box::new([Series::default(); 64]),
            correlations: Box::new([Series::default(); 64]),
            step: Series::default(),
            cpu: Series::default(),
        }
    }
}

impl Model {
    /// Adds a shape; false if this version does not know its codes.
    pub(super) fn meet_shape(&mut self, shape: Shape) -> bool {
        let Some(record) = shape.record() else { return false };
        let next = self.sequences.len();
        let sequence = *self.groups.entry(shape.group).or_insert(next);
        if sequence == next {
            self.sequences.push(Series(u64::MAX)); // the first sequence number is predicted to be 0
        }
        self.shapes.push(Known { shape, record, sequence, figure: Series::default() });
        true
    }

    /// Adds a thread.
    pub(super) fn meet_thread(&mut self, id: u32) {
        self.threads.push(Thread { id, time: Series(self.now), begun: Series::default() });
    }
}
