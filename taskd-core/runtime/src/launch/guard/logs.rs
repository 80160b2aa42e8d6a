//! Log files, written by a separate thread, so that a slow, full or hanging disk delays no process.
//!
//! A write never blocks the caller: bytes for which the buffer has no room are dropped and counted, and so are bytes of
//! a failed write. The file then contains the number of missing bytes, at the place where they are missing.

use crate::private;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of bytes of one log that wait for the disk. Beyond it the newest bytes are dropped.
const WAITING_BYTES_MAX: usize = 256 << 10;
/// Stack size of the writing thread in bytes.
const STACK_BYTES: usize = 64 << 10;

/// Identifies a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LogId(u64);

/// Counters of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogCounts {
    /// Bytes that are in no file, because the disk was too slow or a write failed.
    pub(super) dropped_bytes: u64,
    /// Number of failed writes.
    pub(super) refused: u64,
    /// Number of times that a file reached its limit and was started again.
    pub(super) rotated: u64,
}

/// All logs of a guard.
#[derive(Debug)]
pub(super) struct Logs {
    shared: Arc<Shared>,
    next: u64,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Notified when there is something to write, and when everything is written.
    changed: Condvar,
    bytes_max: u64,
}

#[derive(Debug, Default)]
struct State {
    logs: BTreeMap<LogId, Log>,
    /// Logs with pending work, in order.
    busy: std::collections::VecDeque<LogId>,
    /// True while one of the logs is being written.
    writing: bool,
    counts: LogCounts,
    ended: bool,
}

#[derive(Debug)]
struct Log {
    path: PathBuf,
    waiting: Vec<u8>,
    /// Dropped bytes that are not yet noted in the file.
    missing: u64,
    /// Number of writers; at zero the log is closed once everything is written.
    writers: usize,
    queued: bool,
    /// The open file; taken by the writing thread while it writes.
    file: Option<LogFile>,
}

impl Logs {
    /// Starts the writing thread. No file grows beyond `bytes_max` bytes.
    pub(super) fn start(bytes_max: u64) -> io::Result<Logs> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), bytes_max });
        let writer = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("taskd-logs".into())
            .stack_size(STACK_BYTES)
            .spawn(move || writer.write_until_ended())?;
        Ok(Logs { shared, next: 0 })
    }

    /// Opens a new log at `path`. An existing file is kept beside it.
    pub(super) fn open(&mut self, path: PathBuf) -> LogId {
        let id = LogId(self.next);
        self.next += 1;
        let log = Log { path, waiting: Vec::new(), missing: 0, writers: 1, queued: false, file: None };
        let mut state = self.shared.lock();
        state.logs.insert(id, log);
        state.queue(id); // the file exists from the start, so that it can be followed
        drop(state);
        self.shared.changed.notify_all();
        id
    }

    /// Returns the open log at `path`, or opens a new one.
    pub(super) fn share(&mut self, path: PathBuf) -> LogId {
        let mut state = self.shared.lock();
        let open = state.logs.iter_mut().find(|(_, log)| log.path == path && log.writers > 0);
        if let Some((id, log)) = open {
            log.writers += 1;
            return *id;
        }
        drop(state);
        self.open(path)
    }

    /// Adds bytes to a log. Never waits.
    pub(super) fn write(&self, id: LogId, bytes: &[u8]) {
        let mut state = self.shared.lock();
        let Some(log) = state.logs.get_mut(&id) else { return };
        let room = WAITING_BYTES_MAX.saturating_sub(log.waiting.len());
        let (taken, lost) = bytes.split_at(bytes.len().min(room));
        log.waiting.extend_from_slice(taken);
        log.missing += lost.len() as u64;
        state.counts.dropped_bytes += lost.len() as u64;
        state.queue(id);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Removes one of a log's writers. After the last one, the file is closed once everything is written.
    pub(super) fn close(&self, id: LogId) {
        let mut state = self.shared.lock();
        if let Some(log) = state.logs.get_mut(&id) {
            log.writers = log.writers.saturating_sub(1);
            state.queue(id);
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    pub(super) fn counts(&self) -> LogCounts {
        self.shared.lock().counts
    }

    /// Waits until everything is written, at most for `limit`.
    pub(super) fn flush(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut state = self.shared.lock();
        while state.writing || !state.busy.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        self.shared.lock().ended = true; // the writer may hang in the disk: do not wait for it
        self.shared.changed.notify_all();
    }
}

impl State {
    fn queue(&mut self, id: LogId) {
        if let Some(log) = self.logs.get_mut(&id).filter(|log| !log.queued) {
            log.queued = true;
            self.busy.push_back(id);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_until_ended(&self) {
        let mut state = self.lock();
        loop {
            let Some(id) = state.busy.pop_front() else {
                if state.ended {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let Some(log) = state.logs.get_mut(&id) else { continue };
            log.queued = false;
            let (path, bytes, file) = (log.path.clone(), std::mem::take(&mut log.waiting), log.file.take());
            let missing = std::mem::take(&mut log.missing);
            state.writing = true;
            drop(state);
            let done = Writing { path: &path, bytes_max: self.bytes_max }.write(file, &bytes, missing);
            state = self.lock();
            state.writing = false;
            state.settle(id, done);
            self.changed.notify_all(); // for `flush`
        }
    }
}

/// Result of one write to a log.
#[derive(Default)]
struct Written {
    file: Option<LogFile>,
    lost: u64,
    /// Lost bytes that could not be noted in the file either.
    unreported: u64,
    refused: u64,
    rotated: u64,
}

impl State {
    fn settle(&mut self, id: LogId, done: Written) {
        self.counts.dropped_bytes += done.lost;
        self.counts.refused += done.refused;
        self.counts.rotated += done.rotated;
        let Some(log) = self.logs.get_mut(&id) else { return };
        log.file = done.file;
        log.missing += done.unreported;
        if log.writers == 0 && !log.queued && log.waiting.is_empty() {
            self.logs.remove(&id);
        }
    }
}

/// An open log file.
#[derive(Debug)]
struct LogFile {
    file: File,
    length: u64,
}

/// One write to one log.
struct Writing<'a> {
    path: &'a Path,
    bytes_max: u64,
}

impl Writing<'_> {
    fn write(&self, file: Option<LogFile>, bytes: &[u8], missing: u64) -> Written {
        let mut done = Written { unreported: missing, ..Written::default() };
        let mut file = match file.map_or_else(|| self.begin(), Ok) {
            Ok(file) => file,
            Err(_) => {
                done.refused = 1;
                done.lost = bytes.len() as u64;
                done.unreported += done.lost;
                return done;
            }
        };
        if missing > 0 {
            let note = format!("\n[taskd: {missing} bytes are missing here]\n");
            match file.append(note.as_bytes()) {
                Ok(()) => done.unreported = 0,
                Err(_) => done.refused += 1,
            }
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = self.bytes_max.saturating_sub(file.length);
            let (now, later) = rest.split_at(rest.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
            let before = file.length;
            if file.append(now).is_err() {
                let written = usize::try_from(file.length - before).unwrap_or(usize::MAX);
                done.refused += 1;
                done.lost = (rest.len() - written.min(rest.len())) as u64;
                done.unreported += done.lost;
                break;
            }
            rest = later;
            if !rest.is_empty() {
                match self.begin() {
                    Ok(new) => (file, done.rotated) = (new, done.rotated + 1),
                    Err(_) => {
                        done.refused += 1;
                        done.lost = rest.len() as u64;
                        done.unreported += done.lost;
                        break;
                    }
                }
            }
        }
        done.file = Some(file);
        done
    }

    /// Makes an empty file; an existing one is kept as `.1`, replacing an older one.
    fn begin(&self) -> io::Result<LogFile> {
        if let Some(directory) = self.path.parent() {
            private::make_dir(directory)?;
        }
        if fs::symlink_metadata(self.path).is_ok_and(|m| m.is_file() && m.len() > 0) {
            let mut older = self.path.as_os_str().to_owned();
            older.push(".1");
            fs::rename(self.path, older)?;
        }
        let file = private::create(self.path)?;
        Ok(LogFile { file, length: 0 })
    }
}

impl LogFile {
    /// Appends all of `bytes`, or fails; `length` is the file's length in either case.
    fn append(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.length += n as u64;
                    bytes = &bytes[n..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
