//! The shell's side of the history of hosts: passes the stored incidents to the kernel, and stores those that the kernel
//! records.
//!
//! A supervisor that continues a job sends what the job has recorded before once more: the file has it already, unless
//! the earlier supervisor ended between its decision and the write.

use crate::host_history::{HostHistoryFile, HostHistoryWriter};
use crate::kernel::{Input, Kernel};
use crate::state::HostHistory;

/// The history that a runtime is built with.
pub(super) struct OpenHistory {
    pub(super) file: HostHistoryFile,
    pub(super) history: HostHistory,
}

/// The file, and how many of the job's incidents it was given.
pub(super) struct HostRecords {
    writer: HostHistoryWriter,
    known: u64,
}

impl OpenHistory {
    /// Returns the input for the kernel, and the writer of what the kernel records.
    pub(super) fn begin(self) -> (Input, Option<HostRecords>) {
        let input = Input::HostHistory(Box::new(self.history));
        match HostHistoryWriter::start(self.file) {
            Ok(writer) => (input, Some(HostRecords { writer, known: 0 })),
            Err(error) => {
                tracing::error!("incidents of hosts are not recorded: no thread can be started: {error}");
                (input, None)
            }
        }
    }
}

impl HostRecords {
    /// Stores what the kernel has recorded since the last call.
    pub(super) fn follow(&mut self, kernel: &Kernel) {
        let count = kernel.recorded_host_incidents_count();
        if count > self.known && self.writer.add(kernel.recorded_host_incidents(self.known).cloned().collect()) {
            self.known = count; // otherwise it is tried again with the next step
        }
    }

    /// Completes the file within a time limit.
    pub(super) async fn finish(self) {
        let _ = tokio::task::spawn_blocking(|| self.writer.close()).await; // it reports what is missing
    }
}
