//! What the host program holds while the job runs: give orders, report faults, ask, listen, look after the logs.

use super::calls::{Call, Query};
use crate::detect::Fault;
use crate::job::{IncidentId, JobTime, Name, NodeId, Permission, Rank, WallTime};
use crate::journal::JournalMonitor;
use crate::kernel::{Denial, Event, Explanation, Input, JobStatus, NO_TRACE_CONTROL, Order, Request, Taken};
use crate::trace::switches::{Requested, TraceControl, TraceStatus};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, oneshot};

/// Events that are kept for a listener who is slow; one who is slower still misses the oldest, and is told how many.
pub const EVENTS_KEPT: usize = 1024;

/// An event and when it was announced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Announcement {
    /// The time of the input that led to it.
    pub at: JobTime,
    /// The same by the calendar.
    #[serde(default)]
    pub wall: Option<WallTime>,
    /// What happened.
    pub event: Event,
}

/// Why a call of a [`RuntimeHandle`] came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Not now, or not this: what stands in the way, and what to do.
    #[error("{0}")]
    Refused(String),
    /// No plugin of this runtime can do it.
    #[error("{0}")]
    Unsupported(String),
    /// The job is over, or this supervisor has left it.
    #[error("nobody supervises the job any more: it is over, or was handed over")]
    Over,
}

impl From<Denial> for ControlError {
    fn from(denial: Denial) -> ControlError {
        match denial {
            Denial::Refused(why) => ControlError::Refused(why),
            Denial::Unsupported(why) => ControlError::Unsupported(why),
        }
    }
}

/// A handle of a running job. Clones share it; dropping it does nothing.
///
/// Orders are inputs like any other: they stand in the log with who gave them and why, and what they lead to is decided, and
/// explained, as an incident. They are answered when they are taken, which is before they are carried out.
#[derive(Clone, Debug)]
pub struct RuntimeHandle {
    pub(super) by: Name,
    pub(super) urgent: mpsc::Sender<Input>,
    pub(super) calls: mpsc::Sender<Call>,
    pub(super) events: broadcast::Sender<Arc<Announcement>>,
    pub(super) logs: Option<JournalMonitor>,
    pub(super) trace: Option<TraceControl>,
}

impl RuntimeHandle {
    /// The same handle, whose orders stand in the log under this name. Default: `host`, the host program.
    #[must_use]
    pub fn acting_as(mut self, by: impl Into<Name>) -> RuntimeHandle {
        self.by = by.into();
        self
    }

    /// The job as it stands.
    ///
    /// # Errors
    /// [`ControlError::Over`].
    pub async fn status(&self) -> Result<JobStatus, ControlError> {
        self.query(Query::Status).await
    }

    /// Why an incident was decided as it was.
    ///
    /// # Errors
    /// [`ControlError::Refused`] when nothing is known of it, or nothing was decided yet; [`ControlError::Over`].
    pub async fn explain(&self, incident: IncidentId) -> Result<Explanation, ControlError> {
        let unknown = || ControlError::Refused(format!("nothing was decided about {incident}, or it is too long ago"));
        self.query(|reply| Query::Explain(incident, reply)).await?.ok_or_else(unknown)
    }

    /// Leaves a host: its ranks move, and nothing new starts there.
    ///
    /// # Errors
    /// [`ControlError::Refused`] for a host that is not the job's, or when no other has room; [`ControlError::Over`].
    pub async fn drain(&self, node: NodeId, reason: impl Into<String>) -> Result<Taken, ControlError> {
        self.order(Order::Drain { node }, reason).await
    }

    /// Uses a host again that was drained or taken out.
    ///
    /// # Errors
    /// [`ControlError::Refused`] when it was not; [`ControlError::Over`].
    pub async fn readmit(&self, node: NodeId, reason: impl Into<String>) -> Result<Taken, ControlError> {
        self.order(Order::Readmit { node }, reason).await
    }

    /// Starts these ranks anew; all when there are none. What else has to be stopped for that is the strategy's matter. Their
    /// processes are killed without grace.
    ///
    /// # Errors
    /// [`ControlError::Refused`] for a rank that is not there; [`ControlError::Over`].
    pub async fn restart(
        &self,
        ranks: impl IntoIterator<Item = Rank>,
        reason: impl Into<String>,
    ) -> Result<Taken, ControlError> {
        let ranks: BTreeSet<Rank> = ranks.into_iter().collect();
        self.order(Order::Restart { ranks }, reason).await
    }

    /// Saves a checkpoint of the ranks' state now, and the job goes on. Whether it was saved the incident's end says.
    ///
    /// # Errors
    /// [`ControlError::Unsupported`] when no strategy does that; [`ControlError::Over`].
    pub async fn dump_now(&self, reason: impl Into<String>) -> Result<Taken, ControlError> {
        self.order(Order::Dump, reason).await
    }

    /// Changes what strategies may do by themselves. It outlives this supervisor.
    ///
    /// # Errors
    /// [`ControlError::Refused`] for a strategy that is not there: then nothing is changed; [`ControlError::Over`].
    pub async fn allow(
        &self,
        strategies: BTreeMap<Name, Permission>,
        reason: impl Into<String>,
    ) -> Result<Taken, ControlError> {
        self.order(Order::Allow { strategies }, reason).await
    }

    /// Decides, tells and logs as ever, but begins nothing until [`resume`](Self::resume). What has begun goes on.
    ///
    /// # Errors
    /// [`ControlError::Over`].
    pub async fn pause(&self, reason: impl Into<String>) -> Result<Taken, ControlError> {
        self.order(Order::Pause, reason).await
    }

    /// Acts again; what was held is decided anew.
    ///
    /// # Errors
    /// [`ControlError::Refused`] when it was not paused; [`ControlError::Over`].
    pub async fn resume(&self, reason: impl Into<String>) -> Result<Taken, ControlError> {
        self.order(Order::Resume, reason).await
    }

    /// Carries out what an incident is held for.
    ///
    /// # Errors
    /// [`ControlError::Refused`] when it does not wait for an approval; [`ControlError::Over`].
    pub async fn approve(&self, incident: IncidentId, reason: impl Into<String>) -> Result<Taken, ControlError> {
        self.order(Order::Approve { incident }, reason).await
    }

    /// Does not carry out what an incident is held for: the next proposal is taken.
    ///
    /// # Errors
    /// [`ControlError::Refused`] when it does not wait for an approval; [`ControlError::Over`].
    pub async fn decline(&self, incident: IncidentId, reason: impl Into<String>) -> Result<Taken, ControlError> {
        self.order(Order::Decline { incident }, reason).await
    }

    /// Records these kinds in all ranks from now on, in those that are started later as well, and also under a later
    /// supervisor, until somebody asks for something else.
    ///
    /// # Errors
    /// [`ControlError::Unsupported`] without a control over recorders ([`RuntimeBuilder::trace`](super::RuntimeBuilder::trace));
    /// [`ControlError::Refused`] when the job is only observed; [`ControlError::Over`].
    pub async fn switch_trace(&self, kinds: Requested, reason: impl Into<String>) -> Result<Taken, ControlError> {
        self.order(Order::Switch { kinds }, reason).await
    }

    /// What is recorded, asked for and effective, and how every rank stands. Read from the ranks' memory at once.
    ///
    /// # Errors
    /// [`ControlError::Unsupported`] without a control over recorders.
    pub fn trace_status(&self) -> Result<TraceStatus, ControlError> {
        let unsupported = || ControlError::Unsupported(NO_TRACE_CONTROL.into());
        self.trace.as_ref().map(TraceControl::status).ok_or_else(unsupported)
    }

    /// What ranks record now; without a control over recorders there is nothing to say.
    pub(super) fn trace_in_force(&self) -> Result<Requested, ControlError> {
        let unsupported = || ControlError::Unsupported(NO_TRACE_CONTROL.into());
        self.trace.as_ref().map(TraceControl::in_force).ok_or_else(unsupported)
    }

    /// Carries the kernel's command out.
    pub(super) fn switch(&self, kinds: Requested, by: Name, again: bool) {
        match &self.trace {
            Some(control) if again => control.restore(kinds, by),
            Some(control) => {
                control.switch(kinds, by);
            }
            None => {} // the kernel knows, and gives no such command
        }
    }

    /// Gives an order.
    ///
    /// # Errors
    /// As the order's own method; [`ControlError::Over`].
    pub async fn order(&self, order: Order, reason: impl Into<String>) -> Result<Taken, ControlError> {
        let (by, reason) = (self.by.clone(), reason.into());
        Ok(self.query(|reply| Query::Order { by, reason, order, reply }).await??)
    }

    /// Ends the job in order: SIGTERM, the policy's grace time, SIGKILL, then the report. A job that is only observed goes on.
    pub async fn stop(&self, reason: impl Into<String>) {
        let _ = self.request(Request::Stop { reason: reason.into(), grace: None }).await; // over: it has stopped
    }

    /// Ends the job at once; also in the middle of a graceful stop.
    pub async fn stop_now(&self, reason: impl Into<String>) {
        let _ = self.request(Request::Stop { reason: reason.into(), grace: Some(Duration::ZERO) }).await; // as above
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
        self.call(|reply| Call::Detach { keep, reply }).await?
    }

    /// Reports a fault that was found outside of the runtime. It is judged like those of detectors: what its
    /// [`Damage`](crate::detect::Damage) says is taken as said, and a host that does not work, or a device of which does not,
    /// is left. If no other host has room, and no rank was lost, it is told, and the job goes on. Said again after that, or
    /// after a recovery, it is a new fault: report what has begun, not what still is.
    ///
    /// # Errors
    /// [`ControlError::Over`]: nobody takes it any more.
    pub async fn report_fault(&self, fault: Fault) -> Result<(), ControlError> {
        self.request(Request::Fault(Box::new(fault))).await
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

    pub(super) async fn request(&self, request: Request) -> Result<(), ControlError> {
        self.urgent.send(Input::Requested(request)).await.map_err(|_| ControlError::Over)
    }

    async fn query<T>(&self, query: impl FnOnce(oneshot::Sender<T>) -> Query) -> Result<T, ControlError> {
        self.call(|reply| Call::Kernel(query(reply))).await
    }

    async fn call<T>(&self, call: impl FnOnce(oneshot::Sender<T>) -> Call) -> Result<T, ControlError> {
        let (reply, answer) = oneshot::channel();
        self.calls.send(call(reply)).await.map_err(|_| ControlError::Over)?;
        answer.await.map_err(|_| ControlError::Over)
    }
}
