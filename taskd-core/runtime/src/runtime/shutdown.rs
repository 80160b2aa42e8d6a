//! Ways for a supervisor to leave a job that has not ended: hand over, or stop, with or without a checkpoint first.
//!
//! The host program decides when to leave, and which way to use.

use super::handle::{ControlError, RuntimeHandle};
use super::shell::Runtime;
use crate::job::{IncidentId, Name};
use crate::kernel::{Event, JobReport, Order};
use crate::recover::DUMP;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

/// Reason that the log records for the stop, and for the checkpoint before it.
const LEAVING: &str = "the supervisor was asked to leave";

/// What happens to the job when its supervisor shuts down. No mode takes a token from the recovery budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownMode {
    /// The job continues training, and waits for the next supervisor to attach (see [`RuntimeHandle::detach`]).
    Detach {
        /// Maximum time for which the job waits for the next supervisor; then it stops.
        keep: Duration,
    },
    /// The job is stopped: all ranks receive SIGTERM, may save their state during the grace period, and then receive
    /// SIGKILL. In dry-run mode the job's processes continue.
    Terminate {
        /// Time between SIGTERM and SIGKILL.
        grace: Duration,
    },
    /// All ranks save a checkpoint of their current step, then the job is stopped.
    ///
    /// The checkpoint is the same as that of [`checkpoint_now`](RuntimeHandle::checkpoint_now), and the stop the same
    /// as [`Terminate`](ShutdownMode::Terminate). A later start of the job loses only the steps between the checkpoint
    /// and the stop. If no checkpoint is saved in time, the job is stopped nevertheless and a warning states the
    /// reason.
    CheckpointThenTerminate {
        /// Time limit for saving the checkpoint. The grace period of the platform, such as Kubernetes, must be longer
        /// than `within` plus `grace`.
        within: Duration,
        /// Time between SIGTERM and SIGKILL after the checkpoint.
        grace: Duration,
    },
}

impl RuntimeHandle {
    /// Ends the control of this supervisor over the job: hands the job over or stops it, according to `how`.
    /// [`run`](Runtime::run) then returns with the outcome [`Detached`](crate::kernel::Outcome::Detached) or
    /// [`Stopped`](crate::kernel::Outcome::Stopped).
    ///
    /// A host program with its own signal handlers calls this method from them. A host program without handlers can use
    /// [`Runtime::run_with_signals`].
    ///
    /// # Errors
    /// Returns [`ControlError::Refused`] if the job cannot be handed over. The job then continues and can still be
    /// stopped. Returns [`ControlError::Over`] if the job is over, or if this supervisor has handed it over.
    pub async fn shutdown(&self, how: ShutdownMode) -> Result<(), ControlError> {
        match how {
            ShutdownMode::Detach { keep } => self.detach(keep).await,
            ShutdownMode::Terminate { grace } => self.stop_to_leave(grace).await,
            ShutdownMode::CheckpointThenTerminate { within, grace } => {
                match tokio::time::timeout(within, self.save_to_leave()).await {
                    Ok(Ok(how)) => tracing::info!("checkpoint before the end: {how}"),
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
        self.order(Order::Stop { grace: Some(grace) }, LEAVING).await.map(drop)
    }

    /// Saves a checkpoint and returns how its incident ended. Tries once more if a recovery took the place of the
    /// checkpoint, because a rank was lost meanwhile.
    async fn save_to_leave(&self) -> Result<String, ControlError> {
        match self.save_once().await? {
            (how, Some(strategy)) if strategy == DUMP => Ok(how),
            (how, Some(strategy)) => {
                tracing::info!("{strategy} ran instead of the checkpoint ({how}): the checkpoint is requested again");
                match self.save_once().await? {
                    (how, Some(strategy)) if strategy == DUMP => Ok(how),
                    (how, _) => Err(ControlError::Refused(how)),
                }
            }
            (how, None) => Err(ControlError::Refused(how)),
        }
    }

    /// Orders one checkpoint, and waits for the end of its incident. Returns the incident's end, and the strategy that
    /// succeeded, if any.
    async fn save_once(&self) -> Result<(String, Option<Name>), ControlError> {
        let mut events = self.events();
        let Some(mut asked) = self.checkpoint_now(LEAVING).await?.incident else {
            return Err(ControlError::Refused("the order to save a checkpoint opened no incident".into()));
        };
        let how = loop {
            match events.recv().await.map(|event| event.event.clone()) {
                Ok(Event::Closed { incident, how }) if incident == asked => break how,
                Ok(Event::Merged { incident, into }) if incident == asked => asked = into,
                Err(RecvError::Lagged(_)) if !self.is_open(asked).await? => break "its end was not reported".into(),
                Err(RecvError::Closed) => return Err(ControlError::Over),
                Ok(_) | Err(RecvError::Lagged(_)) => (),
            }
        };
        let report = self.explain(asked).await.map(|event| event.report).ok();
        Ok((how, report.filter(|report| report.resumed.is_some()).and_then(|report| report.strategy)))
    }

    async fn is_open(&self, incident: IncidentId) -> Result<bool, ControlError> {
        Ok(self.status().await?.incidents.iter().any(|open| open.id == incident))
    }
}

impl Runtime {
    /// Runs the job to its end. Stops it gracefully when `token` is cancelled: SIGTERM, the policy's termination grace
    /// period, SIGKILL, then the report.
    ///
    /// A host program that has to hand the job over instead calls [`RuntimeHandle::shutdown`] when its token is
    /// cancelled.
    ///
    /// ```no_run
    /// # async fn host(runtime: taskd_core::runtime::Runtime, token: tokio_util::sync::CancellationToken) {
    /// let report = runtime.run_until_cancelled(token.child_token()).await;
    /// # }
    /// ```
    pub async fn run_until_cancelled(self, token: CancellationToken) -> JobReport {
        let cancelled = async move {
            token.cancelled().await;
            "the surrounding program was cancelled"
        };
        self.run_until(cancelled).await
    }
}
