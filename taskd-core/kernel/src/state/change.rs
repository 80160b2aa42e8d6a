//! The changes that a launcher reports: of processes, hosts and guards.

use super::{LinkStatus, WorkerEvent};
use crate::job::{Exit, Name, NodeId, ProcId, Termination};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The phase of a process's life. A process passes through the phases only in the order in which they are declared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The start was accepted, but the process does not run yet; the text gives the reason.
    Pending(String),
    /// The process runs.
    Running,
    /// The process no longer takes part in training. The launcher reports this early, before the process is gone; its
    /// memory and ports may still be in use.
    ///
    /// The termination is [`Termination::Unknown`] if it could not be read. It is then provisional until
    /// [`Phase::Exited`].
    Dead(Termination),
    /// The process is gone. The launcher reports this exactly once for each process, with the exact exit, also if the
    /// start itself failed.
    Exited(Box<Exit>),
}

impl Phase {
    /// Returns true if the process has ended, as far as is known.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self, Phase::Dead(_) | Phase::Exited(_))
    }

    /// Returns true if the process is certainly gone.
    #[must_use]
    pub const fn is_exited(&self) -> bool {
        matches!(self, Phase::Exited(_))
    }

    /// Returns how the process ended, if it has ended.
    #[must_use]
    pub fn termination(&self) -> Option<Termination> {
        match self {
            Phase::Dead(how) => Some(*how),
            Phase::Exited(exit) => Some(exit.how),
            Phase::Pending(_) | Phase::Running => None,
        }
    }

    /// Returns the exact exit; `None` until the process is gone.
    #[must_use]
    pub fn exit(&self) -> Option<&Exit> {
        match self {
            Phase::Exited(exit) => Some(exit),
            Phase::Pending(_) | Phase::Running | Phase::Dead(_) => None,
        }
    }

    /// Returns the position of the phase in the order of phases, from 0, to check that phases only move forward.
    #[must_use]
    pub const fn order(&self) -> u8 {
        match self {
            Phase::Pending(_) => 0,
            Phase::Running => 1,
            Phase::Dead(_) => 2,
            Phase::Exited(_) => 3,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Phase::Pending(why) => write!(f, "pending: {why}"),
            Phase::Running => f.write_str("running"),
            Phase::Dead(how) => write!(f, "dead: {how}"),
            Phase::Exited(exit) => write!(f, "exited: {}", exit.how),
        }
    }
}

/// The state of one process as its launcher sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProcStatus {
    /// Identifier of the process: its rank or service, and its incarnation (the number of its start).
    pub proc: ProcId,
    /// Name of the process's host, once known.
    pub node: Option<NodeId>,
    /// Identifier, given by the platform, of one run of the process: pid and start time, or a pod's uid. It
    /// distinguishes two processes that a platform ran under one incarnation.
    pub instance: Name,
    /// Process id on the process's host, once the process runs and if it has one.
    pub pid: Option<u32>,
    /// The phase of the process's life.
    pub phase: Phase,
}

impl ProcStatus {
    /// Creates the status of a process whose host and process id are not known yet.
    pub fn new(proc: ProcId, instance: impl Into<Name>, phase: Phase) -> ProcStatus {
        ProcStatus { proc, node: None, instance: instance.into(), pid: None, phase }
    }

    /// Sets the host, if it is known.
    #[must_use]
    pub fn with_node(mut self, node: impl Into<Option<NodeId>>) -> ProcStatus {
        self.node = node.into();
        self
    }

    /// Sets the process id, if it is known.
    #[must_use]
    pub fn with_pid(mut self, pid: impl Into<Option<u32>>) -> ProcStatus {
        self.pid = pid.into();
        self
    }

    /// Sets the phase.
    #[must_use]
    pub fn with_phase(mut self, phase: Phase) -> ProcStatus {
        self.phase = phase;
        self
    }
}

/// Usability of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// The host can be used.
    Ready,
    /// Running processes continue, but no new process is to start there.
    Cordoned,
    /// The host does not answer. The state of its processes is unknown, and they are not considered dead.
    OutOfSight,
    /// The host is gone permanently: its processes have ended.
    Left,
}

/// The state of one host as its launcher sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct NodeStatus {
    /// Name of the host.
    pub node: NodeId,
    /// Usability of the host.
    pub state: NodeState,
    /// Number of ranks that the host can hold.
    pub slots: u32,
    /// Reason for the state in one sentence, if the launcher knows it: how a host was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Number of processes on the host that can take a rank at once, because they have imported the framework already;
    /// `None` if the launcher does not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standbys: Option<u32>,
    /// The fault or network domain that failed, if that explains why the host left together with others, such as
    /// `leaf l1`. The kernel then blames this domain once, and not each host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_with: Option<Name>,
}

impl NodeStatus {
    /// Creates the status of a host that can hold `slots` ranks.
    #[must_use]
    pub const fn new(node: NodeId, state: NodeState, slots: u32) -> NodeStatus {
        NodeStatus { node, state, slots, why: None, standbys: None, lost_with: None }
    }

    /// Sets the usability of the host. A reason of the state before is dropped.
    #[must_use]
    pub fn with_state(mut self, state: NodeState) -> NodeStatus {
        (self.state, self.why, self.lost_with) = (state, None, None);
        self
    }

    /// Sets the domain with which the host has left, if its failure explains the loss.
    #[must_use]
    pub fn with_lost_with(mut self, domain: impl Into<Option<Name>>) -> NodeStatus {
        self.lost_with = domain.into();
        self
    }

    /// Sets the number of processes on the host that can take a rank at once.
    #[must_use]
    pub const fn with_standbys(mut self, ready: u32) -> NodeStatus {
        self.standbys = Some(ready);
        self
    }

    /// Sets the reason for the state, in one sentence.
    #[must_use]
    pub fn with_why(mut self, why: impl Into<String>) -> NodeStatus {
        self.why = Some(why.into());
        self
    }
}

/// Availability of a guard: the process that starts, stops and reaps the processes of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum GuardState {
    /// The guard answers requests.
    Answers,
    /// The guard exists but does not answer; the text gives what is known of the reason. The processes of its host
    /// continue, but none can be started or stopped there.
    Silent(String),
    /// The guard is gone, or is ending without an order from its owner (the supervisor); its processes end with it.
    Gone(GuardEnd),
}

/// How a guard ended without an order from its owner, the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct GuardEnd {
    /// Reason for the end of the guard, as far as it is known, in one sentence.
    pub why: String,
    /// True if the guard ended as configured, because no owner (supervisor) returned in time. The recovery from such an
    /// end does not count as a restart.
    #[serde(default)]
    pub was_agreed: bool,
}

impl GuardEnd {
    /// Creates the end of a guard that did not end as configured. `why` states what is known of the reason, in one
    /// sentence.
    pub fn new(why: impl Into<String>) -> GuardEnd {
        GuardEnd { why: why.into(), was_agreed: false }
    }

    /// Sets whether the guard ended as configured, because its owner (the supervisor) did not return in time.
    #[must_use]
    pub const fn with_was_agreed(mut self, was_agreed: bool) -> GuardEnd {
        self.was_agreed = was_agreed;
        self
    }
}

/// The state of the guard of one host's processes as its launcher sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct GuardStatus {
    /// Name of the host whose processes the guard starts, stops and reaps.
    pub node: NodeId,
    /// Identifier of the guard, which distinguishes successive guards of one host: pid and start time. If the
    /// identifier has changed, the previous guard has ended, and its processes have ended with it.
    pub instance: Name,
    /// Process id of the guard.
    pub pid: u32,
    /// Availability of the guard.
    pub state: GuardState,
    /// How the previous guard on this host ended, if known.
    #[serde(default)]
    pub before: Option<GuardEnd>,
}

impl GuardStatus {
    /// Creates the status of a guard without a known predecessor.
    pub fn new(node: NodeId, instance: impl Into<Name>, pid: u32, state: GuardState) -> GuardStatus {
        GuardStatus { node, instance: instance.into(), pid, state, before: None }
    }

    /// Sets the availability of the guard.
    #[must_use]
    pub fn with_state(mut self, state: GuardState) -> GuardStatus {
        self.state = state;
        self
    }

    /// Sets how the previous guard on this host ended, if known.
    #[must_use]
    pub fn with_before(mut self, before: impl Into<Option<GuardEnd>>) -> GuardStatus {
        self.before = before.into();
        self
    }
}

/// One change that a launcher reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// A change of a process's state, such as its end.
    Proc(ProcStatus),
    /// A change of a host's state.
    Node(NodeStatus),
    /// A change of the control link to a process: it was opened or closed, or the position of the process changed.
    Link(LinkStatus),
    /// A message that a process sent about itself. Delivered once: no listing repeats it.
    #[serde(alias = "said")]
    Worker(WorkerEvent),
    /// A change of the guard of a host's processes. The end of a guard is reported before the ends of its processes.
    Guard(GuardStatus),
}

/// A position in a launcher's history of changes. `epoch` changes when the history starts over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Revision {
    /// Number that identifies the launcher's history of changes. A launcher that was created later has another number;
    /// revisions of different epochs cannot be compared.
    pub epoch: u64,
    /// Number of changes in the history up to this position.
    pub seq: u64,
}

/// Everything that a launcher knows at one revision of its history of changes: processes, hosts, control links and
/// guards.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Listing {
    /// Position in the launcher's history of changes from which `watch` continues after this listing.
    pub revision: Revision,
    /// All processes that have not exited, and all exits that the kernel has not acknowledged.
    pub procs: Vec<ProcStatus>,
    /// All hosts that the launcher knows.
    pub nodes: Vec<NodeStatus>,
    /// The states of the control links between the launcher and the running processes.
    #[serde(default)]
    pub links: Vec<LinkStatus>,
    /// The states of the hosts' guards, if the launcher has guards. A guard is the process that starts, stops and reaps
    /// the job's processes on its host.
    #[serde(default)]
    pub guards: Vec<GuardStatus>,
    /// The steps that have failed in the world that their processes still train in, so that a supervisor which was not
    /// there when they were reported recovers from them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_steps: Vec<WorkerEvent>,
}

impl Listing {
    /// Creates a listing of these processes and hosts, without links and guards.
    #[must_use]
    pub const fn new(revision: Revision, procs: Vec<ProcStatus>, nodes: Vec<NodeStatus>) -> Listing {
        Listing { revision, procs, nodes, links: Vec::new(), guards: Vec::new(), failed_steps: Vec::new() }
    }

    /// Sets the processes that the listing contains.
    #[must_use]
    pub fn with_procs(mut self, procs: Vec<ProcStatus>) -> Listing {
        self.procs = procs;
        self
    }

    /// Sets the hosts that the listing contains.
    #[must_use]
    pub fn with_nodes(mut self, nodes: Vec<NodeStatus>) -> Listing {
        self.nodes = nodes;
        self
    }

    /// Sets the states of the control links that the listing contains.
    #[must_use]
    pub fn with_links(mut self, links: Vec<LinkStatus>) -> Listing {
        self.links = links;
        self
    }

    /// Sets the failed steps that the listing contains.
    #[must_use]
    pub fn with_failed_steps(mut self, failed: Vec<WorkerEvent>) -> Listing {
        self.failed_steps = failed;
        self
    }

    /// Sets the states of the hosts' guards that the listing contains.
    #[must_use]
    pub fn with_guards(mut self, guards: Vec<GuardStatus>) -> Listing {
        self.guards = guards;
        self
    }
}
