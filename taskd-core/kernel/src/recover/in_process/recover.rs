//! Restarts lost ranks, in place or on other hosts, with the state of a replica; the other ranks stay.

use super::replacements::{self, Replacements, lost};
use super::replicas::can_give;
use super::{Limits, cannot_replace, may_still_run, missing_services, survivors};
use crate::job::{Counted, Name, NodeId, Rank, Role, World};
use crate::recover::{
    Advance, Cost, Incident, JobProfile, PlanExecution, Proposal, RecoveryStrategy, RefusalError, possible,
};
use crate::state::View;
use crate::state::placement::{self, Seats};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Expected time that a process without a standby needs longer: it imports the framework and builds the model. Three to
/// ten seconds with PyTorch. It is less than the cost of a [`Shrink`](super::Shrink), which changes the training result.
pub(super) const COLD_START: Duration = Duration::from_secs(5);

const NO_OTHER_HOST: &str = "there is no other host";

/// Strategy that starts new processes for the lost ranks only; the surviving ranks keep their processes and state.
///
/// The job loses the step in flight.
///
/// - Stages: `abort` (survivors leave the broken process groups and finish their step; lost processes that may
///   still run are stopped), `start` (new processes build and warm up their model, until they are
///   [parked](crate::job::Ready::Parked)), `join`, `sync-state` (new ranks, ranks whose optimizer step was aborted,
///   and ranks that are behind copy from a replica with the newest committed step), `resume`.
/// - [`in_place`](Recover::in_place) starts lost ranks on their hosts, [`elsewhere`](Recover::elsewhere) on others.
/// - The cost depends on the hosts' [standbys](crate::state::NodeStatus::standbys): a host that has one ready for each rank
///   is preferred, the former one first. Among hosts without, the former one is preferred.
/// - The rendezvous service is started as well, if it is missing, on the host of the first rank.
/// - The strategy refuses if no rank is lost, if the program itself is broken, if a survivor has no control link or
///   would stay on a broken host, if another service is missing, if a lost rank finds no place, if no replica of a lost
///   rank is left, and if the state of a lost rank is [sharded](crate::state::ControlLink::sharded) (no other rank has
///   a copy).
/// - The recovery fails between stages if no replica has the state of one whole step: the next strategy then needs a
///   checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Recover {
    in_place: bool,
    limits: Limits,
}

impl Recover {
    /// Returns the strategy `recover-in-place`: it starts lost ranks on their former hosts.
    #[must_use]
    pub const fn in_place() -> Recover {
        Recover { in_place: true, limits: Limits::USUAL }
    }

    /// Returns the strategy `recover`: it starts lost ranks on other hosts.
    #[must_use]
    pub const fn elsewhere() -> Recover {
        Recover { in_place: false, limits: Limits::USUAL }
    }

    /// Returns the places of the lost ranks after the recovery.
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

    /// Returns the cost, with or without the time that new processes need until they can train.
    pub(super) fn cost(&self, is_ready: bool) -> Cost {
        let downtime = Duration::from_millis(if self.in_place { 200 } else { 500 });
        Cost::downtime(if is_ready { downtime } else { downtime + COLD_START })
    }
}

/// Returns the hosts on which more of these ranks start than standbys are ready, as text for the reason; `None` if all of
/// them can take their ranks at once. A host that does not report its standbys is assumed to have enough.
fn without_standbys(view: &View, world: &World, coming: &BTreeSet<Rank>) -> Option<String> {
    let mut wanted: BTreeMap<&NodeId, u32> = BTreeMap::new();
    let members = coming.iter().filter_map(|rank| world.members().get(rank));
    members.filter_map(|member| member.node.as_ref()).for_each(|host| *wanted.entry(host).or_default() += 1);
    let lacks = |(host, ranks): (&NodeId, u32)| {
        let ready = view.nodes.get(host)?.standbys.filter(|ready| *ready < ranks)?;
        Some(format!("{host} has {ready} standbys ready for {ranks} ranks"))
    };
    let hosts: Vec<String> = wanted.into_iter().filter_map(lacks).collect();
    (!hosts.is_empty()).then(|| hosts.join(", "))
}

impl RecoveryStrategy for Recover {
    fn name(&self) -> Name {
        Name::new(if self.in_place { "recover-in-place" } else { "recover" })
    }

    fn config(&self) -> String {
        self.limits.text()
    }

    fn unsupported_reason(&self, job: &JobProfile) -> Option<String> {
        let no_other_host = || (!self.in_place && job.hosts == Some(1)).then(|| NO_OTHER_HOST.to_owned());
        cannot_replace(job).or_else(no_other_host)
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        possible(self, view)?;
        let lost = lost(incident, view)?;
        let kept = survivors(incident, view, &lost)?;
        can_give(&kept, &lost, view)?;
        let mut seats = self.seats(incident, &lost, view)?;
        let avoided = placement::passed_over_text(view, &seats, |view| self.seats(incident, &lost, view).ok());
        let counted = if incident.is_fenced() { Counted::No } else { Counted::Yes };
        let world = Arc::new(view.world.successor(counted, |members| {
            for (rank, member) in members.iter_mut().filter(|(rank, _)| lost.contains(rank)) {
                member.incarnation = view.next_incarnation(&Role::Rank(*rank));
                if let Some(seat) = seats.remove(rank) {
                    (member.node, member.device) = (seat.node, seat.device);
                }
            }
        }));
        let services = missing_services(view, &world)?; // on a host of the new world: the last one may be lost
        let places = if self.in_place { "in place" } else { "on another host" };
        let (number, of) = (lost.len(), world.size());
        let lacking = without_standbys(view, &world, &lost);
        let cost = self.cost(lacking.is_none());
        let lacking = lacking.map(|hosts| format!("; {hosts}")).unwrap_or_default();
        let reason = format!("{number} of {of} ranks restart {places}, the others keep their state{avoided}{lacking}");
        let replacements = Replacements { world, kept, stop: may_still_run(view, &lost), coming: lost, services };
        Ok(replacements.proposal(view, &self.limits, cost, counted, reason))
    }

    fn advance(&self, run: &PlanExecution, view: &View) -> Advance {
        replacements::advance(run, view, &self.limits)
    }
}
