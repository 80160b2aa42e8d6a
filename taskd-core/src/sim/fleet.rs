//! The truth about hosts and processes, beside what the launcher has told of them.
//!
//! Data with small questions; what happens to it is in `launcher`.

use super::scene::Scene;
use crate::job::{Generation, Name, NodeId, ProcId};
use crate::launch::{Listing, NodeState, NodeStatus, Phase, ProcStatus, Revision};
use crate::trace::Observation;
use std::collections::BTreeMap;

/// A host.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) id: NodeId,
    /// As the launcher sees it.
    pub(super) state: NodeState,
    /// Facts that its source holds back; `None` while it delivers.
    pub(super) held: Option<Vec<Observation>>,
}

impl Host {
    /// Whether nothing that happens there can be seen, nor anything be done.
    pub(super) fn is_cut_off(&self) -> bool {
        matches!(self.state, NodeState::OutOfSight | NodeState::Left)
    }
}

/// A process, from its order on, for ever.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) host: usize,
    /// The world that it is in, as far as it knows.
    pub(super) generation: Generation,
    /// What is true.
    pub(super) phase: Phase,
    /// What the launcher has told.
    pub(super) told: Phase,
    /// It is there but does not run.
    pub(super) frozen: bool,
    /// It was asked to stop, and will.
    pub(super) stopping: bool,
    /// It was asked to stop while its host was cut off, or before it was there.
    pub(super) stop_missed: bool,
    /// The launcher does not know it any more.
    pub(super) forgotten: bool,
    /// Nor has it told of its end: ordered again, it is started again.
    pub(super) lost: bool,
    /// It has really run.
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

    /// The host that can be used and holds the fewest processes.
    pub(super) fn emptiest(&self, but: impl Fn(&NodeId) -> bool) -> Option<usize> {
        let mut held = vec![0usize; self.hosts.len()];
        self.alive().for_each(|(_, p)| held[p.host] += 1);
        let usable = (0..self.hosts.len()).filter(|h| self.hosts[*h].state == NodeState::Ready);
        usable.filter(|h| !but(&self.hosts[*h].id)).min_by_key(|h| held[*h])
    }

    pub(super) fn status(&self, id: &ProcId) -> Option<ProcStatus> {
        let process = self.procs.get(id)?;
        let begun = process.told.order() > 0;
        Some(ProcStatus {
            proc: id.clone(),
            node: Some(self.hosts[process.host].id.clone()),
            instance: Name::new("simulated"),
            pid: begun.then_some(1000 + id.incarnation.0),
            phase: process.told.clone(),
        })
    }

    pub(super) fn node_status(&self, host: usize) -> NodeStatus {
        NodeStatus { node: self.hosts[host].id.clone(), state: self.hosts[host].state, slots: self.slots }
    }

    /// What the launcher knows.
    pub(super) fn listing(&mut self) -> Listing {
        self.revision += 1;
        let known = self.procs.iter().filter(|(_, p)| !p.forgotten);
        let procs = known.filter_map(|(id, _)| self.status(id)).collect();
        let nodes = (0..self.hosts.len()).map(|h| self.node_status(h)).collect();
        Listing { revision: Revision { epoch: 1, seq: self.revision }, procs, nodes, ..Listing::default() }
    }
}
