//! Consumers of the records that a source reads from processes: stores, exports, and a program's own use.

use super::RecordBatch;
use std::sync::Arc;

/// Receiver of all batches of trace records. It gets a batch before the batch's space in the rank's memory is
/// freed.
///
/// # Contract
/// - `batch` MUST NOT block: the calling source serves all ranks of its host on a shared thread. A sink that writes to
///   a disk passes batches to a thread of its own, and counts those that this thread cannot accept.
/// - It receives the batches of one process in their order; a batch may arrive twice if the supervisor died in between.
///
/// A closure over batches is a sink: `move |batch: &Arc<RecordBatch>| drop(store.append(Arc::clone(batch)))` for a
/// [`TraceStore`](super::store::TraceStore), which counts the batches that it refuses.
pub trait TraceSink: Send {
    /// Receives a batch of records.
    fn batch(&mut self, batch: &Arc<RecordBatch>);
}

impl<F: FnMut(&Arc<RecordBatch>) + Send> TraceSink for F {
    fn batch(&mut self, batch: &Arc<RecordBatch>) {
        self(batch);
    }
}
