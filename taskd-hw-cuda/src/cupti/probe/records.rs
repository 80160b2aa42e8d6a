//! Parser of CUPTI's buffers, which contain packed records. Newer versions of CUPTI append fields to the records.
//!
//! The parser reads bytes and dereferences no address. The fields that it reads have the same offsets in all versions
//! from CUDA 11.0 to 13.4 (a test compares them with bindings of all of these versions), so the code is independent of
//! the version. CUPTI itself reports where the next record starts.

/// Kind of CUPTI's record of a memory copy. The constants for kinds of records have the values of
/// `CUpti_ActivityKind`.
pub const MEMCPY: u32 = 1;
pub const MEMSET: u32 = 2;
pub const KERNEL: u32 = 3;
pub const RUNTIME: u32 = 5;
pub const CONCURRENT_KERNEL: u32 = 10;
pub const MARKER: u32 = 12;
/// Kind of CUPTI's record of a memory copy between two GPUs.
pub const MEMCPY2: u32 = 22;

/// Flag in CUPTI's record of an instant marker. The constants for flags of markers have the values of
/// `CUpti_ActivityFlag`.
pub const MARKER_INSTANT: u32 = 1;
pub const MARKER_START: u32 = 2;
pub const MARKER_END: u32 = 4;

/// Object kind in CUPTI's record of a marker that belongs to a thread: `CUPTI_ACTIVITY_OBJECT_THREAD`.
pub const OBJECT_THREAD: u32 = 2;

/// Offsets of the fields in CUPTI's records, in bytes.
pub mod at {
    pub const KIND: usize = 0;

    /// Offsets in bytes in CUPTI's record of a GPU kernel, `CUpti_ActivityKernel4` and later.
    pub mod kernel {
        pub const START: usize = 16;
        pub const END: usize = 24;
        pub const DEVICE: usize = 40;
        pub const STREAM: usize = 48;
        pub const CORRELATION: usize = 92;
        pub const NAME: usize = 104;
    }

    /// Offsets in bytes in CUPTI's record of a memory copy, `CUpti_ActivityMemcpy` and later.
    pub mod copy {
        pub const COPY_KIND: usize = 4;
        pub const BYTES: usize = 8;
        pub const START: usize = 16;
        pub const END: usize = 24;
        pub const DEVICE: usize = 32;
        pub const STREAM: usize = 40;
        pub const CORRELATION: usize = 44;
    }

    /// Offset in bytes in CUPTI's record of a memory copy between two GPUs, `CUpti_ActivityMemcpyPtoP` and later. The
    /// other fields that are read have the offsets in `copy`.
    pub mod peer_copy {
        pub const CORRELATION: usize = 60;
    }

    /// Offsets in bytes in CUPTI's record of a memory fill, `CUpti_ActivityMemset` and later.
    pub mod fill {
        pub const BYTES: usize = 8;
        pub const START: usize = 16;
        pub const END: usize = 24;
        pub const DEVICE: usize = 32;
        pub const STREAM: usize = 40;
        pub const CORRELATION: usize = 44;
    }

    /// Offsets in bytes in CUPTI's record of a call of the CUDA runtime, `CUpti_ActivityAPI`.
    pub mod api {
        pub const FUNCTION: usize = 4;
        pub const START: usize = 8;
        pub const END: usize = 16;
        pub const THREAD: usize = 28;
        pub const CORRELATION: usize = 32;
    }

    /// Offsets in bytes in CUPTI's record of a marker, `CUpti_ActivityMarker2`.
    pub mod marker {
        pub const FLAGS: usize = 4;
        pub const TIME: usize = 8;
        pub const ID: usize = 16;
        pub const OBJECT_KIND: usize = 20;
        pub const THREAD: usize = 28;
        pub const NAME: usize = 40;
        pub const DOMAIN: usize = 48;
    }
}

/// Address of a text of CUPTI in the memory of the recorded process. This module never dereferences the address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Address(pub usize);

/// Start and end of an activity by CUPTI's clock, in nanoseconds; 0 if CUPTI does not know the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub start: u64,
    pub end: u64,
}

/// Device, stream and correlation id of a piece of work on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub device: u32,
    pub stream: u32,
    pub correlation: u32,
}

/// A parsed activity record of CUPTI, reduced to the fields that the probe uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    Kernel {
        span: Span,
        place: Place,
        name: Address,
    },
    Copy {
        span: Span,
        place: Place,
        bytes: u64,
        copy_kind: u8,
    },
    PeerCopy {
        span: Span,
        place: Place,
        bytes: u64,
    },
    Fill {
        span: Span,
        place: Place,
        bytes: u64,
    },
    Api {
        span: Span,
        function: u32,
        thread: u32,
        correlation: u32,
    },
    Begin {
        at: u64,
        id: u32,
        thread: u32,
        name: Address,
        domain: Address,
    },
    End {
        at: u64,
        id: u32,
    },
    Instant {
        at: u64,
        thread: u32,
        name: Address,
        domain: Address,
    },
    /// A record of a kind that the probe did not request from CUPTI.
    Other {
        kind: u32,
    },
}

/// Parses the CUPTI record at the start of `bytes`; further records may follow it. Returns `None` if the record is
/// truncated.
#[inline]
pub fn read(bytes: &[u8]) -> Option<Activity> {
    let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let address = |at: usize| usize::try_from(long(at)?).ok().map(Address);
    let span = |start, end| Some(Span { start: long(start)?, end: long(end)? });
    let place = |device, stream, correlation| {
        Some(Place { device: word(device)?, stream: word(stream)?, correlation: word(correlation)? })
    };
    Some(match word(at::KIND)? {
        KERNEL | CONCURRENT_KERNEL => {
            use at::kernel as k;
            let (span, place) = (span(k::START, k::END)?, place(k::DEVICE, k::STREAM, k::CORRELATION)?);
            Activity::Kernel { span, place, name: address(k::NAME)? }
        }
        MEMCPY => {
            use at::copy as c;
            let (span, place) = (span(c::START, c::END)?, place(c::DEVICE, c::STREAM, c::CORRELATION)?);
            Activity::Copy { span, place, bytes: long(c::BYTES)?, copy_kind: *bytes.get(c::COPY_KIND)? }
        }
        MEMCPY2 => {
            use at::copy as c;
            let place = place(c::DEVICE, c::STREAM, at::peer_copy::CORRELATION)?;
            Activity::PeerCopy { span: span(c::START, c::END)?, place, bytes: long(c::BYTES)? }
        }
        MEMSET => {
            use at::fill as f;
            let (span, place) = (span(f::START, f::END)?, place(f::DEVICE, f::STREAM, f::CORRELATION)?);
            Activity::Fill { span, place, bytes: long(f::BYTES)? }
        }
        RUNTIME => {
            use at::api as a;
            let (function, thread, correlation) = (word(a::FUNCTION)?, word(a::THREAD)?, word(a::CORRELATION)?);
            Activity::Api { span: span(a::START, a::END)?, function, thread, correlation }
        }
        MARKER => {
            use at::marker as m;
            let (at, id, name, domain) = (long(m::TIME)?, word(m::ID)?, address(m::NAME)?, address(m::DOMAIN)?);
            let thread = if word(m::OBJECT_KIND)? == OBJECT_THREAD { word(m::THREAD)? } else { 0 };
            match word(m::FLAGS)? & (MARKER_INSTANT | MARKER_START | MARKER_END) {
                MARKER_START => Activity::Begin { at, id, thread, name, domain },
                MARKER_END => Activity::End { at, id },
                MARKER_INSTANT => Activity::Instant { at, thread, name, domain },
                _ => Activity::Other { kind: MARKER },
            }
        }
        kind => Activity::Other { kind },
    })
}
