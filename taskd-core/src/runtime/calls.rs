//! Calls of handles that want an answer: orders become inputs of the kernel, questions are answered from it at once.
//!
//! It decides nothing, and questions leave no trace in the log.

use super::handle::ControlError;
use super::output::OutputDirs;
use crate::job::{IncidentId, Name, OrderId};
use crate::kernel::{Denial, Explanation, Input, JobStatus, Kernel, Order, Ordered, Taken};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::oneshot;

/// Calls that may wait for the shell; then their callers wait.
pub(super) const CALLS_MAX: usize = 64;

/// A call, and where its answer goes.
#[derive(Debug)]
pub(super) enum Call {
    /// Something that the kernel answers.
    Kernel(Query),
    /// To hand the job over: the shell's own work, of which the kernel learns nothing.
    Detach { keep: Duration, reply: oneshot::Sender<Result<(), ControlError>> },
}

/// What the kernel is called for, and where its answer goes.
#[derive(Debug)]
pub(super) enum Query {
    /// An order for the kernel.
    Order { by: Name, reason: String, order: Order, reply: oneshot::Sender<Result<Taken, Denial>> },
    /// How the job stands.
    Status(oneshot::Sender<JobStatus>),
    /// Why an incident was decided as it was.
    Explain(IncidentId, oneshot::Sender<Option<Explanation>>),
}

/// Orders without an answer. The kernel answers an order in the step that takes it, so they are few.
#[derive(Debug, Default)]
pub(super) struct Orders {
    waiting: BTreeMap<OrderId, oneshot::Sender<Result<Taken, Denial>>>,
    given: u64,
}

impl Orders {
    /// Answers a question; an order comes back as an input.
    pub(super) fn take(&mut self, query: Query, kernel: &Kernel, output: &OutputDirs) -> Option<Input> {
        match query {
            // Nobody may wait for an answer any more; an order is followed all the same.
            Query::Status(reply) => drop(reply.send(output.in_status(kernel.status()))),
            Query::Explain(incident, reply) => {
                drop(reply.send(kernel.explain(incident).map(|explanation| output.in_explanation(explanation))));
            }
            Query::Order { by, reason, order, reply } => {
                self.given += 1;
                let id = OrderId(self.given);
                self.waiting.insert(id, reply);
                return Some(Input::Ordered(Box::new(Ordered { id, by, reason, order })));
            }
        }
        None
    }

    /// Passes the kernel's answer on.
    pub(super) fn reply(&mut self, order: OrderId, result: Result<Taken, Denial>) {
        if let Some(reply) = self.waiting.remove(&order) {
            let _ = reply.send(result); // nobody may wait any more
        }
    }
}
