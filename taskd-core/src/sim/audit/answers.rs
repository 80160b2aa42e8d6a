//! Every injected fault is decided about in time, or a decision about something else has made it void.

use super::super::chaos::{Charge, FaultKind};
use super::super::outcome::Violation;
use super::Moment;
use super::books::event;
use super::observing::is_observed;
use crate::detect::Fault;
use crate::job::{Domain, IncidentId, ProcId};
use crate::kernel::{Command, Event, REPLACED, View};
use crate::recover::Action;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Answers {
    /// How many charges of the account are known here.
    seen: usize,
    open: Vec<Charge>,
    /// What was found in incidents that are open.
    found: BTreeMap<IncidentId, Vec<Fault>>,
}

impl Answers {
    pub(super) fn command(&mut self, m: &Moment<'_>, command: &Command) {
        self.learn(m);
        match &command.action {
            Action::Stop { procs, .. } => self.open.retain(|c| !c.proc.as_ref().is_some_and(|p| procs.contains(p))),
            Action::Start { batch, .. } => {
                let replaces = |new: &ProcId, old: &ProcId, kind: FaultKind| {
                    let again = kind == FaultKind::ProcessesLost && new == old; // by who has not heard of the first start
                    again || new.role == old.role && new.incarnation > old.incarnation
                };
                let is_replaced = |c: &Charge| {
                    c.proc.as_ref().is_some_and(|p| batch.orders.iter().any(|o| replaces(&o.proc, p, c.kind)))
                };
                self.open.retain(|c| !is_replaced(c));
            }
            Action::Finish { .. } => self.open.clear(),
            _ => {}
        }
        let view = m.kernel.view();
        match event(command) {
            Some(Event::Decided(decision)) => {
                self.open.retain(|charge| !decision.incident.faults.iter().any(|f| covers(view, f, charge)));
            }
            // Who only observes may be overtaken by who acts before there is anything to decide.
            Some(Event::Found { fault, .. }) if is_observed(m) => self.open.retain(|c| !covers(view, fault, c)),
            Some(Event::Found { incident, fault, .. }) => self.found.entry(*incident).or_default().push(fault.clone()),
            Some(Event::Closed { incident, how }) => {
                let found = self.found.remove(incident).unwrap_or_default();
                if how == REPLACED {
                    self.open.retain(|charge| !found.iter().any(|fault| covers(view, fault, charge)));
                }
            }
            _ => {}
        }
    }

    pub(super) fn check(&mut self, m: &Moment<'_>) -> Result<(), Violation> {
        self.learn(m);
        if self.open.is_empty() {
            return Ok(());
        }
        if !m.training.deadlocked {
            self.open.retain(|c| c.kind != FaultKind::Deadlock); // the job has come out of it another way
        }
        if m.training.is_stepping() {
            let of_links = |c: &Charge| matches!(c.kind, FaultKind::CollectiveFails | FaultKind::StepFails);
            self.open.retain(|c| !of_links(c)); // the same
        }
        if is_observed(m) {
            let over = |c: &Charge| c.proc.as_ref().is_some_and(|p| m.fleet.procs.get(p).is_none_or(|p| !p.is_alive()));
            self.open.retain(|c| !(c.kind.is_freeze() && over(c))); // others were quicker: its end is what is to be seen
        }
        let waited = |c: &Charge| m.now.since(c.at).saturating_sub(m.away_total.saturating_sub(c.away_before));
        match self.open.iter().find(|c| waited(c) > m.config.answer_within) {
            Some(late) => Err(Violation::Unanswered { kind: late.kind, domain: late.domain.clone(), since: late.at }),
            None => Ok(()),
        }
    }

    fn learn(&mut self, m: &Moment<'_>) {
        self.open.extend(m.deeds.charges[self.seen..].iter().cloned());
        self.seen = m.deeds.charges.len();
    }
}

/// Whether a fault names what was injected, or something larger.
fn covers(view: &View, fault: &Fault, charge: &Charge) -> bool {
    let domain = &fault.prime().domain;
    match (&charge.proc, domain) {
        (Some(proc), Domain::Process(role)) => *role == proc.role && fault.incarnation() >= Some(proc.incarnation),
        _ => view.contains(domain, &charge.domain),
    }
}
