//! In-process recovery: strategies that keep the surviving processes.
//!
//! Survivors abort the broken groups, join new ones, and all ranks are synchronized to the newest step that some
//! replica has committed. Or the survivors save that step before all ranks restart.
//!
//! This module holds what these strategies share. [`Recover`], [`Retry`], [`Shrink`], [`Grow`] and
//! [`EmergencyCheckpoint`] decide which ranks are started and on which hosts. The code copies no state and performs no
//! I/O: it only produces directives.

mod checkpoint_shards;
mod emergency_checkpoint;
mod grow;
mod preconditions;
mod recover;
mod replacements;
mod replicas;
mod retry;
mod shrink;
mod state_sources;
mod state_sync;

pub use emergency_checkpoint::EmergencyCheckpoint;
pub use grow::Grow;
pub use recover::Recover;
pub(super) use replicas::replica_sets;
pub use replicas::unproven;
use replicas::{proven_sets, that_differ};
pub use retry::Retry;
pub use shrink::Shrink;

use super::{Action, Advance, CommandOutcome, Incident, PlanExecution, Stage, stages};
use crate::job::{Domain, Name, ProcId, Rank, Ready, Role, World};
use crate::state::current_name;
use crate::state::{
    Directive, DirectiveBatch, LoopPosition, Peer, Phase, Proc, StartBatch, StartOrder, View, WorkerState,
};
use preconditions::{NO_RENDEZVOUS, cannot_meet, cannot_replace, cannot_shrink};
use state_sync::{Place, Repairs};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Directives that a process must support to be kept.
const NEEDED: [Name; 4] = [Name::new("abort"), Name::new("join"), Name::new("sync-state"), Name::new("resume")];

/// Names of the stages that these strategies share, in order.
const ABORT: Name = Name::new("abort");
const START: Name = Name::new("start");
const JOIN: Name = Name::new("join");
const SYNC_STATE: Name = Name::new("sync-state");
const RESUME: Name = Name::new("resume");

/// Time limits of the stages. When one is exceeded, the next strategy is tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// For a process to reach the end of its step and abort.
    pub(crate) give_up: Duration,
    /// For a replacement process to start and to build and warm up its model.
    pub(crate) start: Duration,
    /// For all processes to join.
    pub(crate) join: Duration,
    /// For the training state to be copied.
    pub(crate) repair: Duration,
    /// For all ranks to complete the first step.
    pub(crate) resume: Duration,
}

impl Limits {
    pub(crate) const USUAL: Limits = Limits {
        give_up: Duration::from_secs(30),
        start: Duration::from_secs(120),
        join: Duration::from_secs(30),
        repair: Duration::from_secs(120),
        resume: Duration::from_secs(120),
    };

    fn text(&self) -> String {
        let Limits { give_up, start, join, repair, resume } = self;
        let ms = [give_up, start, join, repair, resume].map(|limit| limit.as_millis().to_string());
        format!("limits_ms={}", ms.join("/"))
    }
}

/// Returns the ranks whose processes the recovery keeps: all that are not lost.
///
/// # Errors
/// The reason why they cannot be kept. Each must be training, have a control link that supports the [`NEEDED`]
/// directives, and be on a host that is not broken.
fn survivors(incident: &Incident, view: &View, lost: &BTreeSet<Rank>) -> Result<BTreeSet<Rank>, String> {
    let broken = incident.broken_hosts();
    let mut kept = BTreeSet::new();
    for rank in view.world.members().keys().filter(|rank| !lost.contains(rank)) {
        let proc = view.proc(&Role::Rank(*rank)).filter(|proc| proc.wanted && proc.phase == Phase::Running);
        can_be_told(*rank, proc, &NEEDED, view)?;
        if let Some(host) = proc.and_then(|proc| proc.node.as_ref()).filter(|host| broken.contains(host)) {
            return Err(format!("{host} is broken, and {rank} would stay there"));
        }
        kept.insert(*rank);
    }
    if kept.is_empty() { Err("no rank can be kept".into()) } else { Ok(kept) }
}

/// Returns `Ok` if the rank is in its step loop and supports the needed directives; else the reason.
fn can_be_told(rank: Rank, proc: Option<&Proc>, needed: &[Name], view: &View) -> Result<(), String> {
    let proc = proc.ok_or_else(|| format!("{rank} does not run, and no fault reports it as lost"))?;
    let link = proc.link.as_ref().ok_or_else(|| {
        format!(
            "{rank} has no control link: its program has not begun a step loop (taskd.steps), and its process cannot \
             be kept without one"
        )
    })?;
    if link.position != LoopPosition::InLoop {
        return Err(format!(
            "the program of {rank} has not begun a step loop (taskd.steps): no process can be kept before that"
        ));
    }
    if let Some(why) = &link.unsupported_reason {
        return Err(format!("{rank} cannot be kept: {why}"));
    }
    match needed.iter().find(|name| !link.capabilities.contains(*name)) {
        Some(name) if *name == JOIN && view.spec.rendezvous_service.is_none() => {
            Err(format!("{rank} cannot {name}: {NO_RENDEZVOUS}"))
        }
        Some(name) => Err(format!("{rank} does not support the directive {name}")),
        None => Ok(()),
    }
}

/// Returns the first stage: put the world in force, stop the lost processes that may still run, and abort on the
/// survivors.
fn give_up(world: &Arc<World>, kept: &BTreeSet<Rank>, stop: Vec<ProcId>, within: Duration) -> Stage {
    let mut actions = vec![Action::Enter(Arc::clone(world))];
    if !stop.is_empty() {
        actions.push(Action::Stop { procs: stop, grace: Duration::ZERO, exact: false });
    }
    let tell = kept.iter().filter_map(|rank| Some((world.proc(*rank)?, Directive::Abort {})));
    actions.push(Action::SendDirectives(DirectiveBatch { world: Arc::clone(world), directives: tell.collect() }));
    Stage::new(ABORT, within, actions)
}

/// Returns the stages of a rejoin without new ranks: the survivors abort and then join.
///
/// A missing rendezvous service is started during the abort.
fn meet_anew(
    view: &View,
    world: &Arc<World>,
    kept: &BTreeSet<Rank>,
    stop: Vec<ProcId>,
    services: Vec<StartOrder>,
    limits: &Limits,
) -> Vec<Stage> {
    let mut first = give_up(world, kept, stop, limits.give_up);
    if !services.is_empty() {
        let batch = StartBatch { world: Arc::clone(world), starts: services };
        first.actions.push(Action::Start { batch, until: Ready::Running });
    }
    vec![first, join(view, world, limits.join)]
}

/// Returns the lost processes that may still run, for example frozen ones.
fn may_still_run(view: &View, lost: &BTreeSet<Rank>) -> Vec<ProcId> {
    let runs = |proc: &ProcId| proc.role.rank().is_some_and(|rank| lost.contains(&rank));
    view.alive().filter(|proc| runs(proc) && view.proc(&proc.role).is_some_and(|p| !p.phase.is_over())).collect()
}

/// Returns the start order of the rendezvous service, if it is missing.
///
/// # Errors
/// Another service is missing: only a restart brings back what ranks lose with it.
fn missing_services(view: &View, world: &World) -> Result<Vec<StartOrder>, String> {
    if let Some(other) = view.missing_services().find(|name| view.spec.rendezvous_service.as_ref() != Some(*name)) {
        return Err(format!("service {other} is missing, and only a restart starts it"));
    }
    Ok(view.missing_services().filter_map(|name| stages::service(name, world, view)).collect())
}

/// Returns the stage in which all members join.
fn join(view: &View, world: &Arc<World>, within: Duration) -> Stage {
    let members: Vec<Peer> = world.members().keys().map(|rank| peer(view, *rank)).collect();
    let order = |rank: &Rank| {
        let (members, prefix) = (members.clone(), format!("taskd/{}", world.generation().0));
        let join = Directive::Join { rank: *rank, size: world.size(), members, prefix, store: None };
        Some((world.proc(*rank)?, join))
    };
    let directives = world.members().keys().filter_map(order).collect();
    Stage::new(JOIN, within, vec![Action::SendDirectives(DirectiveBatch { world: Arc::clone(world), directives })])
}

fn peer(view: &View, rank: Rank) -> Peer {
    Peer { rank, pid: view.proc(&Role::Rank(rank)).and_then(|proc| proc.pid) }
}

/// After the abort: continues with the join only if all ranks could be brought to one step. Otherwise the run fails
/// here, and not later after the join.
fn join_if_of_use(run: &PlanExecution, view: &View, limits: &Limits) -> Advance {
    match repairs(run, view) {
        Ok(_) => Advance::ReplaceRest(vec![join(view, &view.world, limits.join)]),
        Err(why) => Advance::Fail(why),
    }
}

/// Computes what each rank has to do to reach a common step.
///
/// # Errors
/// The reason why no common step can be reached.
fn repairs(run: &PlanExecution, view: &View) -> Result<Repairs, String> {
    let states = states_of(&run.done);
    let replacements = view.world.members().keys().filter(|rank| !states.contains_key(rank)).copied().collect();
    state_sync::plan(&states, &replacements, &proven_sets(view, false), &view.world)
}

/// After the state sync, and before any rank trains on: checks that replicas have equal checksums. The checksums that
/// the ranks have just reported are not in the view yet, so they are compared with what was proved before.
fn compare_replicas(run: &PlanExecution, view: &View) -> Advance {
    let done = || run.done.last().into_iter().flatten();
    if run.ended_stage().is_none_or(|stage| current_name(&stage.name) != SYNC_STATE) {
        return Advance::Continue;
    }
    let results = done().flat_map(|done| &done.results);
    let digests: BTreeMap<Rank, &str> = results
        .filter_map(|(target, result)| match (target, result) {
            (Domain::Process(Role::Rank(rank)), Ok(super::TargetReply::Directive(answered))) => {
                Some((*rank, answered.digest.as_ref()?.digest.as_str()))
            }
            _ => None,
        })
        .collect();
    let copied = done().flat_map(|done| match &done.action {
        Action::SendDirectives(batch) => batch.directives.as_slice(),
        _ => &[],
    });
    let copied = copied.filter_map(|(proc, what)| match what {
        Directive::SyncState { from, .. } => Some((proc.role.rank()?, from.first()?.rank)),
        _ => None,
    });
    let copied: Vec<(Rank, Rank)> = copied.collect();
    let without = copied.iter().flat_map(|(to, from)| [to, from]).find(|rank| !digests.contains_key(rank));
    if let Some(rank) = without {
        return Advance::Fail(format!(
            "{rank} has no checksum of parameters and optimizer state after the state sync: its copy is not verified"
        ));
    }
    let differ = |(one, other): &(Rank, Rank)| digests.get(one) != digests.get(other);
    match copied.into_iter().find(differ).or_else(|| that_differ(&proven_sets(view, false), &digests)) {
        Some((one, other)) => Advance::Fail(format!(
            "{one} and {other} have different checksums of parameters and optimizer state after the state sync: they \
             are not replicas of each other"
        )),
        None => Advance::Continue,
    }
}

/// After the join: synchronizes the state of all ranks to one step and resumes training.
fn repair_and_resume(run: &PlanExecution, view: &View, limits: &Limits) -> Advance {
    let world = &view.world;
    let Repairs { step, places } = match repairs(run, view) {
        Ok(repairs) => repairs,
        Err(why) => return Advance::Fail(why),
    };
    let order = |(rank, place): (Rank, Place)| {
        let Place { from, to, put_back, buckets } = place;
        let from = from.into_iter().map(|rank| peer(view, rank)).collect();
        Some((world.proc(rank)?, Directive::SyncState { step, from, to, rollback: put_back, buckets }))
    };
    let repair = places.into_iter().filter_map(order).collect();
    let resume = world.members().keys().filter_map(|rank| Some((world.proc(*rank)?, Directive::Resume { step })));
    let direct = |orders| Action::SendDirectives(DirectiveBatch { world: Arc::clone(world), directives: orders });
    Advance::ReplaceRest(vec![
        Stage::new(SYNC_STATE, limits.repair, vec![direct(repair)]),
        Stage::new(RESUME, limits.resume, vec![direct(resume.collect())]),
    ])
}

/// Returns the state that each rank reported when it aborted.
fn states_of(done: &[Vec<CommandOutcome>]) -> BTreeMap<Rank, WorkerState> {
    let results = done.iter().flatten().flat_map(|done| &done.results);
    let state = |(target, result): (&Domain, &Result<super::TargetReply, super::Failure>)| {
        let Domain::Process(Role::Rank(rank)) = target else { return None };
        match result {
            Ok(super::TargetReply::Directive(answered)) => Some((*rank, answered.state.clone()?)),
            _ => None,
        }
    };
    results.filter_map(state).collect()
}

#[cfg(test)]
mod tests;
