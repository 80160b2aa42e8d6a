//! Quota of all stored files, over all tasks and ranks: the oldest are deleted.
//!
//! Only files named as in this store are deleted, and none that is being written. The directory is walked once; from
//! then on every write updates the sum.

use super::files::Format;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Maximum number of directory entries read in the walk, over all directories. Files beyond it are not known.
const ENTRIES_MAX: u64 = 1_000_000;
/// Deletion stops at this share of the quota, in fifths.
const KEPT_FIFTHS: u64 = 4;

/// The known files under a root.
#[derive(Debug)]
pub(super) struct Quota {
    bytes_max: u64,
    files_max: usize,
    /// Bytes of all files, including those being written.
    bytes: u64,
    /// Complete files, oldest first, with their length.
    files: BTreeMap<(u64, PathBuf), u64>,
    /// True if the walk did not reach all directories.
    pub(super) is_partial: bool,
}

/// Result of a deletion.
#[derive(Debug, Default)]
pub(super) struct Aged {
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// Error that prevented the deletion of a file.
    pub(super) error: Option<io::Error>,
}

impl Quota {
    /// Creates a quota with no known file.
    pub(super) const fn new(bytes_max: u64, files_max: usize) -> Quota {
        Quota { bytes_max, files_max, bytes: 0, files: BTreeMap::new(), is_partial: false }
    }

    /// Walks the root: tasks, their ranks, their files. Of an entry with a name of another scheme, only the name is
    /// read.
    pub(super) fn scan(&mut self, root: &Path) {
        let left = Cell::new(ENTRIES_MAX);
        let is_rank = |name: &str| name.parse::<u32>().is_ok();
        for (_, task) in entries(root, &left).filter(|(_, entry)| is_dir(entry)) {
            let ranks: Vec<PathBuf> = entries(&task.path(), &left)
                .filter(|(name, entry)| is_rank(name) && is_dir(entry))
                .map(|(_, entry)| entry.path())
                .collect();
            for rank in ranks {
                for (name, entry) in entries(&rank, &left) {
                    let Some((seconds, _)) = Format::of_name(&name) else { continue };
                    if let Ok(metadata) = entry.metadata()
                        && metadata.is_file()
                    {
                        self.add(metadata.len());
                        self.close(seconds, entry.path(), metadata.len());
                    }
                }
            }
        }
        self.is_partial = left.get() == 0;
    }

    /// Adds bytes that were written to a file.
    pub(super) const fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Marks a file as complete: it may be deleted from now on.
    pub(super) fn close(&mut self, seconds: u64, path: PathBuf, bytes: u64) {
        self.files.insert((seconds, path), bytes);
    }

    /// Marks a complete file as being written again. Returns its last known length.
    pub(super) fn reopen(&mut self, seconds: u64, path: &Path) -> u64 {
        self.files.remove(&(seconds, path.to_owned())).unwrap_or(0)
    }

    /// Subtracts a file that was deleted while it was being written.
    pub(super) const fn lose(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Returns the bytes of all files.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// If a bound is exceeded, deletes the oldest files until a fifth of the quota is free.
    pub(super) fn age(&mut self) -> Aged {
        let mut aged = Aged::default();
        if self.bytes <= self.bytes_max && self.files.len() <= self.files_max {
            return aged;
        }
        let (bytes_kept, files_kept) = (self.bytes_max / 5 * KEPT_FIFTHS, self.files_max / 5 * 4);
        while self.bytes > bytes_kept || self.files.len() > files_kept {
            let Some(oldest) = self.files.first_entry() else { break };
            match std::fs::remove_file(&oldest.key().1) {
                Ok(()) => aged.files += 1,
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => {
                    aged.error = Some(e);
                    break; // the file stays, and the next call tries again
                }
            }
            let bytes = oldest.remove();
            self.bytes = self.bytes.saturating_sub(bytes);
            aged.bytes += bytes;
        }
        aged
    }
}

/// Returns the entries of a directory with their names, within the remaining limit.
fn entries<'a>(dir: &Path, left: &'a Cell<u64>) -> impl Iterator<Item = (String, std::fs::DirEntry)> + use<'a> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().map_while(|entry| {
        left.set(left.get().checked_sub(1)?);
        Some(entry)
    });
    entries.flatten().filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry)))
}

fn is_dir(entry: &std::fs::DirEntry) -> bool {
    entry.file_type().is_ok_and(|kind| kind.is_dir())
}
