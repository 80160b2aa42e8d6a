//! What is known about the hosts of a job.

use crate::topology::Topology;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use taskd_runtime::job::{JobTime, NodeId};

/// The hosts of a world by node rank.
pub type NodeRanks = BTreeMap<u32, NodeId>;

/// State of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Health {
    /// The agent is connected, and the host can run ranks.
    Ready,
    /// The agent has no connection. Its ranks may run.
    OutOfSight {
        /// Time of the last message.
        since: JobTime,
    },
    /// The host is lost, or its agent has left the job: no rank runs there any more.
    Left {
        /// Time from which on this was certain.
        since: JobTime,
    },
    /// The host must not get work that it does not have.
    Cordoned,
}

/// A host that has joined the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Host {
    /// Time at which the host joined, for the last time if it did so repeatedly.
    pub joined: JobTime,
    /// State of the host.
    pub health: Health,
    /// The node rank that the host states, such as torchrun's `--node-rank`. The host gets it if the world has this
    /// node rank and no host holds it; otherwise it gets another. Two hosts cannot state the same.
    pub node_rank: Option<u32>,
    /// Number of ranks that the host can run.
    pub slots: u32,
}

impl Host {
    /// Creates a host that is ready and states no node rank.
    #[must_use]
    pub const fn new(joined: JobTime, slots: u32) -> Host {
        Host { joined, health: Health::Ready, node_rank: None, slots }
    }

    /// Sets the state of the host.
    #[must_use]
    pub const fn with_health(self, health: Health) -> Host {
        Host { health, ..self }
    }

    /// Sets the node rank that the host states.
    #[must_use]
    pub const fn with_node_rank(self, node_rank: u32) -> Host {
        Host { node_rank: Some(node_rank), ..self }
    }
}

/// What is known about the hosts of a job.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct State {
    /// All hosts that have joined. Hosts that left and are not in the world can be removed.
    pub hosts: BTreeMap<NodeId, Host>,
    /// The world in force; `None` before the first.
    pub world: Option<NodeRanks>,
    /// The places of the hosts.
    pub topology: Topology,
    /// Time at which the job began to wait for its first world.
    pub since: JobTime,
}

impl State {
    /// Returns a host to change it.
    pub fn host_mut(&mut self, host: &NodeId) -> Option<&mut Host> {
        self.hosts.get_mut(host)
    }
}
