//! What an outsider knows of a kernel from its commands alone: open incidents, running recoveries, where the job is.

use crate::detect::{Fault, OPERATOR, Sound};
use crate::job::{Domain, IncidentId};
use crate::kernel::{Command, Decision, Event};
use crate::recover::Action;
use std::collections::{BTreeMap, BTreeSet};

/// A recovery that is being carried out.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) touches: Vec<Domain>,
}

/// The books.
#[derive(Debug, Default)]
pub(super) struct Books {
    /// Open incidents, with the number of recoveries that failed.
    pub(super) open: BTreeMap<IncidentId, u32>,
    pub(super) running: BTreeMap<IncidentId, Running>,
    /// Incidents in which there is more than what an operator wants.
    pub(super) real: BTreeSet<IncidentId>,
    /// Incidents for which processes were to be stopped or started, whatever became of it.
    pub(super) begun: BTreeSet<IncidentId>,
    /// The first start is being carried out.
    pub(super) starting: bool,
    /// The job has started.
    pub(super) training: bool,
    /// A decision has found nothing left, or has chosen the end.
    pub(super) decided_to_end: bool,
}

impl Books {
    pub(super) fn enter(&mut self, command: &Command) {
        match &command.action {
            Action::Enter(_) if command.incident.is_none() && !self.training => self.starting = true,
            Action::Announce(event) => self.enter_event(event),
            Action::Enter(_) | Action::Stop { .. } | Action::Start { .. } => self.begun.extend(command.incident),
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
                if !matches!(fault.prime().domain, Domain::Plugin(_)) && fault.by != OPERATOR {
                    self.starting = false; // the recovery starts what is missing
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
            Event::StageDone { .. } | Event::Entered { .. } | Event::Noted { .. } => {}
        }
    }

    fn decided(&mut self, decision: &Decision) {
        if decision.held.is_some() {
            return; // nothing follows from it
        }
        let Some(chosen) = &decision.chosen else {
            self.decided_to_end |= !self.harms_nobody(decision);
            return;
        };
        self.decided_to_end |= chosen.proposal.cost.ends_job;
        self.running.insert(decision.incident.id, Running { touches: chosen.proposal.touches.clone() });
    }

    /// Whether it is about what an operator wants, and nothing was stopped for it: the job does not end over that.
    pub(super) fn is_mere_wish(&self, decision: &Decision) -> bool {
        decision.incident.is_ordered() && !self.begun.contains(&decision.incident.id)
    }

    /// Whether nothing was stopped for what was only said of hosts and of victims, or is wanted: the job goes on, whatever
    /// becomes of it.
    pub(super) fn harms_nobody(&self, decision: &Decision) -> bool {
        let is_harmless = |fault: &Fault| {
            let suspect = fault.prime();
            let is_of_a_host = matches!(suspect.domain, Domain::Node(_) | Domain::Device(..));
            let is_victim = !suspect.is_cause() && !fault.is_charged();
            let goes_on = is_of_a_host || suspect.damage.still_trains() || is_victim;
            fault.by == OPERATOR || suspect.damage.process != Sound::No && goes_on
        };
        let incident = &decision.incident;
        self.is_mere_wish(decision) || !self.begun.contains(&incident.id) && incident.faults.iter().all(is_harmless)
    }

    pub(super) fn has_failed_attempts(&self) -> bool {
        self.open.values().any(|failed| *failed > 0)
    }
}

/// The event that a command announces, if it does.
pub(super) fn event(command: &Command) -> Option<&Event> {
    match &command.action {
        Action::Announce(event) => Some(event),
        _ => None,
    }
}
