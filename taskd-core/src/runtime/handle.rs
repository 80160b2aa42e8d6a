//! What the host program holds while the job runs: ask for a stop, report a fault, listen, look after the logs.

use crate::detect::Fault;
use crate::job::JobTime;
use crate::journal::JournalMonitor;
use crate::kernel::{Event, Input, Request};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc};

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

/// A handle of a running job. Clones share it; dropping it does nothing.
#[derive(Clone, Debug)]
pub struct RuntimeHandle {
    pub(super) urgent: mpsc::Sender<Input>,
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
