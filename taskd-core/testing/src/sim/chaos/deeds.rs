//! The record of injected faults: which processes are guilty, and which faults still need a decision.

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
    /// Total time for which the supervisor had been away at that time.
    pub(in crate::sim) away_before: Duration,
}

/// All faults injected so far.
#[derive(Debug, Default)]
pub(in crate::sim) struct Deeds {
    /// Processes that may be blamed.
    guilty: BTreeMap<ProcId, JobTime>,
    /// Hosts that may be blamed.
    pub(in crate::sim) guilty_hosts: BTreeSet<NodeId>,
    /// Ranks that an operator has ordered to restart.
    pub(in crate::sim) asked: BTreeSet<Rank>,
    /// Hosts that an operator has drained.
    pub(in crate::sim) drained: BTreeSet<NodeId>,
    /// Faults without a decision.
    pub(in crate::sim) charges: Vec<Charge>,
    /// Number of injected faults of each kind.
    pub(in crate::sim) struck: BTreeMap<FaultKind, u32>,
    /// Planned faults that have not been injected yet.
    pub(in crate::sim) pending: usize,
    /// True if ranks crash every few steps.
    pub(in crate::sim) draining: bool,
    /// True if a fault was injected that must end the job.
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

    /// Returns true if a fault was injected into one of the rank's processes, or an operator ordered its restart.
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
