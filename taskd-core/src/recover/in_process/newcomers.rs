//! Ranks that are started to join others, who keep their processes: the stages of it, whoever comes and why.
//!
//! It chooses nobody and no place: that is said by who uses it.

use super::{
    GIVE_UP, JOIN, Limits, START, compare_replicas, give_up, join, join_if_of_use, repair_and_resume, repairs,
};
use crate::detect::{Fault, Sound};
use crate::job::{Counted, Domain, Incarnation, Member, ProcId, Rank, Ready, Role, WorkerSpec, World};
use crate::kernel::View;
use crate::launch::{JOIN_VARIABLE, Phase, Point, StartBatch, StartOrder};
use crate::recover::stages;
use crate::recover::{Action, Cost, GROW, Incident, Next, Proposal, Run, Stage};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Who does what.
pub(super) struct Newcomers {
    /// The next world, with all of them.
    pub(super) world: Arc<World>,
    /// Who keeps its process.
    pub(super) kept: BTreeSet<Rank>,
    /// Who is started.
    pub(super) coming: BTreeSet<Rank>,
    /// What may still run of what they replace.
    pub(super) stop: Vec<ProcId>,
    /// What they need to meet, and is missing.
    pub(super) services: Vec<StartOrder>,
}

impl Newcomers {
    pub(super) fn proposal(
        self,
        view: &View,
        limits: &Limits,
        cost: Cost,
        counted: Counted,
        reason: String,
    ) -> Proposal {
        let Newcomers { world, kept, coming, stop, services } = self;
        let is_in_their_way = !stop.is_empty();
        let start = start(view, &world, &coming, services, limits);
        let mut stages = vec![give_up(&world, &kept, stop, limits.give_up)];
        if is_in_their_way {
            stages.push(start);
        } else {
            let Stage { actions, within, .. } = start; // nobody is in their way: both at once
            stages[0].actions.extend(actions);
            stages[0].within = stages[0].within.max(within);
        }
        stages.push(join(view, &world, limits.join));
        Proposal { stages, touches: vec![Domain::Job], cost, counted, reason }
    }
}

/// What follows when a stage is over.
pub(super) fn advance(run: &Run, view: &View, limits: &Limits) -> Next {
    let rest = run.proposal.stages.len() - run.stage.min(run.proposal.stages.len());
    match run.ended_stage().map(|stage| &stage.name) {
        Some(name) if *name == JOIN => repair_and_resume(run, view, limits),
        // The newcomers have process ids by now.
        Some(name) if (*name == GIVE_UP || *name == START) && rest == 1 => join_if_of_use(run, view, limits),
        // Nobody is started whom nobody could give anything.
        Some(name) if *name == GIVE_UP => match repairs(run, view) {
            Ok(_) => Next::AsProposed,
            Err(why) => Next::GiveUp(why),
        },
        _ => compare_replicas(run, view),
    }
}

/// The newcomers, who are told that they join ranks which run, and what service they need.
fn start(
    view: &View,
    world: &Arc<World>,
    coming: &BTreeSet<Rank>,
    services: Vec<StartOrder>,
    limits: &Limits,
) -> Stage {
    let mut spec = WorkerSpec::clone(&stages::worker(view));
    spec.env.insert(JOIN_VARIABLE.into(), world.generation().0.to_string());
    let spec = Arc::new(spec);
    let order = |rank: &Rank| {
        let place = stages::place(world.members().get(rank)?.node.as_ref());
        Some(StartOrder { proc: world.proc(*rank)?, place, spec: Arc::clone(&spec) })
    };
    let orders = services.into_iter().chain(coming.iter().filter_map(order)).collect();
    let batch = StartBatch { world: Arc::clone(world), orders };
    Stage::new(START, limits.start, vec![Action::Start { batch, until: Ready::Parked }])
}

/// Who is lost, and who was to come and has not; or why nobody can be replaced or done without: none is lost, or the program would
/// fail again.
pub(super) fn lost(incident: &Incident, view: &View) -> Result<BTreeSet<Rank>, String> {
    let mut lost = incident.lost(view);
    lost.extend(on_their_way(incident, view));
    if lost.is_empty() {
        return Err("no rank is lost".into());
    }
    if let Some(fault) = incident.faults.iter().find(|fault| fault.prime().damage.program == Sound::No) {
        return Err(format!("{} found the program itself broken: it would fail again", fault.by));
    }
    Ok(lost)
}

/// Ranks that were to come to their step loop in a recovery of this incident, and have not: a new fault has struck in the middle of
/// it, or it has failed. Whoever was to join in that one is started again for this one, or is given up. So are those who were to come
/// [back](super::Grow): nobody is blamed there whose newer process would tell.
fn on_their_way(incident: &Incident, view: &View) -> BTreeSet<Rank> {
    let is_gone = |fault: &&Fault| fault.prime().is_cause() && fault.prime().damage.process == Sound::No;
    let gone = incident.faults.iter().filter(is_gone);
    let of_rank = gone.filter_map(|fault| match &fault.prime().domain {
        Domain::Process(Role::Rank(rank)) => Some((*rank, fault.incarnation()?)),
        _ => None,
    });
    let is_newer = |(rank, was): &(Rank, Incarnation)| {
        view.world.members().get(rank).is_some_and(|member| member.incarnation > *was)
    };
    let replaced = of_rank.filter(is_newer).map(|(rank, _)| rank);
    let was_tried = !incident.attempts.is_empty() || wants_to_grow(incident);
    let never_stepped = |(rank, member): &(&Rank, &Member)| {
        let proc = view.proc(&Role::Rank(**rank));
        proc.is_some_and(|proc| proc.step.is_none() || proc.incarnation < member.incarnation)
    };
    let new = view.world.members().iter().filter(|member| was_tried && never_stepped(member)).map(|(rank, _)| *rank);
    replaced.chain(new).filter(|rank| !is_in(*rank, view)).collect()
}

/// Whether somebody wants ranks to come back that have left the world.
pub(super) fn wants_to_grow(incident: &Incident) -> bool {
    incident.faults.iter().any(|fault| fault.advice.as_ref() == Some(&GROW))
}

/// Whether a rank trains, in its step loop.
fn is_in(rank: Rank, view: &View) -> bool {
    let proc = view.proc(&Role::Rank(rank)).filter(|proc| proc.wanted && proc.phase == Phase::Running);
    proc.and_then(|proc| proc.link.as_ref()).is_some_and(|link| link.at == Point::Loop)
}
