//! Where a fault can be, and which place is a part of which.

use super::{GroupId, Name, NodeId, Role};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A fault domain: the thing that is suspected, touched by a recovery, or asked about.
///
/// Parents absorb children: job over node over device and process, group over its ranks. Which process belongs to which
/// node or group is known only to a [`View`](crate::kernel::View), so containment is decided there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Domain {
    /// The whole job.
    Job,
    /// A host with all that runs on it.
    Node(NodeId),
    /// One accelerator: its host and its index there.
    Device(NodeId, u16),
    /// The process that fills a role.
    Process(Role),
    /// All ranks of a communication group.
    Group(GroupId),
    /// A plugin of the runtime itself.
    Plugin(Name),
    /// What starts, stops and reaps the processes of a host: they end with it.
    Guard(NodeId),
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
        }
    }
}
