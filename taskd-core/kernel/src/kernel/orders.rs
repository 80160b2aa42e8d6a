//! The orders that operators have given, with replies and results.
//!
//! This is bookkeeping: nothing is decided from it.

use super::order::{Order, OrderAccepted, OrderEnvelope, OrderRejected};
use crate::job::{IncidentId, JobTime, Name, WallTime};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Maximum number of operators' orders in a job status or a job report: the newest ones. Older orders are in the job's
/// log only.
pub const ORDERS_KEPT_MAX: usize = 64;

/// An operator's order, with the reply to it and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OrderReport {
    /// Job time at which the order was answered.
    pub at: JobTime,
    /// Wall-clock time at which the order was answered, if known.
    #[serde(default)]
    pub wall: Option<WallTime>,
    /// Sender of the order.
    pub by: Name,
    /// Reason that the sender gave for the order.
    pub reason: String,
    /// What the sender ordered.
    pub order: Order,
    /// True if the order was accepted, and not refused. A refused order changes nothing.
    pub taken: bool,
    /// Text of the reply: the effect of the order, or the reason why it was refused.
    pub answer: String,
    /// Identifier of the incident under which the order is carried out, if there is one.
    #[serde(default)]
    pub incident: Option<IncidentId>,
    /// How the incident of the order ended, for example `not done: ...`. `None` while it is open, and for an order
    /// without an incident.
    #[serde(default)]
    pub outcome: Option<String>,
}

/// The newest orders.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Orders {
    kept: VecDeque<OrderReport>,
    left_out: u64,
}

impl Orders {
    pub(super) fn answered(
        &mut self,
        ordered: &OrderEnvelope,
        at: JobTime,
        wall: Option<WallTime>,
        result: &Result<OrderAccepted, OrderRejected>,
    ) {
        if self.kept.len() >= ORDERS_KEPT_MAX {
            self.kept.pop_front();
            self.left_out += 1;
        }
        let (answer, incident) = match result {
            Ok(taken) => (taken.text.clone(), taken.incident),
            Err(denial) => (denial.to_string(), None),
        };
        self.kept.push_back(OrderReport {
            at,
            wall,
            by: ordered.by.clone(),
            reason: ordered.reason.clone(),
            order: ordered.order.clone(),
            taken: result.is_ok(),
            answer,
            incident,
            outcome: None,
        });
    }

    pub(super) fn merged(&mut self, into: IncidentId, from: IncidentId) {
        self.of(from).for_each(|order| order.incident = Some(into));
    }

    pub(super) fn closed(&mut self, incident: IncidentId, how: &str) {
        self.of(incident).for_each(|order| order.outcome = Some(how.to_owned()));
    }

    fn of(&mut self, incident: IncidentId) -> impl Iterator<Item = &mut OrderReport> {
        self.kept.iter_mut().filter(move |order| order.incident == Some(incident))
    }

    pub(super) fn kept(&self) -> Vec<OrderReport> {
        self.kept.iter().cloned().collect()
    }

    pub(super) fn newest(&self) -> Option<&OrderReport> {
        self.kept.back()
    }

    pub(super) const fn left_out(&self) -> u64 {
        self.left_out
    }
}
