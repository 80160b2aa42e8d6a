//! Where records are stored, in which formats, and how much of them.

use super::files::{Format, PATH_BYTES_MAX};
use crate::job::{ConfigError, ConfigProblems};
use std::path::PathBuf;
use std::time::Duration;

/// Bounds of a [`TraceStore`](super::TraceStore). What is lost at one is counted in
/// [`StoreStatus`](super::StoreStatus).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// The directory of all tasks.
    pub root: PathBuf,
    /// The task's directory in it: [`task_of`](super::task_of) makes a name as other tools do.
    pub task: String,
    /// In which formats.
    pub formats: Vec<Format>,
    /// A file that is longer takes no more records, in bytes. It was looked at before the last ones were appended.
    pub file_bytes: u64,
    /// What all files of all tasks may take, in bytes: beyond it the oldest go. Files that are being written stay, one for
    /// each rank and format.
    pub bytes_max: u64,
    /// How many complete files there may be.
    pub files_max: usize,
    /// How long records may wait to be written together. They are in the memory of this process until then.
    pub write_every: Duration,
    /// Records that may wait, at most; those that find no room are lost.
    pub queue_records_max: usize,
}

impl StoreConfig {
    /// The native format, files of 10 MiB, 5,000 MiB in all, written every second.
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

    /// Everything that is wrong with it; empty when it is sound.
    #[must_use]
    pub fn problems(&self) -> Vec<ConfigError> {
        let mut problems = ConfigProblems::default();
        let is_one_name = !matches!(self.task.as_str(), "" | "." | "..") && !self.task.contains(['/', '\0']);
        problems.check(is_one_name && self.task.len() <= 255, "store.task", "must be the name of a directory");
        let is_short = self.root.as_os_str().len() + self.task.len() + 32 <= PATH_BYTES_MAX;
        problems.check(is_short, "store.root", "must be so short that no path is longer than 1024 bytes");
        problems.check(!self.formats.is_empty(), "store.formats", "must be one at least");
        problems.check(self.file_bytes > 0, "store.file_bytes", "must be at least 1");
        problems.check(self.bytes_max >= self.file_bytes, "store.bytes_max", "must be as much as one file at least");
        problems.check(self.files_max >= 5, "store.files_max", "must be at least 5");
        problems.check(self.queue_records_max > 0, "store.queue_records_max", "must be at least 1");
        problems.all()
    }
}
