//! The current status of the job, for people and dashboards.
//!
//! It is derived from the kernel's state and changes nothing.

use super::budget::Budget;
use super::calendar::Calendar;
use super::hosts::Cordon;
use super::in_memory_checkpoints::Memory;
use super::ledger::Ledger;
use super::lifecycle::Life;
use super::operator::Paused;
use super::orders::Orders;
use super::report::IncidentReport;
use super::shrunk_periods::SmallerTimes;
use super::{MemoryFigures, OrderReport, ShrunkPeriod};
use crate::job::{Generation, JobTime, Mode, Name, NodeId, Permission, ProcId, Rank, Role, WallTime};
use crate::recover::{JobProfile, RecoveryStrategy, cannot, unproven};
use crate::state::{LoopPosition, NodeState, Phase, ReplicaFigures, View};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of processes in `JobStatus::not_running`, the list of a job's processes that do not run. Further ones
/// are not listed.
pub const NOT_RUNNING_SHOWN_MAX: usize = 64;

/// Maximum number of closed incidents in a job status: the newest ones. Older incidents are in the job report and the
/// job's log.
pub const INCIDENTS_SHOWN_MAX: usize = 32;

/// Current status of a job, for operators and tools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobStatus {
    /// Name of the job.
    pub job: Name,
    /// Job time of the last input of the decision kernel.
    pub at: JobTime,
    /// Wall-clock time of `at`, if known.
    #[serde(default)]
    pub wall: Option<WallTime>,
    /// Phase of the job's life: `listing`, `starting`, `training`, `ending`, `stopping` or `over`.
    pub life: String,
    /// Mode of the runtime: it carries out its decisions (enforce), or only reports them (dry run).
    pub mode: Mode,
    /// Set while the runtime is paused: since when, by whose order, and why.
    pub paused: Option<Paused>,
    /// Generation (number) of the current world, the set of ranks that train together.
    pub generation: Generation,
    /// Number of ranks in the current world. Absent ranks are not counted.
    pub ranks: u32,
    /// Ranks that the job has continued to train without. They return when the world grows again, or when all ranks
    /// restart.
    #[serde(default)]
    pub absent: Vec<Rank>,
    /// Periods in which the job trained with fewer ranks than specified. If the job still trains with fewer ranks, the
    /// last period has no end.
    #[serde(default)]
    pub smaller: Vec<ShrunkPeriod>,
    /// Number of ranks whose process is meant to run and was last reported as running.
    pub running: u32,
    /// Number of running ranks that are in their step loop and have a control link. The processes of these ranks can
    /// continue when other ranks fail.
    #[serde(default)]
    pub in_loop: u32,
    /// Smallest and largest number of the last completed step over all running ranks; `None` if no steps are reported.
    pub steps: Option<(u64, u64)>,
    /// Number of the step with which training would continue from the newest in-memory checkpoint that is complete on
    /// all ranks. `None` if there is no complete checkpoint.
    #[serde(default)]
    pub in_memory: Option<u64>,
    /// Cost of the in-memory checkpoints so far: their size in bytes, and how often ranks waited for or skipped a copy.
    #[serde(default)]
    pub memory: Option<MemoryFigures>,
    /// Cost so far of the checksums with which ranks prove that they hold the same state, if ranks report any.
    #[serde(default)]
    pub replicas: Option<ReplicaFigures>,
    /// Reason why some rank has no proven replica (another rank that provably holds the same state). If a rank without
    /// a replica is lost, its state comes from a checkpoint. `None` if each rank has a proven replica.
    #[serde(default)]
    pub unproven: Option<String>,
    /// Processes that do not run, the first [`NOT_RUNNING_SHOWN_MAX`].
    pub not_running: Vec<ProcLine>,
    /// Hosts of the job, with their state.
    pub nodes: Vec<NodeLine>,
    /// Number of recoveries that counted as restarts.
    pub restarts: u32,
    /// Number of recoveries that the job's recovery budget still allows.
    pub budget_left: u32,
    /// Permission of each strategy, by name.
    pub permissions: BTreeMap<Name, Permission>,
    /// Recovery strategies that can never work for this job, whatever their permission: the reason, by name of the
    /// strategy.
    ///
    /// See [`unsupported_reason`](crate::recover::RecoveryStrategy::unsupported_reason).
    #[serde(default)]
    pub cannot: BTreeMap<Name, String>,
    /// Open incidents. If the decision about one is held (not carried out for now), its report states the reason.
    pub incidents: Vec<IncidentReport>,
    /// The newest [`INCIDENTS_SHOWN_MAX`] closed incidents, newest last.
    #[serde(default)]
    pub recent: Vec<IncidentReport>,
    /// Number of older closed incidents, which `recent` does not list.
    #[serde(default)]
    pub recent_left_out: u64,
    /// Orders of operators and their results: the newest [`ORDERS_KEPT_MAX`](super::ORDERS_KEPT_MAX), newest last.
    #[serde(default)]
    pub orders: Vec<OrderReport>,
    /// Number of older operators' orders that `orders` leaves out; they are in the job's log only.
    #[serde(default)]
    pub orders_left_out: u64,
    /// Output directory of the job on each host, with a subdirectory for each process. The runtime fills it in.
    #[serde(default)]
    pub output_dirs: BTreeMap<NodeId, String>,
}

/// Status of one process of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcLine {
    /// Identifier of the process: its rank or service, and its incarnation (the number of its start).
    pub proc: ProcId,
    /// Phase of the process's life, as text, such as `running`.
    pub phase: String,
    /// Host of the process.
    pub node: Option<NodeId>,
    /// Process id on the host of the process, if known.
    pub pid: Option<u32>,
    /// Number of the last training step that the process completed.
    pub step: Option<u64>,
    /// Output directory of the process on its host, with `stdout.log` and `stderr.log`. The runtime fills this field
    /// in.
    #[serde(default)]
    pub output: Option<String>,
}

/// Status of one host of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeLine {
    /// Name of the host.
    pub node: NodeId,
    /// State of the host, which determines if it can be used.
    pub state: NodeState,
    /// Number of ranks that the host can hold.
    pub slots: u32,
    /// Reason why a drain or a recovery took the host out of the job; `None` if neither did.
    pub taken_out: Option<String>,
}

/// Reads what the status of a job consists of.
pub(super) struct StatusReader<'a> {
    pub(super) view: &'a View,
    pub(super) life: Life,
    pub(super) paused: &'a Option<Paused>,
    pub(super) cordons: &'a BTreeMap<NodeId, Cordon>,
    pub(super) budget: &'a Budget,
    pub(super) ledger: &'a Ledger,
    pub(super) calendar: &'a Calendar,
    pub(super) memory: &'a Memory,
    pub(super) smaller: &'a SmallerTimes,
    pub(super) orders: &'a Orders,
    pub(super) strategies: &'a [Box<dyn RecoveryStrategy>],
}

impl StatusReader<'_> {
    /// Returns the current status of the job.
    pub(super) fn status(&self) -> JobStatus {
        let StatusReader { view, cordons, life, paused, ledger, calendar, memory, smaller, orders, .. } = self;
        let runs = |p: &crate::state::Proc| p.phase == Phase::Running;
        let running = view.training().filter_map(|(_, p)| p.step);
        let steps = running.fold(None, |steps: Option<(u64, u64)>, step| {
            Some(steps.map_or((step, step), |(low, high)| (low.min(step), high.max(step))))
        });
        let not_running = view.procs.iter().filter(|(_, p)| !runs(p)).take(NOT_RUNNING_SHOWN_MAX);
        let in_loop =
            view.training().filter(|(_, p)| p.link.as_ref().is_some_and(|link| link.position == LoopPosition::InLoop));
        let policy = &view.spec.policy;
        let job = JobProfile::of_view(view);
        let is_known = *life != Life::New; // before, nothing is known of the job
        let line = |(role, p): (&Role, &crate::state::Proc)| ProcLine {
            proc: ProcId { role: role.clone(), incarnation: p.incarnation },
            phase: p.phase.to_string(),
            node: p.node.clone(),
            pid: p.pid,
            step: p.step,
            output: None,
        };
        let (recent, recent_left_out) = ledger.recent(INCIDENTS_SHOWN_MAX);
        let host = |status: &crate::state::NodeStatus| NodeLine {
            node: status.node.clone(),
            state: status.state,
            slots: status.slots,
            taken_out: cordons.get(&status.node).map(|cordon| cordon.reason.clone()),
        };
        JobStatus {
            job: view.spec.name.clone(),
            at: view.now,
            wall: calendar.wall(view.now),
            life: life.as_str().to_owned(),
            mode: policy.mode,
            paused: (*paused).clone(),
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
            budget_left: self.budget.left(),
            permissions: self.strategies.iter().map(|s| (s.name(), policy.permission(&s.name()))).collect(),
            cannot: if is_known { cannot(self.strategies, &job) } else { BTreeMap::new() },
            incidents: ledger.open().map(|report| report.dated(calendar)).collect(),
            recent: recent.map(|report| report.dated(calendar)).collect(),
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
            Life::New | Life::Listing | Life::Resuming => "listing",
            Life::Starting => "starting",
            Life::Training => "training",
            Life::Ending => "ending",
            Life::Stopping => "stopping",
            Life::Over => "over",
        }
    }
}
