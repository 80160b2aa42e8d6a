//! Input of the kernel.

use super::order::{Order, OrderEnvelope};
use crate::detect::Fault;
use crate::job::{CommandId, Domain, JobSpec, Member, Name, Rank, World};
use crate::recover::{Failure, TargetReply};
use crate::state::{Change, HostHistory, Listing, ReplicaProof};
use crate::trace::Observation;
use crate::trace::switches::Mode;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// One input of the decision kernel. The kernel receives all information as inputs, so its decisions can be
/// replayed from a log of its inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Input {
    /// The kernel starts. Always the first input after a start of the supervisor, the process that contains the kernel.
    Start(Box<Start>),
    /// The launcher's complete list of processes, hosts and links. Sent at the start, and whenever the launcher's
    /// history of changes had to be read again.
    Listed(Listing),
    /// The launcher reported one change, for example the end of a process.
    Changed(Change),
    /// Targets of a command, such as processes, have answered. The answers to one command may arrive in several parts.
    Answered {
        /// Identifier of the command that was answered.
        id: CommandId,
        /// The answer of each target: a reply, or the reason of the failure.
        results: Vec<(Domain, Result<TargetReply, Failure>)>,
    },
    /// An operator, or the program that embeds the runtime, made a request.
    Requested(Request),
    /// Sources (plugins that observe the job) reported observations.
    Observed(Vec<Observation>),
    /// The time that [`Kernel::deadline`](super::Kernel::deadline) last returned has come.
    Deadline,
    /// The supervisor was suspended, that is, did not run, for the time in `nanos`.
    Slept {
        /// Duration of the suspension, in nanoseconds.
        nanos: u64,
    },
    /// An operator gave an order.
    Ordered(Box<OrderEnvelope>),
    /// Wall-clock time at the job time of this input. Sent after each start, and whenever the wall clock and job time
    /// have diverged. Used for display, and for the age of incidents in the history of hosts.
    WallClock {
        /// Wall-clock time as Unix time, in milliseconds.
        unix_ms: u64,
    },
    /// Incidents of hosts in earlier jobs and starts. Sent after [`Input::Start`], if the runtime keeps such a history:
    /// among otherwise equal hosts, ranks are then placed on those with fewer incidents, and the kernel records the
    /// incidents of this job.
    HostHistory(Box<HostHistory>),
}

impl Input {
    /// Returns true if the input ends the job: an order or a request to stop it.
    #[must_use]
    pub fn is_stop(&self) -> bool {
        match self {
            Input::Ordered(ordered) => matches!(ordered.order, Order::Stop { .. }),
            Input::Requested(request) => matches!(request, Request::Stop { .. }),
            _ => false,
        }
    }
}

/// Parameters with which a decision kernel starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// The job specification. A kernel that continues a job takes the policy from it, but keeps its current world
    /// (ranks and their hosts).
    pub spec: Arc<JobSpec>,
    /// Rule by which a request determines what the ranks' trace recorders record. `None`: the runtime has no control
    /// over the recorders.
    #[serde(default)]
    pub trace: Option<Mode>,
    /// Name of the rendezvous service that the launcher provides, if it provides one.
    ///
    /// See `LauncherInfo::rendezvous_service`.
    #[serde(default)]
    #[serde(alias = "meets_at")]
    pub rendezvous_service: Option<Name>,
    /// The job as another supervisor left it, for a kernel without that supervisor's log. `None`: the job begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Box<Resume>>,
}

/// A job that another supervisor has started, as far as it is known without that supervisor's log: the processes that are to
/// run. The kernel takes over those that its first listing shows. One that is missing there, on a host that is in sight, is
/// handled as a process that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Resume {
    /// World in force.
    pub world: Arc<World>,
    /// Incarnations and hosts of the job's services.
    pub services: BTreeMap<Name, Member>,
    /// Ranks that have proved to hold the same state; `None` if nothing is known. The lost ranks cannot prove it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<ReplicaProof>,
    /// Ranks of the world that have completed successfully. Their hosts need not list them any more.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub completed: BTreeSet<Rank>,
}

impl Resume {
    /// Creates the description of a job without services.
    #[must_use]
    pub const fn new(world: Arc<World>) -> Resume {
        Resume { world, services: BTreeMap::new(), replicas: None, completed: BTreeSet::new() }
    }

    /// Sets the incarnations and hosts of the job's services.
    #[must_use]
    pub fn with_services(mut self, services: BTreeMap<Name, Member>) -> Resume {
        self.services = services;
        self
    }

    /// Sets which ranks have proved to hold the same state.
    #[must_use]
    pub fn with_replicas(mut self, replicas: Option<ReplicaProof>) -> Resume {
        self.replicas = replicas;
        self
    }

    /// Sets the ranks that have completed successfully.
    #[must_use]
    pub fn with_completed(mut self, completed: BTreeSet<Rank>) -> Resume {
        self.completed = completed;
        self
    }
}

/// A request of the runtime itself, or of the program that embeds it. Requests of operators are orders
/// ([`OrderEnvelope`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Request {
    /// End the job, as with [`Order::Stop`], because the runtime cannot continue. Earlier versions
    /// also logged an operator's stop as this request.
    Stop {
        /// Reason for the stop, for the job's report.
        reason: String,
        /// Time between SIGTERM and SIGKILL. `None`: `Policy::termination_grace_period`.
        grace: Option<Duration>,
    },
    /// A fault that was detected outside the runtime.
    Fault(Box<Fault>),
    /// A plugin that runs outside the kernel, such as a source or a launcher, panicked or failed.
    PluginFailed {
        /// Name of the plugin that failed.
        plugin: Name,
        /// Description of the failure.
        what: String,
    },
}
