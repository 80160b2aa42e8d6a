//! Numbers and names that identify things: ranks, nodes, restarts, worlds, commands, incidents.

use super::Name;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident($inner:ty) => $show:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(
            /// The bare number.
            pub $inner,
        );

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $show, self.0)
            }
        }
    )*};
}

ids! {
    /// A global rank of the training world, from 0.
    Rank(u32) => "rank {}";
    /// Counts the starts of one [`Role`](super::Role). Chosen by the kernel only; one incarnation never runs twice.
    Incarnation(u32) => "#{}";
    /// Counts worlds. Only [`World::successor`](super::World::successor) raises it.
    Generation(u64) => "generation {}";
    /// Identifies a command of the kernel; its answers come back under it.
    CommandId(u64) => "command {}";
    /// Identifies an order of an operator; its answer comes back under it.
    OrderId(u64) => "order {}";
    /// Identifies an incident, from 1.
    IncidentId(u64) => "incident {}";
    /// The place of an input in the order in which the kernel took it, from 1. Both logs share it.
    Seq(u64) => "input {}";
}

impl Incarnation {
    /// The next start of the same role.
    #[must_use]
    pub const fn next(self) -> Incarnation {
        Incarnation(self.0.saturating_add(1))
    }
}

impl Generation {
    /// The world after this one.
    #[must_use]
    pub const fn next(self) -> Generation {
        Generation(self.0.saturating_add(1))
    }
}

/// A host as its platform names it: no authority interns it, and it is the same after every restart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(
    /// The platform's name of the host.
    pub Name,
);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// A communication group: its kind and its index among groups of that kind, such as `tp` 3.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupId {
    /// What the group is for.
    pub kind: GroupKind,
    /// Which group of that kind, from 0.
    pub index: u32,
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} group {}", self.kind, self.index)
    }
}

/// What a communication group is for, by the field's usual abbreviations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum GroupKind {
    /// Data parallel: replicas of the same parameters.
    Dp,
    /// Tensor parallel: shards of one layer.
    Tp,
    /// Pipeline parallel: stages of the model.
    Pp,
    /// Expert parallel: shards of the experts.
    Ep,
    /// Context parallel: shards of the sequence.
    Cp,
    /// Any other kind, named by its framework.
    Other(Name),
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GroupKind::Dp => "dp",
            GroupKind::Tp => "tp",
            GroupKind::Pp => "pp",
            GroupKind::Ep => "ep",
            GroupKind::Cp => "cp",
            GroupKind::Other(name) => name.as_str(),
        })
    }
}
