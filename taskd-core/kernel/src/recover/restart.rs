//! Restarts all ranks from the last checkpoint: the strategy that nearly always helps.
//!
//! It saves nothing: what was trained since the checkpoint is lost.

use super::stages::{STOP_MARGIN, start_all};
use super::{Action, Advance, Cost, Incident, PlanExecution, Proposal, RecoveryStrategy, RefusalError, Stage};
use crate::detect::{Fault, FaultClass, Health};
use crate::job::{Counted, Domain, Name, NodeId, ProcId, Rank, Role, World};
use crate::state::View;
use crate::state::placement::{self, Seats};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const NAME: Name = super::RESTART;
const STOP: Name = Name::new("stop");
const START: Name = Name::new("start");

/// Default expected downtime of a restart.
const DOWNTIME: Duration = Duration::from_secs(60);

/// Strategy that stops all ranks and services of the job, and starts them in a new world, from the training
/// program's last checkpoint.
///
/// - Stages: `stop` (waits for exits, so that memory, ports and devices are free), `start` (enter the new world and
///   start all processes until [`Policy::ready`](crate::job::Policy::ready)). Lost processes are killed at once,
///   because they cannot use a grace period; healthy processes get the grace period of the policy.
/// - Ranks that had left a [shrunk](super::Shrink) world start with the others. If not all ranks have a place, and
///   [`Policy::min_ranks`](crate::job::Policy::min_ranks) allows it, the lowest ones start, as many as have one, and the
///   others are absent.
/// - Ranks stay on their hosts, except on hosts that accept no new processes, and on hosts that a detector found
///   faulty, or whose devices it found faulty: such faulty hosts are taken out of the job. After an exception of
///   the program, the ranks of the failed rank's host exchange places with those of a suitable host (if there is
///   none, the rank exchanges its device with another rank of its host): if the exception recurs there, the machine
///   was not the cause.
/// - The proposal contains the new world, so that the decision shows it. After the stop, the world is built again:
///   hosts may have left, and newly discovered processes may have used an incarnation already.
/// - The recovery does not count as a restart if all causes of the incident are races lost at start-up
///   ([`retry_free`](crate::job::ErrorReport::retry_free)), or if hosts without a lease have stopped the ranks
///   ([`is_fenced`](Incident::is_fenced)).
/// - The strategy refuses if the program itself is broken, if a lost service does not belong to the job, if ranks find
///   no host, and if every suspect still trains: a slow rank would start again in the same place.
///
/// A strategy does not know the time of the last checkpoint: the cost assumes half of the usual interval
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
    /// Creates a restart strategy for a program that saves a checkpoint every 20 minutes.
    #[must_use]
    pub const fn new() -> Restart {
        Restart { checkpoint_every: Duration::from_secs(20 * 60), downtime: DOWNTIME }
    }

    /// Sets the expected downtime of a restart, for the cost. Default: 60 seconds.
    #[must_use]
    pub const fn with_downtime(mut self, downtime: Duration) -> Restart {
        self.downtime = downtime;
        self
    }

    /// Sets how often the program saves a checkpoint, for the expected cost. Default: 20 minutes.
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

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        let is_uncounted = is_free(incident) || incident.is_fenced() || incident.is_requested_by_operator();
        let counted = if is_uncounted { Counted::No } else { Counted::Yes };
        self.propose_counted(incident, view, counted)
    }

    fn advance(&self, run: &PlanExecution, view: &View) -> Advance {
        start_anew(run, view, run.proposal.counted)
    }
}

impl Restart {
    /// Proposes a restart with an explicit `counted`, for callers that have counted it already or do not count it.
    ///
    /// # Errors
    /// The reason why restarting all ranks would not help.
    pub(super) fn propose_counted(
        &self,
        incident: &Incident,
        view: &View,
        counted: Counted,
    ) -> Result<Proposal, RefusalError> {
        check(incident, view)?;
        let broken: BTreeSet<NodeId> = incident.broken_hosts();
        let usable = view.without(&broken);
        let mut before = placement::current(view);
        before.extend(placement::absent(view)); // all ranks start, including those that had left
        let seats = seats_or_fewer(&usable, &before, suspected_place(incident))?;
        let left = before.values().filter_map(|seat| seat.node.as_ref()).filter(|node| broken.contains(node));
        let left: BTreeSet<NodeId> = left.filter(|node| view.is_ready(node)).cloned().collect();
        let avoided = placement::passed_over_text(&usable, &seats, |view| {
            self::seats(view, &before, suspected_place(incident)).ok()
        });
        let moved = seats.iter().filter(|(rank, seat)| before.get(rank) != Some(seat)).count();
        let without = before.len() - seats.len();
        let world = Arc::new(next_world(view, counted, seats));
        let elsewhere = if moved > 0 { format!(", {moved} of them in another place") } else { String::new() };
        let all = if without > 0 { "the" } else { "all" };
        let fewer = if without > 0 { format!("; {without} more have no place") } else { String::new() };
        let reason = format!(
            "{all} {} ranks restart from the last checkpoint, if there is one{elsewhere}{fewer}{avoided}",
            world.size()
        );
        let nodes_removed = u32::try_from(left.len()).unwrap_or(u32::MAX);
        let mut stop = stop(incident, view);
        if !left.is_empty() {
            let why = format!("reported as broken by {}", incident.root().map_or(NAME, |fault| fault.by.clone()));
            stop.actions.push(Action::Cordon { nodes: left, reason: why });
        }
        let cost =
            Cost { ends_job: false, lost_work: self.checkpoint_every / 2, downtime: self.downtime, nodes_removed };
        let stages = vec![stop, start_all(START, world, view)];
        Ok(Proposal::new(stages, vec![Domain::Job], cost, counted, reason))
    }
}

/// After the stop: starts all ranks, in a world that is built from the current view.
pub(super) fn start_anew(run: &PlanExecution, view: &View, counted: Counted) -> Advance {
    if run.ended_stage().is_none_or(|stage| stage.name != STOP) {
        return Advance::Continue;
    }
    let Some(proposed) = run.proposal.stages.get(run.stage) else { return Advance::Continue };
    let Some(world) = entered(proposed) else { return Advance::Continue };
    let seats = seats_of(world);
    match placement::settle(view, seats.clone()).or_else(|why| placement::settle_fewer(view, &seats).ok_or(why)) {
        Err(reason) => Advance::Fail(reason),
        Ok(seats) => {
            let anew = start_all(START, Arc::new(next_world(view, counted, seats)), view);
            if anew == *proposed { Advance::Continue } else { Advance::ReplaceRest(vec![anew]) }
        }
    }
}

/// Returns `Ok` if restarting the ranks can help at all; else the reason why not.
fn check(incident: &Incident, view: &View) -> Result<(), String> {
    for fault in &incident.faults {
        let suspect = fault.primary_suspect();
        if suspect.damage.program == Health::Faulty {
            return Err(format!("{} found the program broken: it would fail again", fault.by));
        }
        if let Domain::Process(Role::Service(name)) = &suspect.domain
            && suspect.damage.process == Health::Faulty
            && !view.spec.services.contains_key(name)
        {
            return Err(format!("service {name} is lost, and the job has no specification to start it"));
        }
    }
    if incident.is_rendezvous_loss(view) {
        return Err("ranks continue without the rendezvous service after they have joined".into());
    }
    // An earlier or unfinished attempt may have disturbed the job: a rank may not train any more, or was to start and
    // has not.
    let was_disturbed = !incident.attempts.is_empty() || !view.all_train();
    if incident.is_still_training() && !incident.is_requested_by_operator() && !was_disturbed {
        return Err("the blamed ranks still train, and would only restart in the same place".into());
    }
    Ok(())
}

/// Returns true if the retry is free: every cause is a race lost at start-up.
fn is_free(incident: &Incident) -> bool {
    let mut causes = incident.faults.iter().filter(|f| f.primary_suspect().is_cause()).peekable();
    causes.peek().is_some() && causes.all(|f| f.error.as_ref().is_some_and(|e| e.retry_free))
}

/// Returns the rank whose place may be at fault, if there is one; its program may be at fault as well.
///
/// Its own exception is the root of the incident, or it failed in the same way in the same place more than once.
fn suspected_place(incident: &Incident) -> Option<Rank> {
    let tried_here =
        |fault: &&Fault| fault.primary_suspect().class == FaultClass::Program && fault.advice.as_ref() == Some(&NAME);
    if let Some(fault) = incident.faults.iter().find(tried_here)
        && let Domain::Process(role) = &fault.primary_suspect().domain
    {
        return role.rank();
    }
    let root = incident.root()?;
    let own = root.error.as_ref().is_some_and(|e| !e.follow_up && !e.retry_free && !e.is_interrupt());
    match &root.primary_suspect().domain {
        Domain::Process(role) if own => role.rank(),
        _ => None,
    }
}

/// Returns the places of all ranks; the suspected rank gets another place if possible.
fn seats(view: &View, before: &Seats, suspected: Option<Rank>) -> Result<Seats, String> {
    let seats = placement::settle(view, before.clone())?;
    let stayed = suspected.filter(|rank| before.get(rank) == seats.get(rank));
    Ok(stayed.and_then(|rank| placement::elsewhere(view, &seats, rank)).unwrap_or(seats))
}

/// Returns the places of all ranks, or of as many as have room, if the policy allows so few.
fn seats_or_fewer(view: &View, before: &Seats, suspected: Option<Rank>) -> Result<Seats, String> {
    let has_place = |seats: &Seats| view.nodes.is_empty() || seats.values().all(|seat| seat.node.is_some());
    let starts_smaller = !view.world.absent().is_empty() || view.spec.policy.start_ranks > 0;
    let all = seats(view, before, suspected);
    match all {
        Ok(all) if !starts_smaller || has_place(&all) => Ok(all),
        all => placement::settle_fewer(view, before).map_or(all, Ok),
    }
}

fn seats_of(world: &World) -> Seats {
    let seat = |m: &crate::job::Member| placement::Seat { node: m.node.clone(), device: m.device };
    world.members().iter().map(|(rank, member)| (*rank, seat(member))).collect()
}

fn next_world(view: &View, counted: Counted, mut seats: Seats) -> World {
    view.world.successor(counted, |members| {
        members.extend(view.world.absent().clone());
        members.retain(|rank, _| seats.contains_key(rank));
        for (rank, member) in members {
            member.incarnation = view.next_incarnation(&Role::Rank(*rank));
            if let Some(seat) = seats.remove(rank) {
                (member.node, member.device) = (seat.node, seat.device);
            }
        }
    })
}

fn stop(incident: &Incident, view: &View) -> Stage {
    let grace = view.spec.policy.termination_grace_period;
    let mut lost = incident.lost_ranks(view);
    view.stopped().for_each(|rank| {
        lost.remove(&rank); // its grace period has begun, and may continue
    });
    let is_lost = |role: &Role| match role {
        Role::Rank(rank) => lost.contains(rank),
        Role::Service(_) => incident.faults.iter().map(Fault::primary_suspect).any(|suspect| {
            suspect.damage.process == Health::Faulty && matches!(&suspect.domain, Domain::Process(of) if of == role)
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

/// Returns the world that a stage puts in force, if it does so.
fn entered(stage: &Stage) -> Option<&World> {
    stage.actions.iter().find_map(|action| match action {
        Action::Enter(world) => Some(&**world),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
