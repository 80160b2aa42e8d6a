//! Fault domains: where a fault can be, and which domain contains which.

use super::{GroupId, Name, NodeId, Role};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A fault domain: the part of a job or of its machines that a fault, a recovery or a probe concerns.
///
/// Parents contain children: the job contains nodes, a node its devices and processes, a group its ranks.
/// [`View::contains`](crate::state::View::contains) decides containment, because only a view knows the processes of a
/// node and of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Domain {
    /// The whole job.
    Job,
    /// A host and everything that runs on it.
    Node(NodeId),
    /// One accelerator: its host, and its index on that host.
    Device(NodeId, u16),
    /// The process that has this role: a rank or a service.
    Process(Role),
    /// All ranks of a communication group, such as a tensor-parallel group.
    Group(GroupId),
    /// A plugin of the runtime itself, such as a detector or a strategy.
    Plugin(Name),
    /// The guard of a host: the process that starts, stops and reaps the job's processes on that host. When the guard
    /// ends, these processes end too.
    Guard(NodeId),
    /// A fault or network domain of several hosts, such as the switch `leaf l1`: its level and its name. The kernel
    /// does not know which hosts it contains; a [`NodeStatus`](crate::state::NodeStatus) names the one that a host was
    /// lost with.
    Topology(Name),
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Domain::Job => f.write_str("the job"),
            Domain::Node(node) => node.fmt(f),
            Domain::Device(node, index) => write!(f, "device {index} of {node}"),
            Domain::Process(role) => role.fmt(f),
            Domain::Group(group) => group.fmt(f),
            Domain::Plugin(name) => write!(f, "plugin {name}"),
            Domain::Guard(node) => write!(f, "the guard of {node}"),
            Domain::Topology(name) => write!(f, "topology domain {name}"),
        }
    }
}
