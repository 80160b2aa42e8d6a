//! Nobody is blamed who was not injected: no victim, no rank whose heartbeat was there, no job that steps.

use super::super::outcome::Violation;
use super::Moment;
use super::books::event;
use crate::detect::{Fault, FaultClass};
use crate::job::{Domain, IncidentId, ProcId};
use crate::kernel::{Command, Event};

pub(super) fn check(m: &Moment<'_>, command: &Command) -> Result<(), Violation> {
    match event(command) {
        Some(Event::Found { incident, fault, .. }) if !may_be_refined(fault) && !is_right(m, fault) => {
            Err(Violation::InnocentBlamed { incident: *incident, fault: Box::new(fault.clone()) })
        }
        Some(Event::Closed { incident, .. }) => in_report(m, *incident),
        _ => Ok(()),
    }
}

/// A death is known before its error is: who died of a peer is told from a cause by the end of the incident.
fn may_be_refined(fault: &Fault) -> bool {
    !fault.prime().is_cause() || fault.prime().class == FaultClass::Exit
}

/// What people are told in the end.
fn in_report(m: &Moment<'_>, incident: IncidentId) -> Result<(), Violation> {
    let report = m.kernel.report();
    let Some(told) = report.incidents.iter().find(|i| i.id == incident) else { return Ok(()) };
    match told.blamed.iter().find(|rank| !m.deeds.was_ever_guilty(**rank)) {
        Some(rank) => Err(Violation::InnocentReported { incident, rank: *rank }),
        None => Ok(()),
    }
}

fn is_right(m: &Moment<'_>, fault: &Fault) -> bool {
    match &fault.prime().domain {
        Domain::Process(role) => fault
            .incarnation()
            .is_some_and(|incarnation| m.deeds.is_guilty(&ProcId { role: role.clone(), incarnation })),
        Domain::Node(node) => m.deeds.guilty_hosts.contains(node),
        Domain::Job if fault.prime().class == FaultClass::Stall => {
            m.now.since(m.training.last_step) >= m.config.silence_within
        }
        _ => true,
    }
}
