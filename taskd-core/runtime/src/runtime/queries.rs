//! Calls of handles that expect an answer: orders become kernel inputs, queries are answered from the kernel's state.
//!
//! The kernel decides on orders. Queries are not logged.

use super::handle::ControlError;
use super::output::OutputDirs;
use crate::job::{IncidentId, Name, OrderId};
use crate::kernel::{Explanation, Input, JobStatus, Kernel, Order, OrderAccepted, OrderEnvelope, OrderRejected};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::oneshot;

/// Calls that may wait for the shell. Beyond that, their callers wait.
pub(super) const CALLS_MAX: usize = 64;

/// A call, with the channel for its answer.
#[derive(Debug)]
pub(super) enum Call {
    /// A call for the kernel.
    Kernel(Query),
    /// Hands the job over. The shell does this itself, without the kernel.
    Detach { keep: Duration, reply: oneshot::Sender<Result<(), ControlError>> },
}

/// A call for the kernel, with the channel for its answer.
#[derive(Debug)]
pub(super) enum Query {
    /// Submits an order.
    Order { by: Name, reason: String, order: Order, reply: oneshot::Sender<Result<OrderAccepted, OrderRejected>> },
    /// Requests the status of the job.
    Status(oneshot::Sender<JobStatus>),
    /// Requests the explanation of an incident's decision.
    Explain(IncidentId, oneshot::Sender<Option<Explanation>>),
}

/// Orders that wait for an answer. They are few, because the kernel answers an order in the step that accepts it.
#[derive(Debug, Default)]
pub(super) struct Orders {
    waiting: BTreeMap<OrderId, oneshot::Sender<Result<OrderAccepted, OrderRejected>>>,
    given: u64,
}

impl Orders {
    /// Answers a query, or returns an order as a kernel input.
    pub(super) fn take(&mut self, query: Query, kernel: &Kernel, output: &OutputDirs) -> Option<Input> {
        match query {
            // The caller may have gone; an order is carried out nevertheless.
            Query::Status(reply) => drop(reply.send(output.in_status(kernel.status()))),
            Query::Explain(incident, reply) => {
                drop(reply.send(kernel.explain(incident).map(|explanation| output.in_explanation(explanation))));
            }
            Query::Order { by, reason, order, reply } => {
                self.given += 1;
                let id = OrderId(self.given);
                self.waiting.insert(id, reply);
                return Some(Input::Ordered(Box::new(OrderEnvelope { id, by, reason, order })));
            }
        }
        None
    }

    /// Sends the kernel's answer to the caller.
    pub(super) fn reply(&mut self, order: OrderId, result: Result<OrderAccepted, OrderRejected>) {
        if let Some(reply) = self.waiting.remove(&order) {
            let _ = reply.send(result); // the caller may have gone
        }
    }
}
