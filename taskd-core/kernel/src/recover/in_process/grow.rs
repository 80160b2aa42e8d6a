//! Brings absent ranks back into a running world.

use super::replacements::{self, Replacements};
use super::replicas::can_give;
use super::{Limits, cannot_shrink, missing_services, survivors};
use crate::job::{Counted, Member, NodeId, Rank, Role};
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
/// - Stages: those of [`Recover`](super::Recover). The recovery does not count as a restart.
/// - An operator or a detector has to advise this strategy, for example
///   [`ShrunkDetector`](crate::detect::ShrunkDetector) after some time.
/// - The strategy refuses if no rank is absent, if a rank is lost (its recovery comes first), if a member has no
///   control link, if the absent ranks do not all find a place, and if no rank has a copy of the state that the absent
///   ranks need.
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
        let coming: BTreeSet<Rank> = view.world.absent().keys().copied().collect();
        if coming.is_empty() {
            return Err("no rank is absent".into());
        }
        if let Some(rank) = incident.lost_ranks(view).into_iter().next() {
            return Err(format!("{rank} is lost and is recovered first").into());
        }
        let kept = survivors(incident, view, &BTreeSet::new())?;
        can_give(&kept, &coming, view)?;
        let mut seats = seats(incident, view)?;
        let avoided = placement::passed_over_text(view, &seats, |view| self::seats(incident, view).ok());
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
        Ok(replacements.proposal(view, &self.limits, Cost::downtime(DOWNTIME), Counted::No, reason))
    }

    fn advance(&self, run: &PlanExecution, view: &View) -> Advance {
        replacements::advance(run, view, &self.limits)
    }
}

/// Returns the places of the absent ranks: their former hosts, if these accept new processes.
fn seats(incident: &Incident, view: &View) -> Result<Seats, String> {
    let broken: BTreeSet<NodeId> = incident.broken_hosts();
    placement::settle_some(&view.without(&broken), &placement::current(view), placement::absent(view))
}
