//! Closes and merges incidents, and updates everything that refers to an incident by its number.
//!
//! It decides nothing: the caller gives the reason for the end.

use super::agenda::Agenda;
use super::incidents::Open;
use super::ledger::Ledger;
use super::orders::Orders;
use super::outbox::Outbox;
use super::plans::{Plan, PlanId};
use super::probation::Trial;
use super::{Counts, Event};
use crate::job::{IncidentId, Name};
use crate::state::View;
use std::collections::BTreeMap;

/// Closes and merges incidents.
pub(super) struct Closing<'a> {
    pub(super) view: &'a View,
    pub(super) plans: &'a BTreeMap<PlanId, Plan>,
    pub(super) incidents: &'a mut BTreeMap<IncidentId, Open>,
    pub(super) trial: &'a mut Option<Trial>,
    pub(super) ledger: &'a mut Ledger,
    pub(super) orders: &'a mut Orders,
    pub(super) counts: &'a mut Counts,
    pub(super) outbox: Outbox<'a>,
}

impl Closing<'_> {
    /// Closes an incident. Returns false if it is not open.
    pub(super) fn close(&mut self, id: IncidentId, how: &str, strategy: Option<&Name>) -> bool {
        if self.incidents.remove(&id).is_none() {
            return false;
        }
        let Closing { view, plans, incidents, trial, ledger, orders, counts, outbox } = self;
        if let Some(trial) = trial {
            trial.closed(id, view);
        }
        ledger.closed(id, view.now, how, strategy, counts);
        orders.closed(id, how);
        outbox.announce(Some(id), Event::Closed { incident: id, how: how.to_owned() });
        Agenda { view, plans, incidents, counts }.reconsider(); // also if no plan has ended, because it was cancelled
        true
    }

    /// Merges two incidents that one fault overlaps. Returns false if `from` is not open.
    pub(super) fn merge(&mut self, into: IncidentId, from: IncidentId) -> bool {
        let Some(other) = self.incidents.remove(&from) else { return false };
        self.ledger.merged(into, from);
        if let Some(trial) = self.trial {
            trial.merged(into, from);
        }
        self.orders.merged(into, from);
        self.outbox.announce(Some(from), Event::Merged { incident: from, into });
        let window = self.view.now + self.view.spec.policy.correlation_window;
        if let Some(open) = self.incidents.get_mut(&into) {
            open.take_over(other, window);
        }
        true
    }
}
