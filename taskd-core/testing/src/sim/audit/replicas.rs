//! Ranks that begin to train together are in one world, at one step, with the state of one step. A committed step is
//! not lost while a complete replica of it is alive.
//!
//! The check uses the true state of the processes when they begin, independent of the kernel's view; and the kernel's
//! view when it reports a recovery.

use super::super::outcome::Violation;
use super::super::step_loop::{Loops, Stand};
use super::super::training::{Seat, Training};
use super::Moment;
use super::books::event;
use crate::job::{IncidentId, ProcId, Rank, Role, World};
use crate::kernel::Effect;
use crate::kernel::{Command, Event};
use crate::launch::Directive;
use crate::recover::Action;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Checks a gang that forms.
pub(super) fn gang_forms(training: &Training, loops: &Loops) -> Result<(), Violation> {
    let generation = training.world.generation();
    let seats = || training.members();
    let state = |seat: &Seat| (seat.generation, if seat.torn { None } else { seat.holds });
    let Some((first, seat)) = seats().next().filter(|_| !loops.procs.is_empty()) else { return Ok(()) };
    let loaded = |seat: &Seat| seat.holds.is_none() && !seat.torn; // it loads the checkpoint, or needs a directive
    let plain = seats().all(|(rank, seat)| loops.get(&proc(rank, seat)).is_some_and(|known| !resumed(known)));
    if plain && seats().all(|(_, seat)| loaded(seat) || seat.holds == Some(training.checkpoint)) {
        return Ok(());
    }
    if let Some((rank, _)) = seats().find(|(_, s)| state(s) != state(seat) || s.torn || s.holds.is_none()) {
        return Err(Violation::ReplicasDiffer { first, other: rank, generation });
    }
    let not_resumed = |(rank, seat): &(Rank, &Seat)| loops.get(&proc(*rank, seat)).is_none_or(|known| !resumed(known));
    if let Some((rank, _)) = seats().find(not_resumed) {
        return Err(Violation::NotResumed { rank, generation });
    }
    let next = seat.holds.unwrap_or_default() + 1;
    let was_next = |(rank, seat): (Rank, &Seat)| {
        let (of, next) = loops.get(&proc(rank, seat))?.gave_up?;
        next.filter(|_| of == generation)
    };
    let had = seats().filter_map(was_next).max();
    match had.filter(|had| *had > next) {
        Some(had) => Err(Violation::StepLost { had: had - 1, has: next - 1 }),
        None => Ok(()),
    }
}

fn resumed(known: &super::super::step_loop::StepLoop) -> bool {
    known.stand == Stand::Resumed
}

fn proc(rank: Rank, seat: &Seat) -> ProcId {
    ProcId::rank(rank.0, seat.incarnation.0)
}

/// Recoveries in progress that keep processes.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    /// The world in which the ranks of each recovery resume.
    keeping: BTreeMap<IncidentId, Arc<World>>,
}

impl Replicas {
    /// Checks a recovery that is reported as successful: each surviving process must have resumed in the world that was
    /// entered.
    pub(super) fn check(&mut self, m: &Moment<'_>, command: &Command) -> Result<(), Violation> {
        if let (Effect::Act(Action::SendDirectives(batch)), Some(incident)) = (&command.effect, command.incident)
            && batch.directives.iter().any(|(_, what)| matches!(what, Directive::Resume { .. }))
        {
            self.keeping.insert(incident, Arc::clone(&batch.world));
        }
        match event(command) {
            Some(Event::Closed { incident, how }) => {
                let world = self.keeping.remove(incident).filter(|_| how.starts_with("recovered by"));
                world.map_or(Ok(()), |world| all_train(m, &world))
            }
            Some(Event::Cancelled { incident, .. } | Event::Failed { incident, .. }) => {
                self.keeping.remove(incident);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Checks that all ranks train in that world. An incident that waited for this recovery may have begun the next one at
/// the same moment.
fn all_train(m: &Moment<'_>, world: &World) -> Result<(), Violation> {
    let generation = world.generation();
    for (rank, member) in world.members() {
        let proc = ProcId { role: Role::Rank(*rank), incarnation: member.incarnation };
        let Some(seat) = m.training.seat(&proc) else { return Err(Violation::NotResumed { rank: *rank, generation }) };
        if seat.running && (seat.waits || seat.generation != generation) {
            return Err(Violation::NotResumed { rank: *rank, generation });
        }
    }
    Ok(())
}
