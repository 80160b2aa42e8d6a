//! How a supervisor leaves a job that has not ended: it hands the job over, or stops it, with a checkpoint before or without.
//!
//! It decides neither when nor which of these: that is the host program's.

use super::handle::{ControlError, RuntimeHandle};
use super::shell::Runtime;
use crate::job::{IncidentId, Name};
use crate::kernel::{Event, JobReport, Request};
use crate::recover::DUMP;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

/// Why the job is stopped, and why it saves before.
const LEAVING: &str = "its supervisor was told to leave";

/// What becomes of a job whose supervisor leaves. No way uses any of the recovery budget.
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
    /// All ranks save the step that they have, as [`dump_now`](RuntimeHandle::dump_now) has them do, and then the job is stopped
    /// like by [`Stop`](Leave::Stop): whoever starts it again loses the steps in between, and no more. When nothing was saved in time it is
    /// stopped all the same, and a warning says why.
    Save {
        /// How long saving may take. The platform's own grace time has to be longer than both together.
        within: Duration,
        /// Time between SIGTERM and SIGKILL after that.
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
            Leave::Stop { grace } => self.stop_to_leave(grace).await,
            Leave::Save { within, grace } => {
                match tokio::time::timeout(within, self.save_to_leave()).await {
                    Ok(Ok(how)) => tracing::info!("the checkpoint before the end: {how}"),
                    Ok(Err(error)) => tracing::warn!("the job is stopped without a checkpoint: {error}"),
                    Err(_) => {
                        tracing::warn!("the job is stopped without a checkpoint: none was saved within {within:?}")
                    }
                }
                self.stop_to_leave(grace).await
            }
        }
    }

    async fn stop_to_leave(&self, grace: Duration) -> Result<(), ControlError> {
        self.request(Request::Stop { reason: LEAVING.into(), grace: Some(grace) }).await
    }

    /// How the checkpoint ended that is asked for here: once more where a rank was lost meanwhile, which was mended instead.
    async fn save_to_leave(&self) -> Result<String, ControlError> {
        match self.save_once().await? {
            (how, Some(strategy)) if strategy == DUMP => Ok(how),
            (how, Some(strategy)) => {
                tracing::info!("instead of saving, {strategy} was needed ({how}): the checkpoint is asked for again");
                match self.save_once().await? {
                    (how, Some(strategy)) if strategy == DUMP => Ok(how),
                    (how, _) => Err(ControlError::Refused(how)),
                }
            }
            (how, None) => Err(ControlError::Refused(how)),
        }
    }

    /// How it ended, and what was done in the end, if that was done well.
    async fn save_once(&self) -> Result<(String, Option<Name>), ControlError> {
        let mut events = self.events();
        let Some(mut asked) = self.dump_now(LEAVING).await?.incident else {
            return Err(ControlError::Refused("nothing came of the order to save".into()));
        };
        let how = loop {
            match events.recv().await.map(|told| told.event.clone()) {
                Ok(Event::Closed { incident, how }) if incident == asked => break how,
                Ok(Event::Merged { incident, into }) if incident == asked => asked = into,
                Err(RecvError::Lagged(_)) if !self.is_open(asked).await? => break "its end was not heard".into(),
                Err(RecvError::Closed) => return Err(ControlError::Over),
                Ok(_) | Err(RecvError::Lagged(_)) => (),
            }
        };
        let report = self.explain(asked).await.map(|told| told.report).ok();
        Ok((how, report.filter(|report| report.resumed.is_some()).and_then(|report| report.strategy)))
    }

    async fn is_open(&self, incident: IncidentId) -> Result<bool, ControlError> {
        Ok(self.status().await?.incidents.iter().any(|open| open.id == incident))
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
