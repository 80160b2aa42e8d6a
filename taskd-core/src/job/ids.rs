//! Numbers and names that identify things: ranks, nodes, restarts, worlds, commands, incidents.

use super::Name;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident($inner:ty) => $show:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
///
/// In documents and logs it is one word, `"tp:3"`, so that it can be a key of a map in JSON.
///
/// ```
/// use taskd_core::job::{GroupId, GroupKind};
///
/// let group: GroupId = "tp:3".parse()?;
/// assert_eq!(group, GroupId { kind: GroupKind::Tp, index: 3 });
/// # Ok::<(), taskd_core::job::NoGroup>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
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

impl From<GroupId> for String {
    fn from(group: GroupId) -> String {
        format!("{}:{}", group.kind, group.index)
    }
}

impl TryFrom<String> for GroupId {
    type Error = NoGroup;

    fn try_from(text: String) -> Result<GroupId, NoGroup> {
        text.parse()
    }
}

impl FromStr for GroupId {
    type Err = NoGroup;

    fn from_str(text: &str) -> Result<GroupId, NoGroup> {
        let parts = text.rsplit_once(':').filter(|(kind, _)| !kind.is_empty());
        let (kind, index) = parts.ok_or_else(|| NoGroup(text.to_owned()))?;
        let index = index.parse().map_err(|_| NoGroup(text.to_owned()))?;
        Ok(GroupId { kind: GroupKind::named(kind), index })
    }
}

/// A text that names no group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no group: write its kind and its index among those of that kind, such as \"tp:3\"")]
pub struct NoGroup(
    /// The text.
    pub String,
);

/// What a communication group is for, by the field's usual abbreviations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// Any other kind, named by its framework. One of the names above is not another kind: use [`GroupKind::named`].
    Other(Name),
}

impl GroupKind {
    /// The kind with this name: one of the usual abbreviations, or another.
    #[must_use]
    pub fn named(name: &str) -> GroupKind {
        match name {
            "dp" => GroupKind::Dp,
            "tp" => GroupKind::Tp,
            "pp" => GroupKind::Pp,
            "ep" => GroupKind::Ep,
            "cp" => GroupKind::Cp,
            other => GroupKind::Other(Name::from(other.to_owned())),
        }
    }
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
