//! The end of a job after its run was dropped: its launcher is asked to shut down, because no later supervisor is expected.

use crate::job::{Mode, Policy};
use crate::launch::Launcher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Asks the launcher to shut down if the run is dropped before its end.
pub(super) struct Unattended {
    launcher: Option<Arc<dyn Launcher>>,
    grace: Duration,
}

impl Unattended {
    /// Creates the guard. In dry-run mode it does nothing on drop, because the job does not belong to this supervisor.
    pub(super) fn of(policy: &Policy, launcher: &Arc<dyn Launcher>) -> Unattended {
        let launcher = (policy.mode == Mode::Enforce).then(|| Arc::clone(launcher));
        Unattended { launcher, grace: policy.termination_grace_period }
    }

    /// Makes the guard do nothing on drop: the run has come to its end.
    pub(super) fn disarm(&mut self) {
        self.launcher = None;
    }
}

impl Drop for Unattended {
    fn drop(&mut self) {
        let Some(launcher) = self.launcher.take() else { return };
        let result = catch_unwind(AssertUnwindSafe(|| launcher.begin_shutdown(self.grace)));
        if result.is_err() {
            tracing::error!("the launcher panicked when its job was dropped: check for remaining processes");
        }
    }
}
