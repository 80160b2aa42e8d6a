//! The orders that operators have given, with what was answered and what became of them.
//!
//! It only keeps books: nothing is decided from it.

use super::Kernel;
use super::order::{Denial, Order, Ordered, Taken};
use crate::job::{IncidentId, JobTime, Name, WallTime};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Most orders that are kept; older ones stand in the log only.
pub const ORDERS_KEPT_MAX: usize = 64;

/// An order that was given, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OrderReport {
    /// When.
    pub at: JobTime,
    /// When, by the calendar.
    #[serde(default)]
    pub wall: Option<WallTime>,
    /// By whom.
    pub by: Name,
    /// Why.
    pub reason: String,
    /// What was ordered.
    pub order: Order,
    /// Whether it was taken; an order that is not taken changes nothing.
    pub taken: bool,
    /// What was answered: what follows from it, or why it was refused.
    pub answer: String,
    /// The incident under which it is carried out, where it is one.
    #[serde(default)]
    pub incident: Option<IncidentId>,
    /// How that incident ended, such as `not done: ...`; `None` while it is open, and for an order that is none.
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
        ordered: &Ordered,
        at: JobTime,
        wall: Option<WallTime>,
        result: &Result<Taken, Denial>,
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

    fn newest(&self) -> Option<&OrderReport> {
        self.kept.back()
    }

    pub(super) const fn left_out(&self) -> u64 {
        self.left_out
    }
}

impl Kernel {
    /// The order that was answered last.
    pub(crate) fn last_order(&self) -> Option<&OrderReport> {
        self.state.orders.newest()
    }
}
