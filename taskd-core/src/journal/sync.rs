//! The thread that syncs what was written, so that a disk that takes its time holds nobody up.
//!
//! It never writes. A file that cannot be synced is told to the writer, which begins another: after a failed sync nobody
//! knows what a file holds.

use super::Log;
use super::queue::{Place, Queue, Worker};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A file that is written by one thread and synced by another.
#[derive(Debug)]
pub(super) struct SyncedFile {
    /// Whose file it is; `None` for the directory, whose sync some file systems refuse.
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

    /// Whether a sync of it has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Whether somebody has removed it.
    pub(super) fn is_removed(&self) -> bool {
        self.file.metadata().is_ok_and(|m| m.nlink() == 0)
    }
}

/// Files that wait for their sync.
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

    /// Something was written to the file.
    pub(super) fn push(&self, file: &Arc<SyncedFile>) {
        if file.dirty.swap(true, Ordering::AcqRel) {
            return; // it waits already
        }
        self.state().dirty.push(Arc::clone(file));
        self.changed.notify_one();
    }

    /// Nothing more will be written.
    pub(super) fn close(&self) {
        self.state().closing = true;
        self.changed.notify_one();
    }

    /// Syncs what comes in, in rounds of `every`, until [`close`](SyncQueue::close).
    pub(super) fn run(&self, queue: &Queue, every: Duration) {
        while let Some(files) = self.next_round(every) {
            for file in files {
                file.dirty.store(false, Ordering::Release); // before the sync: what is written meanwhile waits anew
                if let (Err(e), Some(log)) = (file.file.sync_data(), file.log) {
                    file.failed.store(true, Ordering::Release);
                    queue.count(|c| c.sync_failures += 1);
                    queue.report(log, Place::Disk, Some(format!("its file cannot be synced: {e}")));
                }
            }
        }
        queue.ended(Worker::Syncer);
    }

    /// Waits until something is dirty, then for the rest of the round.
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
    fn a_file_that_cannot_be_synced_is_told_once_and_left() {
        let (_reader, pipe) = rustix::pipe::pipe().expect("a pipe"); // which has nothing that could be synced
        let (queue, syncs) = (Queue::new(1), SyncQueue::default());
        let file = Arc::new(SyncedFile::new(Some(Log::Decisions), File::from(pipe)));
        syncs.push(&file);
        syncs.push(&file);
        syncs.close();
        syncs.run(&queue, Duration::from_secs(3600));
        assert!(file.has_failed());
        assert_eq!(queue.counts().sync_failures, 1);
        let health = queue.health();
        let (log, reason) = health.borrow().trouble().map(|(log, r)| (log, r.to_owned())).expect("it is told");
        assert!(log == Log::Decisions && reason.contains("cannot be synced"), "{reason}");
    }
}
