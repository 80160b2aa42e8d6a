//! The layout of the recorder's records: `taskd_record` and the constants of `taskd.h`, which documents them.
//!
//! Plain data.

#![allow(missing_docs)] // the names are those of the header

/// A trace record, with the layout of the C structure `taskd_record` in `taskd.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Record {
    pub unix_nanos: u64,
    pub nanos: u64,
    pub value: f64,
    pub kind: u32,
    pub name: u32,
    pub event: u32,
    pub form: u32,
    pub thread: u32,
    pub device: u32,
    pub stream: u32,
    pub op: u32,
    pub data_type: u32,
    pub group: u32,
    pub peer: u32,
    pub reserved: u32,
    pub elements: u64,
    pub bytes: u64,
    pub number: u64,
}

const _: () = assert!(size_of::<Record>() == 96);

pub const SPAN: u32 = 1;
pub const INSTANT: u32 = 2;
pub const FIGURE: u32 = 3;

pub const PLAIN: u32 = 0;
pub const OF_A_STEP: u32 = 1;
pub const OF_A_COMMUNICATION: u32 = 2;
pub const OF_A_DEVICE: u32 = 3;
pub const OF_A_DEVICES_COMMUNICATION: u32 = 4;

pub const COMMUNICATION: u32 = 5;
pub const KERNEL: u32 = 6;
pub const COPY: u32 = 7;
pub const API: u32 = 8;
pub const MARKER: u32 = 9;

/// Value of a trace record's field `device`, `stream` or `peer` if the record has no device, stream or peer.
pub const NONE: u32 = u32::MAX;

/// Returns the bit of a kind of record in the recorder's word of switches, which has one bit for each kind.
pub const fn bit(kind: u32) -> u64 {
    1 << kind
}
