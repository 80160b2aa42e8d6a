//! The interface of the store for a drain: adding a batch never waits.

use super::config::StoreConfig;
use super::queue::Queue;
use super::status::{StoreError, StoreStatus};
use super::writer::Writer;
use crate::trace::RecordBatch;
use std::sync::Arc;
use std::time::Duration;

/// A store that writes records to files, in one directory per rank.
///
/// No call here waits for a disk: batches go into a bounded queue, and a thread of the store writes them. Records that
/// find no room in the queue, or that the disk does not accept, are counted in [`status`](Self::status), and recorded
/// as lost in the file before the next record of their rank. Written records survive this process; they are not synced,
/// so they may not survive a crash of the machine.
///
/// On drop, the thread still writes the waiting batches; [`close`](Self::close) waits for it.
#[derive(Debug)]
pub struct TraceStore {
    queue: Arc<Queue>,
}

impl TraceStore {
    /// Opens a trace store and starts its writing thread. The thread creates the root directory if it does not exist;
    /// an unusable disk is noticed only with the first batch.
    ///
    /// # Errors
    /// Returns an error if the configuration is invalid, or the thread cannot be started.
    pub fn open(config: StoreConfig) -> Result<TraceStore, StoreError> {
        if let Some(problem) = config.problems().into_iter().next() {
            return Err(StoreError::Config(problem));
        }
        let queue = Arc::new(Queue::new(config.queue_records_max, config.write_every));
        let writer = Writer::new(config, Arc::clone(&queue));
        let thread = std::thread::Builder::new().name("taskd-store".to_owned()).spawn(|| writer.run());
        thread.map_err(|source| StoreError::Thread { source })?;
        Ok(TraceStore { queue })
    }

    /// Adds a batch to the queue of the writing thread. Returns false if the queue has no room; the records of the
    /// batch are then counted as dropped. A batch larger than the queue is accepted if the queue is empty.
    pub fn append(&self, batch: Arc<RecordBatch>) -> bool {
        self.queue.push(batch)
    }

    /// Returns the counters, and the current problem if there is one.
    #[must_use]
    pub fn status(&self) -> StoreStatus {
        self.queue.status()
    }

    /// Blocks until all accepted batches are written, or lost and counted. Returns false if that takes longer than
    /// `limit`.
    pub fn flush(&self, limit: Duration) -> bool {
        self.queue.wait_settled(limit)
    }

    /// Writes the remaining batches, and blocks until that is done. Returns false if that takes longer than `limit`;
    /// the thread then continues as long as the process lives.
    pub fn close(self, limit: Duration) -> bool {
        self.queue.ask_to_end();
        self.queue.wait_ended(limit)
    }
}

impl Drop for TraceStore {
    fn drop(&mut self) {
        self.queue.ask_to_end();
    }
}
