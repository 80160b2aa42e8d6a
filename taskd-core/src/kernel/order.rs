//! What an operator can ask of a running job, and what is answered.
//!
//! Plain data: what an order does is said by `operator`.

use crate::job::{IncidentId, Name, NodeId, OrderId, Permission, Rank};
use crate::trace::switches::Requested;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// An order with who gave it. It is logged like every input, and answered by exactly one
/// [`Action::Reply`](crate::recover::Action::Reply).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ordered {
    /// The answer comes under it.
    pub id: OrderId,
    /// Who asks: a person, or a program that acts for one.
    pub by: Name,
    /// Why, for the log and the incident.
    pub reason: String,
    /// What is asked.
    pub order: Order,
}

/// What an operator can ask of a running job.
///
/// Orders draw on no recovery budget, and the job is never ended because one cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Order {
    /// Leave this host: its ranks move, and nothing new starts there. Refused when no other host has room.
    Drain {
        /// Which.
        node: NodeId,
    },
    /// Use a host again that was drained, or that a recovery took out.
    Readmit {
        /// Which.
        node: NodeId,
    },
    /// Start these ranks anew; what else a strategy has to stop for that is its matter.
    Restart {
        /// Which; all when empty.
        ranks: BTreeSet<Rank>,
    },
    /// Save a checkpoint of the ranks' state now, and go on.
    Dump,
    /// Change what strategies may do by themselves, also over a change of supervisor.
    Allow {
        /// By name; those that are not named keep what they have.
        strategies: BTreeMap<Name, Permission>,
    },
    /// Decide, tell and log as ever, but begin nothing until [`Order::Resume`]. A recovery that has begun goes on: half of one
    /// leaves the job worse than either end of it.
    Pause,
    /// Act again; what was held is decided anew.
    Resume,
    /// Carry out what an incident is held for.
    Approve {
        /// Which incident.
        incident: IncidentId,
    },
    /// Do not carry out what an incident is held for: the next proposal is taken.
    Decline {
        /// Which incident.
        incident: IncidentId,
    },
    /// Record these kinds in all ranks from now on, also over a change of supervisor.
    Switch {
        /// Each on or off.
        kinds: Requested,
    },
}

/// Most things that an order names one by one in words.
const NAMED_MAX: usize = 4;

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::Drain { node } => write!(f, "drain {node}"),
            Order::Readmit { node } => write!(f, "readmit {node}"),
            Order::Restart { ranks } if ranks.is_empty() => f.write_str("restart all ranks"),
            Order::Restart { ranks } => write!(f, "restart {}", few(ranks.iter())),
            Order::Dump => f.write_str("save a checkpoint"),
            Order::Allow { strategies } => {
                let each = strategies.iter().map(|(name, may)| format!("{name} {may:?}"));
                write!(f, "allow {}", few(each))
            }
            Order::Pause => f.write_str("pause"),
            Order::Resume => f.write_str("resume"),
            Order::Approve { incident } => write!(f, "approve {incident}"),
            Order::Decline { incident } => write!(f, "decline {incident}"),
            Order::Switch { kinds } => write!(f, "record {kinds}"),
        }
    }
}

fn few(things: impl ExactSizeIterator<Item: fmt::Display>) -> String {
    let more = things.len().saturating_sub(NAMED_MAX);
    let named: Vec<String> = things.take(NAMED_MAX).map(|thing| thing.to_string()).collect();
    match more {
        0 if named.is_empty() => "nobody".to_owned(),
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// Why recorders cannot be switched.
pub(crate) const NO_TRACE_CONTROL: &str =
    "this runtime has no control over recorders: give it a TraceControl with RuntimeBuilder::trace";

/// The good answer to an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Taken {
    /// The incident under which it is carried out, where it is one.
    pub incident: Option<IncidentId>,
    /// What follows from it, in one sentence.
    pub text: String,
}

/// Why an order is not followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Denial {
    /// Not now, or not this: what stands in the way, and what to do.
    #[error("{0}")]
    Refused(String),
    /// No plugin of this runtime can do it.
    #[error("{0}")]
    Unsupported(String),
}

/// Why a decision is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Held {
    /// The runtime only observes ([`Mode::Observe`](crate::job::Mode::Observe)).
    Observing,
    /// An operator has paused it.
    Paused,
    /// It waits for an operator's approval.
    Asking,
}
