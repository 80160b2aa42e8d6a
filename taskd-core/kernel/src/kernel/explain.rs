//! Explains why an incident was decided as it was, for the engineer on call.
//!
//! This is bookkeeping: nothing is decided from it.

use super::calendar::Calendar;
use super::ledger::Ledger;
use super::report::IncidentReport;
use super::{Decision, HoldReason, Lost, Refusal};
use crate::detect::Fault;
use crate::job::{IncidentId, Name, Seq};
use crate::recover::Cost;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of incidents that `Kernel::explain` can explain: the newest ones. Explanations of older incidents are
/// dropped; the decisions about them are in the job's log only.
pub const EXPLAINED_MAX: usize = 64;

/// Explanation of the last decision about an incident: everything that led to it, and the alternatives that lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Explanation {
    /// Report of the incident, which includes how it ended.
    pub report: IncidentReport,
    /// All faults of the incident, with their evidence.
    pub faults: Vec<Fault>,
    /// Failed recoveries of this incident: name of the strategy, and reason of the failure.
    pub attempts: Vec<(Name, String)>,
    /// Sequence numbers of the first and last kernel input that carried evidence for the incident: the range to look up
    /// in the observation log.
    pub rests_on: (Seq, Seq),
    /// Name of the chosen strategy, and the expected cost of its recovery. `None`: no proposal was left.
    pub chosen: Option<(Name, Cost)>,
    /// Proposed recoveries that were not chosen.
    pub lost: Vec<Lost>,
    /// Refusals: the strategies of which no proposal could be chosen, each with the reason.
    pub refused: Vec<Refusal>,
    /// Reason why the decision is held, that is, not carried out for now; `None` if it is carried out.
    pub held: Option<HoldReason>,
    /// Number of recoveries left in the budget after the decision.
    pub budget_left: u32,
}

/// The parts of a decision that are kept: everything but its plan, which names every process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Grounds {
    faults: Vec<Fault>,
    attempts: Vec<(Name, String)>,
    rests_on: (Seq, Seq),
    chosen: Option<(Name, Cost)>,
    lost: Vec<Lost>,
    refused: Vec<Refusal>,
    held: Option<HoldReason>,
    budget_left: u32,
}

/// The kept decisions of the newest incidents.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Archive(BTreeMap<IncidentId, Grounds>);

impl Archive {
    pub(super) fn keep(&mut self, decision: &Decision) {
        let Decision { incident, rests_on, chosen, lost, refused, held, budget_left, .. } = decision.clone();
        let chosen = chosen.map(|c| (c.strategy, c.proposal.cost));
        let (faults, attempts) = (incident.faults, incident.attempts);
        self.0.insert(incident.id, Grounds { faults, attempts, rests_on, chosen, lost, refused, held, budget_left });
        while self.0.len() > EXPLAINED_MAX {
            self.0.pop_first();
        }
    }
}

impl Ledger {
    /// Explains the last decision about an incident, if it is kept.
    pub(super) fn explain(&self, id: IncidentId, calendar: &Calendar) -> Option<Explanation> {
        let report = self.report_of(id)?.dated(calendar);
        let Grounds { faults, attempts, rests_on, chosen, lost, refused, held, budget_left } =
            self.archive.0.get(&id)?.clone();
        Some(Explanation { report, faults, attempts, rests_on, chosen, lost, refused, held, budget_left })
    }
}
