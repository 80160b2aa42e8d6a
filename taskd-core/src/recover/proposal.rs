//! Proposals as data: stages of actions, what they touch, what they cost, and how far a run of one has come.

use crate::detect::{Fault, OPERATOR, Sound};
use crate::job::seconds::Seconds;
use crate::job::{Counted, Domain, IncidentId, JobTime, Name, NodeId, OrderId, ProcId, Rank, Ready, Role, World};
use crate::kernel::{Denial, Event, FAULTS_PER_INCIDENT_MAX, Taken, View};
use crate::launch::{Answered, DirectBatch, StartBatch};
use crate::trace::switches::Requested;
use crate::trace::{Ask, Exhibit};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// One thing to be done. A plan is made of these; a command carries one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Action {
    /// Start processes. Answered for each when it is `until`, or when it is gone.
    Start {
        /// The processes and their world.
        batch: StartBatch,
        /// What counts as started.
        until: Ready,
    },
    /// Stop processes. Answered for each when it has ended.
    Stop {
        /// Which; one that is gone already is answered at once.
        procs: Vec<ProcId>,
        /// Time between SIGTERM and SIGKILL.
        #[serde(with = "Seconds")]
        grace: Duration,
        /// True: a process has ended when it has exited, so that memory, ports and devices are free. False: already
        /// when it is dead, which is known earlier: by 80 ms and more for a process of 500 MiB.
        exact: bool,
    },
    /// Make this world the one in force. Takes effect in the kernel at once.
    Enter(Arc<World>),
    /// Ask sources for evidence. Answered for each domain, by silence at the latest.
    Collect(Ask),
    /// Tell processes that run what to do. Answered for each when it has done it, or when it is gone.
    Direct(DirectBatch),
    /// Tell the launcher that an exit is in the log and may be forgotten.
    Acknowledge(ProcId),
    /// Tell people and dashboards.
    Announce(Box<Event>),
    /// End the job. The last command of a kernel.
    Finish {
        /// Whether training ended as it should.
        ok: bool,
        /// Why it ends, in one sentence.
        reason: String,
    },
    /// Take hosts out of the job: nothing new starts there. Takes effect in the kernel at once.
    Cordon {
        /// Which.
        nodes: BTreeSet<NodeId>,
        /// Why, for people.
        reason: String,
    },
    /// Answer an operator's order.
    Reply {
        /// Which.
        order: OrderId,
        /// What follows from it, or why it is not followed.
        result: Result<Taken, Denial>,
    },
    /// Switch what all ranks record.
    Switch {
        /// Each kind on or off.
        kinds: Requested,
        /// Who wants it.
        by: Name,
        /// It was in force under an earlier supervisor: what was asked of this one is newer.
        again: bool,
    },
}

/// How many targets of a stage must have been answered well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Need {
    /// All of them.
    All,
    /// At least so many.
    AtLeast(u32),
}

/// Actions that run side by side; the next stage follows when `need` of their targets have been answered well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stage {
    /// For people, and for [`RecoveryStrategy::advance`](super::RecoveryStrategy::advance) to tell stages apart.
    pub name: Name,
    /// What is done.
    pub actions: Vec<Action>,
    /// How much of it must succeed.
    pub need: Need,
    /// A target that has not answered by then has failed. The kernel watches this, not launcher or shell.
    #[serde(with = "Seconds")]
    pub within: Duration,
}

impl Stage {
    /// A stage of which everything must succeed.
    pub fn new(name: impl Into<Name>, within: Duration, actions: Vec<Action>) -> Stage {
        Stage { name: name.into(), actions, need: Need::All, within }
    }
}

/// What a recovery is expected to cost. Ordered: lost work counts before downtime, downtime before removed nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cost {
    /// Whether the job itself is given up: dearer than anything else.
    pub ends_job: bool,
    /// Training that has to be done again.
    #[serde(with = "Seconds")]
    pub lost_work: Duration,
    /// Time without training.
    #[serde(with = "Seconds")]
    pub downtime: Duration,
    /// Hosts that the job will no longer use.
    pub nodes_removed: u32,
}

impl Cost {
    /// Time without training, and nothing else.
    #[must_use]
    pub const fn downtime(downtime: Duration) -> Cost {
        Cost { ends_job: false, lost_work: Duration::ZERO, downtime, nodes_removed: 0 }
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

/// A way to mend an incident.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Proposal {
    /// What is done, in order.
    pub stages: Vec<Stage>,
    /// All that it disturbs. Two recoveries whose domains overlap never run at one time.
    pub touches: Vec<Domain>,
    /// What it is expected to cost; the cheapest allowed proposal wins.
    pub cost: Cost,
    /// Whether it draws on the recovery budget and counts as a restart.
    pub counted: Counted,
    /// Why this would help, in one sentence.
    pub reason: String,
}

impl Proposal {
    /// The reason with which it ends the job, if it does.
    #[must_use]
    pub fn last_words(&self) -> Option<String> {
        self.stages.iter().flat_map(|stage| &stage.actions).find_map(|action| match action {
            Action::Finish { reason, .. } => Some(reason.clone()),
            _ => None,
        })
    }
}

/// What came of one target of a command when it went well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Output {
    /// It was taken on, or has come about.
    Accepted,
    /// What a source found.
    Exhibit(Exhibit),
    /// What came of a directive.
    Answered(Box<Answered>),
}

/// Why one target of a command failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Failure {
    /// No answer within the stage's time.
    TimedOut,
    /// The launcher or source said no, and trying again would not help.
    Refused(String),
    /// The launcher or source could not be reached or failed for now.
    Unreachable(String),
    /// The process ended before it got there.
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

/// A finished command of a run, with the answer of each target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// What was asked.
    pub action: Action,
    /// What each target answered.
    pub results: BTreeMap<Domain, Result<Output, Failure>>,
}

/// A proposal that is being carried out: data only, so it snapshots, replays and prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Whose proposal it is.
    pub strategy: Name,
    /// The proposal, with what `advance` has put in place of its rest.
    pub proposal: Proposal,
    /// Index of the stage that runs, or comes next.
    pub stage: usize,
    /// The finished stages' commands.
    pub done: Vec<Vec<Done>>,
    /// When it began.
    pub began: JobTime,
}

impl Run {
    /// The stage that has just ended, for `advance`.
    #[must_use]
    pub fn ended_stage(&self) -> Option<&Stage> {
        self.proposal.stages.get(self.stage.checked_sub(1)?)
    }
}

fn is_of_the_meeting(fault: &Fault, view: &View) -> bool {
    matches!(&fault.prime().domain, Domain::Process(Role::Service(name)) if view.spec.meeting.as_ref() == Some(name))
}

/// Faults that belong together, and what has been tried about them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Incident {
    /// Its number.
    pub id: IncidentId,
    /// When its first fault was found.
    pub opened: JobTime,
    /// The faults, in the order in which they were found, at least one.
    pub faults: Vec<Fault>,
    /// Runs that failed: which strategy, and why.
    pub attempts: Vec<(Name, String)>,
}

impl Incident {
    /// The fault that explains the others: the surest one; among equals the one with the earliest onset.
    ///
    /// `None` when all that is known are victims: something failed elsewhere.
    #[must_use]
    pub fn root(&self) -> Option<&Fault> {
        let causes = self.faults.iter().filter(|f| f.prime().is_cause());
        causes.min_by_key(|f| (std::cmp::Reverse(f.prime().confidence_permille), f.onset))
    }

    /// The faults that are to blame, the root first: the root, and beside a certain one all that are certain as well.
    ///
    /// Two ranks that were killed together are both to blame. Of ranks that merely ended, the first one explains the
    /// others: when one leaves a collective, its peers fail after it.
    #[must_use]
    pub fn causes(&self) -> Vec<&Fault> {
        let Some(root) = self.root() else { return Vec::new() };
        let certain = |f: &&Fault| f.prime().is_certain() && root.prime().is_certain() && !std::ptr::eq(*f, root);
        [root].into_iter().chain(self.faults.iter().filter(certain)).collect()
    }

    /// Whether all that is to be mended is an operator's wish: no budget pays for it, and as long as nothing was stopped for it
    /// the job does not end over it.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        let mut causes = self.faults.iter().filter(|f| f.prime().is_cause()).peekable();
        causes.peek().is_some() && causes.all(|f| f.by == OPERATOR)
    }

    /// Whether no rank was lost: all that is known is what was said of hosts and their devices, of ranks that still train,
    /// and what an operator wants. As long as nothing was stopped for it the job does not end over it.
    #[must_use]
    pub fn harms_nobody(&self, view: &View) -> bool {
        let is_harmless = |fault: &Fault| {
            let suspect = fault.prime();
            let is_of_a_host = matches!(suspect.domain, Domain::Node(_) | Domain::Device(..));
            let is_victim = !suspect.is_cause() && !fault.is_charged();
            let goes_on = is_of_a_host || suspect.damage.still_trains() || is_victim;
            fault.by == OPERATOR || suspect.damage.process != Sound::No && goes_on || is_of_the_meeting(fault, view)
        };
        view.stopped_for(self.id).next().is_none() && self.faults.iter().all(is_harmless)
    }

    /// Whether nothing is known but that the service is gone at which ranks meet ([`JobSpec::meeting`](crate::job::JobSpec::meeting)),
    /// and all ranks have met and train: who asks it for something will fail, and that is a fault of its own. Ranks that have not met
    /// would wait there for nobody.
    #[must_use]
    pub fn is_of_the_meeting(&self, view: &View) -> bool {
        view.all_have_met()
            && view.stopped_for(self.id).next().is_none()
            && self.faults.iter().all(|f| is_of_the_meeting(f, view))
    }

    /// Whether all that was blamed [still trains](crate::detect::Damage::still_trains), victims and all: it is slow, for instance.
    #[must_use]
    pub fn still_trains(&self) -> bool {
        self.faults.iter().all(|fault| fault.prime().damage.still_trains())
    }

    /// Hosts that are to be left: a cause of the incident is a host, or a device, that does not work.
    #[must_use]
    pub fn broken_hosts(&self) -> BTreeSet<NodeId> {
        let broken = self.faults.iter().map(Fault::prime).filter(|s| s.is_cause() && s.damage.device == Sound::No);
        let host = |domain: &Domain| match domain {
            Domain::Node(node) | Domain::Device(node, _) => Some(node.clone()),
            _ => None,
        };
        broken.filter_map(|suspect| host(&suspect.domain)).collect()
    }

    /// Ranks of the world in force that have no sound process any more, if their process is still the one that was
    /// blamed. A rank whose process a newer one has replaced is not lost any more, so that a plan made in the middle of
    /// another does not stop a healthy replacement. One whose process was stopped by a plan that did not come to its end
    /// is lost as well, unless it was another open incident's: nobody else starts it again. An incident that cannot keep
    /// more faults ([`FAULTS_PER_INCIDENT_MAX`]) speaks for all ranks that have ended badly.
    #[must_use]
    pub fn lost(&self, view: &View) -> BTreeSet<Rank> {
        let mut lost: BTreeSet<Rank> = view.stopped_for(self.id).collect();
        if self.faults.len() >= FAULTS_PER_INCIDENT_MAX {
            lost.extend(view.failed());
        }
        for fault in self.faults.iter().filter(|f| f.prime().damage.process == Sound::No) {
            match &fault.prime().domain {
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
