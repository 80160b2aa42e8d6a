//! Stages that concern everybody: ranks and services start, everything ends. Strategies and the kernel's own plans share them.
//!
//! They choose nothing: which world and why is said by who uses them.

use super::{Action, Need, Stage};
use crate::job::{Name, NodeId, ProcId, Role, WorkerSpec, World};
use crate::kernel::View;
use crate::launch::{DUMP_VARIABLE, MEMORY_EVERY_VARIABLE, MEMORY_LATE_VARIABLE, Place, StartBatch, StartOrder};
use std::sync::Arc;
use std::time::Duration;

/// How much longer than its grace time a stop may take: a killed process still has to tear its memory down.
pub(crate) const STOP_MARGIN: Duration = Duration::from_secs(20);

/// Enters a world and starts all of its ranks, where it says, and the job's services, where its first rank is.
pub(crate) fn start_all(name: Name, world: Arc<World>, view: &View) -> Stage {
    let services = view.spec.services.keys().filter_map(|name| service(name, &world, view));
    let spec = worker(view);
    let ranks = world.members().iter().map(|(rank, member)| StartOrder {
        proc: ProcId { role: Role::Rank(*rank), incarnation: member.incarnation },
        place: place(member.node.as_ref()),
        spec: Arc::clone(&spec),
    });
    let batch = StartBatch { world: Arc::clone(&world), orders: services.chain(ranks).collect() };
    let policy = &view.spec.policy;
    let start = Action::Start { batch, until: policy.ready };
    Stage::new(name, policy.start_within, vec![Action::Enter(world), start])
}

/// The training program, which is told where checkpoints of [`Dump`](super::Dump) are, and how often to keep one in memory.
pub(crate) fn worker(view: &View) -> Arc<WorkerSpec> {
    let policy = &view.spec.policy;
    let dir = policy.dump_dir.as_ref().and_then(|dir| dir.to_str()).map(|dir| (DUMP_VARIABLE, dir.to_owned()));
    let memory = policy.memory.iter().flat_map(|memory| {
        [(MEMORY_EVERY_VARIABLE, memory.every.to_string()), (MEMORY_LATE_VARIABLE, memory.late.as_str().to_owned())]
    });
    let told: Vec<_> = dir.into_iter().chain(memory).collect();
    if told.is_empty() {
        return Arc::clone(&view.spec.worker);
    }
    let worker = WorkerSpec::clone(&view.spec.worker);
    Arc::new(told.into_iter().fold(worker, |worker, (name, value)| worker.with_env(name, value)))
}

/// The start of a service of the job, where the world's first rank is.
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

/// Stops everything, and then the job is over, whatever became of that: what does not end in time must not keep it.
pub(crate) fn end_all(view: &View, grace: Duration, ok: bool, reason: String) -> Vec<Stage> {
    let stop = Action::Stop { procs: view.alive().collect(), grace, exact: true };
    let stop = Stage { need: Need::AtLeast(0), ..Stage::new("stop", grace + STOP_MARGIN, vec![stop]) };
    vec![stop, Stage::new("finish", STOP_MARGIN, vec![Action::Finish { ok, reason }])]
}
