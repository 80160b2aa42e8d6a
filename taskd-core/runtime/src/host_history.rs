//! The history of hosts in a file, which jobs share: it outlives each of them.
//!
//! The file is JSON lines, for people and `jq`. The first line names the format; each other line is one incident of one
//! host, ordered by host and time:
//!
//! ```text
//! {"host_history":1,"dropped":0,"unreadable":0}
//! {"at":"2026-07-01T03:12:44.123Z","host":"node-7","class":"device","job":"llm","incident":3,"crc32":"87a1c1ac"}
//! ```
//!
//! `crc32` covers the bytes of the line before it. `dropped` and `unreadable` count what the file has lost: incidents at
//! a limit of [`HostHistory`], and lines that were damaged. An incident that is written by hand needs no `crc32`, and a
//! removed line is gone, except that a running job adds its own incidents again when its supervisor restarts.
//!
//! The file is replaced as a whole (written under another name, synced, renamed), so a reader sees the content before or
//! after an addition, also after a power failure. Writers exclude each other by a lock on the file `NAME.lock`, and each
//! adds to what the other has written. Damaged lines are skipped and counted. A file of a newer version, and one that is
//! no history, is refused and stays as it is. File and directory have to be safe from other users.

mod line;
mod writer;

pub(crate) use writer::HostHistoryWriter;

use crate::job::NodeId;
use crate::private;
use crate::state::{HostHistory, HostIncident};
use line::{Head, Line};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Version of the format of the file that this program writes, and the newest that it reads.
pub const HOST_HISTORY_VERSION: u32 = 1;

/// Maximum size of the file, in bytes. A larger file is no history.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// Number of attempts to lock the file, and time between them. A writer holds the lock for milliseconds.
const TRIES: u32 = 200;
const TRY_EVERY: Duration = Duration::from_millis(10);

/// The file of a history of hosts.
///
/// ```
/// use taskd_core::host_history::HostHistoryFile;
/// use taskd_core::job::{IncidentId, Name, NodeId, WallTime};
/// use taskd_core::state::HostIncident;
///
/// # let scratch = tempfile::tempdir()?;
/// # let dir = scratch.path();
/// let file = HostHistoryFile::new(dir.join("hosts.jsonl"));
/// let at = WallTime::from_unix_ms(1_782_875_564_123);
/// let incident = HostIncident { at, class: Name::new("device"), job: Name::new("llm"), incident: IncidentId(3) };
/// let records = [(NodeId(Name::new("node-7")), incident)];
/// assert_eq!((file.add(&records)?, file.add(&records)?), (1, 0)); // the same incident counts once
/// let stored = file.read()?;
/// assert_eq!((stored.history.len(), stored.unreadable), (1, 0));
/// print!("{}", stored.history.report(10, at));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct HostHistoryFile {
    path: PathBuf,
}

/// Content of the file of a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredHistory {
    /// The incidents that can be read.
    pub history: HostHistory,
    /// Number of lines that could not be read, now and before earlier additions.
    pub unreadable: u64,
}

/// Reason why the file of a history cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostHistoryError {
    /// A newer version of taskd wrote the file.
    #[error(
        "the history of hosts {} has format version {found}, this program reads up to {HOST_HISTORY_VERSION}: update it, \
         or name another file", path.display()
    )]
    Version {
        /// Path of the file.
        path: PathBuf,
        /// Format version of the file.
        found: u32,
    },
    /// The file has another content. It is left as it is.
    #[error("{} is no history of hosts: name another file, or remove it", path.display())]
    NotAHistory {
        /// Path of the file.
        path: PathBuf,
    },
    /// Another process has held the lock of the file for two seconds.
    #[error("the history of hosts {} is locked by another process: end it, if it hangs", path.display())]
    Locked {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file cannot be read or written, or another user could change it.
    #[error("the history of hosts {} cannot be kept: {error}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system, or the reason why the path is unsafe.
        error: io::Error,
    },
}

impl HostHistoryFile {
    /// Names the file. It need not exist; the first addition creates it, and its directory.
    pub fn new(path: impl Into<PathBuf>) -> HostHistoryFile {
        HostHistoryFile { path: path.into() }
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file. A missing file is an empty history. Takes no lock.
    ///
    /// # Errors
    /// Returns [`HostHistoryError`] if the file cannot be read, is no history, or has a newer version.
    pub fn read(&self) -> Result<StoredHistory, HostHistoryError> {
        match private::read(&self.path, FILE_BYTES_MAX) {
            Ok(bytes) => self.decode(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(StoredHistory::default()),
            Err(error) => Err(self.io(error)),
        }
    }

    /// Adds incidents of hosts to what the file contains by then, and returns the number of incidents that it did not
    /// have. Blocks for at most two seconds if another process is writing.
    ///
    /// # Errors
    /// Returns [`HostHistoryError`] as [`read`](HostHistoryFile::read) does, and if the file cannot be locked or
    /// written. The file is then as it was before.
    pub fn add(&self, records: &[(NodeId, HostIncident)]) -> Result<usize, HostHistoryError> {
        private::make_dir(self.dir()).map_err(|error| self.io(error))?;
        let _lock = self.lock()?;
        let StoredHistory { mut history, unreadable } = self.read()?;
        let mut added = 0;
        for (host, incident) in records {
            if !history.covers(host, incident) && history.record(host, incident.clone()) {
                added += 1;
            }
        }
        if added > 0 {
            private::write_durably(&self.path, &encode(&history, unreadable)).map_err(|error| self.io(error))?;
        }
        Ok(added)
    }

    fn dir(&self) -> &Path {
        self.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    fn io(&self, error: io::Error) -> HostHistoryError {
        HostHistoryError::Io { path: self.path.clone(), error }
    }

    /// Locks the history. The lock is that of a file beside it, because the history itself is replaced.
    fn lock(&self) -> Result<File, HostHistoryError> {
        let mut path: OsString = self.path.as_os_str().to_owned();
        path.push(".lock");
        let file = private::open(Path::new(&path)).map_err(|error| self.io(error))?;
        for _ in 0..TRIES {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(Errno::WOULDBLOCK) => pause(),
                Err(error) => return Err(self.io(error.into())),
            }
        }
        Err(HostHistoryError::Locked { path: self.path.clone() })
    }

    fn decode(&self, bytes: &[u8]) -> Result<StoredHistory, HostHistoryError> {
        let (first, rest) = match bytes.iter().position(|byte| *byte == b'\n') {
            Some(end) => (&bytes[..end], &bytes[end + 1..]),
            None => (bytes, &bytes[bytes.len()..]),
        };
        let head = Head::read(first);
        let mut stored = StoredHistory::default();
        match head {
            Some(Head { host_history: found, .. }) if found > HOST_HISTORY_VERSION => {
                return Err(HostHistoryError::Version { path: self.path.clone(), found });
            }
            Some(Head { dropped, unreadable, .. }) => {
                stored.history = HostHistory::new().with_dropped(dropped);
                stored.unreadable = unreadable;
            }
            None => stored.unreadable += u64::from(!bytes.is_empty()),
        }
        let mut is_ours = head.is_some() || Head::is_begun_by(bytes);
        for text in rest.split(|byte| *byte == b'\n').filter(|text| !text.is_empty()) {
            match Line::read(text) {
                Some(Line { host, incident, is_checked }) => {
                    is_ours |= is_checked;
                    stored.history.record(&host, incident);
                }
                None => stored.unreadable = stored.unreadable.saturating_add(1),
            }
        }
        // Without its first line the file counts as a history only by the checksum of another one.
        if is_ours { Ok(stored) } else { Err(HostHistoryError::NotAHistory { path: self.path.clone() }) }
    }
}

fn encode(history: &HostHistory, unreadable: u64) -> Vec<u8> {
    let mut lines = Vec::new();
    let mut dropped = history.dropped();
    for (host, incident) in history.iter() {
        // A name that is longer than any host's cannot be written within the limits.
        if line::write(&mut lines, host, incident).is_none() {
            dropped = dropped.saturating_add(1);
        }
    }
    let mut bytes = Head { host_history: HOST_HISTORY_VERSION, dropped, unreadable }.write();
    bytes.extend(lines);
    bytes
}

/// Waits between two attempts: the system has no wait for a lock with a time limit.
#[allow(clippy::disallowed_methods, reason = "in a thread that may block")]
fn pause() {
    std::thread::sleep(TRY_EVERY);
}

#[cfg(test)]
mod tests;
