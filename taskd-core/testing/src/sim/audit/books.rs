//! The kernel's state as derived from its commands alone: open incidents, running recoveries, the phase of the job.

use crate::detect::{Fault, Health, OPERATOR};
use crate::job::{Domain, IncidentId};
use crate::kernel::Effect;
use crate::kernel::{Command, Decision, Event};
use crate::recover::Action;
use std::collections::{BTreeMap, BTreeSet};

/// A recovery that is being carried out.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) touches: Vec<Domain>,
}

/// The derived state.
#[derive(Debug, Default)]
pub(super) struct Books {
    /// Open incidents, with the number of recoveries that failed.
    pub(super) open: BTreeMap<IncidentId, u32>,
    pub(super) running: BTreeMap<IncidentId, Running>,
    /// Incidents that contain more than an operator's order.
    pub(super) real: BTreeSet<IncidentId>,
    /// Incidents for which processes were ordered to stop or start, whatever the result.
    pub(super) begun: BTreeSet<IncidentId>,
    /// True while the first start is carried out.
    pub(super) starting: bool,
    /// True if the job has started.
    pub(super) training: bool,
    /// True if a decision has found no strategy left, or has chosen to end the job.
    pub(super) decided_to_end: bool,
}

impl Books {
    pub(super) fn enter(&mut self, command: &Command) {
        match &command.effect {
            Effect::Act(Action::Enter(_)) if command.incident.is_none() && !self.training => self.starting = true,
            Effect::Publish(event) => self.enter_event(event),
            Effect::Act(Action::Enter(_)) | Effect::Act(Action::Stop { .. }) | Effect::Act(Action::Start { .. }) => {
                self.begun.extend(command.incident)
            }
            _ => {}
        }
    }

    fn enter_event(&mut self, event: &Event) {
        match event {
            Event::Found { incident, fault, .. } => {
                if fault.by != OPERATOR {
                    self.real.insert(*incident);
                }
                self.open.entry(*incident).or_default();
                if !matches!(fault.primary_suspect().domain, Domain::Plugin(_)) && fault.by != OPERATOR {
                    self.starting = false; // the recovery starts the missing processes
                }
            }
            Event::Decided(decision) => self.decided(decision),
            Event::Cancelled { incident, .. } => {
                self.running.remove(incident);
            }
            Event::Failed { incident, .. } => {
                self.running.remove(incident);
                *self.open.entry(*incident).or_default() += 1;
            }
            Event::Closed { incident, .. } => {
                self.open.remove(incident);
                self.training |= self.running.remove(incident).is_some();
            }
            Event::Merged { incident, into } => {
                let failed = self.open.remove(incident).unwrap_or_default();
                *self.open.entry(*into).or_default() += failed;
                if self.real.remove(incident) {
                    self.real.insert(*into);
                }
                if self.begun.remove(incident) {
                    self.begun.insert(*into);
                }
            }
            Event::StageDone { incident: None, stage } if *stage == "start" => {
                self.training |= self.starting;
                self.starting = false;
            }
            _ => {} // Entered, Noted, and other stages
        }
    }

    fn decided(&mut self, decision: &Decision) {
        if decision.held.is_some() {
            return; // a held decision has no effect
        }
        let Some(chosen) = &decision.chosen else {
            self.decided_to_end |= !self.is_non_disruptive(decision);
            return;
        };
        self.decided_to_end |= chosen.proposal.cost.ends_job;
        self.running.insert(decision.incident.id, Running { touches: chosen.proposal.affected_domains.clone() });
    }

    /// Returns true if the incident is only an operator's order, and nothing was stopped for it: the job must not end
    /// because of it.
    pub(super) fn is_mere_wish(&self, decision: &Decision) -> bool {
        decision.incident.is_requested_by_operator() && !self.begun.contains(&decision.incident.id)
    }

    /// Returns true if nothing was stopped for the incident, and it only concerns hosts, victims or an order: the job
    /// continues, whatever the result.
    pub(super) fn is_non_disruptive(&self, decision: &Decision) -> bool {
        let is_harmless = |fault: &Fault| {
            let suspect = fault.primary_suspect();
            let is_of_a_host = matches!(suspect.domain, Domain::Node(_) | Domain::Device(..));
            let is_victim = !suspect.is_cause() && !fault.is_charged();
            let goes_on = is_of_a_host || suspect.damage.is_still_training() || is_victim;
            fault.by == OPERATOR || suspect.damage.process != Health::Faulty && goes_on
        };
        let incident = &decision.incident;
        self.is_mere_wish(decision) || !self.begun.contains(&incident.id) && incident.faults.iter().all(is_harmless)
    }

    pub(super) fn has_failed_attempts(&self) -> bool {
        self.open.values().any(|failed| *failed > 0)
    }
}

/// Returns the event that a command publishes, if any.
pub(super) fn event(command: &Command) -> Option<&Event> {
    match &command.effect {
        Effect::Publish(event) => Some(event),
        _ => None,
    }
}
