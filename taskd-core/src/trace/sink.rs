//! Who gets the records that a source takes out of processes: stores, exports, a program's own use.
//!
//! It is a contract and nothing else.

use super::RecordBatch;
use std::sync::Arc;

/// Gets every batch of records before its room in the process's memory is free.
///
/// # Contract
/// - `batch` MUST NOT block: the source that calls it serves all ranks of its host, on a thread that it shares. A sink that
///   writes to a disk hands batches to a thread of its own, and counts what that one cannot take.
/// - It gets the batches of one process in their order; a batch may come twice when the supervisor died in between.
///
/// A closure over batches is a sink:
/// `move |batch: &Arc<RecordBatch>| drop(store.append(Arc::clone(batch)))` for a
/// [`TraceStore`](super::store::TraceStore), which counts what it refuses.
pub trait TraceSink: Send {
    /// Takes a batch.
    fn batch(&mut self, batch: &Arc<RecordBatch>);
}

impl<F: FnMut(&Arc<RecordBatch>) + Send> TraceSink for F {
    fn batch(&mut self, batch: &Arc<RecordBatch>) {
        self(batch);
    }
}
