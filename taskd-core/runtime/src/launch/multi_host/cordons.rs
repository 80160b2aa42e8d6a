//! Hosts that accept no new processes, whatever their launchers report.

use crate::job::NodeId;
use crate::launch::{NodeState, NodeStatus};
use std::collections::BTreeMap;

/// The cordoned hosts.
#[derive(Debug, Default)]
pub(super) struct Cordons(BTreeMap<NodeId, Cordon>);

#[derive(Debug)]
struct Cordon {
    why: String,
    /// The status that the host's launcher has reported last while it was cordoned here.
    reported: Option<NodeStatus>,
}

impl Cordons {
    /// Cordons a host. Returns its next status, if that changes. `listed` is the present one.
    pub(super) fn cordon(&mut self, host: &NodeId, why: &str, listed: Option<NodeStatus>) -> Option<NodeStatus> {
        let known = self.0.remove(host).and_then(|cordon| cordon.reported);
        let reported = known.or_else(|| listed.clone().filter(|status| status.state != NodeState::Left));
        let next = reported.clone();
        self.0.insert(host.clone(), Cordon { why: why.to_owned(), reported });
        next.map(|status| self.applied(status)).filter(|next| Some(next) != listed.as_ref())
    }

    /// Uncordons a host. Returns its next status, if that changes.
    pub(super) fn uncordon(&mut self, host: &NodeId, listed: Option<NodeStatus>) -> Option<NodeStatus> {
        self.0.remove(host)?.reported.filter(|next| Some(next) != listed.as_ref())
    }

    /// Returns the status to list for one that a launcher reports.
    pub(super) fn applied(&mut self, status: NodeStatus) -> NodeStatus {
        let Some(cordon) = self.0.get_mut(&status.node) else { return status };
        cordon.reported = Some(status.clone());
        match status.state {
            NodeState::Ready => status.with_state(NodeState::Cordoned).with_why(&*cordon.why),
            _ => status,
        }
    }

    /// Forgets a host that has left.
    pub(super) fn forget(&mut self, host: &NodeId) {
        self.0.remove(host);
    }
}
