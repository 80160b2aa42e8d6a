//! Answers to commands: from the launcher, from witnesses, and by what becomes of processes.
//!
//! What follows from an answer is decided where it was waited for.

use super::{Check, Drop, Kernel};
use crate::detect::{Damage, Fault, FaultClass, Suspect};
use crate::job::{CommandId, Domain, Exit, Name, ProcId, Ready, Termination};
use crate::launch::Phase;
use crate::recover::{Action, Failure, Output};
use std::collections::{BTreeMap, BTreeSet};

impl Kernel {
    pub(super) fn answered(&mut self, id: CommandId, results: &[(Domain, Result<Output, Failure>)]) {
        let not_started = self.starts_answered(id, results);
        let Some(pending) = self.state.pending.get_mut(&id) else {
            return self.late(id, results);
        };
        let mut evidence = Vec::new();
        for (target, result) in results {
            let accepted_only =
                matches!(pending.action, Action::Start { .. } | Action::Stop { .. } | Action::Direct(_))
                    && result.is_ok();
            let ready = matches!(&pending.action, Action::Start { until: Ready::Accepted, .. });
            if accepted_only && !ready {
                continue; // the launcher has taken it on; its changes say when it has come about
            }
            let is_void =
                matches!(pending.action, Action::Start { .. }) && result.is_err() && !not_started.contains(target);
            if is_void || !pending.answer(target, result.clone()) {
                self.state.counts.drop(Drop::RepeatedAnswer);
            } else if let Action::Collect(ask) = &pending.action {
                evidence.push((ask.clone(), target.clone(), result.clone()));
            }
        }
        for (ask, about, result) in evidence {
            self.testify(&ask, &about, &result);
        }
    }

    /// Whether a start was taken on or not is a fact about its processes, even if its plan is void by now. Returns those that
    /// were not: the refusal of a process of which the launcher has told is void, it is a repeated order that was refused.
    fn starts_answered(&mut self, id: CommandId, results: &[(Domain, Result<Output, Failure>)]) -> BTreeSet<Domain> {
        let mut not_started = BTreeSet::new();
        let Some(starting) = self.state.starting.remove(&id) else { return not_started };
        let answers: BTreeMap<&Domain, &Result<Output, Failure>> = results.iter().map(|(d, r)| (d, r)).collect();
        let answer = |proc: &ProcId| answers.get(&Domain::Process(proc.role.clone())).copied();
        let (answered, open): (BTreeSet<_>, BTreeSet<_>) =
            starting.into_iter().partition(|proc| answer(proc).is_some());
        if !open.is_empty() {
            self.state.starting.insert(id, open);
        }
        for proc in answered {
            match answer(&proc) {
                Some(Err(failure)) => {
                    self.never_started(&proc, failure);
                    not_started.insert(Domain::Process(proc.role));
                }
                _ => self.taken_on(&proc),
            }
        }
        not_started
    }

    /// The launcher has taken the process on. If its stop was quicker than that, it passed over it.
    fn taken_on(&mut self, proc: &ProcId) {
        let known = self.state.view.procs.get(&proc.role).filter(|k| k.incarnation == proc.incarnation);
        if let Some(phase) = known.filter(|k| !k.wanted).map(|k| k.phase.clone()) {
            self.stop_again(proc, &phase);
        }
    }

    /// An answer to a command that nobody waits for any more. (The simulation takes this check out to show its worth:
    /// then the answer satisfies whatever else waits for the same target.)
    fn late(&mut self, id: CommandId, results: &[(Domain, Result<Output, Failure>)]) {
        let Some(as_what) = self.state.void.remove(&id) else {
            return; // a launcher's "accepted" after its changes have told the rest
        };
        if self.checks.has(Check::LateCompletionDrop) {
            return self.state.counts.drop(as_what);
        }
        for (target, result) in results {
            for pending in self.state.pending.values_mut() {
                pending.answer(target, result.clone());
            }
        }
    }

    /// The launcher did not take the process on: it is over without ever having been there, and that is no exit.
    fn never_started(&mut self, proc: &ProcId, why: &Failure) {
        let mut exit = Exit::new(Termination::Unknown);
        exit.stderr_tail = format!("not started: {why}");
        let over = Phase::Exited(Box::new(exit));
        if let Some(known) = self.state.view.procs.get_mut(&proc.role).filter(|p| p.incarnation == proc.incarnation) {
            known.wanted = false;
            known.phase = over;
        }
        let target = Domain::Process(proc.role.clone());
        for pending in self.state.pending.values_mut() {
            let awaited = pending.waiting.get(&target) == Some(&Some(proc.incarnation));
            if awaited && matches!(pending.action, Action::Stop { .. }) {
                pending.answer(&target, Ok(Output::Accepted));
            }
        }
    }

    /// The caller of its start is gone, and the launcher does not know it: it was never there, which is nobody's fault.
    pub(super) fn start_lost(&mut self, proc: &ProcId) {
        let why = "its start was lost with the supervisor";
        if self.state.view.procs.get(&proc.role).is_some_and(|k| k.incarnation == proc.incarnation && k.wanted) {
            let about = Domain::Process(proc.role.clone());
            let suspect = Suspect::victim(about, FaultClass::Launch, Damage::PROCESS_GONE);
            let fault = Fault::new(Name::new("runtime"), self.now(), suspect).of(Some(proc.incarnation));
            self.found.blame(fault.because(crate::detect::Clue::text("start", why)));
        }
        self.never_started(proc, &Failure::Unreachable(why.into()));
    }

    /// Starts and stops are answered by what becomes of their processes.
    pub(super) fn answer_by_phase(&mut self, proc: &ProcId, phase: &Phase) {
        let target = Domain::Process(proc.role.clone());
        let fenced = self.checks.has(Check::IncarnationFence);
        let never_steps = self.state.view.proc(&proc.role).is_none_or(|known| !known.reports_steps);
        for pending in self.state.pending.values_mut() {
            let Some(awaited) = pending.waiting.get(&target) else { continue };
            if fenced && *awaited != Some(proc.incarnation) {
                continue;
            }
            let result = match (&pending.action, phase) {
                (Action::Stop { .. }, Phase::Exited(_)) | (Action::Stop { exact: false, .. }, Phase::Dead(_)) => {
                    Ok(Output::Accepted)
                }
                (Action::Start { until: Ready::Accepted, .. }, Phase::Pending(_) | Phase::Running)
                | (Action::Start { until: Ready::Running, .. }, Phase::Running) => Ok(Output::Accepted),
                (Action::Start { until: Ready::Training, .. }, Phase::Running) if never_steps => Ok(Output::Accepted),
                (Action::Start { .. }, Phase::Running) if proc.role.rank().is_none() => Ok(Output::Accepted), // it never steps
                // Not yet at `Dead`: the exact exit is what detectors judge, and their verdict should come first.
                (Action::Start { .. }, Phase::Exited(exit)) => {
                    if exit.how.is_success() {
                        Ok(Output::Accepted)
                    } else {
                        Err(Failure::Gone)
                    }
                }
                _ => continue,
            };
            pending.answer(&target, result);
        }
    }

    pub(super) fn answer_by_step(&mut self, target: &Domain, incarnation: crate::job::Incarnation) {
        for pending in self.state.pending.values_mut() {
            let stepping = matches!(pending.action, Action::Start { until: Ready::Stepping | Ready::Training, .. });
            if stepping && pending.waiting.get(target) == Some(&Some(incarnation)) {
                pending.answer(target, Ok(Output::Accepted));
            }
        }
    }
}
