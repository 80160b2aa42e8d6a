//! Ranks that have left come back to those who train.

use super::newcomers::{self, Newcomers};
use super::replicas::can_give;
use super::{Limits, cannot_shrink, missing_services, survivors};
use crate::job::{Counted, Member, NodeId, Rank, Role};
use crate::kernel::View;
use crate::recover::placement::{self, Seat, Seats};
use crate::recover::{Beforehand, Cost, GROW, Incident, Next, Proposal, RecoveryStrategy, Run, possible};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// What it is expected to keep the job from training.
const DOWNTIME: Duration = Duration::from_millis(200);

/// Starts all ranks that have left a world that [shrank](super::Shrink), where they were or where there is room: the others keep
/// their processes and their state, and give of it.
///
/// - Stages: those of [`Recover`](super::Recover), of which it is the other half. It counts as no restart.
/// - Somebody has to want it: [`ShrunkDetector`](crate::detect::ShrunkDetector), after some time, advises it.
/// - It refuses when nobody is absent, when a rank is lost (that is mended first), when a member has no control link, when there is
///   no place for all of them, and when nobody has a copy of what they need.
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
    /// The strategy.
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

    fn cannot(&self, job: &Beforehand) -> Option<String> {
        cannot_shrink(job)
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, String> {
        possible(self, view)?;
        if !newcomers::wants_to_grow(incident) {
            return Err("nobody wants the world to grow".into());
        }
        let coming: BTreeSet<Rank> = view.world.absent().keys().copied().collect();
        if coming.is_empty() {
            return Err("no rank is absent".into());
        }
        if let Some(rank) = incident.lost(view).into_iter().next() {
            return Err(format!("{rank} is lost, which is mended first"));
        }
        let services = missing_services(view, &view.world)?;
        let kept = survivors(incident, view, &BTreeSet::new())?;
        can_give(&kept, &coming, view)?;
        let mut seats = seats(incident, view)?;
        let world = Arc::new(view.world.successor(Counted::No, |members| {
            members.extend(coming.iter().map(|rank| {
                let seat = seats.remove(rank).unwrap_or(Seat { node: None, device: None });
                let incarnation = view.next_incarnation(&Role::Rank(*rank));
                (*rank, Member { incarnation, node: seat.node, device: seat.device })
            }));
        }));
        let reason = format!("{} ranks come back to the {} that train", coming.len(), kept.len());
        let newcomers = Newcomers { world, kept, coming, stop: Vec::new(), services };
        Ok(newcomers.proposal(view, &self.limits, Cost::downtime(DOWNTIME), Counted::No, reason))
    }

    fn advance(&self, run: &Run, view: &View) -> Next {
        newcomers::advance(run, view, &self.limits)
    }
}

/// Where those come back who are absent: where they were, if that takes something new.
fn seats(incident: &Incident, view: &View) -> Result<Seats, String> {
    let broken: BTreeSet<NodeId> = incident.broken_hosts();
    placement::settle_some(&view.without(&broken), &placement::current(view), placement::absent(view))
}
