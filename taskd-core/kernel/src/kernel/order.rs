//! Orders that an operator can give to a running job, and the replies to them.
//!
//! Plain data: the module `operator` implements the effect of each order.

use crate::job::seconds::OptionalSeconds;
use crate::job::{IncidentId, Name, NodeId, OrderId, Permission, Rank};
use crate::trace::switches::Requested;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// An operator's order to a running job, with its sender and the sender's reason. The decision kernel logs it like
/// every other input, and answers it by exactly one [`Effect::Reply`](crate::kernel::Effect::Reply).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OrderEnvelope {
    /// Identifier of the order; the reply carries the same identifier.
    pub id: OrderId,
    /// Sender of the order: a person, or a program that acts for one.
    pub by: Name,
    /// Reason that the sender gave for the order. It appears in the job's log and in the order's incident.
    pub reason: String,
    /// What the sender orders.
    pub order: Order,
}

/// An order that an operator can give to a running job.
///
/// A recovery that an order requests does not draw on the job's recovery budget. If an order cannot be carried out,
/// the job does not end because of that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Order {
    /// Drain a host: its ranks move to other hosts, and no new process starts there. Refused if no other host has room.
    Drain {
        /// Name of the host to drain.
        node: NodeId,
    },
    /// Uncordon a host: new processes may be placed on it again. A drain, or a recovery that took the host out of the
    /// job, had cordoned it.
    #[serde(alias = "readmit")]
    Uncordon {
        /// Name of the host to uncordon.
        node: NodeId,
    },
    /// Restart the processes of these ranks. The recovery strategy that the kernel then chooses decides which other
    /// processes have to stop as well.
    Restart {
        /// Ranks to restart; all ranks if empty.
        #[serde(default)]
        ranks: BTreeSet<Rank>,
    },
    /// Save a checkpoint of the ranks' state now and continue training.
    #[serde(alias = "dump", alias = "checkpoint-now", alias = "dump-now")]
    Checkpoint,
    /// Change the permissions of recovery strategies. The change remains when another supervisor takes the job over.
    Allow {
        /// New permission for each named strategy. Strategies that the order does not name keep their permissions.
        strategies: BTreeMap<Name, Permission>,
    },
    /// Pause the runtime: it continues to decide, publish and log, but begins no recovery until [`Order::Resume`]. A
    /// recovery in progress continues, because a job halfway through a recovery is worse off than before or after it.
    Pause,
    /// Resume the runtime after [`Order::Pause`]. The kernel decides again about incidents whose decisions the pause
    /// has held.
    Resume,
    /// Carry out the decision of an incident that waits for approval.
    Approve {
        /// Identifier of the incident whose decision is approved.
        incident: IncidentId,
    },
    /// Reject the decision of an incident that waits for approval. The kernel then takes the next-cheapest proposal for
    /// the incident.
    Decline {
        /// Identifier of the incident whose decision is rejected.
        incident: IncidentId,
    },
    /// Switch trace recording on or off in all ranks from now on. The setting remains when another supervisor takes the
    /// job over.
    #[serde(alias = "switch")]
    SwitchTrace {
        /// On or off for each kind of trace record.
        kinds: Requested,
    },
    /// Stop the job: stop all its processes, then end it. In dry-run mode only the runtime ends, and the processes
    /// continue. A second stop with a shorter grace period shortens the stop in progress.
    Stop {
        /// Time between SIGTERM and SIGKILL. `None`: `Policy::termination_grace_period`.
        #[serde(default, with = "OptionalSeconds")]
        grace: Option<Duration>,
    },
}

/// Maximum number of items that an order's text lists by name.
const NAMED_MAX: usize = 4;

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::Drain { node } => write!(f, "drain {node}"),
            Order::Uncordon { node } => write!(f, "uncordon {node}"),
            Order::Restart { ranks } if ranks.is_empty() => f.write_str("restart all ranks"),
            Order::Restart { ranks } => write!(f, "restart {}", few(ranks.iter())),
            Order::Checkpoint => f.write_str("save a checkpoint"),
            Order::Allow { strategies } => {
                let each = strategies.iter().map(|(name, may)| format!("{name} {may:?}"));
                write!(f, "allow {}", few(each))
            }
            Order::Pause => f.write_str("pause"),
            Order::Resume => f.write_str("resume"),
            Order::Approve { incident } => write!(f, "approve {incident}"),
            Order::Decline { incident } => write!(f, "decline {incident}"),
            Order::SwitchTrace { kinds } => write!(f, "record {kinds}"),
            Order::Stop { grace: None } => f.write_str("stop"),
            Order::Stop { grace: Some(grace) } => write!(f, "stop with a grace period of {grace:?}"),
        }
    }
}

fn few(things: impl ExactSizeIterator<Item: fmt::Display>) -> String {
    let more = things.len().saturating_sub(NAMED_MAX);
    let named: Vec<String> = things.take(NAMED_MAX).map(|thing| thing.to_string()).collect();
    match more {
        0 if named.is_empty() => "none".to_owned(),
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// Reason why an order to switch trace recorders is rejected: the runtime has no `TraceControl`, so it cannot reach
/// the recorders.
#[doc(hidden)]
pub const NO_TRACE_CONTROL: &str =
    "this runtime has no control over recorders: give it a TraceControl with RuntimeBuilder::trace";

/// Reply to an order that is carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OrderAccepted {
    /// Identifier of the incident under which the order is carried out, if there is one.
    pub incident: Option<IncidentId>,
    /// Effect of the order, in one sentence.
    pub text: String,
}

/// Reason why the kernel does not carry out an operator's order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OrderRejected {
    /// The order cannot be carried out now, or not for the host, rank, strategy or incident that it names. The text
    /// states the obstacle and what to do.
    #[error("{0}")]
    Refused(String),
    /// No plugin of this runtime can carry out the order. The text gives the reason.
    #[error("{0}")]
    Unsupported(String),
}

/// Reason why a decision is held, that is, made but not carried out for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum HoldReason {
    /// The runtime only observes the job ([`Mode::DryRun`](crate::job::Mode::DryRun)).
    #[serde(alias = "observing")]
    DryRun,
    /// An operator has paused the runtime.
    Paused,
    /// The decision waits for an operator's approval.
    #[serde(alias = "asking")]
    AwaitingApproval,
}
