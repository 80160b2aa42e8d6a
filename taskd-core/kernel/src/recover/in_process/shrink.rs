//! Removes lost ranks from the world; the survivors train on without them.

use super::replacements::{lost, wants_to_grow};
use super::replicas::{is_alone, proven_sets, reported_sharded};
use super::{
    ABORT, JOIN, Limits, cannot_shrink, compare_replicas, join_if_of_use, may_still_run, meet_anew, missing_services,
    repair_and_resume, states_of, survivors,
};
use crate::job::{Counted, Domain, GroupKind, Name, Permission, Rank, World};
use crate::recover::{
    Advance, Cost, Incident, JobProfile, PlanExecution, Proposal, RESTART, RecoveryStrategy, RefusalError, SHRINK,
    possible,
};
use crate::state::current_name;
use crate::state::{View, placement};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Expected cost. It takes no longer than other in-process recoveries, but a smaller world trains less, so strategies
/// that keep its size come first, also if they wait for new processes.
const DOWNTIME: Duration = Duration::from_secs(10);

/// Recovery strategy `shrink`: removes the lost ranks from the world, and the surviving ranks train on. It starts
/// no rank and waits for none.
///
/// - Stages: `abort` (processes of lost ranks that may still run are stopped meanwhile), `join` (the remaining
///   ranks form new process groups), `sync-state`, `resume`. The rendezvous service is started if it is missing.
/// - A rank also leaves if an earlier recovery attempt started it and it has not reached its step loop.
/// - A rank that leaves keeps its place ([`World::absent`]) until [`Grow`](super::Grow) brings it back or all ranks
///   restart.
/// - If the job names data-parallel groups, the whole model replica of a lost rank leaves: of each such group, the
///   rank at the position that the lost rank has in its own group. These ranks are stopped.
/// - If [`Policy::rank_unit`](crate::job::Policy::rank_unit) is set, the highest of the other ranks leave, too, until a
///   multiple of it remains.
/// - The remaining ranks repeat the step in flight with their own batches; the batches of the ranks that left are
///   skipped in that step. After it, data is distributed over the remaining ranks, if the training program's loader
///   supports it.
/// - A restart with all ranks is tried first: the strategy refuses while the lost ranks have a place and a restart
///   may be tried, unless it is set to come [before](Shrink::before_restart) a restart.
/// - The strategy refuses if no rank is lost, if fewer than [`Policy::min_ranks`](crate::job::Policy::min_ranks) ranks
///   would remain, if no complete replica of the model would remain, and for the reasons of
///   [`Recover`](super::Recover): no control link, a broken program, a missing service.
/// - The strategy refuses if a survivor holds state that is sharded over the ranks, because the lost rank's shard is
///   gone. If the survivors report this only during the recovery, the recovery fails between stages.
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
    /// Creates the strategy.
    #[must_use]
    pub const fn new() -> Shrink {
        Shrink { limits: Limits::USUAL, before_restart: false }
    }

    /// Makes the strategy propose a smaller world even if the lost ranks could be placed and restarted.
    ///
    /// For jobs that prefer a smaller world to a restart from a checkpoint.
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

    fn unsupported_reason(&self, job: &JobProfile) -> Option<String> {
        cannot_shrink(job)
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        possible(self, view)?;
        let lost = lost(incident, view)?;
        if !self.before_restart {
            can_not_be_whole(incident, view, &lost)?;
        }
        let lives = view.world.members().keys().filter(|rank| !lost.contains(rank));
        if let Some(what) = reported_sharded(lives, view) {
            return Err(a_part_is_lost(what).into());
        }
        let leaving = with_replicas(&whole_units(lost, view), view)?;
        let kept = survivors(incident, view, &leaving)?;
        let least = view.spec.policy.min_ranks_of(view.spec.ranks).max(1);
        if kept.len() < least as usize {
            return Err(format!("{} ranks would be left, and the job needs at least {least}", kept.len()).into());
        }
        let world = Arc::new(view.world.successor(Counted::Yes, |members| {
            members.retain(|rank, _| kept.contains(rank));
        }));
        let services = missing_services(view, &world)?;
        let stages = meet_anew(view, &world, &kept, may_still_run(view, &leaving), services, &self.limits);
        let (size, whole) = (kept.len(), view.spec.ranks);
        let reason = format!("{} ranks leave, and {size} of the job's {whole} ranks continue", leaving.len());
        Ok(Proposal::new(stages, vec![Domain::Job], Cost::downtime(DOWNTIME), Counted::Yes, reason))
    }

    fn advance(&self, run: &PlanExecution, view: &View) -> Advance {
        match run.ended_stage().map(|stage| current_name(&stage.name)) {
            Some(name) if name == ABORT => match sharded(run) {
                Some(what) => Advance::Fail(a_part_is_lost(&what)),
                None => join_if_of_use(run, view, &self.limits),
            },
            Some(name) if name == JOIN => repair_and_resume(run, view, &self.limits),
            _ => compare_replicas(run, view),
        }
    }
}

/// Returns `Ok` if the job cannot train with all of its ranks. A different number of ranks changes the training result,
/// so a shrink comes last.
///
/// # Errors
/// The lost ranks have a place, and a restart of all ranks is allowed and has not failed yet.
fn can_not_be_whole(incident: &Incident, view: &View, lost: &BTreeSet<Rank>) -> Result<(), String> {
    if wants_to_grow(incident) {
        return Ok(()); // it was smaller before, and continues so
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

/// Returns the name of an object of which the survivors have no copies.
fn sharded(run: &PlanExecution) -> Option<String> {
    states_of(&run.done).into_values().flat_map(|state| state.sharded).next()
}

fn a_part_is_lost(what: &str) -> String {
    is_alone(what, "a part of it is lost")
}

/// Returns the lost ranks and, so that a multiple of [`Policy::rank_unit`](crate::job::Policy::rank_unit) remains, the
/// highest of the others.
fn whole_units(mut lost: BTreeSet<Rank>, view: &View) -> BTreeSet<Rank> {
    let left: Vec<Rank> = view.world.members().keys().filter(|rank| !lost.contains(rank)).copied().collect();
    lost.extend(left.iter().rev().take(view.spec.policy.beyond_unit(left.len())));
    lost
}

/// Returns the lost ranks and all other ranks of their replicas of the model.
///
/// # Errors
/// No complete replica is left.
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
