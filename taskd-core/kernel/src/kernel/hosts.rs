//! Hosts that are taken out of the job, and the limit on their number.
//!
//! It moves no rank: a host with ranks is drained by a recovery.

use super::operator::{refused, taken};
use super::{Branch, Counts, OrderAccepted, OrderRejected};
use crate::job::{JobTime, NodeId, RemovalCap};
use crate::state::{NodeState, NodeStatus};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of host removals that are remembered for the limit on removals. The oldest are dropped first; a limit
/// above this number is not enforced.
const REMOVALS_KEPT_MAX: usize = 1024;

/// A host that is not used, whatever state its launcher reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cordon {
    /// Operator or detector that took the host out, and the reason.
    pub(super) reason: String,
    /// State that the launcher last reported for the host.
    told: NodeState,
}

/// Takes hosts out of the job and back, and counts the removals.
pub(super) struct Hosts<'a> {
    pub(super) now: JobTime,
    pub(super) cap: RemovalCap,
    pub(super) nodes: &'a mut BTreeMap<NodeId, NodeStatus>,
    pub(super) cordons: &'a mut BTreeMap<NodeId, Cordon>,
    pub(super) removals: &'a mut VecDeque<JobTime>,
    pub(super) counts: &'a mut Counts,
}

impl Hosts<'_> {
    /// Cordons a host: no new process starts there from now on.
    pub(super) fn cordon(&mut self, node: &NodeId, reason: String) {
        self.counts.branch(Branch::Cordoned);
        let told = self.nodes.get(node).map_or(NodeState::Ready, |status| status.state);
        self.cordons.entry(node.clone()).or_insert(Cordon { reason, told });
        if let Some(status) = self.nodes.get_mut(node).filter(|s| s.state == NodeState::Ready) {
            status.state = NodeState::Cordoned;
        }
    }

    /// Uncordons a host, as an operator orders.
    ///
    /// # Errors
    /// A refusal, if the host is not cordoned.
    pub(super) fn uncordon(&mut self, node: &NodeId) -> Result<OrderAccepted, OrderRejected> {
        let Some(cordon) = self.cordons.remove(node) else {
            return refused(format!("{node} was not drained, nor taken out by a recovery"));
        };
        if let Some(status) = self.nodes.get_mut(node) {
            status.state = cordon.told;
        }
        Ok(taken(format!("{node} takes processes again; reason of the cordon: {}", cordon.reason)))
    }

    /// Records the state of a host that the launcher reported. A cordon takes precedence over a ready state. Returns true if
    /// the host has left since.
    pub(super) fn note(&mut self, status: &NodeStatus) -> bool {
        let mut status = status.clone();
        if let Some(cordon) = self.cordons.get_mut(&status.node) {
            cordon.told = status.state;
            if status.state == NodeState::Ready {
                status.state = NodeState::Cordoned;
            }
        }
        let has_left = status.state == NodeState::Left;
        let known = self.nodes.insert(status.node.clone(), status);
        has_left && known.is_some_and(|known| known.state != NodeState::Left)
    }

    /// Returns the reason why an operator has to approve the removal of `nodes` more hosts, if one has to.
    pub(super) fn over_the_cap(&mut self, nodes: usize) -> Option<String> {
        let RemovalCap { nodes_max, within } = self.cap;
        let since = self.now.since(JobTime::START).saturating_sub(within);
        self.removals.retain(|at| at.since(JobTime::START) >= since);
        let removed = self.removals.len();
        (nodes > 0 && removed.saturating_add(nodes) > nodes_max as usize).then(|| {
            format!("{removed} hosts were cordoned within {within:?}, and {nodes_max} may be without an approval")
        })
    }

    pub(super) fn note_removals(&mut self, nodes: usize) {
        self.removals.extend((0..nodes.min(REMOVALS_KEPT_MAX)).map(|_| self.now));
        while self.removals.len() > REMOVALS_KEPT_MAX {
            self.removals.pop_front();
        }
    }
}
