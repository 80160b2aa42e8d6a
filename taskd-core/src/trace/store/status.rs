//! What became of records that were to be stored.

use super::files::Format;
use crate::job::ConfigError;
use std::io;

/// What a store has counted since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreStatus {
    /// Of the native format.
    pub native: StoreCounts,
    /// Of the compatible format.
    pub compatible: StoreCounts,
    /// Records that found no room in the queue: the disk did not keep up. Those missing in their batches are not among them.
    pub dropped: u64,
    /// Bytes of all files, those of other tasks included.
    pub stored_bytes: u64,
    /// Files that went because the quota was reached.
    pub deleted_files: u64,
    /// Bytes that they had.
    pub deleted_bytes: u64,
    /// Under the root lies more than was looked at: what is stored may be more than the quota.
    pub is_partial: bool,
    /// Why records are being lost, or the quota cannot be kept; `None` when all is well.
    pub trouble: Option<String>,
    /// The last trouble there was.
    pub last_error: Option<String>,
}

/// Counts of one format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Records that were written.
    pub records: u64,
    /// Bytes that were written.
    pub bytes: u64,
    /// Files that were begun.
    pub files: u64,
    /// Records that could not be written.
    pub lost: u64,
    /// Times that something could not be written.
    pub failures: u64,
    /// Files that somebody has removed while they were written.
    pub files_removed: u64,
}

impl StoreStatus {
    /// The counts of a format.
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

/// Why a store cannot be opened. A disk that takes nothing is no reason: that stands in [`StoreStatus`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A setting is wrong.
    #[error(transparent)]
    Config(ConfigError),
    /// Its thread cannot be started.
    #[error("the thread that stores records cannot be started: {source}; raise the limit on threads")]
    Thread {
        /// The system's reason.
        source: io::Error,
    },
}
