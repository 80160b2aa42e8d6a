//! Proposals as data: stages of actions, affected domains, cost, and the progress of a run.

use crate::detect::{Fault, Health, OPERATOR};
use crate::job::seconds::Seconds;
use crate::job::{Counted, Domain, IncidentId, JobTime, Name, NodeId, ProcId, Rank, Ready, Role, World};
use crate::state::{DirectiveBatch, DirectiveReply, StartBatch, View};
use crate::trace::{Probe, ProbeResult};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of faults that one incident keeps. If the incident is full, a new fault that is a cause replaces the
/// last victim; otherwise a new fault replaces the last fault whose process was replaced since. If there is no such
/// fault, the new one is not kept, but still takes effect. The kernel counts all these cases
/// ([`DropReason::IncidentBound`](crate::kernel::DropReason::IncidentBound)).
pub const FAULTS_PER_INCIDENT_MAX: usize = 256;

/// A single action of a recovery, as a strategy proposes it. Effects that only the kernel may command are in
/// [`Effect`](crate::kernel::Effect).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Action {
    /// Start processes. Each process counts as answered once it has met the condition `until`, or is gone.
    Start {
        /// The processes to start, and the world that they train in.
        batch: StartBatch,
        /// Condition under which a process counts as started.
        until: Ready,
    },
    /// Stop processes. Each process counts as answered once it has ended.
    Stop {
        /// The processes to stop; one that is already gone is answered at once.
        procs: Vec<ProcId>,
        /// Time between SIGTERM and SIGKILL.
        #[serde(with = "Seconds")]
        grace: Duration,
        /// Selects when a process counts as ended. True: once it has exited
        /// ([`Phase::Exited`](crate::state::Phase::Exited)), so that its memory, ports and devices are free. False:
        /// once it is dead ([`Phase::Dead`](crate::state::Phase::Dead)), which is known earlier (by 80 ms or more for a
        /// process of 500 MiB).
        exact: bool,
    },
    /// Make this world the current one: the set of ranks that train together from now on. Takes effect in the kernel at
    /// once.
    Enter(Arc<World>),
    /// Send a probe, which requests evidence about domains (such as ranks) from the sources of evidence. For each
    /// domain there is an answer: the source's, or a timeout, which counts as silence.
    Collect(Probe),
    /// Send directives (requests over the control link) to running processes. Each process counts as answered once it
    /// has carried out its directive, or is gone.
    #[serde(alias = "direct")]
    SendDirectives(DirectiveBatch),
    /// End the job. The kernel issues no command after this one.
    Finish {
        /// True if training completed successfully.
        ok: bool,
        /// Reason for the end, in one sentence.
        reason: String,
    },
    /// Cordon hosts: no new process starts there. Takes effect in the kernel at once.
    Cordon {
        /// The hosts to cordon.
        nodes: BTreeSet<NodeId>,
        /// Reason why the hosts are cordoned, for people.
        reason: String,
    },
}

/// Number of targets (such as processes) of a stage's actions that must succeed before the next stage begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Quorum {
    /// All targets of the stage must succeed.
    All,
    /// At least this many targets of the stage must succeed.
    AtLeast(u32),
}

/// A set of actions of a recovery that run concurrently. The next stage follows once `quorum` of their targets (such as
/// processes) have succeeded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Stage {
    /// Name of the stage, for people and for [`RecoveryStrategy::advance`](super::RecoveryStrategy::advance) to
    /// distinguish stages.
    pub name: Name,
    /// The actions of the stage, which run concurrently.
    pub actions: Vec<Action>,
    /// Number of targets (such as processes) of the stage's actions that must succeed.
    #[serde(alias = "need")]
    pub quorum: Quorum,
    /// Time limit of the stage: a target that has not answered by then has failed. The kernel enforces it, not the
    /// launcher or the shell (the asynchronous part of the runtime).
    #[serde(with = "Seconds")]
    #[serde(alias = "within")]
    pub timeout: Duration,
}

impl Stage {
    /// Creates a stage of which every target must succeed.
    pub fn new(name: impl Into<Name>, timeout: Duration, actions: Vec<Action>) -> Stage {
        Stage { name: name.into(), actions, quorum: Quorum::All, timeout }
    }

    /// Sets the number of targets (such as processes) of the stage's actions that must succeed.
    #[must_use]
    pub const fn with_quorum(mut self, quorum: Quorum) -> Stage {
        self.quorum = quorum;
        self
    }
}

/// Expected cost of a recovery. Ordered by `ends_job`, then lost work, then downtime, then removed hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Cost {
    /// True if the recovery ends the job, which costs more than anything else.
    pub ends_job: bool,
    /// Training time that has to be repeated after the recovery.
    #[serde(with = "Seconds")]
    pub lost_work: Duration,
    /// Time without training during the recovery.
    #[serde(with = "Seconds")]
    pub downtime: Duration,
    /// Number of hosts that the recovery removes from the job.
    pub nodes_removed: u32,
}

impl Cost {
    /// Creates a cost that consists of downtime only.
    #[must_use]
    pub const fn downtime(downtime: Duration) -> Cost {
        Cost { ends_job: false, lost_work: Duration::ZERO, downtime, nodes_removed: 0 }
    }

    /// Creates the cost of a recovery that ends the job.
    #[must_use]
    pub const fn of_the_job() -> Cost {
        Cost { ends_job: true, ..Cost::downtime(Duration::ZERO) }
    }

    /// Sets the training time that the job has to repeat after the recovery.
    #[must_use]
    pub const fn with_lost_work(mut self, lost_work: Duration) -> Cost {
        self.lost_work = lost_work;
        self
    }

    /// Sets the number of hosts that the recovery removes from the job.
    #[must_use]
    pub const fn with_nodes_removed(mut self, nodes_removed: u32) -> Cost {
        self.nodes_removed = nodes_removed;
        self
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ends_job {
            return f.write_str("the job");
        }
        write!(f, "{:.1} s of work, {:.1} s down", self.lost_work.as_secs_f64(), self.downtime.as_secs_f64())?;
        match self.nodes_removed {
            0 => Ok(()),
            n => write!(f, ", {n} nodes"),
        }
    }
}

/// A recovery from an incident, as a strategy proposes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Proposal {
    /// The stages of the recovery, in the order in which they are carried out.
    pub stages: Vec<Stage>,
    /// All domains (such as ranks and hosts) that the recovery disturbs. Recoveries whose domains overlap never run at
    /// the same time.
    #[serde(alias = "touches")]
    pub affected_domains: Vec<Domain>,
    /// Expected cost of the recovery. The cheapest allowed proposal wins.
    pub cost: Cost,
    /// Selects if the recovery draws on the recovery budget and counts as a restart. After five recoveries in a row
    /// that do not count, without a completed step in between, the next one draws on the budget as well.
    pub counted: Counted,
    /// Reason why the recovery is expected to help, in one sentence.
    pub reason: String,
}

impl Proposal {
    /// Creates a proposal. `counted` must equal the `counted` with which the recovery's new [world](World::successor)
    /// was made.
    pub fn new(
        stages: Vec<Stage>,
        affected_domains: Vec<Domain>,
        cost: Cost,
        counted: Counted,
        reason: impl Into<String>,
    ) -> Proposal {
        Proposal { stages, affected_domains, cost, counted, reason: reason.into() }
    }

    /// Sets the stages.
    #[must_use]
    pub fn with_stages(mut self, stages: Vec<Stage>) -> Proposal {
        self.stages = stages;
        self
    }

    /// Sets the expected cost.
    #[must_use]
    pub const fn with_cost(mut self, cost: Cost) -> Proposal {
        self.cost = cost;
        self
    }

    /// Sets if the recovery draws on the job's recovery budget and counts as a restart.
    #[must_use]
    pub const fn with_counted(mut self, counted: Counted) -> Proposal {
        self.counted = counted;
        self
    }

    /// Returns the reason in the proposal's [`Action::Finish`]; `None` if the proposal does not end the job.
    #[must_use]
    pub fn final_reason(&self) -> Option<String> {
        self.stages.iter().flat_map(|stage| &stage.actions).find_map(|action| match action {
            Action::Finish { reason, .. } => Some(reason.clone()),
            _ => None,
        })
    }
}

/// Successful reply of one target of a command. A target is, for example, a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum TargetReply {
    /// The command was accepted, or has been completed.
    Accepted,
    /// Result of a probe, from a source of evidence.
    #[serde(alias = "exhibit")]
    ProbeResult(ProbeResult),
    /// Reply of a process to a directive.
    #[serde(alias = "answered")]
    Directive(Box<DirectiveReply>),
}

/// Reason why one target of a command, such as a process, failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Failure {
    /// The target gave no answer within the time limit of the stage.
    TimedOut,
    /// The launcher or a source of evidence refused the command, for this reason. Another attempt would not help.
    Refused(String),
    /// The launcher or a source of evidence could not be reached, or failed temporarily, for this reason.
    Unreachable(String),
    /// The process ended before it had carried out the command.
    Gone,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::TimedOut => f.write_str("no answer in time"),
            Failure::Refused(why) | Failure::Unreachable(why) => f.write_str(why),
            Failure::Gone => f.write_str("the process ended"),
        }
    }
}

/// A finished command of a recovery, with the answer of each target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CommandOutcome {
    /// The action that the command requested.
    pub action: Action,
    /// The answer of each target: a reply, or the reason of the failure.
    pub results: BTreeMap<Domain, Result<TargetReply, Failure>>,
}

impl CommandOutcome {
    /// Creates the outcome of a finished command, from its action and the answers of its targets.
    #[must_use]
    pub const fn new(action: Action, results: BTreeMap<Domain, Result<TargetReply, Failure>>) -> CommandOutcome {
        CommandOutcome { action, results }
    }
}

/// The progress of a proposal that the kernel carries out. It is plain data, so it can be saved in a snapshot,
/// replayed and printed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PlanExecution {
    /// Name of the strategy that made the proposal.
    pub strategy: Name,
    /// The proposal with its current stages: `RecoveryStrategy::advance` may have replaced those that had not run yet.
    pub proposal: Proposal,
    /// Index, from 0, of the stage of the proposal that runs now or, between two stages, runs next.
    pub stage: usize,
    /// Finished commands of each finished stage, in the order of the stages.
    pub done: Vec<Vec<CommandOutcome>>,
    /// Job time at which the recovery began.
    pub began: JobTime,
}

impl PlanExecution {
    /// Creates the progress of a proposal that is about to begin its first stage.
    #[must_use]
    pub const fn new(strategy: Name, proposal: Proposal, began: JobTime) -> PlanExecution {
        PlanExecution { strategy, proposal, stage: 0, done: Vec::new(), began }
    }

    /// Returns the stage that has just ended, for `RecoveryStrategy::advance`; `None` before the first stage has ended.
    #[must_use]
    pub fn ended_stage(&self) -> Option<&Stage> {
        self.proposal.stages.get(self.stage.checked_sub(1)?)
    }
}

fn is_loss_of_rendezvous_service(fault: &Fault, view: &View) -> bool {
    matches!(&fault.primary_suspect().domain, Domain::Process(Role::Service(name)) if view.spec.rendezvous_service.as_ref() == Some(name))
}

/// A set of related faults, with the recoveries attempted so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Incident {
    /// Identifier of the incident.
    pub id: IncidentId,
    /// Job time at which the first fault of the incident was found.
    pub opened: JobTime,
    /// The faults, in the order in which they were found; at least one.
    pub faults: Vec<Fault>,
    /// Failed recoveries of this incident: name of the strategy, and reason of the failure. Includes failures that were
    /// charged to a strategy, because they happened during its recovery or soon after it.
    pub attempts: Vec<(Name, String)>,
}

impl Incident {
    /// Creates an incident without attempted recoveries. The incidents that the kernel opens have at least one fault.
    #[must_use]
    pub const fn new(id: IncidentId, opened: JobTime, faults: Vec<Fault>) -> Incident {
        Incident { id, opened, faults, attempts: Vec::new() }
    }

    /// Returns the fault that explains the other faults of the incident: the cause with the highest confidence and,
    /// among equals, with the earliest onset.
    ///
    /// `None` if the incident has only victims, so that its cause lies elsewhere.
    #[must_use]
    pub fn root(&self) -> Option<&Fault> {
        let causes = self.faults.iter().filter(|f| f.primary_suspect().is_cause());
        causes.min_by_key(|f| (std::cmp::Reverse(f.primary_suspect().confidence_permille), f.onset))
    }

    /// Returns the faults that caused the incident, the root first. If the root is certain, all other certain faults
    /// follow.
    ///
    /// Two ranks that were killed together both count as causes. Of ranks that merely ended, only the first one counts,
    /// because it explains the others: when one rank leaves a collective, its peers fail after it.
    #[must_use]
    pub fn causes(&self) -> Vec<&Fault> {
        let Some(root) = self.root() else { return Vec::new() };
        let certain = |f: &&Fault| {
            f.primary_suspect().is_certain() && root.primary_suspect().is_certain() && !std::ptr::eq(*f, root)
        };
        [root].into_iter().chain(self.faults.iter().filter(certain)).collect()
    }

    /// Returns true if operators requested all causes of the incident. A recovery from such an incident draws on no
    /// recovery budget, and the job does not end because of it as long as no process was stopped for it.
    #[must_use]
    pub fn is_requested_by_operator(&self) -> bool {
        let mut causes = self.faults.iter().filter(|f| f.primary_suspect().is_cause()).peekable();
        causes.peek().is_some() && causes.all(|f| f.by == OPERATOR)
    }

    /// Returns true if hosts without a lease have stopped ranks, and nothing else is wrong: all other suspects are victims.
    /// A recovery from such an incident draws on no recovery budget, and does not count as a restart.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        let by_fence = |fault: &Fault| fault.error.as_ref().is_some_and(|error| error.is_fence());
        self.faults.iter().any(by_fence) && !self.faults.iter().any(|fault| fault.primary_suspect().is_cause())
    }

    /// Returns true if no rank was lost and no process was stopped for the incident.
    ///
    /// The faults concern only hosts, devices, ranks that still train, victims that were charged to no recovery, the
    /// rendezvous service, or an operator's request. The job does not end because of such an incident.
    #[must_use]
    pub fn is_non_disruptive(&self, view: &View) -> bool {
        let is_harmless = |fault: &Fault| {
            let suspect = fault.primary_suspect();
            let is_of_a_host = matches!(suspect.domain, Domain::Node(_) | Domain::Device(..) | Domain::Topology(_));
            let is_victim = !suspect.is_cause() && !fault.is_charged();
            let goes_on = is_of_a_host || suspect.damage.is_still_training() || is_victim;
            fault.by == OPERATOR
                || suspect.damage.process != Health::Faulty && goes_on
                || is_loss_of_rendezvous_service(fault, view)
        };
        view.stopped_for(self.id).next().is_none() && self.faults.iter().all(is_harmless)
    }

    /// Returns true if the incident's only loss is the rendezvous service, and all ranks have joined and train.
    ///
    /// The service is [`JobSpec::rendezvous_service`](crate::job::JobSpec::rendezvous_service). A later request to the
    /// service will fail, which is then a separate fault. Returns false if a rank has not joined yet, because that rank
    /// would wait for the service forever.
    #[must_use]
    pub fn is_rendezvous_loss(&self, view: &View) -> bool {
        view.all_have_joined()
            && view.stopped_for(self.id).next().is_none()
            && self.faults.iter().all(|f| is_loss_of_rendezvous_service(f, view))
    }

    /// Returns true if all suspects of the incident, victims included, are still training, for example if ranks are
    /// only slow ([`Damage::is_still_training`](crate::detect::Damage::is_still_training)).
    #[must_use]
    pub fn is_still_training(&self) -> bool {
        self.faults.iter().all(|fault| fault.primary_suspect().damage.is_still_training())
    }

    /// Returns the hosts that ranks have to leave, because a cause of the incident is a faulty host or a faulty device
    /// of the host.
    #[must_use]
    pub fn broken_hosts(&self) -> BTreeSet<NodeId> {
        let broken = self
            .faults
            .iter()
            .map(Fault::primary_suspect)
            .filter(|s| s.is_cause() && s.damage.device == Health::Faulty);
        let host = |domain: &Domain| match domain {
            Domain::Node(node) | Domain::Device(node, _) => Some(node.clone()),
            _ => None,
        };
        broken.filter_map(|suspect| host(&suspect.domain)).collect()
    }

    /// Returns the ranks of the current world that have no healthy process any more.
    ///
    /// - A rank is lost only if a fault blames its current process. If a newer process has replaced the blamed one, the
    ///   rank is not lost, so that a recovery planned during another recovery does not stop a healthy replacement.
    /// - A rank is also lost if a recovery stopped its process and did not complete, because no other recovery starts
    ///   it again. This does not apply if that recovery belongs to another open incident.
    /// - If the incident cannot keep more faults ([`FAULTS_PER_INCIDENT_MAX`]), all ranks that have ended
    ///   unsuccessfully are lost.
    #[must_use]
    pub fn lost_ranks(&self, view: &View) -> BTreeSet<Rank> {
        let mut lost: BTreeSet<Rank> = view.stopped_for(self.id).collect();
        if self.faults.len() >= FAULTS_PER_INCIDENT_MAX {
            lost.extend(view.failed());
        }
        for fault in self.faults.iter().filter(|f| f.primary_suspect().damage.process == Health::Faulty) {
            match &fault.primary_suspect().domain {
                Domain::Process(Role::Rank(rank)) => {
                    let member = view.world.members().get(rank);
                    lost.extend(member.filter(|m| fault.incarnation() >= Some(m.incarnation)).map(|_| *rank));
                }
                outer @ (Domain::Node(_) | Domain::Device(..)) => {
                    let ranks = view.world.members().keys();
                    lost.extend(ranks.filter(|r| view.contains(outer, &Domain::Process(Role::Rank(**r)))));
                }
                Domain::Guard(node) => {
                    let ends_with_it = |rank: &Rank| {
                        let proc = view.proc(&Role::Rank(*rank));
                        proc.is_some_and(|proc| proc.unguarded && proc.node.as_ref() == Some(node))
                    };
                    lost.extend(view.world.members().keys().copied().filter(ends_with_it));
                }
                _ => {}
            }
        }
        lost
    }
}
