//! Why an incident was decided as it was: what a person asks at three in the morning.
//!
//! It only keeps books: nothing is decided from it.

use super::report::IncidentReport;
use super::{Decision, Held, Kernel, Lost, Refusal};
use crate::detect::Fault;
use crate::job::{IncidentId, Name, Seq};
use crate::recover::Cost;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most incidents that can be explained; of older ones the log tells.
pub const EXPLAINED_MAX: usize = 64;

/// All that led to what was decided last about an incident, and what lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Explanation {
    /// What happened, and what became of it.
    pub report: IncidentReport,
    /// Everything that was found, with its evidence.
    pub faults: Vec<Fault>,
    /// What was tried before, and why it failed.
    pub attempts: Vec<(Name, String)>,
    /// The inputs between which the evidence arrived, first and last: where to look in the observation log.
    pub rests_on: (Seq, Seq),
    /// What was chosen, and its expected cost; `None`: nothing was left.
    pub chosen: Option<(Name, Cost)>,
    /// Proposals that lost.
    pub lost: Vec<Lost>,
    /// Strategies that did not propose, or were not allowed to.
    pub refused: Vec<Refusal>,
    /// Why it is not carried out, if it is not.
    pub held: Option<Held>,
    /// What the recovery budget held after the decision.
    pub budget_left: u32,
}

/// What is kept of a decision: all but its plan, which names every process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Grounds {
    faults: Vec<Fault>,
    attempts: Vec<(Name, String)>,
    rests_on: (Seq, Seq),
    chosen: Option<(Name, Cost)>,
    lost: Vec<Lost>,
    refused: Vec<Refusal>,
    held: Option<Held>,
    budget_left: u32,
}

/// The grounds of the newest incidents.
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

impl Kernel {
    /// Why an incident was decided as it was. `None`: there is no such incident, nothing was decided about it yet, or it
    /// is older than the last [`EXPLAINED_MAX`].
    #[must_use]
    pub fn explain(&self, id: IncidentId) -> Option<Explanation> {
        let report = self.dated(self.state.ledger.report_of(id)?);
        let Grounds { faults, attempts, rests_on, chosen, lost, refused, held, budget_left } =
            self.state.ledger.archive.0.get(&id)?.clone();
        Some(Explanation { report, faults, attempts, rests_on, chosen, lost, refused, held, budget_left })
    }
}
