//! The last rung: the job ends, and says why.
//!
//! It never refuses.

use super::{Cost, Incident, Proposal, RecoveryStrategy, stages};
use crate::detect::{Fault, Sound};
use crate::job::{Counted, Domain, Name};
use crate::kernel::View;
use std::fmt::Write as _;
use std::time::Duration;

const NAME: Name = Name::new("exit");

/// Most causes, besides the root, that the reason names.
const CAUSES_MAX: usize = 4;

/// Stops everything and ends the job with a report that a person can act on: what failed first, where, on which
/// evidence, what else failed by itself, and what was tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExitStrategy;

impl ExitStrategy {
    /// The strategy.
    #[must_use]
    pub const fn new() -> ExitStrategy {
        ExitStrategy
    }
}

impl RecoveryStrategy for ExitStrategy {
    fn name(&self) -> Name {
        NAME
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, String> {
        let reason = account(incident, view);
        Ok(Proposal {
            stages: stages::end_all(view, view.spec.policy.stop_grace, false, reason.clone()),
            touches: vec![Domain::Job],
            cost: Cost { ends_job: true, lost_work: Duration::ZERO, downtime: Duration::ZERO, nodes_removed: 0 },
            counted: Counted::No,
            reason,
        })
    }
}

/// Why the job ends, in one sentence.
pub(super) fn account(incident: &Incident, view: &View) -> String {
    // A detector that wants the job ended, or knows that the program fails, says why; the faults that led there say only what came last.
    let ends = |fault: &&Fault| fault.advice.as_ref() == Some(&NAME) || fault.prime().damage.program == Sound::No;
    let root = incident.faults.iter().rev().find(ends).or(incident.root());
    let Some(first) = root.or(incident.faults.first()) else { return "nothing is known to have failed".into() };
    let mut parts = vec![evidence(first, view)];
    if root.is_none() {
        parts.push("what failed first is not known".into());
    }
    let others: Vec<&Fault> =
        incident.faults.iter().filter(|f| f.prime().is_cause() && !std::ptr::eq(*f, first)).collect();
    parts.extend(others.iter().take(CAUSES_MAX).map(|f| format!("also {}", name(f, view))));
    if others.len() > CAUSES_MAX {
        parts.push(format!("and {} more", others.len() - CAUSES_MAX));
    }
    let tried = incident.attempts.iter();
    parts.extend(tried.map(|(strategy, why)| format!("{strategy} was tried and failed: {why}")));
    parts.join("; ")
}

/// A fault with what speaks for it.
fn evidence(fault: &Fault, view: &View) -> String {
    let mut parts = vec![name(fault, view)];
    parts.extend(fault.clues.iter().map(|c| c.text.clone()).filter(|t| !t.is_empty()));
    let told = fault.clues.iter().any(|c| c.what == "error");
    let error = fault.error.as_ref().filter(|_| !told);
    parts.extend(error.map(|e| format!("{} {}: {}", e.family, e.code, e.text)));
    parts.join(", ")
}

/// What a fault is and where.
fn name(fault: &Fault, view: &View) -> String {
    let domain = &fault.prime().domain;
    let mut name = format!("{} in {domain}", fault.prime().class);
    if let Some(node) = view.node_of(domain).filter(|_| matches!(domain, Domain::Process(_))) {
        let _ = write!(name, " on {node}");
    }
    name
}

#[cfg(test)]
mod tests;
