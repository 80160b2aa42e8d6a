//! How much all stored files may take, over all tasks and ranks: the oldest go.
//!
//! It deletes nothing that is not named as one of ours, and no file that is being written. The directory is walked once;
//! from then on every write is an addition.

use super::files::Format;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Entries of all directories together that are looked at in the walk, at most. What lies beyond is not known of.
const ENTRIES_MAX: u64 = 1_000_000;
/// Below this share of the quota nothing more goes, in fifths.
const KEPT_FIFTHS: u64 = 4;

/// The files under a root, as far as they are ours.
#[derive(Debug)]
pub(super) struct Quota {
    bytes_max: u64,
    files_max: usize,
    /// Of all files, those that are being written included.
    bytes: u64,
    /// Files that are complete, oldest first, with their length.
    files: BTreeMap<(u64, PathBuf), u64>,
    /// Not all directories could be looked at.
    pub(super) is_partial: bool,
}

/// What was deleted.
#[derive(Debug, Default)]
pub(super) struct Aged {
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// Why a file could not be.
    pub(super) error: Option<io::Error>,
}

impl Quota {
    /// A root of which nothing is known yet.
    pub(super) const fn new(bytes_max: u64, files_max: usize) -> Quota {
        Quota { bytes_max, files_max, bytes: 0, files: BTreeMap::new(), is_partial: false }
    }

    /// Looks at what lies under the root: tasks, their ranks, their files. What is not named as one of ours costs the
    /// reading of its name.
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

    /// So much more was written into a file.
    pub(super) const fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// A file is complete: it may be deleted from now on.
    pub(super) fn close(&mut self, seconds: u64, path: PathBuf, bytes: u64) {
        self.files.insert((seconds, path), bytes);
    }

    /// A complete file is written again; the length that it was known to have.
    pub(super) fn reopen(&mut self, seconds: u64, path: &Path) -> u64 {
        self.files.remove(&(seconds, path.to_owned())).unwrap_or(0)
    }

    /// A file that was being written is gone, with so many bytes.
    pub(super) const fn lose(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Bytes of all files.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When there is more than there may be, deletes the oldest files until a fifth of the quota is free.
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
                    break; // it stays, and is tried again
                }
            }
            let bytes = oldest.remove();
            self.bytes = self.bytes.saturating_sub(bytes);
            aged.bytes += bytes;
        }
        aged
    }
}

/// The entries of a directory with their names, as many as may still be looked at.
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
