//! The shell's side of the journal: each step before its commands leave, snapshots when they are due, and one line to
//! people when the logs cannot be written, when they can again, and what is missing in the end.
//!
//! It never stops a recovery: a log that cannot be written is the journal's to count.

use crate::job::JobTime;
use crate::journal::{Health, Journal, JournalCounts, JournalMonitor};
use crate::kernel::{Command, Input, Kernel};
use crate::recover::Action;
use std::time::Duration;
use tokio::sync::watch;

/// How long the end of a job waits for its logs.
pub(super) const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// An open journal.
pub(super) struct Log {
    journal: Journal,
    monitor: JournalMonitor,
    health: watch::Receiver<Health>,
    /// People were told that a log cannot be written.
    troubled: bool,
}

impl Log {
    pub(super) fn new(journal: Journal) -> Log {
        let (monitor, health) = (journal.monitor(), journal.health());
        Log { journal, monitor, health, troubled: false }
    }

    /// Logs one step of the kernel. Where commands that act are to leave, what comes back is to be awaited first: until
    /// the record is written, or a bound is over.
    pub(super) fn write(
        &mut self,
        kernel: &Kernel,
        now: JobTime,
        input: &Input,
        commands: &[Command],
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        self.journal.append(kernel.seq(), now, input, commands);
        if self.journal.snapshot_due() {
            self.journal.snapshot(&kernel.snapshot());
        }
        if self.health.has_changed().unwrap_or(false) {
            self.tell_health();
        }
        let acts = commands.iter().any(|c| !matches!(c.action, Action::Announce(_)));
        let written = acts.then(|| self.journal.written(kernel.seq()));
        written.map(|written| async {
            written.await; // late or degraded: the journal counts it
        })
    }

    /// Says when the first log cannot be written, and when all can again.
    fn tell_health(&mut self) {
        let health = self.health.borrow_and_update();
        match (health.trouble(), self.troubled) {
            (Some((_, reason)), false) => {
                tracing::error!("the logs cannot be written in full, and the job goes on without: {reason}");
            }
            (None, true) => tracing::warn!("the logs are being written again; what is missing is named in them"),
            _ => {}
        }
        self.troubled = health.trouble().is_some();
    }

    /// Writes what is left, within a bound, and says what is missing.
    pub(super) async fn finish(self) {
        let (journal, monitor) = (self.journal, self.monitor);
        let closed = tokio::task::spawn_blocking(move || journal.close(CLOSE_WITHIN)).await;
        if !closed.unwrap_or(false) {
            tracing::warn!("the logs could not be written to their end within {CLOSE_WITHIN:?}");
        }
        let JournalCounts { lost, records, .. } = monitor.counts();
        if lost > 0 {
            tracing::warn!("{lost} of the {} records of this job's logs are lost", lost + records);
        }
    }
}
