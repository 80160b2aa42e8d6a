//! Processes that a host still reports after their ends were reported for it: the host was taken for lost and is back.
//!
//! Their exits were acknowledged, or will be: the host must forget them, and must not run them.

use crate::job::ProcId;
use crate::launch::{Change, ChangeLog, Launcher};
use std::sync::Arc;
use std::time::Duration;

/// Processes of one launcher that had ended according to earlier reports.
#[derive(Debug, Default)]
pub(super) struct Returned {
    /// Exits that were acknowledged while the launcher was away.
    acknowledged: Vec<ProcId>,
    /// Processes that run, although their successors may.
    running: Vec<ProcId>,
}

impl Returned {
    /// Compares a report with what was reported before.
    pub(super) fn take(&mut self, change: &Change, log: &ChangeLog) {
        let Change::Proc(status) = change else { return };
        if !log.has_ended(&status.proc) {
            return;
        }
        match (status.phase.is_exited(), log.proc(&status.proc)) {
            (true, None) => self.acknowledged.push(status.proc.clone()),
            (true, Some(_)) => {} // its acknowledgement comes
            (false, _) => self.running.push(status.proc.clone()),
        }
    }

    /// Acknowledges the exits and stops the processes, in a task of its own. What the launcher does not carry out is found
    /// again by its next listing.
    pub(super) fn settle(self, launcher: Arc<dyn Launcher>) {
        let Returned { acknowledged, running } = self;
        if acknowledged.is_empty() && running.is_empty() {
            return;
        }
        tokio::spawn(async move {
            if !running.is_empty() {
                tracing::error!(?running, "a host that was lost is back with processes: they stop");
                if let Err(error) = launcher.stop(&running, Duration::ZERO).await {
                    tracing::warn!(%error, "processes of a host that was lost could not be stopped yet");
                }
            }
            if !acknowledged.is_empty()
                && let Err(error) = launcher.acknowledge(&acknowledged).await
            {
                tracing::debug!(%error, "exits on a host that was lost are not acknowledged yet");
            }
        });
    }
}
