//! Lost ranks are started again, in their places or elsewhere, and take their state from a replica; the others stay.

use super::newcomers::{self, Newcomers, lost};
use super::replicas::can_give;
use super::{Limits, cannot_replace, may_still_run, missing_services, survivors};
use crate::job::{Counted, Name, NodeId, Rank, Role};
use crate::kernel::View;
use crate::recover::placement::{self, Seats};
use crate::recover::{Beforehand, Cost, Incident, Next, Proposal, RecoveryStrategy, Run, possible};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const NO_OTHER_HOST: &str = "there is no other host";

/// Starts what was lost, and nobody else: the survivors keep their processes and their state, and the job loses the step in
/// flight.
///
/// - Stages: `give-up` (survivors leave the broken groups and come to the end of their step, while what is lost is stopped for
///   certain), `start` (newcomers build what they train with, until they are [parked](crate::job::Ready::Parked)), `join`, `repair`
///   (newcomers, torn ranks and those behind copy from a replica of the newest committed step), `resume`.
/// - [`in_place`](Recover::in_place) starts a lost rank where it was, [`elsewhere`](Recover::elsewhere) on other hosts.
/// - The service at which ranks meet is started as well, if it is missing.
/// - It refuses when no rank is lost, when the program itself is broken, when a survivor has no control link or would stay on a
///   broken host, when another service is missing, when there is no place, when no replica of a lost rank is left, and when what it
///   held is [sharded](crate::launch::Linked::sharded): no other has a copy of it.
/// - It gives up between stages when no replica has a state of one step: then the next rung has to do with what was saved.
#[derive(Clone, Copy, Debug)]
pub struct Recover {
    in_place: bool,
    limits: Limits,
}

impl Recover {
    /// `recover-in-place`: on the host where it was.
    #[must_use]
    pub const fn in_place() -> Recover {
        Recover { in_place: true, limits: Limits::USUAL }
    }

    /// `recover`: on another host.
    #[must_use]
    pub const fn elsewhere() -> Recover {
        Recover { in_place: false, limits: Limits::USUAL }
    }

    /// Where everybody sits afterwards.
    fn seats(&self, incident: &Incident, lost: &BTreeSet<Rank>, view: &View) -> Result<Seats, String> {
        let before = placement::current(view);
        let hosts: BTreeSet<NodeId> = lost.iter().filter_map(|rank| before.get(rank)?.node.clone()).collect();
        let usable = if self.in_place { incident.broken_hosts() } else { &incident.broken_hosts() | &hosts };
        let usable = view.without(&usable);
        if let Some(host) = hosts.iter().find(|host| self.in_place && !view.nodes.is_empty() && !usable.is_ready(host))
        {
            return Err(format!("{host} takes nothing new"));
        }
        let mut moving = before.clone();
        moving.retain(|rank, _| lost.contains(rank));
        let settled = placement::settle_some(&usable, &before, moving)?;
        let moved = lost.iter().all(|rank| settled.get(rank).map(|s| &s.node) != before.get(rank).map(|s| &s.node));
        if !self.in_place && !moved {
            return Err(NO_OTHER_HOST.into());
        }
        Ok(settled)
    }

    pub(super) fn cost(&self) -> Cost {
        Cost::downtime(Duration::from_millis(if self.in_place { 200 } else { 500 }))
    }
}

impl RecoveryStrategy for Recover {
    fn name(&self) -> Name {
        Name::new(if self.in_place { "recover-in-place" } else { "recover" })
    }

    fn config(&self) -> String {
        self.limits.text()
    }

    fn cannot(&self, job: &Beforehand) -> Option<String> {
        let no_other_host = || (!self.in_place && job.hosts == Some(1)).then(|| NO_OTHER_HOST.to_owned());
        cannot_replace(job).or_else(no_other_host)
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, String> {
        possible(self, view)?;
        let lost = lost(incident, view)?;
        let services = missing_services(view, &view.world)?;
        let kept = survivors(incident, view, &lost)?;
        can_give(&kept, &lost, view)?;
        let mut seats = self.seats(incident, &lost, view)?;
        let world = Arc::new(view.world.successor(Counted::Yes, |members| {
            for (rank, member) in members.iter_mut().filter(|(rank, _)| lost.contains(rank)) {
                member.incarnation = view.next_incarnation(&Role::Rank(*rank));
                if let Some(seat) = seats.remove(rank) {
                    (member.node, member.device) = (seat.node, seat.device);
                }
            }
        }));
        let places = if self.in_place { "in place" } else { "on another host" };
        let (number, of) = (lost.len(), world.size());
        let reason = format!("{number} of {of} ranks start again {places}, the others keep their state");
        let newcomers = Newcomers { world, kept, stop: may_still_run(view, &lost), coming: lost, services };
        Ok(newcomers.proposal(view, &self.limits, self.cost(), Counted::Yes, reason))
    }

    fn advance(&self, run: &Run, view: &View) -> Next {
        newcomers::advance(run, view, &self.limits)
    }
}
