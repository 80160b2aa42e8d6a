//! Lost ranks leave, and those who live go on without them.

use super::newcomers::{lost, wants_to_grow};
use super::replicas::{is_alone, proven_sets, told_sharded};
use super::{
    GIVE_UP, JOIN, Limits, cannot_shrink, compare_replicas, join_if_of_use, may_still_run, meet_anew, missing_services,
    repair_and_resume, states_of, survivors,
};
use crate::job::{Counted, Domain, GroupKind, Name, Permission, Rank, World};
use crate::kernel::View;
use crate::recover::{
    Beforehand, Cost, Incident, Next, Proposal, RESTART, RecoveryStrategy, Run, SHRINK, placement, possible,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// What it is expected to cost. It takes no longer than other recoveries that keep processes; but a smaller world trains less, so
/// those that keep its size come first.
const DOWNTIME: Duration = Duration::from_secs(1);

/// The survivors train on in a smaller world: nobody is started, and nobody is waited for.
///
/// - Stages: `give-up`, while what is lost is stopped for certain, `join` (groups of those who are left), `repair`, `resume`. The service
///   at which ranks meet is started, if it is missing.
/// - Who was to come back, or to take a lost one's place, and has not come to its step loop leaves as well.
/// - Who leaves keeps its place ([`World::absent`]), until [`Grow`](super::Grow) brings it back or everybody starts again.
/// - Where the job names data-parallel groups, a lost rank takes its whole replica of the model along: of every such group the ranks
///   that stand where it stands in its own. They are stopped.
/// - The step in flight is done again by those who are left, with their own batches; the share of who left is not trained on in it.
///   From then on data is shared out among those who are left, where the training program's loader can be told.
/// - It comes after a restart with all ranks: it refuses while there is a place for what was lost and that may be tried, unless it is to
///   come [before](Shrink::before_restart).
/// - It refuses when no rank is lost, when fewer than [`Policy::ranks_min`](crate::job::Policy::ranks_min) would be left, when no whole
///   replica would be, and for the reasons of [`Recover`](super::Recover): no control link, a broken program, a missing service.
/// - It refuses, or gives up between stages where that was not known before, when a survivor holds state that is sharded over the
///   ranks: what the lost one held is lost.
#[derive(Clone, Copy, Debug)]
pub struct Shrink {
    limits: Limits,
    before_restart: bool,
}

impl Default for Shrink {
    fn default() -> Shrink {
        Shrink::new()
    }
}

impl Shrink {
    /// The strategy.
    #[must_use]
    pub const fn new() -> Shrink {
        Shrink { limits: Limits::USUAL, before_restart: false }
    }

    /// The same, for jobs that would rather be smaller than start again from a checkpoint: it is proposed although there is a place for
    /// the lost ranks.
    #[must_use]
    pub const fn before_restart(mut self) -> Shrink {
        self.before_restart = true;
        self
    }
}

impl RecoveryStrategy for Shrink {
    fn name(&self) -> Name {
        SHRINK
    }

    fn config(&self) -> String {
        let before_restart = if self.before_restart { " before_restart" } else { "" };
        format!("{}{before_restart}", self.limits.text())
    }

    fn cannot(&self, job: &Beforehand) -> Option<String> {
        cannot_shrink(job)
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, String> {
        possible(self, view)?;
        let lost = lost(incident, view)?;
        if !self.before_restart {
            can_not_be_whole(incident, view, &lost)?;
        }
        let lives = view.world.members().keys().filter(|rank| !lost.contains(rank));
        if let Some(what) = told_sharded(lives, view) {
            return Err(a_part_is_lost(what));
        }
        let leaving = with_replicas(&lost, view)?;
        let kept = survivors(incident, view, &leaving)?;
        let least = view.spec.policy.ranks_at_least(view.spec.ranks).max(1);
        if kept.len() < least as usize {
            return Err(format!("{} ranks would be left, and the job wants {least} at least", kept.len()));
        }
        let world = Arc::new(view.world.successor(Counted::Yes, |members| {
            members.retain(|rank, _| kept.contains(rank));
        }));
        let services = missing_services(view, &world)?;
        let stages = meet_anew(view, &world, &kept, may_still_run(view, &leaving), services, &self.limits);
        let (size, whole) = (kept.len(), view.spec.ranks);
        Ok(Proposal {
            stages,
            touches: vec![Domain::Job],
            cost: Cost::downtime(DOWNTIME),
            counted: Counted::Yes,
            reason: format!("{} ranks leave, and {size} of the job's {whole} train on", leaving.len()),
        })
    }

    fn advance(&self, run: &Run, view: &View) -> Next {
        match run.ended_stage().map(|stage| &stage.name) {
            Some(name) if *name == GIVE_UP => match sharded(run) {
                Some(what) => Next::GiveUp(a_part_is_lost(&what)),
                None => join_if_of_use(run, view, &self.limits),
            },
            Some(name) if *name == JOIN => repair_and_resume(run, view, &self.limits),
            _ => compare_replicas(run, view),
        }
    }
}

/// Whether the job cannot train with all of its ranks: another number of ranks makes another result, so that comes last.
///
/// # Errors
/// The lost ranks have a place, and all may start again, which was not tried and has not failed.
fn can_not_be_whole(incident: &Incident, view: &View, lost: &BTreeSet<Rank>) -> Result<(), String> {
    if wants_to_grow(incident) {
        return Ok(()); // it was smaller before, and goes on as it did
    }
    let may_restart = view.spec.policy.permission(&RESTART) != Permission::Never;
    let has_failed = incident.attempts.iter().any(|(strategy, _)| *strategy == RESTART);
    let usable = view.without(&incident.broken_hosts());
    let mut all = placement::current(view);
    all.extend(placement::absent(view));
    let has_place = placement::settle(&usable, all).is_ok();
    match lost.first().filter(|_| may_restart && !has_failed && has_place) {
        Some(rank) => {
            Err(format!("{rank} can be placed again: a restart with all {} ranks comes first", view.spec.ranks))
        }
        None => Ok(()),
    }
}

/// Of what the survivors have no copies, by name.
fn sharded(run: &Run) -> Option<String> {
    states_of(&run.done).into_values().flat_map(|state| state.sharded).next()
}

fn a_part_is_lost(what: &str) -> String {
    is_alone(what, "a part of it is lost")
}

/// The lost ranks, and all others of the replicas of the model that they were of.
///
/// # Errors
/// No whole replica is left.
fn with_replicas(lost: &BTreeSet<Rank>, view: &View) -> Result<BTreeSet<Rank>, String> {
    let world = &view.world;
    let dp = || world.groups().iter().filter(|(id, _)| id.kind == GroupKind::Dp).map(|(_, ranks)| ranks);
    let places: BTreeSet<usize> = dp()
        .flat_map(|ranks| ranks.iter().enumerate())
        .filter(|(_, rank)| lost.contains(rank))
        .map(|(at, _)| at)
        .collect();
    let at_places = dp().flat_map(|ranks| places.iter().filter_map(|at| ranks.get(*at)));
    let members = world.members();
    let leaving = lost.iter().chain(at_places).filter(|rank| members.contains_key(rank)).copied().collect();
    let no_replica = |set: &BTreeSet<Rank>| set.iter().all(|rank| leaving_or_absent(*rank, &leaving, world));
    match proven_sets(view, false).iter().find(|set| no_replica(set)) {
        Some(set) if set.len() == 1 && world.size() > 1 => {
            let why = set.first().map(|rank| view.replicas.why_alone(*rank)).unwrap_or_default();
            Err(format!("no whole replica of the model is left: {why}"))
        }
        Some(_) => Err("no whole replica of the model is left".into()),
        None => Ok(leaving),
    }
}

fn leaving_or_absent(rank: Rank, leaving: &BTreeSet<Rank>, world: &World) -> bool {
    leaving.contains(&rank) || !world.members().contains_key(&rank)
}
