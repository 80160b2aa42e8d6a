//! The simulated sources: heartbeats, facts of ranks, facts that arrive too late, replies to probes.

use super::event::Event;
use super::launcher::follow_up;
use super::world::World as Sim;
use crate::job::{CommandId, Domain, ErrorReport, Exit, Generation, Incarnation, Name, ProcId, Role, Termination};
use crate::launch::{Change, Phase, StartBatch, WorkerEvent, WorkerMessage};
use crate::recover::{Failure, TargetReply};
use crate::trace::{Fact, Observation, PROCESS_STATE, Probe, ProbeResult, Signal};
use std::collections::BTreeSet;
use std::time::Duration;

/// Largest number of outdated facts that arrive after one recovery.
const STALE_FACTS_MAX: usize = 4;

impl Sim<'_> {
    /// Sends facts to the supervisor.
    pub(super) fn say(&mut self, facts: Vec<Observation>) {
        if facts.is_empty() {
            return;
        }
        let at = (self.now + self.dice.ms(0, self.scene.fact_lag_ms_max)).max(self.facts_tail);
        self.facts_tail = at;
        self.queue.push(at, Event::Facts { life: self.supervisor.life, facts });
    }

    /// Sends a heartbeat of every running process of a host.
    pub(super) fn beat(&mut self, host: usize) {
        self.queue.push(self.now + self.scene.beat_every, Event::Beat(host));
        self.beat_now(host);
    }

    pub(super) fn beat_now(&mut self, host: usize) {
        if self.fleet.hosts[host].is_cut_off() {
            return;
        }
        let mut facts = Vec::new();
        for (rank, seat) in (0..).zip(&self.training.seats) {
            let is_stuck = || self.stuck.contains_key(&ProcId::rank(rank, seat.incarnation.0));
            if seat.host == host && seat.running && (!seat.frozen || is_stuck()) {
                let fact = Fact::new(Domain::Process(Role::Rank(crate::job::Rank(rank))), Signal::Heartbeat);
                facts.push(
                    fact.with_incarnation(seat.incarnation).with_generation(seat.generation).into_observation(self.now),
                );
            }
        }
        match &mut self.fleet.hosts[host].held {
            Some(held) => held.append(&mut facts),
            None => self.say(facts),
        }
        self.report_records(host);
    }

    /// Reports the failures that processes of a host recorded before they hung at their exit. The records are on disk,
    /// so that each owner of the launcher finds them.
    fn report_records(&mut self, host: usize) {
        let lives = |proc: &ProcId| self.fleet.procs.get(proc).is_some_and(|p| p.is_alive() && p.host == host);
        let recorded: Vec<_> = self.stuck.iter().filter(|(proc, _)| lives(proc)).collect();
        let changes = recorded.into_iter().map(|(proc, error)| {
            Change::Worker(WorkerEvent::new(proc.clone(), WorkerMessage::ErrorRecorded(Box::new(error.clone()))))
        });
        changes.collect::<Vec<_>>().into_iter().for_each(|changes| self.report(changes));
    }

    /// Delivers everything that a silent source has held back.
    pub(super) fn releases(&mut self, host: usize, at: crate::job::JobTime) {
        let Some(held) = self.fleet.hosts[host].held.take() else { return };
        if self.fleet.hosts[host].is_cut_off() || held.is_empty() {
            return;
        }
        self.queue.push(at, Event::Facts { life: self.supervisor.life, facts: held });
    }

    /// While a recovery starts processes, delivers facts that were sent before it.
    pub(super) fn reports_what_is_past(&mut self, batch: &StartBatch) {
        if !self.dice.chance(self.weather.stale_facts) {
            return;
        }
        let started: BTreeSet<&Role> = batch.starts.iter().map(|o| &o.proc.role).collect();
        let generation = Generation(batch.world.generation().0.saturating_sub(1));
        let step = self.step_reached();
        let mut past = Vec::new();
        for (rank, member) in batch.world.members() {
            let is_new = started.contains(&Role::Rank(*rank));
            let incarnation = member.incarnation.0.saturating_sub(u32::from(is_new));
            if !self.fleet.procs.get(&ProcId::rank(rank.0, incarnation)).is_some_and(|p| p.ran) {
                continue; // it has never sent a fact
            }
            let signal = if rank.0 % 2 == 0 { Signal::Progress { step } } else { Signal::Heartbeat };
            let fact = Fact::new(Domain::Process(Role::Rank(*rank)), signal);
            past.push(
                fact.with_incarnation(Incarnation(incarnation)).with_generation(generation).into_observation(self.now),
            );
        }
        self.dice.shuffle(&mut past);
        for fact in past.into_iter().take(STALE_FACTS_MAX) {
            let at = self.now + self.dice.ms(1, 12_000);
            self.queue.push(at, Event::Facts { life: self.supervisor.life, facts: vec![fact] });
        }
    }

    /// Makes the peers of a lost rank fail as well, each at its own time, with errors that are marked as follow-ups.
    pub(super) fn peers_fail(&mut self, gone: &ProcId, generation: Generation) {
        let mut peers = self.training.running();
        peers.retain(|p| p != gone);
        self.dice.shuffle(&mut peers);
        for peer in peers.into_iter().take(self.weather.victims_max) {
            let step = Some(self.step_reached());
            let error = follow_up("peer-lost", format!("connection closed by {}", gone.role)).with_step(step);
            let mut exit = Exit::new(Termination::Code(1));
            exit.error = Some(Box::new(error));
            let at = self.now + self.dice.ms(20, 3_000);
            self.queue.push(at, Event::Fails { proc: peer, generation, exit: Box::new(exit) });
        }
    }

    /// Ends a process whose peer is gone, unless it has entered another world in the meantime.
    pub(super) fn fails(&mut self, proc: &ProcId, generation: Generation, exit: Exit) {
        if self.training.seat(proc).is_some_and(|s| s.generation == generation) {
            self.ends(proc, exit, false);
        }
    }

    /// Makes the program fail on one rank, as it does each time that it reaches this step.
    pub(super) fn program_fails(&mut self, rank: crate::job::Rank, step: u64) {
        let Some(seat) = self.training.seats.get(rank.0 as usize).filter(|s| s.running) else { return };
        let proc = ProcId::rank(rank.0, seat.incarnation.0);
        let error =
            ErrorReport::new("python", "ValueError", "operands could not be broadcast together").with_step(step);
        let mut exit = Exit::new(Termination::Code(1)).with_step(step - 1);
        exit.error = Some(Box::new(error));
        self.deeds.guilty(&proc, self.now);
        self.ends(&proc, exit, false);
    }

    /// Answers a probe about processes: some replies are late, some are never sent, and probes about others are
    /// refused.
    pub(super) fn collect(&mut self, id: CommandId, ask: &Probe) {
        let life = self.supervisor.life;
        for about in &ask.about {
            // Probes about busy processes are always answered; others may stay unanswered.
            let is_busy = self.is_busy(about);
            if self.mute_witnesses && self.dice.chance(700) && !is_busy {
                continue;
            }
            let result = self.testimony(&ask.what, about);
            let late = if self.dice.chance(100) && !is_busy {
                ask.timeout + Duration::from_millis(50)
            } else {
                Duration::ZERO
            };
            let at = self.now + self.dice.ms(1, 300) + late;
            self.answer(life, id, vec![(about.clone(), result)], at);
        }
    }

    fn is_busy(&self, about: &Domain) -> bool {
        let Domain::Process(Role::Rank(rank)) = about else { return false };
        let seat = self.training.seats.get(rank.0 as usize);
        seat.is_some_and(|seat| self.busy.contains(&ProcId::rank(rank.0, seat.incarnation.0)))
    }

    fn testimony(&self, what: &Name, about: &Domain) -> Result<TargetReply, Failure> {
        if *what != PROCESS_STATE {
            return Err(Failure::Refused(format!("this source does not know {what}")));
        }
        let Domain::Process(Role::Rank(rank)) = about else {
            return Err(Failure::Refused("this source answers only about processes".into()));
        };
        let Some(seat) = self.training.seats.get(rank.0 as usize) else {
            return Err(Failure::Refused("no such rank".into()));
        };
        let proc = ProcId::rank(rank.0, seat.incarnation.0);
        let state = match self.fleet.procs.get(&proc) {
            Some(p) if self.fleet.hosts[p.host].is_cut_off() => {
                return Err(Failure::Unreachable("its host does not answer".into()));
            }
            Some(p) if self.busy.contains(&proc) && p.is_alive() => match rank.0 % 3 {
                0 => "state=R wchan=0 runnable=1",
                1 => "state=D wchan=folio_wait_bit_common uninterruptible=1",
                _ => "state=S wchan=futex_do_wait runnable=0 uninterruptible=0 ran_age_ms=40",
            },
            Some(p) if self.stuck.contains_key(&proc) && p.is_alive() => "state=S wchan=futex_do_wait ran_age_ms=40",
            // Odd ranks simulate a frozen control group.
            Some(p) if p.frozen && p.is_alive() && rank.0 % 2 == 1 => "state=S wchan=do_freezer_trap ran_age_ms=-",
            Some(p) if p.frozen && p.is_alive() => "state=T wchan=do_signal_stop ran_age_ms=-",
            Some(p) if p.phase == Phase::Running => "state=S wchan=futex_do_wait ran_age_ms=40",
            _ => return Err(Failure::Refused("there is no such process".into())),
        };
        Ok(TargetReply::ProbeResult(ProbeResult::Text(state.into())))
    }
}
