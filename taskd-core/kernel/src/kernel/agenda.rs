//! The times at which open incidents are decided: at once, later, or not before something else has ended.
//!
//! This module only schedules decisions: `decide` makes them.

use super::guards::{concerns, is_silence_of_guard};
use super::incidents::Open;
use super::operator::refused;
use super::plans::{Plan, PlanId};
use super::{Branch, Counts, HoldReason, OrderAccepted, OrderRejected};
use crate::detect::Fault;
use crate::job::{Domain, IncidentId, JobTime, NodeId};
use crate::state::View;
use std::collections::BTreeMap;
use std::time::Duration;

/// Delay of the decision about a host's faults after its guard responds again.
///
/// In that time a fault may turn out to be a mere delay: for example, a rank that waited until its output was read.
const RECONSIDER_AFTER: Duration = Duration::from_secs(5);

/// Sets the times at which open incidents are decided.
pub(super) struct Agenda<'a> {
    pub(super) view: &'a View,
    pub(super) plans: &'a BTreeMap<PlanId, Plan>,
    pub(super) incidents: &'a mut BTreeMap<IncidentId, Open>,
    pub(super) counts: &'a mut Counts,
}

impl Agenda<'_> {
    /// Returns the incident to decide next, if one is due.
    pub(super) fn due(&self) -> Option<IncidentId> {
        let is_due = |open: &&Open| open.decide_at.is_some_and(|at| at <= self.view.now);
        self.incidents.values().find(is_due).map(|open| open.incident.id)
    }

    pub(super) fn set(&mut self, id: IncidentId, at: Option<JobTime>) {
        if let Some(open) = self.incidents.get_mut(&id) {
            open.decide_at = at;
        }
    }

    /// Takes all incidents off the agenda, because the job ends.
    pub(super) fn clear(&mut self) {
        self.incidents.values_mut().for_each(|open| open.decide_at = None);
    }

    /// Makes incidents due that waited for the plan of another one.
    pub(super) fn reconsider(&mut self) {
        for open in self.incidents.values_mut() {
            if open.decide_at.is_none() && open.held.is_none() && !self.plans.contains_key(&PlanId::of(open)) {
                open.decide_at = Some(self.view.now);
            }
        }
    }

    /// Makes the incidents due that wait for a report of a rank, because a report may have arrived.
    pub(super) fn report_arrived(&mut self) {
        let waits = |open: &&mut Open| open.word_until.is_some() && open.decide_at == open.word_until;
        self.incidents.values_mut().filter(waits).for_each(|open| open.decide_at = Some(self.view.now));
    }

    /// Makes the incidents due that wait for ranks which another supervisor has left, now that all were reported. Faults
    /// that are reported with them join first.
    pub(super) fn all_seen(&mut self) {
        let window = self.view.now + self.view.spec.policy.correlation_window;
        let waits = |open: &&mut Open| open.word_until.is_some() && open.decide_at == open.word_until;
        for open in self.incidents.values_mut().filter(waits) {
            (open.word_until, open.decide_at) = (None, Some(window));
        }
    }

    /// Makes the incidents due that are held for such a reason. Returns their number.
    pub(super) fn release(&mut self, such: impl Fn(HoldReason) -> bool) -> usize {
        let held = self.incidents.values_mut().filter(|o| o.held.as_ref().is_some_and(|h| such(h.why)));
        held.map(|open| (open.held, open.decide_at) = (None, Some(self.view.now))).count()
    }

    /// Makes the incident due that waits for an operator's approval, and records the answer.
    ///
    /// # Errors
    /// A refusal, if the incident does not wait for an approval.
    pub(super) fn approve(&mut self, id: IncidentId, yes: bool) -> Result<OrderAccepted, OrderRejected> {
        let Some(open) = self.incidents.get_mut(&id) else { return refused(format!("{id} is not open")) };
        let hold = open.held.take_if(|hold| hold.why == HoldReason::AwaitingApproval);
        let Some(chosen) = hold.and_then(|hold| hold.chosen) else {
            return refused(format!("{id} does not wait for an approval"));
        };
        open.decide_at = Some(self.view.now);
        let strategy = chosen.strategy;
        let text = format!("{strategy} is {}", if yes { "approved" } else { "declined" });
        match yes {
            true => open.approved.insert(strategy),
            false => open.declined.insert(strategy),
        };
        self.counts.branch(if yes { Branch::Approved } else { Branch::Declined });
        Ok(OrderAccepted { incident: Some(id), text })
    }

    /// Delays the incidents that waited for a guard that now responds, or is gone. Returns those that are over, because
    /// they consist of its silence only.
    pub(super) fn guard_speaks(&mut self, node: &NodeId) -> Vec<IncidentId> {
        let guard = Domain::Guard(node.clone());
        let is_silence = |fault: &Fault| is_silence_of_guard(fault) && fault.primary_suspect().domain == guard;
        let mut over = Vec::new();
        for open in self.incidents.values_mut() {
            if !concerns(open, node, self.view) {
                continue; // it has not waited for this guard
            }
            let is_under_way = self.plans.contains_key(&PlanId::of(open)) || open.held.is_some();
            match open.incident.faults.iter().all(is_silence) && !open.begun {
                true => over.push(open.incident.id),
                false if is_under_way => {}
                false => open.decide_at = open.decide_at.or(Some(self.view.now + RECONSIDER_AFTER)),
            }
        }
        over
    }
}
