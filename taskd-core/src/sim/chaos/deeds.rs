//! The account of what was injected: who is guilty of what, and which faults still want an answer.

use super::FaultKind;
use crate::job::{Domain, JobTime, NodeId, ProcId, Rank, Role};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// An injected fault that the job has to decide about.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::sim) struct Charge {
    pub(in crate::sim) kind: FaultKind,
    pub(in crate::sim) at: JobTime,
    /// The process, or the job.
    pub(in crate::sim) domain: Domain,
    pub(in crate::sim) proc: Option<ProcId>,
    /// How long the supervisor had been away by then.
    pub(in crate::sim) away_before: Duration,
}

/// What was done to the world.
#[derive(Debug, Default)]
pub(in crate::sim) struct Deeds {
    /// Processes that may be blamed.
    guilty: BTreeMap<ProcId, JobTime>,
    /// Hosts that may be blamed.
    pub(in crate::sim) guilty_hosts: BTreeSet<NodeId>,
    /// Ranks that an operator has had started anew.
    pub(in crate::sim) asked: BTreeSet<Rank>,
    /// Hosts that an operator has drained.
    pub(in crate::sim) drained: BTreeSet<NodeId>,
    /// Unanswered faults.
    pub(in crate::sim) charges: Vec<Charge>,
    /// How often each kind struck.
    pub(in crate::sim) struck: BTreeMap<FaultKind, u32>,
    /// Planned faults that have not struck yet.
    pub(in crate::sim) pending: usize,
    /// Somebody crashes every few steps.
    pub(in crate::sim) draining: bool,
    /// Something has happened that rightly ends the job.
    pub(in crate::sim) ending: bool,
}

impl Deeds {
    pub(in crate::sim) fn count(&mut self, kind: FaultKind) {
        *self.struck.entry(kind).or_default() += 1;
    }

    pub(in crate::sim) fn guilty(&mut self, proc: &ProcId, now: JobTime) {
        self.guilty.entry(proc.clone()).or_insert(now);
    }

    pub(in crate::sim) fn is_guilty(&self, proc: &ProcId) -> bool {
        self.guilty.contains_key(proc)
    }

    /// Whether something was done to one of the rank's processes, or somebody wanted it anew.
    pub(in crate::sim) fn was_ever_guilty(&self, rank: Rank) -> bool {
        self.asked.contains(&rank) || self.guilty.keys().any(|p| p.role == Role::Rank(rank))
    }

    pub(in crate::sim) fn charge(&mut self, charge: Charge) {
        if let Some(proc) = &charge.proc {
            self.guilty(proc, charge.at);
        }
        self.charges.push(charge);
    }
}
