//! Faults of ranks that are alive and reachable, and of their communication with the supervisor.
//!
//! Most of them need a recovery that sends directives: a trick is armed, a fault causes such a recovery, and the trick
//! is played at the directive that was drawn for it, or at the next one after it.

use super::super::event::Event;
use super::super::world::World as Sim;
use super::{Charge, FaultKind, Relief, Strike};
use crate::job::{CommandId, Domain, Exit, Generation, ProcId, Termination};
use crate::launch::{Directive, DirectiveBatch, FailureKind};
use std::time::Duration;

/// Time for which an armed trick waits for a recovery.
const ARMED_FOR: Duration = Duration::from_secs(60);

/// A failure while processes carry out directives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Trick {
    Dies,
    Freezes,
    ReplacementDies,
    NeverParks,
    LinkLost,
    LinkCut,
    AnswerLost,
    AnswerLate,
    Stale,
    Refuses,
    Killed,
}

/// A trick, and the directive of a recovery at which it is due.
#[derive(Clone, Copy, Debug)]
pub(in crate::sim) struct Armed {
    trick: Trick,
    at: usize,
}

/// Returns the position of a directive among a recovery's directives, from 0.
const fn order_of(what: &Directive) -> usize {
    match what {
        Directive::Join { .. } | Directive::WriteShard { .. } | Directive::WriteManifest { .. } => 1,
        Directive::SyncState { .. } => 2,
        Directive::Resume { .. } => 3,
        _ => 0, // abort, commit
    }
}

impl Sim<'_> {
    /// Breaks the connections of the gang, without the death of a process.
    fn break_gang(&mut self, kind: FaultKind) -> Option<(ProcId, Generation)> {
        let ranks = self.in_loop();
        let proc = self.dice.pick(&ranks).cloned()?;
        let finishes = self.step_reached() + 3 > self.scene.steps;
        let gang = self.training.gang.as_mut().filter(|gang| !gang.dead && !finishes)?;
        gang.dead = true;
        let generation = gang.generation;
        let away_before = self.away_total();
        self.deeds.charge(Charge { kind, at: self.now, domain: Domain::Job, proc: None, away_before });
        self.gang_breaks(generation);
        Some((proc, generation))
    }

    fn reports_soon(&mut self, proc: ProcId, generation: Generation, kind: FailureKind) {
        let at = self.now + self.dice.ms(1, 500);
        self.queue.push(at, Event::ReportsFailed { proc, generation, kind });
    }

    pub(super) fn collective_fails(&mut self) -> bool {
        let Some((proc, generation)) = self.break_gang(FaultKind::CollectiveFails) else { return false };
        self.reports_soon(proc, generation, FailureKind::Collective);
        true
    }

    pub(super) fn step_fails(&mut self) -> bool {
        let Some((proc, generation)) = self.break_gang(FaultKind::StepFails) else { return false };
        self.deeds.guilty(&proc, self.now);
        self.reports_soon(proc, generation, FailureKind::Step);
        true
    }

    pub(super) fn all_torn(&mut self) -> bool {
        self.loops.tear_all = true;
        let struck = if self.dice.chance(500) { self.crash(1) } else { self.collective_fails() };
        self.loops.tear_all = false;
        struck
    }

    pub(super) fn control_link_lost(&mut self) -> bool {
        let ranks = self.in_loop();
        let Some(proc) = self.dice.pick(&ranks).cloned() else { return false };
        let for_good = self.dice.chance(300);
        self.link_lost(&proc, for_good);
        true
    }

    /// Arms a trick for the recovery from a fault that is injected now.
    pub(super) fn arm(&mut self, trick: Trick) -> bool {
        if self.armed.is_some() || self.audit.has_failed_attempts() {
            return false; // one failing recovery at a time: a job may only end if that is planned
        }
        let of_replacement = matches!(trick, Trick::ReplacementDies | Trick::NeverParks);
        let struck = if of_replacement || self.dice.chance(500) { self.crash(1) } else { self.collective_fails() };
        if struck {
            self.armed = Some(Armed { trick, at: self.dice.below(4) });
            self.queue.push(self.now + ARMED_FOR, Event::Relief(Relief::Disarm));
        }
        struck
    }

    pub(super) fn disarm(&mut self) {
        self.armed = None;
        self.loops.tricked.clear();
    }

    /// Called when a replacement begins to run. Returns true if it is the one that never parks; one that is to end does
    /// so soon.
    pub(in crate::sim) fn replacement_is_tricked(&mut self, proc: &ProcId) -> bool {
        let Some(Armed { trick, .. }) = self.armed else { return false };
        match trick {
            Trick::ReplacementDies => {
                self.armed = None;
                let at = self.now + self.dice.ms(1, self.scene.boot_ms_max + 1_000);
                if let Some(rank) = proc.role.rank() {
                    self.queue.push(at, Event::Strike(Strike::Again(rank)));
                }
                false
            }
            Trick::NeverParks => {
                self.armed = None;
                true
            }
            _ => false,
        }
    }

    /// Called when directives are sent: plays the armed trick if it is due.
    pub(in crate::sim) fn tricks_while_directed(&mut self, batch: &DirectiveBatch) {
        let Some((_, first)) = batch.directives.first() else { return };
        let of_replacements = |trick: Trick| matches!(trick, Trick::ReplacementDies | Trick::NeverParks);
        let Some(Armed { trick, .. }) = self.armed.filter(|a| !of_replacements(a.trick) && order_of(first) >= a.at)
        else {
            return;
        };
        self.armed = None;
        let Some((proc, _)) = self.dice.pick(&batch.directives).cloned() else { return };
        match trick {
            Trick::AnswerLost | Trick::AnswerLate | Trick::Refuses => _ = self.loops.tricked.insert(proc, trick),
            _ => {
                let at = self.now + self.dice.ms(0, 600);
                self.queue.push(at, Event::Strike(Strike::Trick(trick, proc)));
            }
        }
    }

    /// Plays a trick on a process.
    pub(super) fn plays(&mut self, trick: Trick, proc: &ProcId) {
        if self.finished.is_some() || !self.runs_now(proc) {
            return;
        }
        self.log.note(self.now, || format!("{trick:?} hits {proc}"));
        match trick {
            Trick::Dies if self.dice.chance(300) => {
                self.deeds.guilty(proc, self.now);
                // Its script has caught the exception, and exited.
                self.ends(proc, Exit::new(Termination::Code(0)), false);
            }
            Trick::Dies => proc.role.rank().into_iter().for_each(|rank| self.crash_rank(rank)),
            Trick::Freezes if self.has_reported(proc) => {
                self.freeze(proc);
                self.accuse(FaultKind::SurvivorFrozen, proc);
            }
            Trick::LinkLost => self.link_lost(proc, false),
            Trick::LinkCut => self.link_lost(proc, true),
            Trick::Stale => self.reports_what_is_old(proc),
            Trick::Killed => self.kill_supervisor(),
            _ => {}
        }
    }

    /// Returns true if the supervisor has seen a step of the process; otherwise its freeze might go unnoticed.
    fn has_reported(&self, proc: &ProcId) -> bool {
        let known = self.supervisor.kernel.view().proc(&proc.role);
        known.is_some_and(|known| known.incarnation == proc.incarnation && known.step.is_some())
    }

    /// Returns true if a process refuses its current directive.
    pub(in crate::sim) fn refuses_directive(&mut self, proc: &ProcId) -> bool {
        let refuses = self.loops.tricked.get(proc) == Some(&Trick::Refuses);
        if refuses {
            self.loops.tricked.remove(proc);
        }
        refuses
    }

    /// Returns true if a reply is late, or lost together with its link.
    pub(in crate::sim) fn answer_goes_astray(&mut self, proc: &ProcId, id: CommandId) -> bool {
        match self.loops.tricked.remove(proc) {
            Some(Trick::AnswerLost) => {
                self.link_lost(proc, false);
                true
            }
            Some(Trick::AnswerLate) => {
                let at = self.now + self.dice.ms(100, 45_000);
                self.queue.push(at, Event::Answers { proc: proc.clone(), id });
                true
            }
            Some(other) => {
                self.loops.tricked.insert(proc.clone(), other);
                false
            }
            None => false,
        }
    }
}
