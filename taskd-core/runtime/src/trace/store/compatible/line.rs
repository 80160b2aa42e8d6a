//! One line: the fields of the format, and the additional one.
//!
//! This module defines the spelling of the fields; `plain` defines their meaning.

use serde::{Deserialize, Serialize};

/// The only kind of line that is written.
pub(super) const MARKER: i32 = 1;

pub(super) const INSTANT: i32 = 1;
pub(super) const BEGIN: i32 = 2;
pub(super) const END: i32 = 4;
/// Flags of the device's part of a range.
pub(super) const BEGIN_ON_DEVICE: i32 = 16;
pub(super) const END_ON_DEVICE: i32 = 32;

/// A complete line.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Line {
    pub(super) kind: i32,
    pub(super) flag: i32,
    pub(super) source_kind: i32,
    pub(super) timestamp: u64,
    pub(super) id: u64,
    pub(super) mspti_object_id: ObjectId,
    pub(super) name: Option<String>,
    pub(super) domain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) taskd: Option<Extra>,
}

/// Process, thread, device and stream of a marker.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ObjectId {
    pub(super) pt: ProcessAndThread,
    pub(super) ds: DeviceAndStream,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ProcessAndThread {
    pub(super) process_id: u32,
    pub(super) thread_id: u32,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct DeviceAndStream {
    pub(super) device_id: u32,
    pub(super) stream_id: u32,
}

/// Contents of a communication's `Name`: a JSON object of strings.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct CommunicationText {
    pub(super) stream_id: String,
    pub(super) count: String,
    pub(super) data_type: String,
    pub(super) op_name: String,
    pub(super) group_name: String,
}

/// Data that the format's own fields cannot express; each field is present only if its value differs from what the
/// others imply.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Extra {
    /// Incarnation of the process, unless it is the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) incarnation: Option<u32>,
    /// Number of records lost before this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lost: Option<u64>,
    /// The kind's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    /// Bits of a figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) figure: Option<u64>,
    /// Duration of a span in nanoseconds, in the line of its beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) span: Option<u64>,
    /// Marks the end of a span, which is for other readers; our reader uses the duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) of_a_span: Option<bool>,
    /// 0 none, 1 step, 2 communication, 3 device work, 4 device communication.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<u8>,
    /// A step's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu_nanos: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) op: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) data_type: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) elements: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peer: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sequence: Option<u64>,
    /// Device; the line's own field is 0 if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) device: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stream: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) correlation: Option<u64>,
}
