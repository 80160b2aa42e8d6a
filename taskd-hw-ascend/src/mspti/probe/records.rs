//! Parser of mspti's buffers, which contain packed records in the vendor's layout.
//!
//! The parser reads bytes and dereferences no address. Records of unknown kinds are rejected.

/// Number by which mspti identifies the record of a marker. The constants for the kinds of records all have the
/// vendor's numbers.
pub const MARKER: i32 = 1;
pub const KERNEL: i32 = 2;
pub const API: i32 = 3;
pub const HCCL: i32 = 4;
pub const MEMORY: i32 = 5;
pub const MEMSET: i32 = 6;
pub const MEMCPY: i32 = 7;
pub const EXTERNAL_CORRELATION: i32 = 8;
pub const COMMUNICATION: i32 = 9;
const ACL_API: i32 = 10;
const RUNTIME_API: i32 = 12;

/// Returns the size in bytes of one of mspti's records of this kind, packed and rounded up to a multiple of 8; the
/// next record starts after it. Returns `None` for an unknown kind.
#[inline]
#[must_use]
pub const fn size_of_kind(kind: i32) -> Option<usize> {
    Some(match kind {
        MARKER | KERNEL | HCCL | MEMSET | MEMCPY => 56,
        API | ACL_API..=RUNTIME_API => 48,
        MEMORY => 64,
        EXTERNAL_CORRELATION => 24,
        COMMUNICATION => 72,
        _ => return None,
    })
}

/// Address of one of mspti's texts in this process; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address(pub usize);

/// A stream of a device: the number of the device and the number of the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    pub device: u32,
    pub stream: u32,
}

/// Start and end of an activity, in nanoseconds since 1970; 0 if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub start: u64,
    pub end: u64,
}

/// mspti's record of a marker: the start or the end of a range, or an instant, that a program has marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    pub part: Part,
    /// True if the device also makes a record of the marker, with the same id.
    pub has_device: bool,
    /// Device and stream, if the device made the record; `None` if the host made it (then `thread` is the host's
    /// thread).
    pub place: Option<Stream>,
    pub thread: u32,
    pub at: u64,
    pub id: u64,
    pub name: Address,
    pub domain: Address,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Start,
    End,
    Instant,
}

/// A record of mspti, parsed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Record {
    Marker(Marker),
    Api {
        span: Span,
        thread: u32,
        correlation: u64,
        name: Address,
    },
    Kernel {
        span: Span,
        place: Stream,
        correlation: u64,
        name: Address,
    },
    /// A collective or point-to-point operation of HCCL on a device; `bandwidth` is in bytes per nanosecond.
    Hccl {
        span: Span,
        place: Stream,
        bandwidth: f64,
        name: Address,
        group: Address,
    },
    Copy {
        is_fill: bool,
        copy_kind: u32,
        span: Span,
        place: Stream,
        correlation: u64,
        bytes: u64,
    },
    Communication {
        span: Span,
        place: Stream,
        data_type: i32,
        count: u64,
        correlation: u64,
        name: Address,
        group: Address,
    },
    /// A record of a kind that the probe does not use.
    Other,
}

const INSTANT: i32 = 1;
const START: i32 = 2;
const END: i32 = 4;
const INSTANT_WITH_DEVICE: i32 = 8;
const START_WITH_DEVICE: i32 = 16;
const END_WITH_DEVICE: i32 = 32;
const DEVICE: i32 = 1;

/// Parses the record at the start of the bytes, and returns it with its size. Returns `None` if the record is of an
/// unknown kind or incomplete.
#[inline]
#[must_use]
pub fn first(bytes: &[u8]) -> Option<(Record, usize)> {
    let kind = i32::from_ne_bytes(*bytes.first_chunk()?);
    let size = size_of_kind(kind)?;
    let bytes = Bytes(bytes.get(..size)?);
    let record = match kind {
        MARKER => marker(bytes),
        API | ACL_API..=RUNTIME_API => Record::Api {
            span: bytes.span(4),
            thread: bytes.u32(24),
            correlation: bytes.u64(28),
            name: bytes.address(36),
        },
        KERNEL => Record::Kernel {
            span: bytes.span(4),
            place: bytes.place(20),
            correlation: bytes.u64(28),
            name: bytes.address(44),
        },
        HCCL => Record::Hccl {
            span: bytes.span(4),
            place: bytes.place(20),
            bandwidth: f64::from_bits(bytes.u64(28)),
            name: bytes.address(36),
            group: bytes.address(44),
        },
        MEMSET | MEMCPY => Record::Copy {
            is_fill: kind == MEMSET,
            copy_kind: bytes.u32(4),
            bytes: bytes.u64(8),
            span: bytes.span(16),
            place: bytes.place(32),
            correlation: bytes.u64(40),
        },
        COMMUNICATION => Record::Communication {
            data_type: bytes.i32(4),
            count: bytes.u64(8),
            place: bytes.place(16),
            span: bytes.span(24),
            name: bytes.address(48),
            group: bytes.address(56),
            correlation: bytes.u64(64),
        },
        _ => Record::Other,
    };
    Some((record, size))
}

#[inline]
fn marker(bytes: Bytes<'_>) -> Record {
    let flag = bytes.i32(4);
    let part = match flag {
        START | START_WITH_DEVICE => Part::Start,
        END | END_WITH_DEVICE => Part::End,
        INSTANT | INSTANT_WITH_DEVICE => Part::Instant,
        _ => return Record::Other,
    };
    let is_device = bytes.i32(8) == DEVICE;
    Record::Marker(Marker {
        part,
        has_device: is_device || flag >= INSTANT_WITH_DEVICE,
        place: is_device.then(|| bytes.place(28)),
        thread: bytes.u32(32),
        at: bytes.u64(12),
        id: bytes.u64(20),
        name: bytes.address(36),
        domain: bytes.address(44),
    })
}

/// Bytes of one record, exactly as many as its kind has.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    #[inline]
    fn u32(self, at: usize) -> u32 {
        self.0.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    #[inline]
    fn i32(self, at: usize) -> i32 {
        self.u32(at).cast_signed()
    }

    #[inline]
    fn u64(self, at: usize) -> u64 {
        self.0.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }

    #[inline]
    fn address(self, at: usize) -> Address {
        Address(usize::try_from(self.u64(at)).unwrap_or(0))
    }

    #[inline]
    fn span(self, at: usize) -> Span {
        Span { start: self.u64(at), end: self.u64(at + 8) }
    }

    #[inline]
    fn place(self, at: usize) -> Stream {
        Stream { device: self.u32(at), stream: self.u32(at + 4) }
    }
}
