//! Stages that start ranks to join surviving ones, which keep their processes. Shared by [`Recover`](super::Recover)
//! and [`Grow`](super::Grow).
//!
//! The caller chooses the ranks and their hosts.

use super::{ABORT, JOIN, Limits, START, compare_replicas, give_up, join, join_if_of_use, repair_and_resume, repairs};
use crate::detect::{Fault, Health};
use crate::job::{Counted, Domain, Incarnation, Member, ProcId, Rank, Ready, Role, WorkerSpec, World};
use crate::recover::stages;
use crate::recover::{Action, Advance, Cost, GROW, Incident, PlanExecution, Proposal, Stage};
use crate::state::current_name;
use crate::state::{JOIN_VARIABLE, LoopPosition, Phase, StartBatch, StartOrder, View};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A set of ranks to start, and the world that they join.
pub(super) struct Replacements {
    /// The next world, with kept and new ranks.
    pub(super) world: Arc<World>,
    /// Ranks that keep their process.
    pub(super) kept: BTreeSet<Rank>,
    /// Ranks to start.
    pub(super) coming: BTreeSet<Rank>,
    /// Processes to stop: the predecessors of the new ranks that may still run.
    pub(super) stop: Vec<ProcId>,
    /// Start order of the rendezvous service, if it is missing.
    pub(super) services: Vec<StartOrder>,
}

impl Replacements {
    pub(super) fn proposal(
        self,
        view: &View,
        limits: &Limits,
        cost: Cost,
        counted: Counted,
        reason: String,
    ) -> Proposal {
        let Replacements { world, kept, coming, stop, services } = self;
        let is_in_their_way = !stop.is_empty();
        let start = start(view, &world, &coming, services, limits);
        let mut stages = vec![give_up(&world, &kept, stop, limits.give_up)];
        if is_in_their_way {
            stages.push(start);
        } else {
            let Stage { actions, timeout: within, .. } = start; // nothing to stop first: both run at once
            stages[0].actions.extend(actions);
            stages[0].timeout = stages[0].timeout.max(within);
        }
        stages.push(join(view, &world, limits.join));
        Proposal::new(stages, vec![Domain::Job], cost, counted, reason)
    }
}

impl Replacements {
    /// Returns the proposal for ranks that come in addition. They start in the next world while the others train on, and
    /// only then do these abort: starting takes seconds, in which nothing is lost.
    pub(super) fn growth(self, view: &View, limits: &Limits, cost: Cost, reason: String) -> Proposal {
        let Replacements { world, kept, coming, services, .. } = self;
        let mut first = start(view, &world, &coming, services, limits);
        first.actions.insert(0, Action::Enter(Arc::clone(&world)));
        let mut second = give_up(&world, &kept, Vec::new(), limits.give_up);
        second.actions.retain(|action| !matches!(action, Action::Enter(_)));
        let stages = vec![first, second, join(view, &world, limits.join)];
        Proposal::new(stages, vec![Domain::Job], cost, Counted::No, reason)
    }
}

/// Decides how to continue after a stage.
pub(super) fn advance(run: &PlanExecution, view: &View, limits: &Limits) -> Advance {
    let rest = run.proposal.stages.len() - run.stage.min(run.proposal.stages.len());
    match run.ended_stage().map(|stage| current_name(&stage.name)) {
        Some(name) if name == JOIN => repair_and_resume(run, view, limits),
        // The new processes have process ids by now.
        Some(name) if (name == ABORT || name == START) && rest == 1 => join_if_of_use(run, view, limits),
        // Nothing is started if no rank could provide the state.
        Some(name) if name == ABORT => match repairs(run, view) {
            Ok(_) => Advance::Continue,
            Err(why) => Advance::Fail(why),
        },
        _ => compare_replicas(run, view),
    }
}

/// Returns the stage that starts the new ranks and the missing service.
///
/// An environment variable makes the new ranks join running ones.
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
    let batch = StartBatch { world: Arc::clone(world), starts: orders };
    Stage::new(START, limits.start, vec![Action::Start { batch, until: Ready::Parked }])
}

/// Returns the ranks to replace or do without.
///
/// These are the lost ranks, and those that an earlier attempt started and that never reached their step loop.
///
/// # Errors
/// No rank is lost, or the program itself is broken and would fail again.
pub(super) fn lost(incident: &Incident, view: &View) -> Result<BTreeSet<Rank>, String> {
    let mut lost = incident.lost_ranks(view);
    lost.extend(on_their_way(incident, view));
    if lost.is_empty() {
        return Err("no rank is lost".into());
    }
    if let Some(fault) = incident.faults.iter().find(|fault| fault.primary_suspect().damage.program == Health::Faulty) {
        return Err(format!("{} found the program broken: it would fail again", fault.by));
    }
    Ok(lost)
}

/// Returns the ranks that an earlier recovery of this incident did not bring to their step loop.
///
/// A new fault occurred during that recovery, or it failed. Its new ranks are started again, or dropped. This includes
/// ranks that were to come back in a [grow](super::Grow): there, no fault blames an older process that the current one
/// could be compared with.
fn on_their_way(incident: &Incident, view: &View) -> BTreeSet<Rank> {
    let is_gone =
        |fault: &&Fault| fault.primary_suspect().is_cause() && fault.primary_suspect().damage.process == Health::Faulty;
    let gone = incident.faults.iter().filter(is_gone);
    let of_rank = gone.filter_map(|fault| match &fault.primary_suspect().domain {
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

/// Returns true if a fault of the incident advises to bring absent ranks back.
pub(super) fn wants_to_grow(incident: &Incident) -> bool {
    incident.faults.iter().any(|fault| fault.advice.as_ref() == Some(&GROW))
}

/// Returns true if the rank is training in its step loop.
fn is_in(rank: Rank, view: &View) -> bool {
    let proc = view.proc(&Role::Rank(rank)).filter(|proc| proc.wanted && proc.phase == Phase::Running);
    proc.and_then(|proc| proc.link.as_ref()).is_some_and(|link| link.position == LoopPosition::InLoop)
}
