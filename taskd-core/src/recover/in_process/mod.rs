//! Recoveries that use the processes which still live: they give the broken groups up, join new ones, and everybody is
//! brought to the newest step that some replica has committed; or they save that step before everybody is started again.
//!
//! What is here is what all of them share; who is started, and where, is said by [`Recover`], [`Retry`],
//! [`Shrink`], [`Grow`] and [`Dump`]. It copies
//! and writes nothing and talks to nobody: it says who is to be told what.

mod beforehand;
mod dump;
mod givers;
mod grow;
mod newcomers;
mod recover;
mod repair;
mod replicas;
mod retry;
mod shares;
mod shrink;

pub use dump::Dump;
pub use grow::Grow;
pub use recover::Recover;
pub(super) use replicas::replica_sets;
pub(crate) use replicas::unproven;
use replicas::{proven_sets, that_differ};
pub use retry::Retry;
pub use shrink::Shrink;

use super::{Action, Done, Incident, Next, Run, Stage, stages};
use crate::job::{Domain, Name, ProcId, Rank, Ready, Role, World};
use crate::kernel::{Proc, View};
use crate::launch::{DirectBatch, Directive, Peer, Phase, Point, StartBatch, StartOrder, WorkerState};
use beforehand::{NO_MEETING, cannot_meet, cannot_replace, cannot_shrink};
use repair::{Place, Repairs};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// What a process must understand to be kept.
const NEEDED: [Name; 4] = [Name::new("give-up"), Name::new("join"), Name::new("repair"), Name::new("resume")];

/// The stages that all of them have, in order.
const GIVE_UP: Name = Name::new("give-up");
const START: Name = Name::new("start");
const JOIN: Name = Name::new("join");
const REPAIR: Name = Name::new("repair");
const RESUME: Name = Name::new("resume");

/// How long each part may take before the next rung is tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// For a process to come to the end of its step.
    pub(crate) give_up: Duration,
    /// For a newcomer to build and warm what it trains with.
    pub(crate) start: Duration,
    /// For all processes to meet.
    pub(crate) join: Duration,
    /// For the training state to be copied.
    pub(crate) repair: Duration,
    /// For the first step to be completed by all.
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

/// The ranks that are kept, or why they cannot be: each must train, have a link that can tell it what to do, and be where it can
/// stay.
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
    if kept.is_empty() { Err("no rank is left that could be kept".into()) } else { Ok(kept) }
}

/// Whether a rank is in its step loop and can carry out such directives.
fn can_be_told(rank: Rank, proc: Option<&Proc>, needed: &[Name], view: &View) -> Result<(), String> {
    let proc = proc.ok_or_else(|| format!("{rank} does not run, and nothing says that it is lost"))?;
    let link = proc.link.as_ref().ok_or_else(|| {
        format!(
            "{rank} has no control link: its program has not begun a step loop (taskd.steps), and without one no process can be kept"
        )
    })?;
    if link.at != Point::Loop {
        return Err(format!(
            "the program of {rank} has not begun a step loop (taskd.steps): until it does, if it ever does, no process can be kept"
        ));
    }
    if let Some(why) = &link.cannot {
        return Err(format!("{rank} cannot be kept: {why}"));
    }
    match needed.iter().find(|name| !link.can.contains(*name)) {
        Some(name) if *name == JOIN && view.spec.meeting.is_none() => {
            Err(format!("{rank} cannot be told to {name}: {NO_MEETING}"))
        }
        Some(name) => Err(format!("{rank} cannot be told to {name}")),
        None => Ok(()),
    }
}

/// The first stage: the world is entered, what is lost is stopped for certain, and those who are kept give up.
fn give_up(world: &Arc<World>, kept: &BTreeSet<Rank>, stop: Vec<ProcId>, within: Duration) -> Stage {
    let mut actions = vec![Action::Enter(Arc::clone(world))];
    if !stop.is_empty() {
        actions.push(Action::Stop { procs: stop, grace: Duration::ZERO, exact: false });
    }
    let tell = kept.iter().filter_map(|rank| Some((world.proc(*rank)?, Directive::GiveUp {})));
    actions.push(Action::Direct(DirectBatch { world: Arc::clone(world), orders: tell.collect() }));
    Stage::new(GIVE_UP, within, actions)
}

/// The stages of those who meet anew without newcomers: they give up, while the service at which they meet is started, if it is
/// missing, and join.
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
        let batch = StartBatch { world: Arc::clone(world), orders: services };
        first.actions.push(Action::Start { batch, until: Ready::Running });
    }
    vec![first, join(view, world, limits.join)]
}

/// Those of the lost that may still run: frozen ones.
fn may_still_run(view: &View, lost: &BTreeSet<Rank>) -> Vec<ProcId> {
    let runs = |proc: &ProcId| proc.role.rank().is_some_and(|rank| lost.contains(&rank));
    view.alive().filter(|proc| runs(proc) && view.proc(&proc.role).is_some_and(|p| !p.phase.is_over())).collect()
}

/// The start of the service at which ranks meet, where it is missing.
///
/// # Errors
/// Another service is missing: what ranks lose with it only a restart brings back.
fn missing_services(view: &View, world: &World) -> Result<Vec<StartOrder>, String> {
    if let Some(other) = view.missing_services().find(|name| view.spec.meeting.as_ref() != Some(*name)) {
        return Err(format!("service {other} is missing, and only a restart starts it"));
    }
    Ok(view.missing_services().filter_map(|name| stages::service(name, world, view)).collect())
}

/// All members meet.
fn join(view: &View, world: &Arc<World>, within: Duration) -> Stage {
    let members: Vec<Peer> = world.members().keys().map(|rank| peer(view, *rank)).collect();
    let order = |rank: &Rank| {
        let (members, prefix) = (members.clone(), format!("taskd/{}", world.generation().0));
        let join = Directive::Join { rank: *rank, size: world.size(), members, prefix, store: None };
        Some((world.proc(*rank)?, join))
    };
    let orders = world.members().keys().filter_map(order).collect();
    Stage::new(JOIN, within, vec![Action::Direct(DirectBatch { world: Arc::clone(world), orders })])
}

fn peer(view: &View, rank: Rank) -> Peer {
    Peer { rank, pid: view.proc(&Role::Rank(rank)).and_then(|proc| proc.pid) }
}

/// After all have given up: they meet, if everybody could be brought to one step then. Who could not would only be told so later.
fn join_if_of_use(run: &Run, view: &View, limits: &Limits) -> Next {
    match repairs(run, view) {
        Ok(_) => Next::Instead(vec![join(view, &view.world, limits.join)]),
        Err(why) => Next::GiveUp(why),
    }
}

/// Who has to do what to be at one step with the others; or why nothing brings all of them there.
fn repairs(run: &Run, view: &View) -> Result<Repairs, String> {
    let states = states_of(&run.done);
    let newcomers = view.world.members().keys().filter(|rank| !states.contains_key(rank)).copied().collect();
    repair::plan(&states, &newcomers, &proven_sets(view, false), &view.world)
}

/// After a repair, and before any rank trains on: replicas have equal checksums. What the ranks have just answered is not in the view
/// yet, so that it is compared with what was proved before.
fn compare_replicas(run: &Run, view: &View) -> Next {
    let done = || run.done.last().into_iter().flatten();
    if run.ended_stage().is_none_or(|stage| stage.name != REPAIR) {
        return Next::AsProposed;
    }
    let results = done().flat_map(|done| &done.results);
    let digests: BTreeMap<Rank, &str> = results
        .filter_map(|(target, result)| match (target, result) {
            (Domain::Process(Role::Rank(rank)), Ok(super::Output::Answered(answered))) => {
                Some((*rank, answered.digest.as_ref()?.digest.as_str()))
            }
            _ => None,
        })
        .collect();
    let copied = done().flat_map(|done| match &done.action {
        Action::Direct(batch) => batch.orders.as_slice(),
        _ => &[],
    });
    let copied = copied.filter_map(|(proc, what)| match what {
        Directive::Repair { from, .. } => Some((proc.role.rank()?, from.first()?.rank)),
        _ => None,
    });
    let copied: Vec<(Rank, Rank)> = copied.collect();
    let without = copied.iter().flat_map(|(to, from)| [to, from]).find(|rank| !digests.contains_key(rank));
    if let Some(rank) = without {
        return Next::GiveUp(format!(
            "{rank} has no checksum of parameters and optimizer state after the repair: nothing proves that its copy is right"
        ));
    }
    let differ = |(one, other): &(Rank, Rank)| digests.get(one) != digests.get(other);
    match copied.into_iter().find(differ).or_else(|| that_differ(&proven_sets(view, false), &digests)) {
        Some((one, other)) => Next::GiveUp(format!(
            "{one} and {other} have different checksums of parameters and optimizer state after the repair: they are no replicas of each other"
        )),
        None => Next::AsProposed,
    }
}

/// After the ranks have met: everybody to one step, and on.
fn repair_and_resume(run: &Run, view: &View, limits: &Limits) -> Next {
    let world = &view.world;
    let Repairs { step, places } = match repairs(run, view) {
        Ok(repairs) => repairs,
        Err(why) => return Next::GiveUp(why),
    };
    let order = |(rank, place): (Rank, Place)| {
        let Place { from, to, put_back, buckets } = place;
        let from = from.into_iter().map(|rank| peer(view, rank)).collect();
        Some((world.proc(rank)?, Directive::Repair { step, from, to, put_back, buckets }))
    };
    let repair = places.into_iter().filter_map(order).collect();
    let resume = world.members().keys().filter_map(|rank| Some((world.proc(*rank)?, Directive::Resume { step })));
    let direct = |orders| Action::Direct(DirectBatch { world: Arc::clone(world), orders });
    Next::Instead(vec![
        Stage::new(REPAIR, limits.repair, vec![direct(repair)]),
        Stage::new(RESUME, limits.resume, vec![direct(resume.collect())]),
    ])
}

/// Where those who gave up said that they stand.
fn states_of(done: &[Vec<Done>]) -> BTreeMap<Rank, WorkerState> {
    let results = done.iter().flatten().flat_map(|done| &done.results);
    let state = |(target, result): (&Domain, &Result<super::Output, super::Failure>)| {
        let Domain::Process(Role::Rank(rank)) = target else { return None };
        match result {
            Ok(super::Output::Answered(answered)) => Some((*rank, answered.state.clone()?)),
            _ => None,
        }
    };
    results.filter_map(state).collect()
}

#[cfg(test)]
mod tests;
