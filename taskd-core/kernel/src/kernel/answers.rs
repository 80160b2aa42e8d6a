//! Matches answers to commands: from the launcher, from sources of evidence, and derived from process phases and steps.
//!
//! The effect of an answer is decided by the code that waits for it.

use super::{Check, DropReason, Kernel};
use crate::detect::{Damage, Fault, FaultClass, Suspect};
use crate::job::{CommandId, Domain, Exit, Name, ProcId, Ready, Termination};
use crate::recover::{Action, Failure, TargetReply};
use crate::state::Phase;
use std::collections::{BTreeMap, BTreeSet};

impl Kernel {
    pub(super) fn answered(&mut self, id: CommandId, results: &[(Domain, Result<TargetReply, Failure>)]) {
        let not_started = self.starts_answered(id, results);
        let Some(pending) = self.state.pending.get_mut(&id) else {
            return self.late(id, results);
        };
        let mut evidence = Vec::new();
        for (target, result) in results {
            let accepted_only =
                matches!(pending.action, Action::Start { .. } | Action::Stop { .. } | Action::SendDirectives(_))
                    && result.is_ok();
            let ready = matches!(&pending.action, Action::Start { until: Ready::Accepted, .. });
            if accepted_only && !ready {
                continue; // accepted by the launcher; its changes report the completion
            }
            let is_void =
                matches!(pending.action, Action::Start { .. }) && result.is_err() && !not_started.contains(target);
            if is_void || !pending.answer(target, result.clone()) {
                self.state.counts.drop(DropReason::RepeatedAnswer);
            } else if let Action::Collect(ask) = &pending.action {
                evidence.push((ask.clone(), target.clone(), result.clone()));
            }
        }
        for (ask, about, result) in evidence {
            self.deliver_probe_reply(&ask, &about, &result);
        }
    }

    /// Records if the launcher accepted the start of processes, and returns the processes that were refused.
    ///
    /// Acceptance is a fact about the processes, even if the plan is void by now. The refusal of a process that the
    /// launcher has already reported is ignored: a repeated order was refused.
    fn starts_answered(
        &mut self,
        id: CommandId,
        results: &[(Domain, Result<TargetReply, Failure>)],
    ) -> BTreeSet<Domain> {
        let mut not_started = BTreeSet::new();
        let Some(starting) = self.state.starting.remove(&id) else { return not_started };
        let answers: BTreeMap<&Domain, &Result<TargetReply, Failure>> = results.iter().map(|(d, r)| (d, r)).collect();
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

    /// Handles the launcher's acceptance of the start of a process. If the process was to be stopped before that, the
    /// stop had missed it, and is repeated.
    fn taken_on(&mut self, proc: &ProcId) {
        let known = self.state.view.procs.get(&proc.role).filter(|k| k.incarnation == proc.incarnation);
        if let Some(phase) = known.filter(|k| !k.wanted).map(|k| k.phase.clone()) {
            self.stop_again(proc, &phase);
        }
    }

    /// Handles an answer to a command that is no longer awaited.
    ///
    /// The simulation switches this check off to show its effect: the answer then satisfies any other command that
    /// waits for the same target.
    fn late(&mut self, id: CommandId, results: &[(Domain, Result<TargetReply, Failure>)]) {
        let Some(as_what) = self.state.void.remove(&id) else {
            return; // the launcher's "accepted", after its changes have reported the rest
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

    /// Handles a refused start: the process has ended without having existed, which is not an exit.
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
                pending.answer(&target, Ok(TargetReply::Accepted));
            }
        }
    }

    /// Handles a start that was lost: the supervisor that sent it is gone, and the launcher does not know the process.
    /// The process never existed, and no process is to blame.
    pub(super) fn start_lost(&mut self, proc: &ProcId) {
        let why = "its start order was lost when the supervisor ended";
        if self.state.view.procs.get(&proc.role).is_some_and(|k| k.incarnation == proc.incarnation && k.wanted) {
            let about = Domain::Process(proc.role.clone());
            let suspect = Suspect::victim(about, FaultClass::Launch, Damage::PROCESS_GONE);
            let fault = Fault::new(Name::new("runtime"), self.now(), suspect).with_incarnation(Some(proc.incarnation));
            self.found.blame(fault.with_evidence(crate::detect::Evidence::text("start", why)));
        }
        self.never_started(proc, &Failure::Unreachable(why.into()));
    }

    /// Answers starts and stops according to the phase of their processes.
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
                    Ok(TargetReply::Accepted)
                }
                (Action::Start { until: Ready::Accepted, .. }, Phase::Pending(_) | Phase::Running)
                | (Action::Start { until: Ready::Running, .. }, Phase::Running) => Ok(TargetReply::Accepted),
                (Action::Start { until: Ready::Training, .. }, Phase::Running) if never_steps => {
                    Ok(TargetReply::Accepted)
                }
                (Action::Start { .. }, Phase::Running) if proc.role.rank().is_none() => Ok(TargetReply::Accepted), // it never steps
                // Not at `Dead` yet: detectors judge the exact exit, and their verdict should come first.
                (Action::Start { .. }, Phase::Exited(exit)) => {
                    if exit.how.is_success() {
                        Ok(TargetReply::Accepted)
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
                pending.answer(target, Ok(TargetReply::Accepted));
            }
        }
    }
}
