//! Sync thread: syncs written files, so that a slow disk blocks nothing.
//!
//! The thread never writes. It marks a file that cannot be synced, and the writer then begins another one, because the
//! content of a file is unknown after a failed sync.

use super::Log;
use super::queue::{Place, Queue, Worker};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A file that the writer thread writes and the sync thread syncs.
#[derive(Debug)]
pub(super) struct SyncedFile {
    /// The log to which the file belongs; `None` for the directory, whose sync some file systems refuse.
    log: Option<Log>,
    file: File,
    dirty: AtomicBool,
    failed: AtomicBool,
}

impl SyncedFile {
    pub(super) const fn new(log: Option<Log>, file: File) -> SyncedFile {
        SyncedFile { log, file, dirty: AtomicBool::new(false), failed: AtomicBool::new(false) }
    }

    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    /// Returns true if a sync of the file has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Returns true if the file was removed from its directory.
    pub(super) fn is_removed(&self) -> bool {
        self.file.metadata().is_ok_and(|m| m.nlink() == 0)
    }
}

/// Files that wait for a sync.
#[derive(Debug, Default)]
pub(super) struct SyncQueue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    dirty: Vec<Arc<SyncedFile>>,
    closing: bool,
}

impl SyncQueue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a file after a write.
    pub(super) fn push(&self, file: &Arc<SyncedFile>) {
        if file.dirty.swap(true, Ordering::AcqRel) {
            return; // already queued
        }
        self.state().dirty.push(Arc::clone(file));
        self.changed.notify_one();
    }

    /// Signals that no more writes will follow.
    pub(super) fn close(&self) {
        self.state().closing = true;
        self.changed.notify_one();
    }

    /// Syncs queued files, in rounds of `every`, until [`close`](SyncQueue::close).
    pub(super) fn run(&self, queue: &Queue, every: Duration) {
        while let Some(files) = self.next_round(every) {
            for file in files {
                file.dirty.store(false, Ordering::Release); // first: a later write queues it again
                if let (Err(e), Some(log)) = (file.file.sync_data(), file.log) {
                    file.failed.store(true, Ordering::Release);
                    queue.count(|c| c.sync_failures += 1);
                    queue.report(log, Place::Disk, Some(format!("its file cannot be synced: {e}")));
                }
            }
        }
        queue.ended(Worker::Syncer);
    }

    /// Waits for a queued file, then for the rest of the round. Returns `None` at the end.
    fn next_round(&self, every: Duration) -> Option<Vec<Arc<SyncedFile>>> {
        let waits = |state: &mut State| state.dirty.is_empty() && !state.closing;
        let state = self.changed.wait_while(self.state(), waits).unwrap_or_else(PoisonError::into_inner);
        let round = self.changed.wait_timeout_while(state, every, |state| !state.closing);
        let mut state = round.unwrap_or_else(PoisonError::into_inner).0;
        let files = std::mem::take(&mut state.dirty);
        (!files.is_empty()).then_some(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_synced_is_reported_once_and_skipped() {
        let (_reader, pipe) = rustix::pipe::pipe().expect("a pipe"); // a pipe does not support sync
        let (queue, syncs) = (Queue::new(1), SyncQueue::default());
        let file = Arc::new(SyncedFile::new(Some(Log::Decisions), File::from(pipe)));
        syncs.push(&file);
        syncs.push(&file);
        syncs.close();
        syncs.run(&queue, Duration::from_secs(3600));
        assert!(file.has_failed());
        assert_eq!(queue.counts().sync_failures, 1);
        let health = queue.health();
        let (log, reason) = health.borrow().trouble().map(|(log, r)| (log, r.to_owned())).expect("it is reported");
        assert!(log == Log::Decisions && reason.contains("cannot be synced"), "{reason}");
    }
}
