//! The shell's side of the journal: each step before its commands leave, snapshots when they are due, and one line to
//! people when the logs cannot be written, and when they can again.
//!
//! It never stops a recovery: a log that cannot be written is the journal's to count.

use crate::job::JobTime;
use crate::journal::{Health, Journal};
use crate::kernel::{Command, Input, Kernel};
use crate::recover::Action;
use std::time::Duration;
use tokio::sync::watch;

/// How long the end of a job waits for its logs.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// An open journal.
pub(super) struct Log {
    journal: Journal,
    health: watch::Receiver<Health>,
}

impl Log {
    pub(super) fn new(journal: Journal) -> Log {
        let health = journal.health();
        Log { journal, health }
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
            match self.health.borrow_and_update().trouble() {
                Some((log, reason)) => tracing::error!(?log, reason, "a log cannot be written; the job goes on"),
                None => tracing::info!("the logs are being written again; what is missing is named in them"),
            }
        }
        let acts = commands.iter().any(|c| !matches!(c.action, Action::Announce(_)));
        let written = acts.then(|| self.journal.written(kernel.seq()));
        written.map(|written| async {
            written.await; // late or degraded: the journal counts it
        })
    }

    /// Writes what is left. Blocks. False: not in time.
    pub(super) fn close(self) -> bool {
        self.journal.close(CLOSE_WITHIN)
    }
}
