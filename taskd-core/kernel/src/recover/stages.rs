//! Stages that concern all processes: start all ranks and services, end everything. Shared by the strategies and the
//! kernel's own plans.
//!
//! The caller chooses the world and gives the reason.

use super::{Action, Quorum, Stage};
use crate::job::{Name, NodeId, ProcId, Role, WorkerSpec, World};
use crate::state::{
    CHECKPOINT_DIR_VARIABLE, IN_MEMORY_CHECKPOINT_EVERY_VARIABLE, IN_MEMORY_CHECKPOINT_LATE_VARIABLE, Place,
    StartBatch, StartOrder, View,
};
use std::sync::Arc;
use std::time::Duration;

/// Time that a stop may take beyond its grace period: a killed process still has to release its memory.
pub(crate) const STOP_MARGIN: Duration = Duration::from_secs(20);

/// Enters a world and starts all of its ranks and the job's services.
///
/// Ranks start on the hosts that the world names, services on the host of its first rank.
pub(crate) fn start_all(name: Name, world: Arc<World>, view: &View) -> Stage {
    let services = view.spec.services.keys().filter_map(|name| service(name, &world, view));
    let spec = worker(view);
    let ranks = world.members().iter().map(|(rank, member)| StartOrder {
        proc: ProcId { role: Role::Rank(*rank), incarnation: member.incarnation },
        place: place(member.node.as_ref()),
        spec: Arc::clone(&spec),
    });
    let batch = StartBatch { world: Arc::clone(&world), starts: services.chain(ranks).collect() };
    let policy = &view.spec.policy;
    let start = Action::Start { batch, until: policy.ready };
    Stage::new(name, policy.start_timeout, vec![Action::Enter(world), start])
}

/// Returns the specification of the training program, with environment variables for checkpoints.
///
/// These name the checkpoint directory of [`EmergencyCheckpoint`](super::EmergencyCheckpoint) and the interval of
/// in-memory checkpoints.
pub(crate) fn worker(view: &View) -> Arc<WorkerSpec> {
    let policy = &view.spec.policy;
    let dir = policy
        .checkpoint_dir
        .as_ref()
        .and_then(|dir| dir.to_str())
        .map(|dir| (CHECKPOINT_DIR_VARIABLE, dir.to_owned()));
    let memory = policy.in_memory_checkpoints.iter().flat_map(|memory| {
        [
            (IN_MEMORY_CHECKPOINT_EVERY_VARIABLE, memory.every.to_string()),
            (IN_MEMORY_CHECKPOINT_LATE_VARIABLE, memory.late.as_str().to_owned()),
        ]
    });
    let told: Vec<_> = dir.into_iter().chain(memory).collect();
    if told.is_empty() {
        return Arc::clone(&view.spec.worker);
    }
    let worker = WorkerSpec::clone(&view.spec.worker);
    Arc::new(told.into_iter().fold(worker, |worker, (name, value)| worker.with_env(name, value)))
}

/// Returns the start order of a service of the job, on the host of the world's first rank.
pub(crate) fn service(name: &Name, world: &World, view: &View) -> Option<StartOrder> {
    let first = world.members().values().next().and_then(|member| member.node.as_ref());
    let role = Role::Service(name.clone());
    let incarnation = view.next_incarnation(&role);
    let spec = Arc::clone(view.spec.services.get(name)?);
    Some(StartOrder { proc: ProcId { role, incarnation }, place: place(first), spec })
}

pub(crate) fn place(node: Option<&NodeId>) -> Place {
    node.cloned().map_or(Place::anywhere(), Place::On)
}

/// Stops all processes and then ends the job, whether or not the stop succeeded.
///
/// A process that does not end in time must not delay the end of the job.
pub(crate) fn end_all(view: &View, grace: Duration, ok: bool, reason: String) -> Vec<Stage> {
    let stop = Action::Stop { procs: view.alive().collect(), grace, exact: true };
    let stop = Stage { quorum: Quorum::AtLeast(0), ..Stage::new("stop", grace + STOP_MARGIN, vec![stop]) };
    vec![stop, Stage::new("finish", STOP_MARGIN, vec![Action::Finish { ok, reason }])]
}
