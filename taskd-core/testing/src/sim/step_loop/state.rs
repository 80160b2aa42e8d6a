//! The training state that an interrupted step leaves on each rank: most are before their commit window, some have
//! closed it, some are torn in it.
//!
//! Nothing is reported here: each rank reports its state in its reply to `abort`.

use super::super::event::Event;
use super::super::world::World as Sim;
use super::{Stand, StepLoop};
use crate::job::{Domain, Generation, ProcId, Rank, Role};
use crate::launch::FailureKind;
use crate::trace::{Observation, Signal};

/// Share of faults, in thousandths, at which some ranks are about to commit.
const AROUND_COMMIT_PERMILLE: u32 = 350;

impl Sim<'_> {
    /// Breaks the gang after the loss of a member or of its connections: ranks in the middle of a step stay there, and
    /// may report a failure.
    pub(in crate::sim) fn gang_breaks(&mut self, generation: Generation) {
        if !self.scene.step_loop {
            return;
        }
        self.breaks_off();
        let share = *self.dice.pick(&[0, 600, 1_000]).unwrap_or(&0);
        for proc in self.training.running() {
            if self.dice.chance(share) {
                let at = self.now + self.dice.ms(1, 3_000);
                self.queue.push(at, Event::ReportsFailed { proc, generation, kind: FailureKind::Collective });
            }
        }
    }

    /// Interrupts the step in flight.
    pub(in crate::sim) fn breaks_off(&mut self) {
        let tear_all = std::mem::take(&mut self.loops.tear_all);
        let Some(gang) = self.training.gang.as_ref().filter(|gang| gang.moving) else { return };
        let (step, generation) = (gang.step + 1, gang.generation);
        let commits = step < self.scene.steps && (tear_all || self.dice.chance(AROUND_COMMIT_PERMILLE));
        if !commits {
            return;
        }
        let mut facts = Vec::new();
        for (seat, rank) in self.training.seats.iter_mut().zip(0..).filter(|(s, _)| s.running && !s.frozen) {
            match if tear_all { 2 } else { self.dice.below(3) } {
                0 => {}
                1 => {
                    (seat.holds, seat.stepped) = (Some(step), Some(generation));
                    seat.taken += 1;
                    facts.push(
                        Observation::new(self.now, Domain::Process(Role::Rank(Rank(rank))), Signal::Progress { step })
                            .with_incarnation(seat.incarnation)
                            .with_generation(generation),
                    );
                }
                _ => seat.torn = true,
            }
        }
        facts.retain(|fact| self.is_in_sight(fact));
        self.say(facts);
    }

    fn is_in_sight(&self, fact: &Observation) -> bool {
        let Domain::Process(Role::Rank(rank)) = fact.about else { return false };
        let host = self.training.seats.get(rank.0 as usize).map(|seat| &self.fleet.hosts[seat.host]);
        host.is_some_and(|host| !host.is_cut_off() && host.held.is_none())
    }

    /// Removes a process from its group: the group never steps again.
    pub(super) fn leaves_gang(&mut self, proc: &ProcId) {
        let Some(seat) = self.training.seat_mut(proc) else { return };
        seat.waits = true;
        let generation = seat.generation;
        let gang = self.training.gang.as_ref().filter(|gang| gang.generation == generation && !gang.dead);
        if gang.is_some() {
            self.breaks_off();
            self.training.gang.iter_mut().for_each(|gang| gang.dead = true);
        }
    }

    /// Returns true if a rank has received `resume` and does not train yet.
    pub(in crate::sim) fn have_resumed(&self) -> bool {
        self.loops.procs.values().any(|known| known.stand == Stand::Resumed)
    }

    /// Returns the ranks of the stepping gang that train in a loop.
    pub(in crate::sim) fn in_loop(&self) -> Vec<ProcId> {
        let Some(gang) = self.training.gang.as_ref().filter(|gang| !gang.dead) else { return Vec::new() };
        let trains = |known: &StepLoop| known.stand == Stand::Trains && known.generation == gang.generation;
        let mut running = self.training.running();
        running.retain(|proc| self.loops.get(proc).is_some_and(trains));
        running
    }
}
