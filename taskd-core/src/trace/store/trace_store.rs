//! What the drain holds: batches go in, and nobody waits.

use super::config::StoreConfig;
use super::queue::Queue;
use super::status::{StoreError, StoreStatus};
use super::writer::Writer;
use crate::trace::RecordBatch;
use std::sync::Arc;
use std::time::Duration;

/// Records on their way into files, a directory for each rank.
///
/// Nothing here waits for a disk: batches are put into a bounded queue and written by a thread of the store's own. What finds no
/// room, or what the disk does not take, is counted, told in [`status`](Self::status), and stands as missing in the file before
/// the next record of its rank. What is written survives this process, and is not synced: it need not survive the machine.
///
/// Dropping it lets the thread write what waits in its own time; [`close`](Self::close) waits for that.
#[derive(Debug)]
pub struct TraceStore {
    queue: Arc<Queue>,
}

impl TraceStore {
    /// Begins to store. The root is made if it is not there. Whether the disk takes anything shows with the first batch.
    ///
    /// # Errors
    /// When the configuration is not sound, or the thread cannot be started.
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

    /// Takes a batch. False: there is no room, and its records are counted as dropped. A batch that is longer than the
    /// queue is taken when the queue is empty.
    pub fn append(&self, batch: Arc<RecordBatch>) -> bool {
        self.queue.push(batch)
    }

    /// What was counted, and what is wrong.
    #[must_use]
    pub fn status(&self) -> StoreStatus {
        self.queue.status()
    }

    /// Blocks until everything that was taken is written, or lost and counted. False: not within `limit`.
    pub fn flush(&self, limit: Duration) -> bool {
        self.queue.wait_settled(limit)
    }

    /// Writes what is left, and blocks until that is done. False: not within `limit`; it then goes on by itself as long as
    /// the process lives.
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
