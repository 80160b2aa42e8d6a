//! Faults of ranks and of the program.

use super::super::event::Event;
use super::super::supervisor::Away;
use super::super::world::World as Sim;
use super::{Charge, FaultKind, Relief, Strike};
use crate::detect::{Damage, Fault, FaultClass, Health, Suspect};
use crate::job::{Domain, ErrorReport, Exit, Incarnation, Name, ProcId, Rank, Ready, Role, Termination};
use crate::kernel::{Order, Request};
use crate::trace::{Fact, Signal};
use std::time::Duration;

impl Sim<'_> {
    pub(super) fn running_rank(&mut self) -> Option<ProcId> {
        let running = self.training.running();
        self.dice.pick(&running).cloned()
    }

    pub(in crate::sim) fn accuse(&mut self, kind: FaultKind, proc: &ProcId) {
        let charge = Charge {
            kind,
            at: self.now,
            domain: Domain::Process(proc.role.clone()),
            proc: Some(proc.clone()),
            away_before: self.away_total(),
        };
        self.deeds.charge(charge);
    }

    /// Ends a process by a fault of its own.
    fn kill(&mut self, kind: FaultKind, proc: &ProcId) {
        let mut exit = match self.dice.below(5) {
            0 => Exit::new(Termination::Code(1)),
            1 => Exit::new(Termination::Code(134)),
            2 => Exit::new(Termination::Signal { number: 11, core_dumped: true }),
            _ => Exit::new(Termination::Signal { number: 9, core_dumped: false }),
        };
        if matches!(exit.how, Termination::Code(_)) && self.dice.chance(600) {
            self.errors += 1;
            exit.error = Some(Box::new(self.new_error()));
        }
        exit.step = Some(self.step_reached());
        self.accuse(kind, proc);
        self.ends(proc, exit, false);
    }

    /// An error of a program. Each is different: a repeated one would be the program's fault.
    fn new_error(&self) -> ErrorReport {
        ErrorReport::new("python", format!("Error{}", self.errors), "simulated").with_step(self.step_reached())
    }

    pub(super) fn crash(&mut self, count: usize) -> bool {
        let mut running = self.training.running();
        if running.len() < count {
            return false;
        }
        self.dice.shuffle(&mut running);
        let kind = if count == 1 { FaultKind::Crash } else { FaultKind::CrashTogether };
        for proc in running.into_iter().take(count) {
            self.kill(kind, &proc);
        }
        true
    }

    pub(super) fn service_lost(&mut self) -> bool {
        let Some(proc) = self.training.service().cloned() else { return false };
        self.kill(FaultKind::ServiceLost, &proc);
        true
    }

    pub(super) fn crash_again(&mut self) -> bool {
        let Some(proc) = self.running_rank() else { return false };
        let Some(rank) = proc.role.rank() else { return false };
        self.kill(FaultKind::CrashAgain, &proc);
        let at = self.now + self.dice.ms(100, self.scene.boot_ms_max + 2_000);
        self.queue.push(at, Event::Strike(Strike::Again(rank)));
        true
    }

    pub(super) fn crash_rank(&mut self, rank: Rank) {
        let Some(seat) = self.training.seats.get(rank.0 as usize).filter(|s| s.running) else { return };
        let proc = ProcId::rank(rank.0, seat.incarnation.0);
        self.kill(FaultKind::CrashAgain, &proc);
    }

    /// Picks a rank that can be frozen. If the supervisor has not seen a step of it, the freeze is noticed only when
    /// the start fails, after a long time. Such a rank is not picked after another attempt has failed, nor if a start
    /// only waits for processes to run.
    fn rank_to_freeze(&mut self) -> Option<ProcId> {
        let proc = self.running_rank()?;
        let known = self.supervisor.kernel.view().proc(&proc.role);
        let has_reported = known.is_some_and(|k| k.incarnation == proc.incarnation && k.step.is_some());
        let start_fails = self.scene.spec.policy.ready == Ready::Stepping && !self.audit.has_failed_attempts();
        (has_reported || start_fails).then_some(proc)
    }

    pub(super) fn freeze(&mut self, proc: &ProcId) {
        if let Some(process) = self.fleet.procs.get_mut(proc) {
            process.frozen = true;
        }
        if let Some(seat) = self.training.seat_mut(proc) {
            seat.frozen = true;
        }
    }

    pub(super) fn hang(&mut self) -> bool {
        let Some(proc) = self.rank_to_freeze() else { return false };
        self.freeze(&proc);
        self.accuse(FaultKind::Hang, &proc);
        true
    }

    pub(super) fn pause(&mut self) -> bool {
        let Some(proc) = self.running_rank() else { return false };
        let unfit = self.fleet.procs.get(&proc).is_none_or(|p| p.frozen || p.stopping);
        let at_most = self.unnoticed().mul_f64(0.9);
        if unfit || !self.may_be_quiet_for(at_most) {
            return false;
        }
        self.freeze(&proc);
        let thaws = self.now + at_most;
        self.queue.push(thaws, Event::Relief(Relief::Thaw(proc)));
        true
    }

    pub(super) fn busy(&mut self) -> bool {
        let Some(proc) = self.running_rank() else { return false };
        self.are_busy(vec![proc])
    }

    pub(super) fn host_overloaded(&mut self) -> bool {
        let Some(host) = self.running_rank().and_then(|proc| Some(self.training.seat(&proc)?.host)) else {
            return false;
        };
        let mut procs = self.training.running();
        procs.retain(|proc| self.training.seat(proc).is_some_and(|seat| seat.host == host));
        self.are_busy(procs)
    }

    /// Makes these processes busy: they run, but send no heartbeat and complete no step, for longer than a process that
    /// does not run may be silent.
    fn are_busy(&mut self, procs: Vec<ProcId>) -> bool {
        let is_unfit = |proc: &ProcId| self.fleet.procs.get(proc).is_none_or(|p| p.frozen || p.stopping);
        let may_be = self.training.is_stepping() && !self.audit.has_failed_attempts() && !procs.iter().any(is_unfit);
        let time = self.config.silence_within * 3;
        if !may_be || !self.may_be_quiet_for(time) {
            return false;
        }
        for proc in procs {
            self.metric(Domain::Process(proc.role.clone()), Some(&proc), super::super::plugins::BUSY, 1.0);
            self.freeze(&proc);
            self.busy.insert(proc.clone());
            self.queue.push(self.now + time, Event::Relief(Relief::Thaw(proc)));
        }
        true
    }

    pub(super) fn stuck_at_exit(&mut self) -> bool {
        let Some(proc) = self.rank_to_freeze() else { return false };
        if self.fleet.procs.get(&proc).is_none_or(|p| p.frozen || p.stopping) {
            return false;
        }
        self.errors += 1;
        let error = self.new_error();
        self.freeze(&proc);
        self.stuck.insert(proc.clone(), error);
        self.accuse(FaultKind::StuckAtExit, &proc);
        true
    }

    /// Returns true if a silence may begin. Two consecutive silences would be one long silence, so only one at a time
    /// is allowed.
    pub(super) fn may_be_quiet_for(&mut self, time: Duration) -> bool {
        let free = self.now >= self.quiet_until;
        if free {
            self.quiet_until = self.now + time + self.heartbeat_gap() * 2;
        }
        free
    }

    /// Returns how long a rank may be silent without being reported.
    pub(super) fn unnoticed(&self) -> Duration {
        self.config.silence_within.saturating_sub(self.heartbeat_gap() * 2 + Duration::from_millis(100))
    }

    pub(super) fn deadlock(&mut self) -> bool {
        if !self.training.is_stepping()
            || self.step_reached() + 3 > self.scene.steps
            || self.audit.has_failed_attempts()
        {
            return false; // one failing recovery at a time
        }
        self.training.deadlocked = true;
        let away_before = self.away_total();
        self.deeds.charge(Charge {
            kind: FaultKind::Deadlock,
            at: self.now,
            domain: Domain::Job,
            proc: None,
            away_before,
        });
        true
    }

    pub(super) fn slow(&mut self) -> bool {
        let Some(proc) = self.running_rank() else { return false };
        let times = u32::try_from(self.dice.between(2, 4)).unwrap_or(2);
        self.metric(Domain::Process(proc.role.clone()), Some(&proc), "compute_ms", 100.0 * f64::from(times));
        self.training.slow = Some((proc, times));
        let over = self.now + self.dice.ms(3_000, 40_000);
        self.queue.push(over, Event::Relief(Relief::Quick));
        true
    }

    pub(super) fn quick_again(&mut self) {
        if let Some((proc, _)) = self.training.slow.take() {
            self.metric(Domain::Process(proc.role.clone()), Some(&proc), "compute_ms", 100.0);
        }
    }

    pub(super) fn suspicion(&mut self) -> bool {
        let Some(proc) = self.rank_to_freeze() else { return false };
        if self.dice.chance(500) {
            self.freeze(&proc);
            self.accuse(FaultKind::Suspicion, &proc);
        }
        self.mute_witnesses = self.dice.chance(400);
        self.queue.push(self.now + Duration::from_secs(8), Event::Relief(Relief::Witnesses));
        let report = ErrorReport::new("simulated", "ecc", "a memory error was corrected");
        let fact =
            Fact::new(Domain::Process(proc.role), Signal::Error(Box::new(report))).with_incarnation(proc.incarnation);
        let fact = fact.into_observation(self.now);
        self.say(vec![fact]);
        true
    }

    pub(super) fn operator_fault(&mut self) -> bool {
        if matches!(self.supervisor.away, Away::Gone(_)) {
            return false; // no supervisor receives the report
        }
        let Some(proc) = self.running_rank() else { return false };
        let device_broken = Damage { device: Health::Faulty, process: Health::Faulty, ..Damage::default() };
        let suspect = Suspect::certain(Domain::Process(proc.role.clone()), FaultClass::Leave, device_broken);
        let mut fault = Fault::new(Name::new("operator"), self.now, suspect);
        let old = Incarnation(proc.incarnation.0.saturating_sub(1));
        if old.0 > 0 && self.dice.chance(300) {
            fault = fault.with_incarnation(Some(old)); // about the previous process: too late
        } else {
            fault = fault.with_incarnation(Some(proc.incarnation));
            self.accuse(FaultKind::OperatorFault, &proc);
        }
        self.request(Request::Fault(Box::new(fault)));
        true
    }

    pub(super) fn plugin_panic(&mut self) -> bool {
        self.metric(Domain::Job, None, super::super::plugins::POISON, 1.0);
        true
    }

    pub(super) fn link_flap(&mut self) -> bool {
        let Some(proc) = self.running_rank() else { return false };
        let about = Domain::Process(Role::clone(&proc.role));
        self.metric(about.clone(), Some(&proc), super::super::plugins::LINK_DOWN, 1.0);
        self.metric(about, Some(&proc), super::super::plugins::LINK_DOWN, 0.0);
        true
    }

    fn metric(&mut self, about: Domain, of: Option<&ProcId>, name: &'static str, value: f64) {
        let mut fact = Fact::new(about, Signal::Metric { name: Name::new(name), value });
        if let Some(proc) = of {
            fact = fact.with_incarnation(proc.incarnation);
        }
        let fact = fact.into_observation(self.now);
        self.say(vec![fact]);
    }

    pub(super) fn operator_stop(&mut self) -> bool {
        self.deeds.ending = true;
        self.order(Order::Stop { grace: None });
        true
    }

    pub(super) fn program_broken(&mut self) -> bool {
        let Some(rank) = self.running_rank().and_then(|p| p.role.rank()) else { return false };
        self.deeds.ending = true;
        self.training.broken = Some((rank, self.step_reached() + 2));
        true
    }

    pub(super) fn budget_drained(&mut self) -> bool {
        self.deeds.ending = true;
        self.deeds.draining = true;
        true
    }

    pub(super) fn do_not_restart(&mut self) -> bool {
        let Some(proc) = self.running_rank() else { return false };
        self.deeds.ending = true;
        self.accuse(FaultKind::DoNotRestart, &proc);
        let exit = Exit::new(Termination::Code(self.scene.spec.policy.no_restart_exit_code));
        self.ends(&proc, exit, false);
        true
    }
}
