//! Configuration of the store: directory, formats and bounds.

use super::files::{Format, PATH_BYTES_MAX};
use crate::job::{ConfigError, ConfigProblems};
use std::path::PathBuf;
use std::time::Duration;

/// Configuration of a [`TraceStore`](super::TraceStore). Records that are lost at a limit are counted in
/// [`StoreStatus`](super::StoreStatus).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// Root directory of the store, with a directory for each task (a training job).
    pub root: PathBuf,
    /// Name of the directory in `root` for the records of this task (the training job).
    pub task: String,
    /// Formats in which each record is stored. Default: native only.
    pub formats: Vec<Format>,
    /// Size in bytes at which the store begins a new file. The size is checked before a batch is appended, so a file
    /// can be longer by one batch. Default: 10 MiB.
    pub file_bytes: u64,
    /// Quota for all files of all tasks, in bytes; beyond it the oldest files are deleted. Open files, one per rank and
    /// format, are not deleted. Default: 5,000 MiB.
    pub bytes_max: u64,
    /// Maximum number of complete files of all tasks; beyond it the oldest files are deleted. Default: 10,000.
    pub files_max: usize,
    /// Maximum time for which records wait to be written to a file, so that many are written together. Until then the
    /// records are only in the memory of this process. Default: 1 s.
    pub write_every: Duration,
    /// Maximum number of records that wait at one time to be written; records beyond it are dropped and counted in
    /// [`StoreStatus::dropped`](super::StoreStatus::dropped). Default: 262,144.
    pub queue_records_max: usize,
}

impl StoreConfig {
    /// Creates a configuration with the defaults: native format, files of 10 MiB, 5,000 MiB in total, written every
    /// second.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>, task: impl Into<String>) -> StoreConfig {
        StoreConfig {
            root: root.into(),
            task: task.into(),
            formats: vec![Format::Native],
            file_bytes: 10 << 20,
            bytes_max: 5_000 << 20,
            files_max: 10_000,
            write_every: Duration::from_secs(1),
            queue_records_max: 1 << 18,
        }
    }

    /// Returns all problems of the configuration; empty if it is valid.
    #[must_use]
    pub fn problems(&self) -> Vec<ConfigError> {
        let mut problems = ConfigProblems::default();
        let is_one_name = !matches!(self.task.as_str(), "" | "." | "..") && !self.task.contains(['/', '\0']);
        problems.check(is_one_name && self.task.len() <= 255, "store.task", "must be the name of a directory");
        let is_short = self.root.as_os_str().len() + self.task.len() + 32 <= PATH_BYTES_MAX;
        problems.check(is_short, "store.root", "must be short enough for paths of at most 1024 bytes");
        problems.check(!self.formats.is_empty(), "store.formats", "must be at least one");
        problems.check(self.file_bytes > 0, "store.file_bytes", "must be at least 1");
        problems.check(self.bytes_max >= self.file_bytes, "store.bytes_max", "must be at least the size of one file");
        problems.check(self.files_max >= 5, "store.files_max", "must be at least 5");
        problems.check(self.queue_records_max > 0, "store.queue_records_max", "must be at least 1");
        problems.all()
    }
}
