//! A thread that adds a job's incidents to the file: a disk that is slow or full delays no decision.
//!
//! What cannot be written is kept, tried again, and counted if it is lost.

use super::HostHistoryFile;
use crate::job::NodeId;
use crate::state::HostIncident;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::Duration;

/// Maximum number of incidents that wait for the disk. One more replaces the oldest, which is counted.
const WAITING_MAX: usize = 1024;

/// Maximum number of additions that wait for the thread.
const BATCHES_MAX: usize = 64;

/// Time after which a write that failed is tried again.
const RETRY_EVERY: Duration = Duration::from_secs(10);

/// Time that the end of a job waits for its last incidents.
const CLOSE_WITHIN: Duration = Duration::from_secs(4);

type Records = Vec<(NodeId, HostIncident)>;

/// The thread's mailbox. The thread writes what it has received and ends when this value is dropped.
pub(crate) struct HostHistoryWriter {
    records: SyncSender<Records>,
    ended: Receiver<()>,
}

impl HostHistoryWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// Returns the error of the system if no thread can be started.
    pub(crate) fn start(file: HostHistoryFile) -> io::Result<HostHistoryWriter> {
        let (records, received) = sync_channel(BATCHES_MAX);
        let (ends, ended) = channel();
        let run = move || {
            Writing { file, waiting: Vec::new(), lost: 0, is_troubled: false }.run(&received);
            drop(ends);
        };
        std::thread::Builder::new().name("taskd-hosts".into()).spawn(run)?;
        Ok(HostHistoryWriter { records, ended })
    }

    /// Adds incidents. Never blocks. Returns false if too many wait for the disk: then the caller keeps them.
    pub(crate) fn add(&self, records: Records) -> bool {
        self.records.try_send(records).is_ok()
    }

    /// Waits until everything is written, within a time limit. Blocks.
    pub(crate) fn close(self) {
        let HostHistoryWriter { records, ended } = self;
        drop(records);
        if ended.recv_timeout(CLOSE_WITHIN) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the last incidents of hosts could not be written within {CLOSE_WITHIN:?}");
        }
    }
}

/// State of the thread.
struct Writing {
    file: HostHistoryFile,
    waiting: Records,
    lost: u64,
    /// True after the problem with the file was reported.
    is_troubled: bool,
}

impl Writing {
    fn run(mut self, received: &Receiver<Records>) {
        loop {
            let next = match self.waiting.is_empty() {
                true => received.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => received.recv_timeout(RETRY_EVERY),
            };
            match next {
                Ok(records) => self.take(records),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            received.try_iter().for_each(|records| self.take(records));
            self.write();
        }
        if !self.waiting.is_empty() {
            self.write();
        }
        let lost = self.lost + self.waiting.len() as u64;
        if lost > 0 {
            tracing::warn!("{lost} incidents of hosts of this job are not in {}", self.file.path().display());
        }
    }

    fn take(&mut self, records: Records) {
        self.waiting.extend(records);
        let excess = self.waiting.len().saturating_sub(WAITING_MAX);
        self.waiting.drain(..excess);
        self.lost += excess as u64;
    }

    fn write(&mut self) {
        match self.file.add(&self.waiting) {
            Ok(_) => {
                self.waiting.clear();
                if std::mem::take(&mut self.is_troubled) {
                    tracing::warn!("the history of hosts {} is written again", self.file.path().display());
                }
            }
            Err(error) if !self.is_troubled => {
                self.is_troubled = true;
                tracing::error!("the job continues without recording incidents of hosts: {error}");
            }
            Err(_) => {}
        }
    }
}
