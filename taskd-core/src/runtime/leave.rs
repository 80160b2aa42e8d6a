//! How a supervisor leaves a job that has not ended: it hands the job over, or stops it.
//!
//! It decides neither when nor which of the two: that is the host program's.

use super::handle::{ControlError, RuntimeHandle};
use super::shell::Runtime;
use crate::kernel::{JobReport, Request};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// What becomes of a job whose supervisor leaves. Neither way uses any of the recovery budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// The job trains on; the next supervisor has so long to attach (see [`RuntimeHandle::detach`]).
    HandOver {
        /// For how long the job is kept.
        keep: Duration,
    },
    /// All ranks get SIGTERM, and may save their state until the grace time is over; then SIGKILL. A job that is only
    /// observed goes on.
    Stop {
        /// Time between the two.
        grace: Duration,
    },
}

impl RuntimeHandle {
    /// Leaves the job as `how` says. [`run`](Runtime::run) then returns with the outcome
    /// [`Detached`](crate::kernel::Outcome::Detached) or [`Stopped`](crate::kernel::Outcome::Stopped).
    ///
    /// This is what a host program with signal handlers of its own calls from them; one without can use
    /// [`Runtime::run_with_signals`].
    ///
    /// # Errors
    /// [`ControlError::Refused`]: the job cannot be handed over, and goes on; it can still be stopped.
    /// [`ControlError::Over`].
    pub async fn leave(&self, how: Leave) -> Result<(), ControlError> {
        match how {
            Leave::HandOver { keep } => self.detach(keep).await,
            Leave::Stop { grace } => {
                let stop = Request::Stop { reason: "its supervisor was told to leave".into(), grace: Some(grace) };
                self.request(stop).await
            }
        }
    }
}

impl Runtime {
    /// Runs the job to its end, and ends it in order when the host program's token is cancelled: SIGTERM, the policy's
    /// grace time, SIGKILL, then the report.
    ///
    /// A host program that would rather hand the job over then calls [`RuntimeHandle::leave`] when its token is cancelled.
    ///
    /// ```no_run
    /// # async fn host(runtime: taskd_core::runtime::Runtime, token: tokio_util::sync::CancellationToken) {
    /// let report = runtime.run_until_cancelled(token.child_token()).await;
    /// # }
    /// ```
    pub async fn run_until_cancelled(self, token: CancellationToken) -> JobReport {
        let cancelled = async move {
            token.cancelled().await;
            "the program around it was cancelled"
        };
        self.run_until(cancelled).await
    }
}
