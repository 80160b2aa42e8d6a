//! The rung that nearly always helps: everybody starts again from the last checkpoint.
//!
//! It never saves anything: what was trained since the checkpoint is lost.

use super::placement::{self, Seats};
use super::stages::{STOP_MARGIN, start_all};
use super::{Action, Cost, Incident, Next, Proposal, RecoveryStrategy, Run, Stage};
use crate::detect::{Fault, FaultClass, Sound};
use crate::job::{Counted, Domain, Name, NodeId, ProcId, Rank, Role, World};
use crate::kernel::View;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const NAME: Name = super::RESTART;
const STOP: Name = Name::new("stop");
const START: Name = Name::new("start");

/// How long a restart is taken to keep the job from training, where nobody says otherwise.
const DOWNTIME: Duration = Duration::from_secs(60);

/// Stops all ranks, and the job's services, and starts them anew, in a new world, from the program's last checkpoint.
///
/// - Stages: `stop` (exactly, so that memory, ports and devices are free), `start` (enter the new world, start everybody,
///   until [`Policy::ready`](crate::job::Policy::ready)). Processes that are known to be lost are killed at once: they
///   cannot make use of a grace time. Healthy ones get the policy's.
/// - Ranks that had left a [shrunk](super::Shrink) world start with the others.
/// - Ranks stay where they are, except on hosts that take nothing new, and on hosts of which a detector says that they or
///   their devices do not work: those are taken out of the job. After an exception of the program the ranks of the
///   failed rank's host exchange with those of another host, if there is one that fits (else the rank with another
///   device of its host): if the exception comes back there, it was not the machine.
/// - The new world is proposed, so that the decision shows it, and built again when the stop is over: meanwhile hosts may
///   have left, and processes may have come to light whose incarnation must not be used again.
/// - It does not count when all causes of the incident are races lost at start-up
///   ([`retry_free`](crate::job::ErrorReport::retry_free)).
/// - It refuses when the program itself is broken, when a service is lost that is none of the job's, when ranks find no
///   host, and when all that was blamed still trains: who is slow would start again where it is.
///
/// A strategy does not know when the last checkpoint was: the cost assumes half of the usual interval
/// ([`with_checkpoint_every`](Self::with_checkpoint_every)).
#[derive(Clone, Copy, Debug)]
pub struct Restart {
    checkpoint_every: Duration,
    downtime: Duration,
}

impl Default for Restart {
    fn default() -> Restart {
        Restart::new()
    }
}

impl Restart {
    /// A restart of a program that saves a checkpoint every 20 minutes.
    #[must_use]
    pub const fn new() -> Restart {
        Restart { checkpoint_every: Duration::from_secs(20 * 60), downtime: DOWNTIME }
    }

    /// How long a restart keeps the job from training, for the expected cost. Default: a minute.
    #[must_use]
    pub const fn with_downtime(mut self, downtime: Duration) -> Restart {
        self.downtime = downtime;
        self
    }

    /// How often the program saves a checkpoint, for the expected cost.
    #[must_use]
    pub const fn with_checkpoint_every(mut self, interval: Duration) -> Restart {
        self.checkpoint_every = interval;
        self
    }
}

impl RecoveryStrategy for Restart {
    fn name(&self) -> Name {
        NAME
    }

    fn config(&self) -> String {
        format!("checkpoint_every_ms={} downtime_ms={}", self.checkpoint_every.as_millis(), self.downtime.as_millis())
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, String> {
        let counted = if is_free(incident) || incident.is_ordered() { Counted::No } else { Counted::Yes };
        self.propose_counted(incident, view, counted)
    }

    fn advance(&self, run: &Run, view: &View) -> Next {
        start_anew(run, view, run.proposal.counted)
    }
}

impl Restart {
    /// The same proposal, for who has counted it already, or does not.
    ///
    /// # Errors
    /// Why starting all ranks again would not help.
    pub(super) fn propose_counted(
        &self,
        incident: &Incident,
        view: &View,
        counted: Counted,
    ) -> Result<Proposal, String> {
        check(incident, view)?;
        let broken: BTreeSet<NodeId> = incident.broken_hosts();
        let usable = view.without(&broken);
        let mut before = placement::current(view);
        before.extend(placement::absent(view)); // everybody starts, those too who had left
        let seats = seats(&usable, &before, suspected_place(incident))?;
        let left = before.values().filter_map(|seat| seat.node.as_ref()).filter(|node| broken.contains(node));
        let left: BTreeSet<NodeId> = left.filter(|node| view.is_ready(node)).cloned().collect();
        let moved = before.iter().filter(|(rank, seat)| seats.get(rank) != Some(seat)).count();
        let world = Arc::new(next_world(view, counted, seats));
        let elsewhere = if moved > 0 { format!(", {moved} of them in another place") } else { String::new() };
        let reason =
            format!("all {} ranks start again, from the last checkpoint if there is one{elsewhere}", world.size());
        let nodes_removed = u32::try_from(left.len()).unwrap_or(u32::MAX);
        let mut stop = stop(incident, view);
        if !left.is_empty() {
            let why = format!("{} found it broken", incident.root().map_or(NAME, |fault| fault.by.clone()));
            stop.actions.push(Action::Cordon { nodes: left, reason: why });
        }
        Ok(Proposal {
            stages: vec![stop, start_all(START, world, view)],
            touches: vec![Domain::Job],
            cost: Cost {
                ends_job: false,
                lost_work: self.checkpoint_every / 2,
                downtime: self.downtime,
                nodes_removed,
            },
            counted,
            reason,
        })
    }
}

/// After the stop: the start, into a world that is built anew.
pub(super) fn start_anew(run: &Run, view: &View, counted: Counted) -> Next {
    if run.ended_stage().is_none_or(|stage| stage.name != STOP) {
        return Next::AsProposed;
    }
    let Some(proposed) = run.proposal.stages.get(run.stage) else { return Next::AsProposed };
    let Some(world) = entered(proposed) else { return Next::AsProposed };
    match placement::settle(view, seats_of(world)) {
        Err(reason) => Next::GiveUp(reason),
        Ok(seats) => {
            let anew = start_all(START, Arc::new(next_world(view, counted, seats)), view);
            if anew == *proposed { Next::AsProposed } else { Next::Instead(vec![anew]) }
        }
    }
}

/// Whether starting the ranks again can help at all.
fn check(incident: &Incident, view: &View) -> Result<(), String> {
    for fault in &incident.faults {
        let suspect = fault.prime();
        if suspect.damage.program == Sound::No {
            return Err(format!("{} found the program itself broken: it would fail again", fault.by));
        }
        if let Domain::Process(Role::Service(name)) = &suspect.domain
            && suspect.damage.process == Sound::No
            && !view.spec.services.contains_key(name)
        {
            return Err(format!("service {name} is lost, and the job does not say how it is started"));
        }
    }
    if incident.is_of_the_meeting(view) {
        return Err("ranks that have met train on without the service at which they met".into());
    }
    // By what was tried, or begun: it may not train any more, or somebody was to come and has not.
    let was_disturbed = !incident.attempts.is_empty() || !view.all_train();
    if incident.still_trains() && !incident.is_ordered() && !was_disturbed {
        return Err("what was blamed still trains, and would only start again where it is".into());
    }
    Ok(())
}

/// Whether trying again is free: all that failed by itself lost a race at start-up.
fn is_free(incident: &Incident) -> bool {
    let mut causes = incident.faults.iter().filter(|f| f.prime().is_cause()).peekable();
    causes.peek().is_some() && causes.all(|f| f.error.as_ref().is_some_and(|e| e.retry_free))
}

/// The rank whose own exception is the root of the incident, or that failed in the same way where it is more than once: its place may be
/// at fault, or its program.
fn suspected_place(incident: &Incident) -> Option<Rank> {
    let tried_here =
        |fault: &&Fault| fault.prime().class == FaultClass::Program && fault.advice.as_ref() == Some(&NAME);
    if let Some(fault) = incident.faults.iter().find(tried_here)
        && let Domain::Process(role) = &fault.prime().domain
    {
        return role.rank();
    }
    let root = incident.root()?;
    let own = root.error.as_ref().is_some_and(|e| !e.follow_up && !e.retry_free && !e.is_interrupt());
    match &root.prime().domain {
        Domain::Process(role) if own => role.rank(),
        _ => None,
    }
}

/// Where the ranks are to sit; the suspected one elsewhere, if that can be.
fn seats(view: &View, before: &Seats, suspected: Option<Rank>) -> Result<Seats, String> {
    let seats = placement::settle(view, before.clone())?;
    let stayed = suspected.filter(|rank| before.get(rank) == seats.get(rank));
    Ok(stayed.and_then(|rank| placement::elsewhere(view, &seats, rank)).unwrap_or(seats))
}

fn seats_of(world: &World) -> Seats {
    let seat = |m: &crate::job::Member| placement::Seat { node: m.node.clone(), device: m.device };
    world.members().iter().map(|(rank, member)| (*rank, seat(member))).collect()
}

fn next_world(view: &View, counted: Counted, mut seats: Seats) -> World {
    view.world.successor(counted, |members| {
        members.extend(view.world.absent().clone());
        for (rank, member) in members {
            member.incarnation = view.next_incarnation(&Role::Rank(*rank));
            if let Some(seat) = seats.remove(rank) {
                (member.node, member.device) = (seat.node, seat.device);
            }
        }
    })
}

fn stop(incident: &Incident, view: &View) -> Stage {
    let grace = view.spec.policy.stop_grace;
    let mut lost = incident.lost(view);
    view.stopped().for_each(|rank| {
        lost.remove(&rank); // its grace time has begun, and may go on
    });
    let is_lost = |role: &Role| match role {
        Role::Rank(rank) => lost.contains(rank),
        Role::Service(_) => incident.faults.iter().map(Fault::prime).any(|suspect| {
            suspect.damage.process == Sound::No && matches!(&suspect.domain, Domain::Process(of) if of == role)
        }),
    };
    let is_of_job = |role: &Role| match role {
        Role::Rank(_) => true,
        Role::Service(name) => view.spec.services.contains_key(name),
    };
    let procs = view.alive().filter(|proc| is_of_job(&proc.role));
    let (gone, sound): (Vec<ProcId>, Vec<ProcId>) = procs.partition(|proc| is_lost(&proc.role));
    let stop = |procs: Vec<ProcId>, grace| (!procs.is_empty()).then_some(Action::Stop { procs, grace, exact: true });
    let actions = [stop(gone, Duration::ZERO), stop(sound, grace)].into_iter().flatten().collect();
    Stage::new(STOP, grace + STOP_MARGIN, actions)
}

/// The world that a stage enters.
fn entered(stage: &Stage) -> Option<&World> {
    stage.actions.iter().find_map(|action| match action {
        Action::Enter(world) => Some(&**world),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
