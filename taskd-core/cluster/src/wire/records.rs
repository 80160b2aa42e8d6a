//! Record files of a host, as the manager requests them.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use taskd_runtime::job::Rank;

/// Longest part of a file in one answer, in bytes: short enough that leases pass in between.
pub(crate) const PART_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of files in one list; the newest are listed.
pub(crate) const FILES_MAX: usize = 20_000;

/// Arguments of `records.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListRecords {
    /// Only files that were written to at this time or later, in seconds since 1970 of the host.
    pub(crate) since: u64,
    /// Only files of these ranks; of all if it is empty.
    #[serde(default)]
    pub(crate) ranks: Vec<Rank>,
}

/// Answer of `records.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordsList {
    /// The files, newest first.
    pub(crate) files: Vec<RecordFile>,
    /// Number of files that the list has no room for.
    #[serde(default)]
    pub(crate) left_out: u64,
}

/// A file with records of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordFile {
    pub(crate) rank: Rank,
    pub(crate) name: String,
    /// Its length now; it may grow.
    pub(crate) bytes: u64,
}

/// Arguments of `records.read`. The answer has at most [`PART_BYTES_MAX`] bytes; fewer than requested at the file's end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReadRecords {
    pub(crate) rank: Rank,
    pub(crate) name: String,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Answer of `records.read`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordsPart {
    pub(crate) data: Bytes,
}
