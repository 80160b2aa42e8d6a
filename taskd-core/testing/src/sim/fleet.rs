//! The true state of hosts and processes, together with what the launcher has reported of it.
//!
//! This module contains data and simple queries; `launcher` changes it.

use super::scene::Scene;
use crate::job::{Generation, NodeId, ProcId};
use crate::launch::{Listing, NodeState, NodeStatus, Phase, ProcStatus, Revision};
use crate::trace::Observation;
use std::collections::BTreeMap;

/// A host.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) id: NodeId,
    /// The state as the launcher sees it.
    pub(super) state: NodeState,
    /// Facts that its source holds back; `None` while it delivers.
    pub(super) held: Option<Vec<Observation>>,
}

impl Host {
    /// Returns true if the host can neither be observed nor controlled.
    pub(super) fn is_cut_off(&self) -> bool {
        matches!(self.state, NodeState::OutOfSight | NodeState::Left)
    }
}

/// A process, from its order on. It is never removed.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) host: usize,
    /// The newest world that the process knows.
    pub(super) generation: Generation,
    /// The true phase.
    pub(super) phase: Phase,
    /// The phase that the launcher has reported.
    pub(super) reported: Phase,
    /// True if it exists but does not run.
    pub(super) frozen: bool,
    /// True if it was ordered to stop, and will.
    pub(super) stopping: bool,
    /// True if it was ordered to stop while its host was cut off, or before it existed.
    pub(super) stop_missed: bool,
    /// True if the launcher no longer knows it.
    pub(super) forgotten: bool,
    /// True if its end was not reported either: if it is ordered again, it is started again.
    pub(super) lost: bool,
    /// True if it has really run.
    pub(super) ran: bool,
}

impl Process {
    pub(super) fn is_alive(&self) -> bool {
        !self.phase.is_over()
    }
}

/// All hosts and processes.
#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) hosts: Vec<Host>,
    pub(super) procs: BTreeMap<ProcId, Process>,
    slots: u32,
    revision: u64,
}

impl Fleet {
    pub(super) fn new(scene: &Scene) -> Fleet {
        let host = |id: &NodeId| Host { id: id.clone(), state: NodeState::Ready, held: None };
        let hosts = scene.nodes.iter().map(host).collect();
        Fleet { hosts, procs: BTreeMap::new(), slots: scene.slots, revision: 0 }
    }

    pub(super) fn host_index(&self, id: &NodeId) -> Option<usize> {
        self.hosts.iter().position(|h| h.id == *id)
    }

    pub(super) fn alive(&self) -> impl Iterator<Item = (&ProcId, &Process)> {
        self.procs.iter().filter(|(_, p)| p.is_alive())
    }

    pub(super) fn alive_on(&self, host: usize) -> Vec<ProcId> {
        self.alive().filter(|(_, p)| p.host == host).map(|(id, _)| id.clone()).collect()
    }

    /// Returns the usable host with the fewest processes, except those that `but` selects.
    pub(super) fn emptiest(&self, but: impl Fn(&NodeId) -> bool) -> Option<usize> {
        let mut held = vec![0usize; self.hosts.len()];
        self.alive().for_each(|(_, p)| held[p.host] += 1);
        let usable = (0..self.hosts.len()).filter(|h| self.hosts[*h].state == NodeState::Ready);
        usable.filter(|h| !but(&self.hosts[*h].id)).min_by_key(|h| held[*h])
    }

    pub(super) fn status(&self, id: &ProcId) -> Option<ProcStatus> {
        let process = self.procs.get(id)?;
        let begun = process.reported.order() > 0;
        Some(
            ProcStatus::new(id.clone(), "simulated", process.reported.clone())
                .with_node(self.hosts[process.host].id.clone())
                .with_pid(begun.then_some(1000 + id.incarnation.0)),
        )
    }

    pub(super) fn node_status(&self, host: usize) -> NodeStatus {
        NodeStatus::new(self.hosts[host].id.clone(), self.hosts[host].state, self.slots)
    }

    /// Returns the launcher's listing.
    pub(super) fn listing(&mut self) -> Listing {
        self.revision += 1;
        let known = self.procs.iter().filter(|(_, p)| !p.forgotten);
        let procs = known.filter_map(|(id, _)| self.status(id)).collect();
        let nodes = (0..self.hosts.len()).map(|h| self.node_status(h)).collect();
        Listing::new(Revision { epoch: 1, seq: self.revision }, procs, nodes)
    }
}
