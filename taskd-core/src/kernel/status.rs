//! The job as it stands, for people and dashboards.
//!
//! It is read off the kernel's state and changes nothing.

use super::ending::Life;
use super::operator::Paused;
use super::report::IncidentReport;
use super::{Kernel, MemoryFigures, OrderReport, ReplicaFigures, Smaller, State};
use crate::job::{Generation, JobTime, Mode, Name, NodeId, Permission, ProcId, Rank, Role, WallTime};
use crate::launch::{NodeState, Phase, Point};
use crate::recover::{Beforehand, cannot, unproven};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most processes that a status names one by one.
pub const NOT_RUNNING_SHOWN_MAX: usize = 64;

/// Most incidents that are over and that a status shows; older ones stand in the report, and in the log.
pub const INCIDENTS_SHOWN_MAX: usize = 32;

/// A job as it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobStatus {
    /// The job's name.
    pub job: Name,
    /// The time of the last input.
    pub at: JobTime,
    /// The same by the calendar.
    #[serde(default)]
    pub wall: Option<WallTime>,
    /// Where the job is in its life: `listing`, `starting`, `training`, `ending`, `stopping` or `over`.
    pub life: String,
    /// Whether the runtime acts.
    pub mode: Mode,
    /// Since when, by whom and why nothing is acted on.
    pub paused: Option<Paused>,
    /// The world in force.
    pub generation: Generation,
    /// Ranks of that world.
    pub ranks: u32,
    /// Ranks that have left it, since it shrank: they come back when it grows, or when all start again.
    #[serde(default)]
    pub absent: Vec<Rank>,
    /// When the job trained with fewer ranks than it has; the last one without an end, where it still does.
    #[serde(default)]
    pub smaller: Vec<Smaller>,
    /// Those whose process runs.
    pub running: u32,
    /// Those of them with a control link that are in their step loop: they need not be started again when others fail.
    #[serde(default)]
    pub in_loop: u32,
    /// The smallest and the largest step that a running rank has completed, where steps are seen.
    pub steps: Option<(u64, u64)>,
    /// The step of the newest checkpoint that is whole in the memory of all ranks, where they keep any.
    #[serde(default)]
    pub in_memory: Option<u64>,
    /// What those checkpoints have cost so far.
    #[serde(default)]
    pub memory: Option<MemoryFigures>,
    /// What the checksums of the ranks' states have cost so far, where they report any.
    #[serde(default)]
    pub replicas: Option<ReplicaFigures>,
    /// Why a rank has no proven replica, if one has none: a lost rank's state then comes from a checkpoint.
    #[serde(default)]
    pub unproven: Option<String>,
    /// Processes that do not run, the first [`NOT_RUNNING_SHOWN_MAX`].
    pub not_running: Vec<ProcLine>,
    /// The hosts.
    pub nodes: Vec<NodeLine>,
    /// Recoveries that counted.
    pub restarts: u32,
    /// Recoveries that the budget still allows.
    pub budget_left: u32,
    /// What each strategy may do by itself.
    pub permissions: BTreeMap<Name, Permission>,
    /// Why a strategy [cannot](crate::recover::RecoveryStrategy::cannot) work for this job, whatever it may do.
    #[serde(default)]
    pub cannot: BTreeMap<Name, String>,
    /// Incidents that are not over; what one is held for stands in it.
    pub incidents: Vec<IncidentReport>,
    /// Incidents that are over, the newest [`INCIDENTS_SHOWN_MAX`], the newest last.
    #[serde(default)]
    pub recent: Vec<IncidentReport>,
    /// Incidents that are over and older than these.
    #[serde(default)]
    pub recent_left_out: u64,
    /// What operators have ordered, and what became of it: the newest [`ORDERS_KEPT_MAX`](super::ORDERS_KEPT_MAX), the newest
    /// last.
    #[serde(default)]
    pub orders: Vec<OrderReport>,
    /// Older orders, which stand in the log only.
    #[serde(default)]
    pub orders_left_out: u64,
    /// Where the output of its processes is, by host: each has a directory of its own there. The runtime fills it in.
    #[serde(default)]
    pub output_dirs: BTreeMap<NodeId, String>,
}

/// One process of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcLine {
    /// Which.
    pub proc: ProcId,
    /// Where it is in its life.
    pub phase: String,
    /// On which host.
    pub node: Option<NodeId>,
    /// Its process id there.
    pub pid: Option<u32>,
    /// The last step that it completed.
    pub step: Option<u64>,
    /// Where its output is: the directory of its `stdout.log` and `stderr.log` on that host. The runtime fills it in.
    #[serde(default)]
    pub output: Option<String>,
}

/// One host of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeLine {
    /// Which.
    pub node: NodeId,
    /// Whether it can be used.
    pub state: NodeState,
    /// How many ranks it can hold.
    pub slots: u32,
    /// Why it was taken out of the job, if it was.
    pub taken_out: Option<String>,
}

impl Kernel {
    /// The job as it stands.
    #[must_use]
    pub fn status(&self) -> JobStatus {
        let State { view, cordons, life, paused, ledger, memory, smaller, orders, .. } = &self.state;
        let runs = |p: &super::Proc| p.phase == Phase::Running;
        let running = view.training().filter_map(|(_, p)| p.step);
        let steps = running.fold(None, |steps: Option<(u64, u64)>, step| {
            Some(steps.map_or((step, step), |(low, high)| (low.min(step), high.max(step))))
        });
        let not_running = view.procs.iter().filter(|(_, p)| !runs(p)).take(NOT_RUNNING_SHOWN_MAX);
        let in_loop = view.training().filter(|(_, p)| p.link.as_ref().is_some_and(|link| link.at == Point::Loop));
        let policy = &view.spec.policy;
        let job = Beforehand::of_view(view);
        let is_known = *life != Life::New; // before, nothing is known of the job
        let line = |(role, p): (&Role, &super::Proc)| ProcLine {
            proc: ProcId { role: role.clone(), incarnation: p.incarnation },
            phase: p.phase.to_string(),
            node: p.node.clone(),
            pid: p.pid,
            step: p.step,
            output: None,
        };
        let (recent, recent_left_out) = ledger.recent(INCIDENTS_SHOWN_MAX);
        let host = |status: &crate::launch::NodeStatus| NodeLine {
            node: status.node.clone(),
            state: status.state,
            slots: status.slots,
            taken_out: cordons.get(&status.node).map(|cordon| cordon.reason.clone()),
        };
        JobStatus {
            job: view.spec.name.clone(),
            at: view.now,
            wall: self.wall(view.now),
            life: life.as_str().to_owned(),
            mode: policy.mode,
            paused: paused.clone(),
            generation: view.world.generation(),
            ranks: view.world.size(),
            smaller: smaller.all(),
            absent: view.world.absent().keys().copied().collect(),
            running: u32::try_from(view.training().count()).unwrap_or(u32::MAX),
            memory: memory.figures(),
            replicas: view.replicas.figures(),
            unproven: view.replicas.figures().and_then(|_| unproven(view)),
            in_memory: memory.whole.map(|whole| whole.step),
            in_loop: u32::try_from(in_loop.count()).unwrap_or(u32::MAX),
            steps,
            not_running: not_running.map(line).collect(),
            nodes: view.nodes.values().map(host).collect(),
            restarts: view.world.restarts(),
            budget_left: self.budget_left(),
            permissions: self.strategies.iter().map(|s| (s.name(), policy.permission(&s.name()))).collect(),
            cannot: if is_known { cannot(&self.strategies, &job) } else { BTreeMap::new() },
            incidents: ledger.open().map(|report| self.dated(report)).collect(),
            recent: recent.map(|report| self.dated(report)).collect(),
            recent_left_out,
            orders: orders.kept(),
            orders_left_out: orders.left_out(),
            output_dirs: BTreeMap::new(),
        }
    }
}

impl Life {
    const fn as_str(self) -> &'static str {
        match self {
            Life::New | Life::Listing => "listing",
            Life::Starting => "starting",
            Life::Training => "training",
            Life::Ending => "ending",
            Life::Stopping => "stopping",
            Life::Over => "over",
        }
    }
}
