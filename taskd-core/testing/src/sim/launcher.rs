//! The simulated launcher: carries orders out, idempotently by process, and reports changes over one ordered wire.
//!
//! It keeps the `Launcher` contract even at its worst: it may refuse, be out of reach, be slow, or lose its history,
//! but no process runs twice and every accepted one ends in exactly one exit.

use super::event::Event;
use super::fleet::Process;
use super::world::World as Sim;
use crate::job::{CommandId, Domain, ErrorReport, Exit, JobTime, Name, NodeId, ProcId, Termination};
use crate::launch::{Change, NodeState, Phase, Place, StartBatch};
use crate::recover::{Failure, TargetReply};
use std::time::Duration;

/// The channel of changes to the supervisor: in order, until its history is lost.
#[derive(Debug, Default)]
pub(super) struct Wire {
    /// Arrival time of the last change.
    tail: JobTime,
    /// Number of the history; changes of an earlier one never arrive.
    history: u64,
    /// True if the supervisor watches, which it does only after the listing.
    watched: bool,
}

impl Wire {
    /// Drops the changes in flight; the next listing contains their result.
    pub(super) fn cut(&mut self) {
        self.history += 1;
        self.watched = false;
    }
}

/// The launcher's behavior at the next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    Well,
    Refuses,
    Unreachable,
    /// Accepts only after this time.
    Slow(Duration),
    /// Accepts, and one of the processes ends at once.
    StillBirth,
    /// Accepts, and the first rank finds its port in use.
    PortTaken,
}

impl Sim<'_> {
    pub(super) fn launcher_delay(&mut self) -> Duration {
        match self.mood {
            Mood::Slow(delay) => {
                self.mood = Mood::Well;
                delay
            }
            _ => Duration::ZERO,
        }
    }

    /// Handles a start that reaches the launcher.
    pub(super) fn start_arrives(&mut self, life: u32, id: CommandId, batch: &StartBatch) {
        if life != self.supervisor.life && self.dice.chance(500) {
            return; // the call was lost with its caller
        }
        if self.finished.is_some() {
            return; // no supervisor is left to need it
        }
        let mood = std::mem::replace(&mut self.mood, Mood::Well);
        let refusal = match mood {
            Mood::Refuses => Some(Failure::Refused("no quota left".into())),
            Mood::Unreachable => Some(Failure::Unreachable("connection refused".into())),
            _ => self.place_missing(batch).map(|node| Failure::Refused(format!("{node} is gone"))),
        };
        let target = |proc: &ProcId| Domain::Process(proc.role.clone());
        let result = refusal.clone().map_or(Ok(TargetReply::Accepted), Err);
        let results = batch.starts.iter().map(|o| (target(&o.proc), result.clone())).collect();
        if refusal.is_none() {
            self.admit(batch, mood);
        }
        self.answer(life, id, results, self.now);
    }

    fn place_missing(&self, batch: &StartBatch) -> Option<NodeId> {
        let left = |node: &NodeId| {
            let host = self.fleet.host_index(node).map(|h| &self.fleet.hosts[h]);
            host.is_none_or(|h| h.state == NodeState::Left)
        };
        batch.starts.iter().find_map(|o| match &o.place {
            Place::On(node) if left(node) => Some(node.clone()),
            _ => None,
        })
    }

    pub(super) fn admit(&mut self, batch: &StartBatch, mood: Mood) {
        self.sees_world(&batch.world);
        let unlucky = match mood {
            Mood::StillBirth => Some(self.dice.below(batch.starts.len())),
            Mood::PortTaken => Some(0),
            _ => None,
        };
        for (index, order) in batch.starts.iter().enumerate() {
            if self.fleet.procs.get(&order.proc).is_some_and(|known| !known.lost) {
                continue; // it runs, or has run
            }
            self.loop_is_ordered(order, batch.world.generation());
            let host = match &order.place {
                Place::On(node) => self.fleet.host_index(node),
                Place::AnyBut(others) => self.fleet.emptiest(|n| others.contains(n)),
                other => panic!("the simulated launcher does not know {other:?}"),
            };
            let process = Process {
                host: host.unwrap_or(0),
                generation: batch.world.generation(),
                phase: Phase::Pending("accepted".into()),
                reported: Phase::Pending("accepted".into()),
                frozen: false,
                stopping: false,
                stop_missed: false,
                forgotten: false,
                lost: false,
                ran: false,
            };
            self.fleet.procs.insert(order.proc.clone(), process);
            if self.dice.chance(300) {
                self.report_proc(&order.proc);
            }
            self.boot_process(&order.proc, (unlucky == Some(index)).then_some(mood));
        }
    }

    /// Lets an accepted process begin to run after a while, or end at once.
    fn boot_process(&mut self, proc: &ProcId, mood: Option<Mood>) {
        let runs_at = self.now + self.dice.ms(50, self.scene.boot_ms_max);
        let ends_at = runs_at + self.dice.ms(0, 300);
        let exit = match mood {
            None => return self.queue.push(runs_at, Event::Runs(proc.clone())),
            Some(Mood::PortTaken) => {
                let mut exit = Exit::new(Termination::Code(1));
                exit.error = Some(Box::new(
                    ErrorReport::new("simulated", "port-taken", "address already in use").with_retry_free(true),
                ));
                exit
            }
            Some(_) => Exit::new(Termination::Code(127)),
        };
        if self.dice.chance(500) || mood == Some(Mood::PortTaken) {
            self.queue.push(runs_at, Event::Runs(proc.clone()));
        }
        self.deeds.guilty(proc, self.now);
        self.queue.push(ends_at, Event::Ends { proc: proc.clone(), exit: Box::new(exit) });
    }

    /// Handles a stop that reaches the launcher. Missing processes are skipped.
    pub(super) fn stop_arrives(&mut self, procs: &[ProcId], grace: Duration) {
        for proc in procs {
            let Some(process) = self.fleet.procs.get_mut(proc).filter(|p| p.is_alive() && !p.forgotten) else {
                continue;
            };
            if self.fleet.hosts[process.host].is_cut_off() {
                process.stop_missed = true;
                continue;
            }
            process.stopping = true;
            let stubborn = process.frozen || self.dice.chance(50);
            let (after, number) =
                if stubborn { (grace + self.dice.ms(1, 200), 9) } else { (self.dice.ms(1, 400).min(grace), 15) };
            let mut exit = Exit::new(Termination::Signal { number, core_dumped: false });
            // In an observed job, the agent stops ranks only after a failure, so their exits are marked as follow-ups.
            exit.error = self.scene.observed.then(|| Box::new(follow_up("stopped", "stopped after a peer had failed")));
            self.queue.push(self.now + after, Event::Stopped { proc: proc.clone(), exit: Box::new(exit) });
        }
    }

    pub(super) fn acknowledge_arrives(&mut self, proc: &ProcId) {
        if let Some(process) = self.fleet.procs.get_mut(proc).filter(|p| p.reported.is_exited()) {
            process.forgotten = true;
        }
    }

    pub(super) fn runs(&mut self, proc: &ProcId) {
        let Some(process) = self.fleet.procs.get_mut(proc).filter(|p| p.phase.order() == 0 && !p.forgotten) else {
            return;
        };
        process.phase = Phase::Running;
        process.ran = true;
        self.log.note(self.now, || format!("{proc} runs"));
        let world = &self.training.world;
        if !self.scene.step_loop && world.proc(proc.role.rank().unwrap_or_default()).as_ref() == Some(proc) {
            process.generation = process.generation.max(world.generation()); // it learns of the world in force
        }
        self.takes_seat(proc);
        self.report_proc(proc);
        self.loop_runs(proc);
    }

    /// Ends a process. With a lifeline, its death may be reported before its exit.
    pub(super) fn ends(&mut self, proc: &ProcId, exit: Exit, commanded: bool) {
        let Some(process) = self.fleet.procs.get_mut(proc).filter(|p| p.is_alive()) else { return };
        self.log.note(self.now, || format!("{proc} ends: {}", exit.how));
        if process.frozen && !commanded && exit.how.is_success() {
            return; // a frozen process cannot have finished
        }
        let was_running = process.phase == Phase::Running;
        let exit = Box::new(exit);
        if was_running && self.scene.lifeline && self.dice.chance(800) {
            let how = if self.dice.chance(100) { Termination::Unknown } else { exit.how };
            process.phase = Phase::Dead(how);
            let at = self.now + self.dice.ms(20, 300);
            self.queue.push(at, Event::Gone { proc: proc.clone(), exit });
        } else {
            process.phase = Phase::Exited(exit);
        }
        self.report_proc(proc);
        self.loop_ends(proc);
        self.leaves_seat(proc, commanded);
    }

    pub(super) fn gone(&mut self, proc: &ProcId, exit: Box<Exit>) {
        let Some(process) = self.fleet.procs.get_mut(proc).filter(|p| !p.phase.is_exited()) else { return };
        process.phase = Phase::Exited(exit);
        self.report_proc(proc);
    }

    /// Reports the current state of a process, unless its host is out of sight.
    pub(super) fn report_proc(&mut self, proc: &ProcId) {
        let Some(process) = self.fleet.procs.get_mut(proc).filter(|p| !p.forgotten) else { return };
        if self.fleet.hosts[process.host].state == NodeState::OutOfSight {
            return;
        }
        process.reported = process.phase.clone();
        if let Some(status) = self.fleet.status(proc) {
            self.report(Change::Proc(status));
        }
    }

    pub(super) fn report(&mut self, change: Change) {
        if !self.wire.watched {
            return; // the listing will contain it
        }
        let life = self.supervisor.life;
        let change = Box::new(change);
        // The states of a link or a host are reported in order: an older report never follows a newer one. (A process
        // only moves forward: an old report of it is recognized.)
        let only_goes_on = matches!(*change, Change::Proc(_));
        if self.dice.chance(self.weather.change_twice) && only_goes_on {
            let again = self.now + self.dice.ms(1, 20_000);
            self.queue.push(again, Event::Changed { life, history: None, change: change.clone() });
        }
        let lag = self.dice.ms(0, 5);
        self.wire.tail = self.wire.tail.max(self.now + lag);
        let history = Some(self.wire.history);
        if !only_goes_on && self.dice.chance(self.weather.change_twice) {
            self.queue.push(self.wire.tail, Event::Changed { life, history, change: change.clone() });
        }
        self.queue.push(self.wire.tail, Event::Changed { life, history, change });
    }

    /// Returns true if a change of this history still arrives.
    pub(super) fn arrives(&self, history: Option<u64>) -> bool {
        history.is_none_or(|h| h == self.wire.history)
    }

    /// Handles a listing: the supervisor reads the whole state again, and watches from there.
    pub(super) fn listing_arrives(&mut self) {
        let mut listing = self.fleet.listing();
        listing.links = self.loops.listed();
        self.wire.cut();
        self.wire.watched = true;
        self.supervisor.mailbox.push(crate::kernel::Input::Listed(listing));
    }

    /// Brings a host back in sight: its past changes are reported now, and missed orders are carried out now.
    pub(super) fn back_in_sight(&mut self, host: usize) {
        let on_host = self.fleet.procs.iter().filter(|(_, p)| p.host == host && !p.forgotten);
        let changed: Vec<(ProcId, bool)> = on_host
            .filter(|(_, p)| p.reported != p.phase || p.stop_missed)
            .map(|(id, p)| (id.clone(), p.stop_missed))
            .collect();
        for (proc, stop_missed) in changed {
            self.report_proc(&proc);
            if stop_missed {
                self.stop_arrives(&[proc], Duration::from_millis(100));
            }
        }
        self.links_in_sight(host);
    }
}

/// Returns the error of a process that was only affected by another failure.
pub(super) fn follow_up(code: &'static str, text: impl Into<String>) -> ErrorReport {
    let (family, code, text) = (Name::new("simulated"), Name::new(code), text.into());
    ErrorReport::new(family, code, text).with_follow_up(true)
}
