//! Counters and errors of a store.

use super::files::Format;
use crate::job::ConfigError;
use std::io;

/// Counters of a store since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreStatus {
    /// Counts of files in the native format.
    pub native: StoreCounts,
    /// Counts of files in the compatible format.
    pub compatible: StoreCounts,
    /// Number of records dropped because the store's queue was full: the disk did not keep up. Earlier losses that the
    /// dropped batches state are not included.
    pub dropped: u64,
    /// Total size of all stored files in bytes, including those of other tasks.
    pub stored_bytes: u64,
    /// Number of files deleted because of the quota.
    pub deleted_files: u64,
    /// Total size, in bytes, of the files that the store deleted to keep its quota.
    pub deleted_bytes: u64,
    /// True if the store's root directory contains more entries than were read: the stored files may exceed the quota.
    pub is_partial: bool,
    /// Reason why records are being lost or the quota cannot be kept; `None` if there is no problem now.
    pub trouble: Option<String>,
    /// Most recent problem, also if it is over; `None` if there was none.
    pub last_error: Option<String>,
}

/// Counts of the records and files of one format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Number of records written.
    pub records: u64,
    /// Number of bytes written.
    pub bytes: u64,
    /// Number of files created.
    pub files: u64,
    /// Number of records that could not be written.
    pub lost: u64,
    /// Number of failed writes.
    pub failures: u64,
    /// Number of files that another process deleted while they were being written.
    pub files_removed: u64,
}

impl StoreStatus {
    /// Returns the counts of a format.
    #[must_use]
    pub const fn counts(&self, format: Format) -> &StoreCounts {
        match format {
            Format::Native => &self.native,
            Format::Compatible => &self.compatible,
        }
    }

    pub(super) const fn counts_mut(&mut self, format: Format) -> &mut StoreCounts {
        match format {
            Format::Native => &mut self.native,
            Format::Compatible => &mut self.compatible,
        }
    }
}

/// Error of [`TraceStore::open`](super::TraceStore::open). An unusable disk is not an error here: it is reported in
/// [`StoreStatus`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A setting is invalid; contains the setting and the values that are valid.
    #[error(transparent)]
    Config(ConfigError),
    /// The thread that writes records cannot be started.
    #[error("the thread that stores records cannot be started: {source}; raise the limit on threads")]
    Thread {
        /// The system's error when the thread was started.
        source: io::Error,
    },
}
