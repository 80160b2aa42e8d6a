//! Control links: they connect some time after their processes start, are lost and reconnect, and carry the messages of
//! both sides.
//!
//! The launcher's part keeps directives without a reply and sends them again over a new link; a process carries out
//! none of them twice. Both sides are lost with their owners: a new supervisor knows no link until its process
//! reconnects.

use super::super::event::Event;
use super::super::world::World as Sim;
use super::{Loops, Stand, StepLoop};
use crate::job::{CommandId, Domain, Generation, ProcId};
use crate::launch::{
    Change, DirectiveBatch, DirectiveReply, FailureKind, JOIN_VARIABLE, LinkStatus, LoopPosition, StartOrder,
    WorkerEvent, WorkerMessage,
};
use crate::recover::{Failure, TargetReply};

impl Loops {
    /// Returns the links that a launcher reports.
    pub(in crate::sim) fn listed(&self) -> Vec<LinkStatus> {
        let status = |(proc, known): (&ProcId, &StepLoop)| Some(LinkStatus::new(proc.clone(), Some(known.linked()?)));
        self.procs.iter().filter_map(status).collect()
    }
}

impl Sim<'_> {
    /// Registers an ordered process of a program with a step loop.
    pub(in crate::sim) fn loop_is_ordered(&mut self, order: &StartOrder, generation: Generation) {
        if self.scene.step_loop && order.proc.role.rank().is_some() {
            let joins = order.spec.env.contains_key(JOIN_VARIABLE);
            self.loops.procs.insert(order.proc.clone(), StepLoop::new(generation, joins));
        }
    }

    /// Schedules the link of a process that runs, and its arrival at the loop some time later.
    pub(in crate::sim) fn loop_runs(&mut self, proc: &ProcId) {
        let Some(known) = self.loops.procs.get(proc) else { return };
        let generation = known.generation;
        let never = known.joins && self.replacement_is_tricked(proc);
        let links = self.now + self.dice.ms(5, 1_500);
        self.queue.push(links, Event::Links(proc.clone()));
        if never {
            self.deeds.guilty(proc, self.now); // the start fails because of it, and may blame it
        } else {
            let at = self.now + self.dice.ms(10, self.scene.boot_ms_max);
            self.queue.push(at, Event::InLoop { proc: proc.clone(), generation });
        }
    }

    /// Handles the arrival of a process at its loop: it trains, or parks.
    pub(in crate::sim) fn comes_to_loop(&mut self, proc: &ProcId, generation: Generation) {
        if !self.runs_now(proc) {
            self.again(proc, Event::InLoop { proc: proc.clone(), generation });
            return;
        }
        let checkpoint = self.training.checkpoint;
        let Some(known) = self.loops.procs.get_mut(proc).filter(|known| known.stand == Stand::Script) else { return };
        if known.joins {
            (known.stand, known.at, known.parked) = (Stand::Parked, LoopPosition::Parked, true);
        } else {
            (known.stand, known.at) = (Stand::Trains, LoopPosition::InLoop);
            if let Some(seat) = self.training.seat_mut(proc) {
                seat.holds = seat.holds.or(Some(checkpoint));
            }
        }
        self.report_link(proc);
    }

    /// Returns true if a process is alive and not frozen.
    pub(in crate::sim) fn runs_now(&self, proc: &ProcId) -> bool {
        self.fleet.procs.get(proc).is_some_and(|p| p.is_alive() && !p.frozen)
    }

    /// Postpones an event of a frozen process until it thaws.
    pub(super) fn again(&mut self, proc: &ProcId, event: Event) {
        if self.fleet.procs.get(proc).is_some_and(|p| p.is_alive() && p.frozen) {
            let at = self.now + self.dice.ms(50, 200);
            self.queue.push(at, event);
        }
    }

    /// Returns true if messages between this process and the supervisor get through, in either direction.
    fn gets_through(&self, proc: &ProcId) -> bool {
        let host = self.fleet.procs.get(proc).filter(|p| p.is_alive()).map(|p| p.host);
        let in_sight = host.is_some_and(|host| !self.fleet.hosts[host].is_cut_off());
        in_sight && self.loops.get(proc).is_some_and(|known| known.up)
    }

    /// Connects a link, or reconnects it: directives without a reply are sent again, and current failures are reported
    /// again.
    pub(in crate::sim) fn links(&mut self, proc: &ProcId) {
        if !self.runs_now(proc) {
            return self.again(proc, Event::Links(proc.clone()));
        }
        let Some(known) = self.loops.procs.get_mut(proc).filter(|known| !known.up && !known.cut) else { return };
        known.up = true;
        self.report_link(proc);
        self.give_again(proc);
    }

    /// Sends directives without a reply again, and reports a failure again.
    pub(in crate::sim) fn give_again(&mut self, proc: &ProcId) {
        let Some(known) = self.loops.procs.get(proc) else { return };
        let (open, failed) = (known.open.keys().copied().collect::<Vec<_>>(), known.failed.clone());
        for id in open {
            let at = self.now + self.dice.ms(0, 20);
            self.queue.push(at, Event::Directed { proc: proc.clone(), id });
        }
        if let Some(failed) = failed {
            self.sends(proc, WorkerMessage::Failed(Box::new(failed)));
        }
    }

    /// Disconnects a link. It reconnects after a while, unless it is cut.
    pub(in crate::sim) fn link_lost(&mut self, proc: &ProcId, for_good: bool) {
        let Some(known) = self.loops.procs.get_mut(proc).filter(|known| known.up) else { return };
        (known.up, known.cut) = (false, for_good);
        self.log.note(self.now, || format!("the link of {proc} is lost{}", if for_good { " for good" } else { "" }));
        self.report_link(proc);
        let at = self.now + self.dice.ms(1, 3_000);
        self.queue.push(at, Event::Links(proc.clone()));
    }

    /// Resets the links for a new supervisor: it has none, and its kernel repeats the directives of the previous one.
    pub(in crate::sim) fn links_begin_again(&mut self) {
        let quick = self.dice.chance(500);
        let procs: Vec<ProcId> = self.loops.procs.keys().cloned().collect();
        for proc in procs {
            if let Some(known) = self.loops.procs.get_mut(&proc) {
                known.open.clear();
                if std::mem::take(&mut known.up) {
                    let at = if quick { self.now } else { self.now + self.dice.ms(1, 1_500) };
                    self.queue.push(at, Event::Links(proc));
                }
            }
        }
    }

    /// Removes the link of an ended process.
    pub(in crate::sim) fn loop_ends(&mut self, proc: &ProcId) {
        if let Some(known) = self.loops.procs.get_mut(proc)
            && std::mem::take(&mut known.up)
        {
            known.cut = true;
            if self.dice.chance(500) {
                self.report_link(proc);
            }
        }
    }

    pub(super) fn report_link(&mut self, proc: &ProcId) {
        let Some(known) = self.loops.get(proc) else { return };
        let host = self.fleet.procs.get(proc).map(|p| p.host);
        let out_of_sight = host.is_none_or(|host| self.fleet.hosts[host].is_cut_off());
        if out_of_sight {
            return;
        }
        self.report(Change::Link(LinkStatus::new(proc.clone(), known.linked())));
    }

    /// Reports the current state of the links of a host that is in sight again.
    pub(in crate::sim) fn links_in_sight(&mut self, host: usize) {
        let here = |proc: &&ProcId| self.fleet.procs.get(*proc).is_some_and(|p| p.host == host && p.is_alive());
        let procs: Vec<ProcId> = self.loops.procs.keys().filter(here).cloned().collect();
        for proc in procs {
            self.report_link(&proc);
            self.give_again(&proc);
        }
    }

    /// Sends a message of a process, if it gets through.
    pub(super) fn sends(&mut self, proc: &ProcId, what: WorkerMessage) {
        if self.gets_through(proc) && self.runs_now(proc) {
            self.report(Change::Worker(WorkerEvent::new(proc.clone(), what)));
        }
    }

    /// Reports that a rank's collective or its own step has failed; the rank then waits.
    pub(in crate::sim) fn reports_failed(&mut self, proc: &ProcId, generation: Generation, kind: FailureKind) {
        let step = self.step_reached() + 1;
        let trains = |known: &&mut StepLoop| known.generation == generation && known.stand == Stand::Trains;
        let runs = self.runs_now(proc);
        let Some(known) = self.loops.procs.get_mut(proc).filter(trains).filter(|_| runs) else { return };
        let failed = known.failure(kind, step);
        known.failed = Some(failed.clone());
        self.sends(proc, WorkerMessage::Failed(Box::new(failed)));
    }

    /// Repeats messages of an older world: the process's last reply, and a failure of that time.
    pub(in crate::sim) fn reports_what_is_old(&mut self, proc: &ProcId) {
        let Some(known) = self.loops.get(proc) else { return };
        let answer = known.done.iter().find(|(id, _)| !known.open.contains_key(id));
        let answer = answer.map(|(id, result)| WorkerMessage::Reply { id: *id, result: result.clone() });
        let mut failed = known.failure(FailureKind::Collective, 1);
        failed.generation = Generation(known.newest.0.saturating_sub(1));
        for what in answer.into_iter().chain([WorkerMessage::Failed(Box::new(failed))]) {
            self.sends(proc, what);
        }
    }

    /// Handles directives that reach the launcher: all of them are sent, or none.
    pub(in crate::sim) fn direct_arrives(&mut self, life: u32, id: CommandId, batch: &DirectiveBatch) {
        if life != self.supervisor.life || self.finished.is_some() {
            return;
        }
        let target = |proc: &ProcId| Domain::Process(proc.role.clone());
        let away = batch.directives.iter().map(|(proc, _)| proc).find(|proc| !self.gets_through(proc));
        let refusal = away.map(|proc| Failure::Refused(format!("{proc} has no control link now")));
        let result = refusal.clone().map_or(Ok(TargetReply::Accepted), Err);
        let results = batch.directives.iter().map(|(proc, _)| (target(proc), result.clone())).collect();
        self.answer(life, id, results, self.now);
        if refusal.is_some() {
            return;
        }
        self.tricks_while_directed(batch);
        let generation = batch.world.generation();
        for (proc, what) in &batch.directives {
            if let Some(known) = self.loops.procs.get_mut(proc) {
                known.open.insert(id, (generation, what.clone()));
            }
            let at = self.now + self.dice.ms(0, 20);
            self.queue.push(at, Event::Directed { proc: proc.clone(), id });
        }
    }

    /// Records the result of a directive, and replies now or when the directive is repeated.
    pub(super) fn finishes(&mut self, proc: &ProcId, id: CommandId, result: Result<Box<DirectiveReply>, String>) {
        let Some(known) = self.loops.procs.get_mut(proc) else { return };
        known.doing = known.doing.filter(|doing| *doing != id);
        known.done.insert(id, result);
        if self.answer_goes_astray(proc, id) {
            return;
        }
        self.answers_directive(proc, id);
    }

    pub(in crate::sim) fn answers_directive(&mut self, proc: &ProcId, id: CommandId) {
        if !self.gets_through(proc) || !self.runs_now(proc) {
            return; // it is sent again when there is a link
        }
        let Some(known) = self.loops.procs.get_mut(proc) else { return };
        let Some(result) = known.done.get(&id).cloned() else { return };
        if known.open.remove(&id).is_none() {
            return; // its reply is not awaited
        }
        self.report_link(proc); // the world that it trains in, and its position
        self.sends(proc, WorkerMessage::Reply { id, result });
    }
}
