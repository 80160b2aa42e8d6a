//! Every injected fault is decided about in time, or a decision about another fault has made it void.

use super::super::chaos::{Charge, FaultKind};
use super::super::outcome::Violation;
use super::Moment;
use super::books::event;
use super::observing::is_observed;
use crate::detect::Fault;
use crate::job::{Domain, IncidentId, ProcId};
use crate::kernel::Effect;
use crate::kernel::{Command, Event, REPLACED};
use crate::recover::Action;
use crate::state::View;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Number of injected faults (charges) in the record that this check has read.
    seen: usize,
    open: Vec<Charge>,
    /// Faults that were found, by open incident.
    found: BTreeMap<IncidentId, Vec<Fault>>,
}

impl Answers {
    pub(super) fn command(&mut self, m: &Moment<'_>, command: &Command) {
        self.learn(m);
        match &command.effect {
            Effect::Act(Action::Stop { procs, .. }) => {
                self.open.retain(|c| !c.proc.as_ref().is_some_and(|p| procs.contains(p)))
            }
            Effect::Act(Action::Start { batch, .. }) => {
                let replaces = |new: &ProcId, old: &ProcId, kind: FaultKind| {
                    // Ordered again by a supervisor that does not know about the first start.
                    let again = kind == FaultKind::ProcessesLost && new == old;
                    again || new.role == old.role && new.incarnation > old.incarnation
                };
                let is_replaced = |c: &Charge| {
                    c.proc.as_ref().is_some_and(|p| batch.starts.iter().any(|o| replaces(&o.proc, p, c.kind)))
                };
                self.open.retain(|c| !is_replaced(c));
            }
            Effect::Act(Action::Finish { .. }) => self.open.clear(),
            _ => {}
        }
        let view = m.kernel.view();
        match event(command) {
            Some(Event::Decided(decision)) => {
                self.open.retain(|charge| !decision.incident.faults.iter().any(|f| covers(view, f, charge)));
            }
            // In an observed job, the agent may act before there is anything to decide.
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
            self.open.retain(|c| c.kind != FaultKind::Deadlock); // the job has recovered in another way
        }
        if m.training.is_stepping() {
            let of_links = |c: &Charge| matches!(c.kind, FaultKind::CollectiveFails | FaultKind::StepFails);
            self.open.retain(|c| !of_links(c)); // the same
        }
        if is_observed(m) {
            let over = |c: &Charge| c.proc.as_ref().is_some_and(|p| m.fleet.procs.get(p).is_none_or(|p| !p.is_alive()));
            // The agent was faster: only the exit can be observed.
            self.open.retain(|c| !(c.kind.is_freeze() && over(c)));
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

/// Returns true if a fault names the injected domain, or one that contains it.
fn covers(view: &View, fault: &Fault, charge: &Charge) -> bool {
    let domain = &fault.primary_suspect().domain;
    match (&charge.proc, domain) {
        (Some(proc), Domain::Process(role)) => *role == proc.role && fault.incarnation() >= Some(proc.incarnation),
        _ => view.contains(domain, &charge.domain),
    }
}
