//! Lock of a journal's directory: two supervisors would both command the same ranks.
//!
//! The system holds the lock (`flock`), not the content of the file, so it is released when its holder ends for
//! whatever reason. The file is never removed, because a lock on a removed file excludes no other process. Readers take
//! no lock.

use crate::private;
use rustix::fs::FlockOperation;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

/// Name of the locked file in the journal's directory. Its content names the holder, for operators.
const FILE: &str = "lock";

/// Number of attempts to lock, and time between them. A holder that is about to end releases the lock within a second.
const TRIES: u32 = 100;
const TRY_EVERY: Duration = Duration::from_millis(10);

/// Most bytes read from a lock file.
const TEXT_BYTES_MAX: u64 = 300;

/// A directory's lock. Dropping it releases the lock.
#[derive(Debug)]
pub(super) struct DirLock {
    _file: File,
}

/// Reason for which a directory is not locked.
#[derive(Debug)]
pub(super) enum NotLocked {
    /// Another process holds the lock.
    Held(Option<Holder>),
    /// Locking is impossible: the file cannot be created, or the file system supports no locks.
    Impossible(io::Error),
}

/// The supervisor that uses a journal's directory, as the lock file of the directory names it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Process id of the supervisor on its host.
    pub pid: u32,
    /// Name of the supervisor's host. Several hosts may share a directory.
    pub host: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the supervisor with process id {} on {}", self.pid, self.host)
    }
}

impl Holder {
    fn us() -> Holder {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Holder { pid: std::process::id(), host: host.trim().to_owned() }
    }

    fn write(&self, file: &mut File) -> io::Result<()> {
        file.set_len(0)?;
        writeln!(file, "{} {}", self.pid, self.host)
    }

    fn read(file: &mut File) -> Option<Holder> {
        let mut text = String::new();
        file.take(TEXT_BYTES_MAX).read_to_string(&mut text).ok()?;
        let (pid, host) = text.trim().split_once(' ')?;
        Some(Holder { pid: pid.parse().ok()?, host: host.to_owned() })
    }
}

impl DirLock {
    /// Locks a directory. Blocks for about one second if another process holds the lock.
    pub(super) fn take(dir: &Path) -> Result<DirLock, NotLocked> {
        let mut file = open(&dir.join(FILE)).map_err(NotLocked::Impossible)?;
        for left in (0..TRIES).rev() {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let _ = Holder::us().write(&mut file); // on a full disk, the lock has no holder's name
                    return Ok(DirLock { _file: file });
                }
                Err(rustix::io::Errno::WOULDBLOCK) if left > 0 => pause(),
                Err(rustix::io::Errno::WOULDBLOCK) => break,
                Err(e) => return Err(NotLocked::Impossible(e.into())),
            }
        }
        Err(NotLocked::Held(Holder::read(&mut file)))
    }
}

/// Opens or creates the lock file. Opens an existing file read-only if it cannot be written.
fn open(path: &Path) -> io::Result<File> {
    private::open(path).or_else(|e| private::open_to_read(path).map_err(|_| e))
}

/// Waits between two attempts: the system has no wait for a lock with a time limit.
#[allow(clippy::disallowed_methods)]
fn pause() {
    std::thread::sleep(TRY_EVERY);
}
