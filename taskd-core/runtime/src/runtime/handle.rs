//! Handle of a running job: orders, fault reports, queries, event subscription and log health for the host program.

use super::queries::{Call, Query};
use crate::detect::Fault;
use crate::job::{IncidentId, JobTime, Name, NodeId, Permission, Rank, WallTime};
use crate::journal::JournalMonitor;
use crate::kernel::{
    Event, Explanation, Input, JobStatus, NO_TRACE_CONTROL, Order, OrderAccepted, OrderRejected, Request,
};
use crate::trace::switches::{Requested, TraceControl, TraceStatus};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, oneshot};

/// Maximum number of events that wait for one subscriber ([`RuntimeHandle::events`]). When a further event is
/// published, the subscriber misses the oldest one; its next `recv` returns the number of missed events.
pub const EVENTS_KEPT: usize = 1024;

/// An event with the times at which it was published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TimestampedEvent {
    /// Job time of the decision kernel's input that caused the event.
    pub at: JobTime,
    /// Wall-clock time of the decision kernel's input that caused the event, if known.
    #[serde(default)]
    pub wall: Option<WallTime>,
    /// Event that the decision kernel published.
    pub event: Event,
}

/// Error of a [`RuntimeHandle`] call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The call is refused, at present or in general. The text states the obstacle and what to do.
    #[error("{0}")]
    Refused(String),
    /// No plugin of this runtime supports the call.
    #[error("{0}")]
    Unsupported(String),
    /// The job is over, or this supervisor has handed it over.
    #[error("the job is not supervised any more: it is over, or was handed over")]
    Over,
}

impl From<OrderRejected> for ControlError {
    fn from(denial: OrderRejected) -> ControlError {
        match denial {
            OrderRejected::Refused(why) => ControlError::Refused(why),
            OrderRejected::Unsupported(why) => ControlError::Unsupported(why),
        }
    }
}

/// Handle of a running job. Clones share the same job; dropping a handle has no effect.
///
/// An operator's order is an input of the decision kernel: the log records the order with its actor and reason, and
/// the kernel decides and explains its effect as an incident. A call that gives an order returns when the kernel
/// accepts the order, before the order is carried out.
#[derive(Clone, Debug)]
pub struct RuntimeHandle {
    pub(super) by: Name,
    pub(super) urgent: mpsc::Sender<Input>,
    pub(super) calls: mpsc::Sender<Call>,
    pub(super) events: broadcast::Sender<Arc<TimestampedEvent>>,
    pub(super) logs: Option<JournalMonitor>,
    pub(super) trace: Option<TraceControl>,
}

impl RuntimeHandle {
    /// Returns this handle with another actor: the log records each order that is given through the returned handle
    /// with the name `by`. A handle of [`Runtime::handle`](super::Runtime::handle) has the actor `host` (the host
    /// program).
    #[must_use]
    pub fn with_actor(mut self, by: impl Into<Name>) -> RuntimeHandle {
        self.by = by.into();
        self
    }

    /// Returns the current status of the job.
    ///
    /// # Errors
    /// Returns [`ControlError::Over`] if the job is over, or if this supervisor has handed it over.
    pub async fn status(&self) -> Result<JobStatus, ControlError> {
        self.query(Query::Status).await
    }

    /// Returns the explanation of an incident's decision.
    ///
    /// # Errors
    /// Returns [`ControlError::Refused`] if the incident is unknown or has no decision yet. Returns
    /// [`ControlError::Over`] if the job is over, or if this supervisor has handed it over.
    pub async fn explain(&self, incident: IncidentId) -> Result<Explanation, ControlError> {
        let unknown = || ControlError::Refused(format!("there is no decision about {incident}, or it is too old"));
        self.query(|reply| Query::Explain(incident, reply)).await?.ok_or_else(unknown)
    }

    /// Drains a host: its ranks move to other hosts, and no new process starts there.
    ///
    /// # Errors
    /// Returns [`ControlError::Refused`] if the host does not belong to the job, or if no other host has room. Returns
    /// [`ControlError::Over`] if the job is over, or if this supervisor has handed it over.
    pub async fn drain(&self, node: NodeId, reason: impl Into<String>) -> Result<OrderAccepted, ControlError> {
        self.order(Order::Drain { node }, reason).await
    }

    /// Uncordons a host that was drained or cordoned, so that ranks can run there again.
    ///
    /// # Errors
    /// Returns [`ControlError::Refused`] if the host is not cordoned. Returns [`ControlError::Over`] if the job is
    /// over, or if this supervisor has handed it over.
    pub async fn uncordon(&self, node: NodeId, reason: impl Into<String>) -> Result<OrderAccepted, ControlError> {
        self.order(Order::Uncordon { node }, reason).await
    }

    /// Restarts the ranks in `ranks`, or all ranks if `ranks` is empty. The recovery strategy decides which other ranks
    /// have to stop as well. The processes are killed without a grace period.
    ///
    /// # Errors
    /// Returns [`ControlError::Refused`] if one of the ranks does not exist. Returns [`ControlError::Over`] if the job
    /// is over, or if this supervisor has handed it over.
    pub async fn restart(
        &self,
        ranks: impl IntoIterator<Item = Rank>,
        reason: impl Into<String>,
    ) -> Result<OrderAccepted, ControlError> {
        let ranks: BTreeSet<Rank> = ranks.into_iter().collect();
        self.order(Order::Restart { ranks }, reason).await
    }

    /// Orders a checkpoint of the ranks' current state; the job continues. The order has an incident, whose end reports
    /// whether the checkpoint was saved.
    ///
    /// # Errors
    /// Returns [`ControlError::Unsupported`] if no strategy can save a checkpoint. Returns [`ControlError::Over`] if
    /// the job is over, or if this supervisor has handed it over.
    pub async fn checkpoint_now(&self, reason: impl Into<String>) -> Result<OrderAccepted, ControlError> {
        self.order(Order::Checkpoint, reason).await
    }

    /// Sets for each recovery strategy in `strategies` whether it is carried out automatically, only with an operator's
    /// approval, or never. The change also applies under later supervisors.
    ///
    /// # Errors
    /// Returns [`ControlError::Refused`] if one of the strategies does not exist; in that case, nothing changes.
    /// Returns [`ControlError::Over`] if the job is over, or if this supervisor has handed it over.
    pub async fn allow(
        &self,
        strategies: BTreeMap<Name, Permission>,
        reason: impl Into<String>,
    ) -> Result<OrderAccepted, ControlError> {
        self.order(Order::Allow { strategies }, reason).await
    }

    /// Pauses recovery: the decision kernel still makes, publishes and logs its decisions, but starts no action until
    /// [`resume`](Self::resume). Actions that have already started continue.
    ///
    /// # Errors
    /// Returns [`ControlError::Over`] if the job is over, or if this supervisor has handed it over.
    pub async fn pause(&self, reason: impl Into<String>) -> Result<OrderAccepted, ControlError> {
        self.order(Order::Pause, reason).await
    }

    /// Resumes recovery after a pause. The decision kernel decides again on the incidents whose recovery the pause held
    /// back.
    ///
    /// # Errors
    /// Returns [`ControlError::Refused`] if the runtime is not paused. Returns [`ControlError::Over`] if the job is
    /// over, or if this supervisor has handed it over.
    pub async fn resume(&self, reason: impl Into<String>) -> Result<OrderAccepted, ControlError> {
        self.order(Order::Resume, reason).await
    }

    /// Approves the recovery proposal of an incident that waits for an operator's approval; the runtime then carries
    /// the proposal out.
    ///
    /// # Errors
    /// Returns [`ControlError::Refused`] if the incident does not wait for an approval. Returns [`ControlError::Over`]
    /// if the job is over, or if this supervisor has handed it over.
    pub async fn approve(
        &self,
        incident: IncidentId,
        reason: impl Into<String>,
    ) -> Result<OrderAccepted, ControlError> {
        self.order(Order::Approve { incident }, reason).await
    }

    /// Declines the recovery proposal of an incident that waits for an operator's approval. The decision kernel then
    /// takes the next proposal for the incident.
    ///
    /// # Errors
    /// Returns [`ControlError::Refused`] if the incident does not wait for an approval. Returns [`ControlError::Over`]
    /// if the job is over, or if this supervisor has handed it over.
    pub async fn decline(
        &self,
        incident: IncidentId,
        reason: impl Into<String>,
    ) -> Result<OrderAccepted, ControlError> {
        self.order(Order::Decline { incident }, reason).await
    }

    /// Sets the kinds of trace records (such as steps or collectives) that all ranks make from now on. The setting also
    /// applies to ranks that start later, and remains in force under later supervisors, until it is changed again.
    ///
    /// # Errors
    /// Returns [`ControlError::Unsupported`] if the runtime was built without a trace control
    /// ([`RuntimeBuilder::trace`](super::RuntimeBuilder::trace)), and [`ControlError::Refused`] if the job is in
    /// dry-run mode. Returns [`ControlError::Over`] if the job is over, or if this supervisor has handed it over.
    pub async fn switch_trace(
        &self,
        kinds: Requested,
        reason: impl Into<String>,
    ) -> Result<OrderAccepted, ControlError> {
        self.order(Order::SwitchTrace { kinds }, reason).await
    }

    /// Returns for each trace kind whether it is requested, whether it is in effect, and its state in each rank. The
    /// states are read from the shared memory into which the ranks' recorders write, so no rank has to answer.
    ///
    /// # Errors
    /// Returns [`ControlError::Unsupported`] if the runtime was built without a trace control
    /// ([`RuntimeBuilder::trace`](super::RuntimeBuilder::trace)).
    pub fn trace_status(&self) -> Result<TraceStatus, ControlError> {
        let unsupported = || ControlError::Unsupported(NO_TRACE_CONTROL.into());
        self.trace.as_ref().map(TraceControl::status).ok_or_else(unsupported)
    }

    /// Returns the trace kinds in force. Returns [`ControlError::Unsupported`] without a trace control.
    pub(super) fn trace_in_force(&self) -> Result<Requested, ControlError> {
        let unsupported = || ControlError::Unsupported(NO_TRACE_CONTROL.into());
        self.trace.as_ref().map(TraceControl::in_force).ok_or_else(unsupported)
    }

    /// Carries out the kernel's trace command.
    pub(super) fn switch(&self, kinds: Requested, by: Name, again: bool) {
        match &self.trace {
            Some(control) if again => control.restore(kinds, by),
            Some(control) => {
                control.switch(kinds, by);
            }
            None => {} // cannot happen: without a trace control the kernel sends no such command
        }
    }

    /// Submits an order (a command of an operator, such as a restart of ranks) to the decision kernel, in the form of
    /// an [`Order`] value. For each kind of order there is also a method, such as [`drain`](Self::drain).
    ///
    /// # Errors
    /// Returns the same errors as the method for this kind of order, such as [`drain`](Self::drain) for a drain.
    pub async fn order(&self, order: Order, reason: impl Into<String>) -> Result<OrderAccepted, ControlError> {
        let (by, reason) = (self.by.clone(), reason.into());
        Ok(self.query(|reply| Query::Order { by, reason, order, reply }).await??)
    }

    /// Stops the job gracefully: SIGTERM, the policy's termination grace period, SIGKILL, then the report. In dry-run
    /// mode the job's processes continue. Returns when the decision kernel has accepted the order; the runtime must be
    /// running.
    ///
    /// # Errors
    /// Returns [`ControlError::Over`] if the job is over, or if this supervisor has handed it over.
    pub async fn stop(&self, reason: impl Into<String>) -> Result<OrderAccepted, ControlError> {
        self.order(Order::Stop { grace: None }, reason).await
    }

    /// Stops the job immediately, without a grace period. This also cuts short a graceful stop that has begun.
    ///
    /// # Errors
    /// Returns [`ControlError::Over`] if the job is over, or if this supervisor has handed it over.
    pub async fn stop_now(&self, reason: impl Into<String>) -> Result<OrderAccepted, ControlError> {
        self.order(Order::Stop { grace: Some(Duration::ZERO) }, reason).await
    }

    /// Hands the job over to a later supervisor: the job continues without a supervisor, waits up to `keep` for the
    /// next one, and then stops.
    ///
    /// The next supervisor continues without interruption if it has the same journal and launcher. This supervisor
    /// makes no further decisions. Commands already issued reach the launcher, the launcher hands over its processes,
    /// the logs are written and synced, and [`run`](super::Runtime::run) returns with
    /// [`Outcome::Detached`](crate::kernel::Outcome). Each step has a time limit: all together take at most
    /// [`HAND_OVER_WITHIN`](super::HAND_OVER_WITHIN).
    ///
    /// # Errors
    /// Returns [`ControlError::Refused`] with the launcher's reason if the launcher cannot hand its processes over; in
    /// that case, the job continues under this supervisor. Returns [`ControlError::Over`] if the job is over, or if
    /// this supervisor has handed it over.
    pub async fn detach(&self, keep: Duration) -> Result<(), ControlError> {
        self.call(|reply| Call::Detach { keep, reply }).await?
    }

    /// Reports a fault that was found outside the runtime. The decision kernel treats it like a fault from a detector.
    ///
    /// The kernel trusts the reported [`Damage`](crate::detect::Damage), and moves ranks away from a host that is
    /// faulty or has a faulty device. If no other host has room and no rank was lost, the fault is only reported and
    /// the job continues. If the same fault is reported again after this, or after a recovery, it counts as a new
    /// fault: report a fault when it begins, not repeatedly while it lasts.
    ///
    /// # Errors
    /// Returns [`ControlError::Over`] if the job is over, or if this supervisor has handed it over.
    pub async fn report_fault(&self, fault: Fault) -> Result<(), ControlError> {
        self.request(Request::Fault(Box::new(fault))).await
    }

    /// Returns a receiver of all events of the job from now on. At most [`EVENTS_KEPT`] events wait for the receiver.
    /// Events are meant for dashboards and operators: a missed event changes no decision.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Arc<TimestampedEvent>> {
        self.events.subscribe()
    }

    /// Returns the monitor of the journal's logs, which shows their health and losses, also after the end of the job.
    /// `None` if the runtime keeps no logs.
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
