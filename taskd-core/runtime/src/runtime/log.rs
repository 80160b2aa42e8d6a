//! The shell's side of the journal: writes each step before its commands are sent, and snapshots when they are due.
//! Reports in one line when the logs cannot be written, when they can again, and what is missing at the end.
//!
//! A log that cannot be written never stops a recovery; the journal counts what is lost.

use crate::job::JobTime;
use crate::journal::{Health, Journal, JournalCounts, JournalMonitor};
use crate::kernel::Effect;
use crate::kernel::{Command, Input, Kernel};
use std::time::Duration;
use tokio::sync::watch;

/// Time that the end of a job waits for its logs.
pub(super) const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// An open journal.
pub(super) struct Log {
    journal: Journal,
    monitor: JournalMonitor,
    health: watch::Receiver<Health>,
    /// True after the problem with a log was reported.
    troubled: bool,
}

impl Log {
    pub(super) fn new(journal: Journal) -> Log {
        let (monitor, health) = (journal.monitor(), journal.health());
        Log { journal, monitor, health, troubled: false }
    }

    /// Logs one kernel step.
    ///
    /// If the step has commands that act, returns a future that must be awaited before they are sent. It resolves when
    /// the record is written, or after a time limit.
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
            self.log_health();
        }
        let acts = commands.iter().any(|c| !matches!(c.effect, Effect::Publish(_)));
        let written = acts.then(|| self.journal.written(kernel.seq()));
        written.map(|written| async {
            written.await; // the journal counts late and degraded writes
        })
    }

    /// Reports when the first log cannot be written, and when all logs can be written again.
    fn log_health(&mut self) {
        let health = self.health.borrow_and_update();
        match (health.trouble(), self.troubled) {
            (Some((_, reason)), false) => {
                tracing::error!("the logs cannot be written completely, and the job continues without them: {reason}");
            }
            (None, true) => tracing::warn!("the logs are written again; they name the missing records"),
            _ => {}
        }
        self.troubled = health.trouble().is_some();
    }

    /// Writes the rest within a time limit, and reports what is missing.
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
