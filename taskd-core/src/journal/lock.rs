//! One supervisor a directory: two would both command the same ranks.
//!
//! The system holds the lock, not what stands in a file: it is free as soon as its holder is gone, however that ended.
//! The file is never removed, since a lock on a removed file keeps nobody out. Those who only read take no lock.

use crate::private;
use rustix::fs::FlockOperation;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

/// The file in the journal's directory that is locked. It says who holds the lock, for people.
const FILE: &str = "lock";

/// How often a held lock is tried again, and after what time: a holder that is just ending lets go within a second.
const TRIES: u32 = 100;
const TRY_EVERY: Duration = Duration::from_millis(10);

/// Most bytes that are read of what a lock file says.
const TEXT_BYTES_MAX: u64 = 300;

/// A directory's lock, held until this is dropped.
#[derive(Debug)]
pub(super) struct DirLock {
    _file: File,
}

/// Why a directory is not locked.
#[derive(Debug)]
pub(super) enum NotLocked {
    /// Somebody else has it.
    Held(Option<Holder>),
    /// Here nobody can lock anything: the file cannot be made, or the file system knows no locks.
    Impossible(io::Error),
}

/// The supervisor that holds a journal's directory, as its lock file names it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Its process id, on its host.
    pub pid: u32,
    /// The host's name: several hosts may share a directory.
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
    /// Locks a directory, and blocks for about a second while somebody else has it.
    pub(super) fn take(dir: &Path) -> Result<DirLock, NotLocked> {
        let mut file = open(&dir.join(FILE)).map_err(NotLocked::Impossible)?;
        for left in (0..TRIES).rev() {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let _ = Holder::us().write(&mut file); // a full disk: the lock holds without a name
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

/// The file, made if need be; a disk that is read-only may have one from before.
fn open(path: &Path) -> io::Result<File> {
    private::open(path).or_else(|e| private::open_to_read(path).map_err(|_| e))
}

/// A lock that is let go is no event that could be waited for with a limit.
#[allow(clippy::disallowed_methods)]
fn pause() {
    std::thread::sleep(TRY_EVERY);
}
