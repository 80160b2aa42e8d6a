//! The combined launchers with their hosts, and the choice of a host for an order that names none.

use crate::job::NodeId;
use crate::launch::{ChangeLog, LaunchError, Launcher, Listing, NodeState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Number of a combined launcher, from 1; a number is never used again.
pub(super) type PartId = u64;

/// The combined launchers, and the one that last listed each host.
#[derive(Default)]
pub(super) struct Parts {
    last: PartId,
    pub(super) launchers: BTreeMap<PartId, Arc<dyn Launcher>>,
    pub(super) hosts: BTreeMap<NodeId, PartId>,
    /// The same by launcher: a job of 10,000 hosts asks for those of each launcher.
    of: BTreeMap<PartId, BTreeSet<NodeId>>,
}

impl Parts {
    pub(super) fn add(&mut self, launcher: Arc<dyn Launcher>, listing: &Listing) -> Result<PartId, LaunchError> {
        if let Some(twice) = listing.nodes.iter().find(|status| self.hosts.contains_key(&status.node)) {
            let text = format!("two launchers have a host named {}: rename one", twice.node);
            return Err(LaunchError::Refused(text));
        }
        self.last += 1;
        self.launchers.insert(self.last, launcher);
        listing.nodes.iter().for_each(|status| self.lists(self.last, &status.node));
        Ok(self.last)
    }

    /// Records that a launcher lists a host.
    pub(super) fn lists(&mut self, part: PartId, host: &NodeId) {
        let before = self.hosts.insert(host.clone(), part);
        if before == Some(part) {
            return;
        }
        before.into_iter().for_each(|before| self.lists_not(before, host));
        self.of.entry(part).or_default().insert(host.clone());
    }

    /// Returns the hosts that a launcher listed last.
    pub(super) fn hosts_of(&self, part: PartId) -> impl Iterator<Item = &NodeId> {
        self.of.get(&part).into_iter().flatten()
    }

    fn lists_not(&mut self, part: PartId, host: &NodeId) {
        if let Some(hosts) = self.of.get_mut(&part) {
            hosts.remove(host);
            if hosts.is_empty() {
                self.of.remove(&part);
            }
        }
    }

    /// Removes a host. Returns its launcher if that has no other host; it is removed too.
    pub(super) fn remove(&mut self, host: &NodeId) -> Option<PartId> {
        let part = self.hosts.remove(host)?;
        self.lists_not(part, host);
        if !self.of.contains_key(&part) {
            self.launchers.remove(&part);
        }
        Some(part)
    }
}

/// The hosts that accept processes, with their loads. They are read only if a start order leaves the choice open.
#[derive(Default)]
pub(super) struct Free(Option<BTreeMap<NodeId, (u32, u32)>>);

impl Free {
    /// Returns the host with the fewest processes that has room and is not excluded, and counts one process more there.
    pub(super) fn emptiest(&mut self, log: &ChangeLog, not: &BTreeSet<NodeId>) -> Option<NodeId> {
        let hosts = self.0.get_or_insert_with(|| {
            let Listing { procs, nodes, .. } = log.listing();
            let ready = nodes.into_iter().filter(|status| status.state == NodeState::Ready);
            let mut hosts: BTreeMap<NodeId, (u32, u32)> =
                ready.map(|status| (status.node, (0, status.slots))).collect();
            for proc in procs.iter().filter(|proc| !proc.phase.is_over()) {
                if let Some((load, _)) = proc.node.as_ref().and_then(|node| hosts.get_mut(node)) {
                    *load += 1;
                }
            }
            hosts
        });
        let free = hosts.iter_mut().filter(|(node, (load, slots))| !not.contains(*node) && load < slots);
        let (node, (load, _)) = free.min_by_key(|(node, (load, _))| (*load, (*node).clone()))?;
        *load += 1;
        Some(node.clone())
    }
}
