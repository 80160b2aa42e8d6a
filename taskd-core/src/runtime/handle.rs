//! What the host program holds while the job runs: ask for a stop, report a fault, listen, look after the logs.

use crate::detect::Fault;
use crate::job::JobTime;
use crate::journal::JournalMonitor;
use crate::kernel::{Event, Input, Request};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, oneshot};

/// Events that are kept for a listener who is slow; one who is slower still misses the oldest, and is told how many.
pub const EVENTS_KEPT: usize = 1024;

/// An event and when it was announced.
#[derive(Clone, Debug, PartialEq)]
pub struct Announcement {
    /// The time of the input that led to it.
    pub at: JobTime,
    /// What happened.
    pub event: Event,
}

/// Why a request was not granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// It cannot be done now, or not at all, and why; the job goes on.
    #[error("{0}")]
    Refused(String),
    /// Nothing that was added to this runtime can do it, and what could.
    #[error("{0}")]
    Unsupported(String),
    /// The job is over, or this supervisor has left it.
    #[error("nobody supervises the job any more: it is over, or was handed over")]
    Over,
}

/// What the shell is asked.
#[derive(Debug)]
pub(super) enum Ask {
    /// To hand the job over.
    Detach { keep: Duration, reply: oneshot::Sender<Result<(), ControlError>> },
}

/// A handle of a running job. Clones share it; dropping it does nothing.
#[derive(Clone, Debug)]
pub struct RuntimeHandle {
    pub(super) urgent: mpsc::Sender<Input>,
    /// What the shell itself is asked, not the kernel.
    pub(super) asks: mpsc::Sender<Ask>,
    pub(super) events: broadcast::Sender<Arc<Announcement>>,
    pub(super) logs: Option<JournalMonitor>,
}

impl RuntimeHandle {
    /// Ends the job in order: SIGTERM, the policy's grace time, SIGKILL, then the report.
    pub async fn stop(&self, reason: impl Into<String>) {
        self.request(Request::Stop { reason: reason.into(), grace: None }).await;
    }

    /// Ends the job at once; also in the middle of a graceful stop.
    pub async fn stop_now(&self, reason: impl Into<String>) {
        self.request(Request::Stop { reason: reason.into(), grace: Some(Duration::ZERO) }).await;
    }

    /// Leaves the job running without a supervisor: for so long it waits for the next one, which goes on as if nothing had
    /// happened, if it has the same journal and launcher. Then it is stopped.
    ///
    /// Nothing is decided any more, commands that were given reach the launcher, its processes are handed over, the logs
    /// are written and synced, and [`run`](super::Runtime::run) returns with
    /// [`Outcome::Detached`](crate::kernel::Outcome). Each step is bounded: all together take at most
    /// [`HAND_OVER_WITHIN`](super::HAND_OVER_WITHIN).
    ///
    /// # Errors
    /// [`ControlError::Refused`] with the launcher's reason, and the job goes on; [`ControlError::Over`].
    pub async fn detach(&self, keep: Duration) -> Result<(), ControlError> {
        let (reply, answer) = oneshot::channel();
        self.asks.send(Ask::Detach { keep, reply }).await.map_err(|_| ControlError::Over)?;
        answer.await.map_err(|_| ControlError::Over)?
    }

    /// Reports a fault that was found outside of the runtime.
    pub async fn report_fault(&self, fault: Fault) {
        self.request(Request::Fault(Box::new(fault))).await;
    }

    /// All events from now on. For dashboards and people: missing one changes no decision.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Arc<Announcement>> {
        self.events.subscribe()
    }

    /// Whether the logs are being written, and what was lost of them; also after the job's end. `None`: none are kept.
    #[must_use]
    pub const fn logs(&self) -> Option<&JournalMonitor> {
        self.logs.as_ref()
    }

    async fn request(&self, request: Request) {
        let _ = self.urgent.send(Input::Requested(request)).await; // closed: the job is over already
    }
}
