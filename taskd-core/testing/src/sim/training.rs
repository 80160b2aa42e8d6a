//! The synchronous training job itself: seats, the gang that steps, checkpoints.
//!
//! A step is one event for the whole gang, but every rank takes and reports it separately. One dead or frozen rank
//! stops all ranks; a slow one slows all ranks.

use super::event::Event;
use super::step_loop::StepLoop;
use super::world::World as Sim;
use crate::job::{Domain, Exit, Generation, Incarnation, JobTime, ProcId, Rank, Role, Termination, World};
use crate::trace::{Observation, Signal};
use std::sync::Arc;
use std::time::Duration;

/// The newest process of a rank, as the training job sees it.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) incarnation: Incarnation,
    /// The world that the process has joined.
    pub(super) generation: Generation,
    pub(super) host: usize,
    /// True if it runs and can step.
    pub(super) running: bool,
    pub(super) frozen: bool,
    /// The step whose result it holds in memory; `None` in a fresh process.
    pub(super) holds: Option<u64>,
    /// True if its state belongs to no step, because it was aborted while it changed.
    pub(super) torn: bool,
    /// True if it joins the rendezvous only when it receives the directive.
    pub(super) waits: bool,
    /// The last world in which this incarnation completed a step.
    pub(super) stepped: Option<Generation>,
    /// Steps that this rank has taken in all its incarnations.
    pub(super) taken: u64,
}

/// Ranks that step together.
#[derive(Clone, Debug)]
pub(super) struct Gang {
    pub(super) number: u64,
    pub(super) generation: Generation,
    /// True if a member has ended: this gang never steps again.
    pub(super) dead: bool,
    /// True if a step is in progress.
    pub(super) moving: bool,
    /// The last step that it has completed.
    pub(super) step: u64,
}

/// The state of the training job.
#[derive(Debug)]
pub(super) struct Training {
    pub(super) world: Arc<World>,
    pub(super) seats: Vec<Seat>,
    /// The newest process of the job's service, and true if it runs; `None` if the job has no service, or if it never
    /// existed.
    service: Option<(ProcId, bool)>,
    pub(super) gang: Option<Gang>,
    gangs: u64,
    pub(super) checkpoint: u64,
    pub(super) last_step: JobTime,
    /// True if all ranks wait in a collective forever; heartbeats continue.
    pub(super) deadlocked: bool,
    /// Multiplies the duration of a step by this factor while the process is in the gang.
    pub(super) slow: Option<(ProcId, u32)>,
    /// The rank and the step at which the program fails every time.
    pub(super) broken: Option<(Rank, u64)>,
}

impl Training {
    pub(super) fn new(world: Arc<World>) -> Training {
        let seat = Seat {
            incarnation: Incarnation(0),
            generation: Generation(0),
            host: 0,
            running: false,
            frozen: false,
            holds: None,
            torn: false,
            waits: false,
            stepped: None,
            taken: 0,
        };
        let seats = vec![seat; world.members().len()];
        Training {
            world,
            seats,
            service: None,
            gang: None,
            gangs: 0,
            checkpoint: 0,
            last_step: JobTime::START,
            deadlocked: false,
            slow: None,
            broken: None,
        }
    }

    pub(super) fn seat(&self, proc: &ProcId) -> Option<&Seat> {
        let seat = self.seats.get(proc.role.rank()?.0 as usize)?;
        (seat.incarnation == proc.incarnation).then_some(seat)
    }

    pub(super) fn seat_mut(&mut self, proc: &ProcId) -> Option<&mut Seat> {
        let seat = self.seats.get_mut(proc.role.rank()?.0 as usize)?;
        (seat.incarnation == proc.incarnation).then_some(seat)
    }

    /// Returns the running processes of the newest world.
    pub(super) fn running(&self) -> Vec<ProcId> {
        let all = self.seats.iter().zip(0..);
        all.filter(|(seat, _)| seat.running).map(|(seat, rank)| ProcId::rank(rank, seat.incarnation.0)).collect()
    }

    /// Returns the seats of the newest world's members.
    pub(super) fn members(&self) -> impl Iterator<Item = (Rank, &Seat)> {
        self.world.members().keys().filter_map(|rank| Some((*rank, self.seats.get(rank.0 as usize)?)))
    }

    fn members_mut(&mut self) -> impl Iterator<Item = (Rank, &mut Seat)> {
        let members = self.world.members();
        self.seats
            .iter_mut()
            .zip(0..)
            .map(|(seat, rank)| (Rank(rank), seat))
            .filter(|(rank, _)| members.contains_key(rank))
    }

    /// Returns true if a running member of the newest world is frozen.
    fn is_frozen(&self) -> bool {
        self.members().any(|(_, seat)| seat.frozen && seat.running)
    }

    /// Returns the service's process, if it runs.
    pub(super) fn service(&self) -> Option<&ProcId> {
        self.service.as_ref().filter(|(_, runs)| *runs).map(|(proc, _)| proc)
    }

    /// Returns true if all members of the newest world run in it, and none of them is frozen or waits.
    fn is_complete(&self) -> bool {
        let generation = self.world.generation();
        self.world.members().iter().all(|(rank, member)| {
            self.seats.get(rank.0 as usize).is_some_and(|s| {
                s.running && !s.frozen && !s.waits && s.incarnation == member.incarnation && s.generation == generation
            })
        })
    }

    /// Returns true if the gang steps, or will when its frozen members thaw.
    pub(super) fn is_stepping(&self) -> bool {
        self.gang.as_ref().is_some_and(|g| !g.dead)
    }

    pub(super) fn gangs_formed(&self) -> u64 {
        self.gangs
    }

    pub(super) fn steps_taken(&self) -> u64 {
        self.seats.iter().map(|s| s.taken).sum()
    }
}

impl Sim<'_> {
    /// Returns true if all processes that are needed to train exist: all ranks and, if the job has one, the service.
    fn is_complete(&self) -> bool {
        self.training.is_complete() && (!self.scene.has_service() || self.training.service().is_some())
    }

    /// Moves surviving processes to a new world.
    pub(super) fn joins(&mut self, world: &Arc<World>) {
        if self.scene.step_loop {
            return self.sees_world(world); // they join when they receive the directive
        }
        for (rank, member) in world.members() {
            let proc = ProcId { role: Role::Rank(*rank), incarnation: member.incarnation };
            if let Some(process) = self.fleet.procs.get_mut(&proc).filter(|p| p.is_alive()) {
                process.generation = process.generation.max(world.generation());
                let generation = process.generation;
                if let Some(seat) = self.training.seat_mut(&proc) {
                    seat.generation = generation;
                }
            }
        }
        self.sees_world(world);
        self.try_form();
    }

    pub(super) fn sees_world(&mut self, world: &Arc<World>) {
        if world.generation() > self.training.world.generation() {
            self.training.world = Arc::clone(world);
        }
    }

    /// Puts a process that has begun to run into its seat.
    pub(super) fn takes_seat(&mut self, proc: &ProcId) {
        if proc.role.rank().is_none() {
            let is_newest =
                self.training.service.as_ref().is_none_or(|(known, _)| known.incarnation <= proc.incarnation);
            if is_newest {
                self.training.service = Some((proc.clone(), true));
                self.try_form();
            }
            return;
        }
        let (Some(process), Some(rank)) = (self.fleet.procs.get(proc), proc.role.rank()) else { return };
        let Some(seat) = self.training.seats.get_mut(rank.0 as usize) else { return };
        if proc.incarnation >= seat.incarnation {
            let waits = self.loops.get(proc).is_some_and(StepLoop::joins);
            *seat = Seat {
                incarnation: proc.incarnation,
                generation: process.generation,
                host: process.host,
                running: true,
                frozen: process.frozen,
                holds: None,
                torn: false,
                waits,
                stepped: None,
                taken: seat.taken,
            };
            self.try_form();
        }
    }

    /// Removes an ended process: the other members of its gang wait forever, or fail as well.
    pub(super) fn leaves_seat(&mut self, proc: &ProcId, commanded: bool) {
        let generation = match &mut self.training.service {
            Some((service, runs)) if service == proc => {
                *runs = false;
                self.training.gang.as_ref().map(|gang| gang.generation) // no rank trains without it
            }
            _ => self.training.seat_mut(proc).map(|seat| {
                seat.running = false;
                seat.generation
            }),
        };
        let Some(generation) = generation else { return };
        let Some(gang) = self.training.gang.as_mut().filter(|g| g.generation == generation && !g.dead) else { return };
        gang.dead = true;
        let finished = gang.step >= self.scene.steps;
        if !commanded && !finished {
            self.peers_fail(proc, generation);
            self.gang_breaks(generation);
        }
    }

    /// Forms a gang after a rendezvous, if all members are present.
    pub(super) fn try_form(&mut self) {
        let generation = self.training.world.generation();
        let formed = self.training.gang.as_ref().is_some_and(|g| g.generation >= generation);
        if !formed && self.is_complete() {
            let at = self.now + self.dice.ms(50, self.scene.rendezvous_ms_max);
            self.queue.push(at, Event::Form(generation));
        }
    }

    pub(super) fn form(&mut self, generation: Generation) {
        let formed = self.training.gang.as_ref().is_some_and(|g| g.generation >= generation);
        if formed || self.training.world.generation() != generation || !self.is_complete() {
            return;
        }
        if let Err(broken) = self.audit.gang_forms(&self.training, &self.loops) {
            self.broken = Some(broken);
            return;
        }
        let kept = self.have_resumed();
        let survivors = self.training.members().filter_map(|(_, seat)| seat.holds).max();
        let step = survivors.unwrap_or(self.training.checkpoint);
        for (_, seat) in self.training.members_mut() {
            // A replacement has the steps that others completed in the meantime.
            (seat.holds, seat.taken) = (Some(step), seat.taken.max(step));
        }
        self.training.gangs += 1;
        let number = self.training.gangs;
        self.training.deadlocked = false;
        self.training.gang = Some(Gang { number, generation, dead: false, moving: false, step });
        if !kept {
            self.training.last_step = self.now; // kept ranks have to complete a step
        }
        self.loops_train(generation, step >= self.scene.steps);
        if step >= self.scene.steps {
            return self.all_ranks_end(); // the checkpoint is the program's last
        }
        self.move_on();
    }

    /// Begins the next step, if nothing stops the gang.
    pub(super) fn move_on(&mut self) {
        let stuck = self.training.deadlocked || self.training.is_frozen();
        let Some(gang) = self.training.gang.as_mut().filter(|g| !g.dead && !g.moving && !stuck) else { return };
        if gang.step >= self.scene.steps {
            return;
        }
        gang.moving = true;
        let mut takes = self.scene.step_takes;
        if let Some((slow, times)) = &self.training.slow
            && self.training.seat(slow).is_some_and(|s| s.running)
        {
            takes *= *times;
        }
        let number = self.training.gang.as_ref().map_or(0, |g| g.number);
        self.queue.push(self.now + takes, Event::Step(number));
    }

    /// Lets every member of the gang complete a step.
    pub(super) fn step(&mut self, number: u64) {
        let stuck = self.training.deadlocked || self.training.is_frozen();
        let Some(gang) = self.training.gang.as_mut().filter(|g| g.number == number) else { return };
        gang.moving = false;
        if gang.dead || stuck {
            return; // a thaw begins it again
        }
        let (step, generation) = (gang.step + 1, gang.generation);
        if let Some((rank, at)) = self.training.broken
            && step >= at
        {
            return self.program_fails(rank, step);
        }
        gang.step = step;
        let (mut reported, mut facts) = (Vec::new(), Vec::new());
        for (rank, seat) in self.training.members_mut() {
            seat.taken += 1;
            seat.holds = Some(step);
            seat.stepped = Some(generation);
            let fact = Observation::new(self.now, Domain::Process(Role::Rank(rank)), Signal::Progress { step })
                .with_incarnation(seat.incarnation)
                .with_generation(generation);
            reported.push((seat.host, fact));
        }
        for (host, fact) in reported {
            let host = &mut self.fleet.hosts[host];
            if host.is_cut_off() {
                continue;
            }
            match &mut host.held {
                Some(held) => held.push(fact),
                None => facts.push(fact),
            }
        }
        self.training.last_step = self.now;
        if step % self.scene.checkpoint_every == 0 {
            self.training.checkpoint = step;
        }
        self.say(facts);
        if self.scene.step_loop {
            self.loops_train(generation, true);
        }
        if step >= self.scene.steps {
            return self.all_ranks_end();
        }
        self.after_step(step);
        self.move_on();
    }

    fn all_ranks_end(&mut self) {
        self.training.checkpoint = self.scene.steps;
        for proc in self.training.running() {
            let at = self.now + self.dice.ms(1, 400);
            let exit = Exit::new(Termination::Code(0)).with_step(self.scene.steps);
            self.queue.push(at, Event::Ends { proc, exit: Box::new(exit) });
        }
    }

    /// Lets a frozen process continue.
    pub(super) fn thaw(&mut self, proc: &ProcId) {
        let Some(process) = self.fleet.procs.get_mut(proc).filter(|p| p.frozen && p.is_alive()) else { return };
        process.frozen = false;
        self.busy.remove(proc);
        if let Some(seat) = self.training.seat_mut(proc) {
            seat.frozen = false;
        }
        self.give_again(proc);
        self.try_form();
        let finished = self.training.gang.as_ref().is_some_and(|g| !g.dead && g.step >= self.scene.steps);
        if finished {
            self.all_ranks_end();
        }
        self.move_on();
    }

    pub(super) fn step_reached(&self) -> u64 {
        self.training.gang.as_ref().map_or(self.training.checkpoint, |g| g.step)
    }

    pub(super) fn heartbeat_gap(&self) -> Duration {
        self.scene.beat_every + Duration::from_millis(self.scene.fact_lag_ms_max)
    }
}
