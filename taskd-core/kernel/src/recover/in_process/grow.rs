//! Brings absent ranks back into a running world.

use super::replacements::{self, Replacements};
use super::replicas::can_give;
use super::{Limits, cannot_shrink, missing_services, survivors};
use crate::job::{Counted, GroupKind, Member, NodeId, Rank, Role};
use crate::recover::{
    Advance, Cost, GROW, Incident, JobProfile, PlanExecution, Proposal, RecoveryStrategy, RefusalError, possible,
};
use crate::state::View;
use crate::state::placement::{self, Seat, Seats};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Expected downtime.
const DOWNTIME: Duration = Duration::from_millis(200);

/// Strategy that brings the absent ranks back into a world that [shrank](super::Shrink), on their former hosts or
/// where there is room. The other ranks keep their processes and send their state to them.
///
/// - Stages: those of [`Recover`](super::Recover), but the returning ranks start first, while the others train on: these
///   pause only for the rejoin and the state sync. The recovery does not count as a restart.
/// - As many ranks return as have room, in multiples of [`Policy::rank_unit`](crate::job::Policy::rank_unit). If the job
///   names data-parallel groups, all absent ranks return or none.
/// - An operator or a detector has to advise this strategy, for example
///   [`ShrunkDetector`](crate::detect::ShrunkDetector) after some time.
/// - The strategy refuses if no rank is absent, if a rank is lost (its recovery comes first), if a member has no
///   control link, if too few absent ranks find a place, and if no rank has a copy of the state that the absent ranks
///   need.
#[derive(Clone, Copy, Debug)]
pub struct Grow {
    limits: Limits,
}

impl Default for Grow {
    fn default() -> Grow {
        Grow::new()
    }
}

impl Grow {
    /// Creates the strategy.
    #[must_use]
    pub const fn new() -> Grow {
        Grow { limits: Limits::USUAL }
    }
}

impl RecoveryStrategy for Grow {
    fn name(&self) -> crate::job::Name {
        GROW
    }

    fn config(&self) -> String {
        self.limits.text()
    }

    fn unsupported_reason(&self, job: &JobProfile) -> Option<String> {
        cannot_shrink(job)
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        possible(self, view)?;
        if !replacements::wants_to_grow(incident) {
            return Err("no operator and no detector has asked the world to grow".into());
        }
        if view.world.absent().is_empty() {
            return Err("no rank is absent".into());
        }
        if let Some(rank) = incident.lost_ranks(view).into_iter().next() {
            return Err(format!("{rank} is lost and is recovered first").into());
        }
        let kept = survivors(incident, view, &BTreeSet::new())?;
        let mut seats = seats(incident, view);
        let coming = coming(&seats, view)?;
        can_give(&kept, &coming, view)?;
        let avoided = placement::passed_over_text(view, &seats, |view| Some(self::seats(incident, view)));
        let world = Arc::new(view.world.successor(Counted::No, |members| {
            members.extend(coming.iter().map(|rank| {
                let seat = seats.remove(rank).unwrap_or(Seat { node: None, device: None });
                let incarnation = view.next_incarnation(&Role::Rank(*rank));
                (*rank, Member { incarnation, node: seat.node, device: seat.device })
            }));
        }));
        let services = missing_services(view, &world)?;
        let reason = format!("{} ranks rejoin the {} training ranks{avoided}", coming.len(), kept.len());
        let replacements = Replacements { world, kept, coming, stop: Vec::new(), services };
        Ok(replacements.growth(view, &self.limits, Cost::downtime(DOWNTIME), reason))
    }

    fn advance(&self, run: &PlanExecution, view: &View) -> Advance {
        replacements::advance(run, view, &self.limits)
    }
}

/// Returns the places of the absent ranks that have one: their former hosts, if these accept new processes.
fn seats(incident: &Incident, view: &View) -> Seats {
    let broken: BTreeSet<NodeId> = incident.broken_hosts();
    placement::settle_those_with_room(&view.without(&broken), &placement::current(view), placement::absent(view))
}

/// Returns the absent ranks that return: those with a place, in whole units.
///
/// # Errors
/// Too few of them have a place.
fn coming(seats: &Seats, view: &View) -> Result<BTreeSet<Rank>, String> {
    let (absent, members) = (view.world.absent().len(), view.world.members().len());
    let without = view.world.absent().keys().find(|rank| !seats.contains_key(rank));
    let Some(without) = without else { return Ok(seats.keys().copied().collect()) };
    let has_groups = view.world.groups().keys().any(|id| id.kind == GroupKind::Dp);
    let beyond = view.spec.policy.beyond_unit(members + seats.len());
    match seats.len().checked_sub(beyond).filter(|number| *number > 0 && !has_groups) {
        Some(number) => Ok(seats.keys().take(number).copied().collect()),
        None => Err(format!("{} of the {absent} absent ranks have room: no host has any for {without}", seats.len())),
    }
}
