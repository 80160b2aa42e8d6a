//! Encoding of a record in the seven words of a slot.
//!
//! Decoding cannot panic, whatever the words contain.
//!
//! # Layout, version 1
//! | word | bits | contents |
//! |---|---|---|
//! | 0 | | ticks of the recorder's clock; for an imported record nanoseconds since 1970, on the recorder's calendar |
//! | 1 | 0..8 | kind: 1 step, 2 data loader, 3 save checkpoint, 4 forward, 5 communication, 6 kernel, 7 copy, 8 call of the vendor's runtime, 9 marker, 16 and above: user-defined |
//! | 1 | 8..11 | event: 1 begin, 2 end, 3 instant, 4 counter, 5 span |
//! | 1 | 11 | set if imported |
//! | 1 | 12..16 | type of words 3 to 6: 0 none, 1 step, 2 communication, 3 device work, 4 device communication |
//! | 1 | 16..24 | collective operation, see [`Op`]; 0 for none |
//! | 1 | 24..32 | type of an element, see [`DataType`]; 0 for none |
//! | 1 | 32..64 | name, an index in the file's table of names; 0 for none, and at the end of a range |
//! | 2 | | range: the number that begin and end share; counter: the bits of its `f64` |
//! | 2 | 58..64 | range: its kind |
//! | 2 | 36..58 | range: the claim of a ring under which it began |
//! | 2 | 0..36 | range: a count of that claim's ranges |
//! | 2 | 0..41 | span: duration in nanoseconds, or in microseconds if bit 41 is set: from 36 minutes on |
//! | 2 | 42..64 | imported span or instant: the acting thread, 0 for none (Linux has no thread id beyond 22 bits) |
//! | 3 | | communication: elements; step: its number |
//! | 3 | 0..32 | device work and device communication: the device |
//! | 3 | 32..64 | device work and device communication: the stream |
//! | 4 | | communication, copy on a device: bytes; end of a step: nanoseconds on the CPU since its beginning |
//! | 5 | 0..32 | communication: group, an index in the table of names; 0 for none |
//! | 5 | 32..64 | communication: peer or root, a global rank; all ones for none |
//! | 6 | | communication: sequence number in its group, from 0; all ones for none; device work and device communication: correlation |
//!
//! A device communication has its own encoding: device, stream and correlation take the place of elements and sequence
//! number, which a vendor's trace does not contain.

use super::record::{
    Communication, DataType, Detail, DeviceCommunication, DeviceWork, Event, Kind, NameId, Op, Record, RecordedBy,
};
use super::ring::Words;

const BEGIN: u8 = 1;
const END: u8 = 2;
const INSTANT: u8 = 3;
const COUNTER: u8 = 4;
const SPAN: u8 = 5;
/// Flag added to an event.
const IMPORTED: u8 = 8;
const NOTHING: u8 = 0;
const OF_A_STEP: u8 = 1;
const OF_A_COMMUNICATION: u8 = 2;
const OF_A_DEVICE: u8 = 3;
const OF_A_DEVICES_COMMUNICATION: u8 = 4;

/// Bits of a span's duration; the bit above them is its unit.
const LENGTH_BITS: u32 = 41;
/// Bit position of the thread of an imported record.
const THREAD_AT: u32 = LENGTH_BITS + 1;
const LENGTH_MAX: u64 = (1 << LENGTH_BITS) - 1;
const IN_MICROS: u64 = 1 << LENGTH_BITS;

/// Encodes a span's duration in 42 bits.
#[inline]
const fn short(nanos: u64) -> u64 {
    match nanos {
        0..=LENGTH_MAX => nanos,
        _ if nanos / 1000 < LENGTH_MAX => IN_MICROS | (nanos / 1000),
        _ => IN_MICROS | LENGTH_MAX,
    }
}

/// Decodes a span's duration to nanoseconds.
const fn long(short: u64) -> u64 {
    match short & IN_MICROS {
        0 => short & LENGTH_MAX,
        _ => (short & LENGTH_MAX) * 1000,
    }
}

impl Record {
    /// Encodes the record for a slot.
    #[inline(always)] // needed by `ThreadRecorder::record`, which inlines it
    #[must_use]
    pub(super) fn to_words(self) -> Words {
        let (event, value) = match self.event {
            Event::Begin { range } => (BEGIN, range),
            Event::End { range } => (END, range),
            Event::Instant => (INSTANT, 0),
            Event::Counter { value } => (COUNTER, value.to_bits()),
            Event::Span { nanos } => (SPAN, short(nanos)),
        };
        let (event, value) = match (self.by, self.event) {
            (RecordedBy::Itself, _) => (event, value),
            (RecordedBy::Import { thread }, Event::Span { .. } | Event::Instant) => {
                (event | IMPORTED, value | u64::from(thread) << THREAD_AT)
            }
            (RecordedBy::Import { .. }, _) => (event | IMPORTED, value),
        };
        let (detail, codes, rest) = match self.detail {
            Detail::None => (NOTHING, (0, 0), [0; 4]),
            Detail::Step { number, cpu_nanos } => (OF_A_STEP, (0, 0), [number, cpu_nanos, 0, 0]),
            Detail::Communication(c) => {
                let parties = u64::from(c.group.0) | u64::from(c.peer.unwrap_or(u32::MAX)) << 32;
                let rest = [c.elements, c.bytes, parties, c.sequence.unwrap_or(u64::MAX)];
                (OF_A_COMMUNICATION, (c.op.code(), c.data_type.code()), rest)
            }
            Detail::Device(work) => (OF_A_DEVICE, (0, 0), work.to_words(0)),
            Detail::DeviceCommunication(c) => {
                let parties = u64::from(c.group.0) | u64::from(c.peer.unwrap_or(u32::MAX)) << 32;
                (OF_A_DEVICES_COMMUNICATION, (c.op.code(), c.data_type.code()), c.work.to_words(parties))
            }
        };
        let [a, b, c, d] = [self.kind.number(), event | detail << 4, codes.0, codes.1].map(u64::from);
        let what = a | b << 8 | c << 16 | d << 24 | u64::from(self.name.0) << 32;
        [self.ticks, what, value, rest[0], rest[1], rest[2], rest[3]]
    }

    /// Decodes a slot; `None` for a kind, event or detail that this version does not know.
    #[must_use]
    pub(super) fn of_words(words: &Words) -> Option<Record> {
        let [ticks, what, value, a, b, parties, sequence] = *words;
        let [kind, event, op, data_type, ..] = what.to_le_bytes();
        let kind = Kind::of_number(kind)?;
        let (event, is_imported, detail) = (event & 0x7, event & IMPORTED != 0, event >> 4);
        let thread = if matches!(event, SPAN | INSTANT) { high(value) >> (THREAD_AT - 32) } else { 0 };
        let by = if is_imported { RecordedBy::Import { thread } } else { RecordedBy::Itself };
        let work = || DeviceWork { device: low(a), stream: high(a), correlation: sequence, bytes: b };
        let event = match event {
            BEGIN => Event::Begin { range: value },
            END => Event::End { range: value },
            INSTANT => Event::Instant,
            COUNTER => Event::Counter { value: f64::from_bits(value) },
            SPAN => Event::Span { nanos: long(value) },
            _ => return None,
        };
        let detail = match detail {
            NOTHING => Detail::None,
            OF_A_STEP => Detail::Step { number: a, cpu_nanos: b },
            OF_A_COMMUNICATION => Detail::Communication(Communication {
                op: Op::of_code(op),
                data_type: DataType::of_code(data_type),
                group: NameId(low(parties)),
                elements: a,
                bytes: b,
                peer: Some(high(parties)).filter(|peer| *peer != u32::MAX),
                sequence: Some(sequence).filter(|sequence| *sequence != u64::MAX),
            }),
            OF_A_DEVICE => Detail::Device(work()),
            OF_A_DEVICES_COMMUNICATION => Detail::DeviceCommunication(DeviceCommunication {
                op: Op::of_code(op),
                data_type: DataType::of_code(data_type),
                group: NameId(low(parties)),
                peer: Some(high(parties)).filter(|peer| *peer != u32::MAX),
                work: work(),
            }),
            _ => return None,
        };
        Some(Record { ticks, by, kind, event, name: NameId(high(what)), detail })
    }
}

impl DeviceWork {
    /// Encodes words 3 to 6; the third of them belongs to the caller.
    #[inline(always)] // as `to_words`
    const fn to_words(self, third: u64) -> [u64; 4] {
        [self.device as u64 | (self.stream as u64) << 32, self.bytes, third, self.correlation]
    }
}

/// Returns the lower half of a word.
const fn low(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}

/// Returns the upper half of a word.
const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}
