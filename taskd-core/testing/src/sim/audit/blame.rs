//! Only injected faults are blamed: no victim, no rank whose heartbeat arrived, no job that steps.

use super::super::outcome::Violation;
use super::Moment;
use super::books::event;
use crate::detect::{Fault, FaultClass, OPERATOR};
use crate::job::{Domain, IncidentId, ProcId};
use crate::kernel::{Command, Event, Input, Order};

pub(super) fn check(m: &Moment<'_>, command: &Command) -> Result<(), Violation> {
    match event(command) {
        Some(Event::Found { incident, fault, .. }) if !may_be_refined(fault) && !is_right(m, fault) => {
            Err(Violation::InnocentBlamed { incident: *incident, fault: Box::new(fault.clone()) })
        }
        Some(Event::Closed { incident, .. }) => in_report(m, *incident),
        _ => Ok(()),
    }
}

/// Returns true if the end of the incident may still change the blame. A death is reported before its error: only the
/// end of the incident distinguishes a process that failed because of a peer from a cause.
fn may_be_refined(fault: &Fault) -> bool {
    !fault.primary_suspect().is_cause() || fault.primary_suspect().class == FaultClass::Exit
}

/// Checks the ranks that the final report blames.
fn in_report(m: &Moment<'_>, incident: IncidentId) -> Result<(), Violation> {
    let report = m.kernel.report();
    let Some(reported) = report.incidents.iter().find(|i| i.id == incident) else { return Ok(()) };
    match reported.blamed.iter().find(|rank| !m.deeds.was_ever_guilty(**rank)) {
        Some(rank) => Err(Violation::InnocentReported { incident, rank: *rank }),
        None => Ok(()),
    }
}

fn is_right(m: &Moment<'_>, fault: &Fault) -> bool {
    if fault.by == OPERATOR {
        return is_wanted(m, &fault.primary_suspect().domain);
    }
    match &fault.primary_suspect().domain {
        Domain::Process(role) => fault
            .incarnation()
            .is_some_and(|incarnation| m.deeds.is_guilty(&ProcId { role: role.clone(), incarnation })),
        Domain::Node(node) | Domain::Device(node, _) => m.deeds.guilty_hosts.contains(node),
        Domain::Job if fault.primary_suspect().class == FaultClass::Stall => {
            m.now.since(m.training.last_step) >= m.config.silence_within
        }
        _ => true,
    }
}

/// Returns true if the order of this step concerns the domain, or an earlier order still does.
fn is_wanted(m: &Moment<'_>, domain: &Domain) -> bool {
    if let Domain::Node(node) = domain {
        return m.deeds.drained.contains(node);
    }
    let Input::Ordered(ordered) = m.input else { return false };
    match (&ordered.order, domain) {
        (Order::Restart { ranks }, Domain::Job) => ranks.is_empty(),
        (Order::Restart { ranks }, Domain::Process(role)) => role.rank().is_some_and(|rank| ranks.contains(&rank)),
        _ => false,
    }
}
