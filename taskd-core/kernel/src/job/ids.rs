//! Identifiers: ranks, nodes, incarnations, generations, groups, commands, orders, incidents.

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
            /// The integer that identifies the rank, incarnation, generation, command, order, incident or input.
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
    /// Number of a rank among all ranks of the job, from 0: torch's global rank.
    Rank(u32) => "rank {}";
    /// Number of a start of a rank or service, counted from 1 for each [`Role`](super::Role): each restart gets the
    /// next number. The kernel assigns the numbers, and assigns none twice to the same role.
    Incarnation(u32) => "#{}";
    /// Number of a world (the set of ranks that train together), from 1: torchrun's rendezvous round. Only
    /// [`World::successor`](super::World::successor) increases it.
    Generation(u64) => "generation {}";
    /// Identifier of a command of the kernel, from 1. The answers to the command carry the identifier.
    CommandId(u64) => "command {}";
    /// Identifier of an operator's order. The reply to the order carries the identifier.
    OrderId(u64) => "order {}";
    /// Identifier of an incident (a set of related faults, with the recoveries from them), from 1.
    IncidentId(u64) => "incident {}";
    /// Sequence number of an input in the order in which the kernel processed it, from 1. The journal's two logs, of
    /// observations and of decisions, use the same numbers.
    Seq(u64) => "input {}";
}

impl Incarnation {
    /// Returns the incarnation (start number) that the next start of the same rank or service gets.
    #[must_use]
    pub const fn next(self) -> Incarnation {
        Incarnation(self.0.saturating_add(1))
    }
}

impl Generation {
    /// Returns the generation (number) of the next world, the set of ranks that train together after a change.
    #[must_use]
    pub const fn next(self) -> Generation {
        Generation(self.0.saturating_add(1))
    }
}

/// Name of a host as its platform gives it: no central registry assigns it, and it is stable across restarts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct NodeId(
    /// Name that the platform gives the host.
    pub Name,
);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// Identifier of a process group: its kind of parallelism, and its index among the groups of that kind, such as
/// `tp` 3.
///
/// In documents and logs the identifier is one word, `"tp:3"`, so that it can be a key of a JSON object.
///
/// ```
/// # extern crate taskd_kernel as taskd_core;
/// use taskd_core::job::{GroupId, GroupKind};
///
/// let group: GroupId = "tp:3".parse()?;
/// assert_eq!(group, GroupId { kind: GroupKind::Tp, index: 3 });
/// # Ok::<(), taskd_core::job::ParseGroupIdError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GroupId {
    /// Kind of parallelism that the process group serves, such as tensor parallel.
    pub kind: GroupKind,
    /// Index of the process group among the groups of the same kind, from 0.
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
    type Error = ParseGroupIdError;

    /// Parses the form `tp:3`, which documents use. The printed form `tp group 3` is an error.
    fn try_from(text: String) -> Result<GroupId, ParseGroupIdError> {
        GroupId::split(&text, ":").ok_or(ParseGroupIdError(text))
    }
}

impl GroupId {
    fn split(text: &str, separator: &str) -> Option<GroupId> {
        let (kind, index) = text.rsplit_once(separator).filter(|(kind, _)| !kind.is_empty())?;
        Some(GroupId { kind: GroupKind::named(kind), index: index.parse().ok()? })
    }
}

impl FromStr for GroupId {
    type Err = ParseGroupIdError;

    /// Parses the form of documents, `tp:3`, and the printed form, `tp group 3`.
    fn from_str(text: &str) -> Result<GroupId, ParseGroupIdError> {
        let group = GroupId::split(text, ":").or_else(|| GroupId::split(text, " group "));
        group.ok_or_else(|| ParseGroupIdError(text.to_owned()))
    }
}

/// Error: a text is not a group identifier such as `tp:3`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a group: write its kind and its index among those of that kind, such as \"tp:3\"")]
pub struct ParseGroupIdError(
    /// The text that was to be parsed.
    pub String,
);

/// Kind of parallelism that a process group serves, by its usual abbreviation, such as `Tp` for tensor parallel.
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
    /// Any other kind of process group, by the name that its framework uses. Names of built-in kinds, such as `tp`,
    /// MUST NOT be used here: construct kinds with [`GroupKind::named`].
    Other(Name),
}

impl GroupKind {
    /// Returns the kind of process group with this name: a built-in one such as `Tp`, or [`GroupKind::Other`].
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
