//! Ends the job with a report of the reasons: the last strategy of the ladder.
//!
//! It never refuses.

use super::{Cost, Incident, Proposal, RecoveryStrategy, RefusalError, stages};
use crate::detect::{Fault, Health};
use crate::job::strategy::EXIT as NAME;
use crate::job::{Counted, Domain, Name};
use crate::state::View;
use std::fmt::Write as _;
use std::time::Duration;

/// Maximum number of causes, besides the root, that the reason names.
const CAUSES_MAX: usize = 4;

/// Recovery strategy `exit`: stops all processes of the job and ends the job with an actionable report.
///
/// The report names the first failure with its place and evidence, other independent failures, and the recoveries
/// that were tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExitStrategy;

impl ExitStrategy {
    /// Creates the strategy.
    #[must_use]
    pub const fn new() -> ExitStrategy {
        ExitStrategy
    }
}

impl RecoveryStrategy for ExitStrategy {
    fn name(&self) -> Name {
        NAME
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        let reason = account(incident, view);
        let stages = stages::end_all(view, view.spec.policy.termination_grace_period, false, reason.clone());
        let cost = Cost { ends_job: true, lost_work: Duration::ZERO, downtime: Duration::ZERO, nodes_removed: 0 };
        Ok(Proposal::new(stages, vec![Domain::Job], cost, Counted::No, reason))
    }
}

/// Returns the reason why the job ends, in one sentence.
pub(super) fn account(incident: &Incident, view: &View) -> String {
    // A detector that advises to end the job, or finds the program faulty, states the reason; the faults that led there
    // only state what came last.
    let ends = |fault: &&Fault| {
        fault.advice.as_ref() == Some(&NAME) || fault.primary_suspect().damage.program == Health::Faulty
    };
    let root = incident.faults.iter().rev().find(ends).or(incident.root());
    let Some(first) = root.or(incident.faults.first()) else { return "no failure is known".into() };
    let mut parts = vec![evidence(first, view)];
    if root.is_none() {
        parts.push("the first failure is not known".into());
    }
    let others: Vec<&Fault> =
        incident.faults.iter().filter(|f| f.primary_suspect().is_cause() && !std::ptr::eq(*f, first)).collect();
    parts.extend(others.iter().take(CAUSES_MAX).map(|f| format!("also {}", name(f, view))));
    if others.len() > CAUSES_MAX {
        parts.push(format!("and {} more", others.len() - CAUSES_MAX));
    }
    let tried = incident.attempts.iter();
    parts.extend(tried.map(|(strategy, why)| format!("{strategy} failed: {why}")));
    parts.join("; ")
}

/// Returns a fault with its evidence, as text.
fn evidence(fault: &Fault, view: &View) -> String {
    let mut parts = vec![name(fault, view)];
    parts.extend(fault.evidence.iter().map(|c| c.text.clone()).filter(|t| !t.is_empty()));
    let told = fault.evidence.iter().any(|c| c.what == "error");
    let error = fault.error.as_ref().filter(|_| !told);
    parts.extend(error.map(|e| format!("{} {}: {}", e.family, e.code, e.text)));
    parts.join(", ")
}

/// Returns the class and the location of a fault, as text.
fn name(fault: &Fault, view: &View) -> String {
    let domain = &fault.primary_suspect().domain;
    let mut name = format!("{} in {domain}", fault.primary_suspect().class);
    if let Some(node) = view.node_of(domain).filter(|_| matches!(domain, Domain::Process(_))) {
        let _ = write!(name, " on {node}");
    }
    name
}

#[cfg(test)]
mod tests;
