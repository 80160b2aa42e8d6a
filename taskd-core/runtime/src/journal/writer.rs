//! Writer thread: writes the files, enforces their limits, and handles disks that accept no data.
//!
//! The thread never ends because of an error and blocks nothing. A log that cannot be written loses records, which are
//! counted. The next attempt uses a new file, which begins with a record of the gap.

use super::files::{self, Segment};
use super::lock::DirLock;
use super::queue::{Batch, Chunk, Place, Queue, Worker};
use super::sync::{SyncQueue, SyncedFile};
use super::{Gap, JournalConfig, Log};
use crate::job::{JobTime, Seq};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Start number and encoded header of all files of one supervisor start.
#[derive(Debug)]
pub(super) struct Birth {
    pub(super) start: u64,
    pub(super) head: Vec<u8>,
}

/// State of the writer thread.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) dir: PathBuf,
    pub(super) config: JournalConfig,
    pub(super) queue: Arc<Queue>,
    pub(super) syncs: Arc<SyncQueue>,
    /// Set before the first record.
    pub(super) birth: Arc<OnceLock<Birth>>,
    /// Files of each log, oldest first.
    pub(super) segments: [Vec<Segment>; 3],
    pub(super) lanes: [Lane; 3],
    /// Lock of the directory, held until the last record is written.
    pub(super) lock: Option<DirLock>,
}

/// The writer's side of one log.
#[derive(Debug, Default)]
pub(super) struct Lane {
    file: Option<Open>,
    /// Description of the records lost since the last successful write.
    gap: Option<Gap>,
    retry_at: Option<Instant>,
}

/// A file open for appending.
#[derive(Debug)]
struct Open {
    file: Arc<SyncedFile>,
    path: PathBuf,
    first: Seq,
    last: Seq,
    records: u64,
    bytes: u64,
}

impl Writer {
    /// Writes records until the queue is closed.
    pub(super) fn run(mut self) {
        while let Some(Batch { chunks, upto }) = self.queue.take() {
            for (log, chunks) in Log::ALL.into_iter().zip(chunks) {
                chunks.into_iter().for_each(|chunk| self.write_or_lose(log, &chunk));
            }
            self.queue.settle(upto);
        }
        self.syncs.close();
        drop(self.lock.take()); // released first, so that a waiting caller can open the directory again
        self.queue.ended(Worker::Writer);
    }

    fn write_or_lose(&mut self, log: Log, chunk: &Chunk<Vec<u8>>) {
        let lane = &mut self.lanes[log as usize];
        if lane.retry_at.is_some_and(|at| Instant::now() < at) {
            return self.lose(log, chunk, "");
        }
        match self.write(log, chunk) {
            Ok(()) => {
                self.lanes[log as usize].retry_at = None;
                self.queue.report(log, Place::Disk, None);
            }
            Err(e) => {
                let reason = format!("{}: {e}", self.dir.display());
                self.leave_file(log);
                self.lanes[log as usize].retry_at = Some(Instant::now() + self.config.retry_every);
                self.lose(log, chunk, &reason);
                self.queue.count(|c| c.write_failures += 1);
                let advice = advice(&e);
                self.queue.report(log, Place::Disk, Some(format!("{reason}{advice}")));
            }
        }
    }

    fn lose(&mut self, log: Log, chunk: &Chunk<Vec<u8>>, reason: &str) {
        Gap::extend(&mut self.lanes[log as usize].gap, log, chunk.first, chunk.last, chunk.records, reason);
        self.queue.count(|c| c.lost += chunk.records);
    }

    fn write(&mut self, log: Log, chunk: &Chunk<Vec<u8>>) -> io::Result<()> {
        self.leave_unusable_file(log);
        if chunk.fresh || self.lanes[log as usize].file.is_none() {
            self.begin_file(log, chunk.first)?;
        }
        let Lane { file: Some(open), gap, .. } = &mut self.lanes[log as usize] else { return Ok(()) };
        match gap.as_ref().filter(|_| log != Log::Snapshots) {
            Some(gap) => open.append(&behind(gap, &chunk.bytes))?,
            None => open.append(&chunk.bytes)?,
        }
        *gap = None;
        open.last = chunk.last;
        open.records += chunk.records;
        self.syncs.push(&open.file);
        if let Some(segment) = self.segments[log as usize].last_mut() {
            segment.bytes = open.bytes;
        }
        let written = chunk.bytes.len() as u64;
        self.queue.count(|c| {
            c.records += chunk.records;
            c.bytes += written;
            c.snapshots += u64::from(log == Log::Snapshots);
        });
        Ok(())
    }

    /// Ends the current file. Removes the file if it has no record.
    fn leave_file(&mut self, log: Log) {
        if let Some(open) = self.lanes[log as usize].file.take().filter(|open| open.records == 0)
            && std::fs::remove_file(&open.path).is_ok()
        {
            self.segments[log as usize].pop();
        }
    }

    /// Ends the current file if it was removed from the directory or could not be synced.
    fn leave_unusable_file(&mut self, log: Log) {
        let Lane { file, gap, .. } = &mut self.lanes[log as usize];
        let Some(open) = file else { return };
        if open.file.is_removed() {
            let reason = format!("{} was removed while it was being written", open.path.display());
            Gap::extend(gap, log, open.first, open.last, open.records, &reason);
            self.queue.count(|c| {
                c.files_removed += 1;
                c.lost += open.records;
            });
            tracing::warn!(%log, reason, "a new file is begun");
            *file = None;
        } else if open.file.has_failed() {
            *file = None;
        }
    }

    fn begin_file(&mut self, log: Log, first: Seq) -> io::Result<()> {
        let Some(Birth { start, head }) = self.birth.get() else { return Ok(()) }; // set before the first record
        let path = files::path(&self.dir, log, *start, first);
        let file = create(&self.dir, &path)?;
        let mut open =
            Open { file: Arc::new(SyncedFile::new(Some(log), file)), path, first, last: first, records: 0, bytes: 0 };
        open.append(head)?;
        let path = open.path.clone();
        self.segments[log as usize].push(Segment { log, start: *start, first, path, bytes: open.bytes });
        self.lanes[log as usize].file = Some(open);
        if let Ok(dir) = File::open(&self.dir) {
            self.syncs.push(&Arc::new(SyncedFile::new(None, dir)));
        }
        self.expire(log);
        Ok(())
    }

    /// Removes the oldest files of a log beyond its limits, except those that a restart needs.
    fn expire(&mut self, log: Log) {
        let bytes_max = match log {
            Log::Observations => self.config.observations_bytes_max,
            Log::Snapshots => self.config.snapshots_bytes_max,
            Log::Decisions => self.config.decisions_bytes_max,
        };
        let [.., snapshots, _] = &self.segments;
        let place = |s: &Segment| (s.start, s.first);
        let needed_from = snapshots.iter().rev().nth(1).map(place);
        let segments = &self.segments[log as usize];
        let mut total: u64 = segments.iter().map(|s| s.bytes).sum();
        let mut expired = 0;
        for pair in segments.windows(2) {
            let [old, next] = pair else { break };
            let needed = match log {
                Log::Observations => false,
                Log::Snapshots => needed_from.is_none_or(|from| place(old) >= from),
                Log::Decisions => needed_from.is_some_and(|from| place(next) > from),
            };
            if needed || (total <= bytes_max && segments.len() - expired <= self.config.files_max) {
                break;
            }
            if let Err(e) = std::fs::remove_file(&old.path)
                && e.kind() != io::ErrorKind::NotFound
            {
                break; // tried again with the next file
            }
            total -= old.bytes;
            expired += 1;
        }
        self.segments[log as usize].drain(..expired);
        self.queue.count(|c| c.files_expired += expired as u64);
    }
}

impl Open {
    /// Appends all bytes, or none as far as the disk permits.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.file.file();
        let written = file.write_all(bytes);
        match written {
            Ok(()) => self.bytes += bytes.len() as u64,
            Err(_) if self.bytes == 0 => {
                let _ = std::fs::remove_file(&self.path); // no file is better than half a header
            }
            Err(_) => {
                let _ = file.set_len(self.bytes); // readers skip a torn record as well
            }
        }
        written
    }
}

/// Returns the records, preceded by a record of the gap.
fn behind(gap: &Gap, records: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Err(e) = gap.encode(&mut bytes, JobTime::START) {
        tracing::warn!(%gap, "the gap cannot be recorded: {e}"); // does not happen: the text is ours and can be encoded
    }
    bytes.extend_from_slice(records);
    bytes
}

/// Creates a new file. Recreates a removed directory, but not its parent, which may be an unmounted disk.
fn create(dir: &Path, path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    match options.open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().mode(0o700).create(dir)?;
            options.open(path)
        }
        other => other,
    }
}

/// Returns advice for an I/O error, to be appended to a message; empty if there is none.
fn advice(e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; free some space on this disk",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => "; make it writable again",
        io::ErrorKind::NotFound => "; create its parent directory again",
        _ => "",
    }
}
