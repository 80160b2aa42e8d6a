//! The simulated sources: heartbeats, what ranks say, what they said too late, answers to questions.

use super::event::Event;
use super::launcher::follow_up;
use super::world::World as Sim;
use crate::job::{CommandId, Domain, ErrorReport, Exit, Generation, Incarnation, Name, ProcId, Role, Termination};
use crate::launch::{Change, Phase, Saying, StartBatch, WorkerSaid};
use crate::recover::{Failure, Output};
use crate::trace::{Ask, Exhibit, Fact, Observation, PROCESS_STATE, Signal};
use std::collections::BTreeSet;
use std::time::Duration;

/// How many facts of the past arrive after one recovery at most.
const STALE_FACTS_MAX: usize = 4;

impl Sim<'_> {
    /// Facts are on their way.
    pub(super) fn say(&mut self, facts: Vec<Observation>) {
        if facts.is_empty() {
            return;
        }
        let at = (self.now + self.dice.ms(0, self.scene.fact_lag_ms_max)).max(self.facts_tail);
        self.facts_tail = at;
        self.queue.push(at, Event::Facts { life: self.supervisor.life, facts });
    }

    /// All processes of a host that run say that they are alive.
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
                facts.push(fact.of(seat.incarnation).within(seat.generation).observed(self.now));
            }
        }
        match &mut self.fleet.hosts[host].held {
            Some(held) => held.append(&mut facts),
            None => self.say(facts),
        }
        self.tell_records(host);
    }

    /// What processes that hang at their exit have recorded lies on a disk: each owner of their launcher finds it there.
    fn tell_records(&mut self, host: usize) {
        let lives = |proc: &ProcId| self.fleet.procs.get(proc).is_some_and(|p| p.is_alive() && p.host == host);
        let recorded: Vec<_> = self.stuck.iter().filter(|(proc, _)| lives(proc)).collect();
        let said = recorded.into_iter().map(|(proc, error)| {
            Change::Said(WorkerSaid { proc: proc.clone(), what: Saying::Recorded(Box::new(error.clone())) })
        });
        said.collect::<Vec<_>>().into_iter().for_each(|said| self.tell(said));
    }

    /// A source that was silent tells all at once.
    pub(super) fn releases(&mut self, host: usize, at: crate::job::JobTime) {
        let Some(held) = self.fleet.hosts[host].held.take() else { return };
        if self.fleet.hosts[host].is_cut_off() || held.is_empty() {
            return;
        }
        self.queue.push(at, Event::Facts { life: self.supervisor.life, facts: held });
    }

    /// While a recovery starts something new, what was said before it may still be on its way.
    pub(super) fn says_what_is_past(&mut self, batch: &StartBatch) {
        if !self.dice.chance(self.weather.stale_facts) {
            return;
        }
        let started: BTreeSet<&Role> = batch.orders.iter().map(|o| &o.proc.role).collect();
        let generation = Generation(batch.world.generation().0.saturating_sub(1));
        let step = self.step_reached();
        let mut past = Vec::new();
        for (rank, member) in batch.world.members() {
            let is_new = started.contains(&Role::Rank(*rank));
            let incarnation = member.incarnation.0.saturating_sub(u32::from(is_new));
            if !self.fleet.procs.get(&ProcId::rank(rank.0, incarnation)).is_some_and(|p| p.ran) {
                continue; // it has never said anything
            }
            let signal = if rank.0 % 2 == 0 { Signal::Progress { step } } else { Signal::Heartbeat };
            let fact = Fact::new(Domain::Process(Role::Rank(*rank)), signal);
            past.push(fact.of(Incarnation(incarnation)).within(generation).observed(self.now));
        }
        self.dice.shuffle(&mut past);
        for fact in past.into_iter().take(STALE_FACTS_MAX) {
            let at = self.now + self.dice.ms(1, 12_000);
            self.queue.push(at, Event::Facts { life: self.supervisor.life, facts: vec![fact] });
        }
    }

    /// The peers of a rank that is gone fail as well, each at its own time, and say that they are not the cause.
    pub(super) fn peers_fail(&mut self, gone: &ProcId, generation: Generation) {
        let mut peers = self.training.running();
        peers.retain(|p| p != gone);
        self.dice.shuffle(&mut peers);
        for peer in peers.into_iter().take(self.weather.victims_max) {
            let step = Some(self.step_reached());
            let error = ErrorReport { step, ..follow_up("peer-lost", format!("connection closed by {}", gone.role)) };
            let mut exit = Exit::new(Termination::Code(1));
            exit.error = Some(Box::new(error));
            let at = self.now + self.dice.ms(20, 3_000);
            self.queue.push(at, Event::Fails { proc: peer, generation, exit: Box::new(exit) });
        }
    }

    /// Who has gone on to another world does not wait for the one that is gone any more.
    pub(super) fn fails(&mut self, proc: &ProcId, generation: Generation, exit: Exit) {
        if self.training.seat(proc).is_some_and(|s| s.generation == generation) {
            self.ends(proc, exit, false);
        }
    }

    /// The program fails on one rank, as it does each time that it comes here.
    pub(super) fn program_fails(&mut self, rank: crate::job::Rank, step: u64) {
        let Some(seat) = self.training.seats.get(rank.0 as usize).filter(|s| s.running) else { return };
        let proc = ProcId::rank(rank.0, seat.incarnation.0);
        let error = ErrorReport {
            family: Name::new("python"),
            code: Name::new("ValueError"),
            text: "operands could not be broadcast together".into(),
            follow_up: false,
            retry_free: false,
            step: Some(step),
        };
        let mut exit = Exit { step: Some(step - 1), ..Exit::new(Termination::Code(1)) };
        exit.error = Some(Box::new(error));
        self.deeds.guilty(&proc, self.now);
        self.ends(&proc, exit, false);
    }

    /// Somebody asks about processes: answered late, wrongly addressed questions not at all, some never.
    pub(super) fn collect(&mut self, id: CommandId, ask: &Ask) {
        let life = self.supervisor.life;
        for about in &ask.about {
            // A witness of somebody busy is asked until it answers; others' questions may stay open.
            let is_busy = self.is_busy(about);
            if self.mute_witnesses && self.dice.chance(700) && !is_busy {
                continue;
            }
            let result = self.testimony(&ask.what, about);
            let late =
                if self.dice.chance(100) && !is_busy { ask.within + Duration::from_millis(50) } else { Duration::ZERO };
            let at = self.now + self.dice.ms(1, 300) + late;
            self.answer(life, id, vec![(about.clone(), result)], at);
        }
    }

    fn is_busy(&self, about: &Domain) -> bool {
        let Domain::Process(Role::Rank(rank)) = about else { return false };
        let seat = self.training.seats.get(rank.0 as usize);
        seat.is_some_and(|seat| self.busy.contains(&ProcId::rank(rank.0, seat.incarnation.0)))
    }

    fn testimony(&self, what: &Name, about: &Domain) -> Result<Output, Failure> {
        if *what != PROCESS_STATE {
            return Err(Failure::Refused(format!("nobody here knows about {what}")));
        }
        let Domain::Process(Role::Rank(rank)) = about else {
            return Err(Failure::Refused("only processes can be asked about here".into()));
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
            // An odd one is in a control group that was frozen.
            Some(p) if p.frozen && p.is_alive() && rank.0 % 2 == 1 => "state=S wchan=do_freezer_trap ran_age_ms=-",
            Some(p) if p.frozen && p.is_alive() => "state=T wchan=do_signal_stop ran_age_ms=-",
            Some(p) if p.phase == Phase::Running => "state=S wchan=futex_do_wait ran_age_ms=40",
            _ => return Err(Failure::Refused("there is no such process".into())),
        };
        Ok(Output::Exhibit(Exhibit::Text(state.into())))
    }
}
