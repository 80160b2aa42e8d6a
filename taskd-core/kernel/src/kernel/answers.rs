//! Matches answers to commands: from the launcher, from sources of evidence, and derived from process phases and steps.
//!
//! The effect of an answer is decided by the code that waits for it.

use super::commands::Pending;
use super::{Check, Checks, Counts, DropReason};
use crate::detect::{Damage, Evidence, Fault, FaultClass, Findings, Suspect};
use crate::job::{CommandId, Domain, Exit, Incarnation, JobTime, Name, ProcId, Ready, Role, Termination};
use crate::recover::{Action, Failure, TargetReply};
use crate::state::{DirectiveReply, Phase, Proc};
use crate::trace::Probe;
use std::collections::{BTreeMap, BTreeSet};

/// The answers to one command, by target.
type Results = [(Domain, Result<TargetReply, Failure>)];

/// A probe, its subject, and the answer to it.
pub(super) type ProbeAnswer = (Probe, Domain, Result<TargetReply, Failure>);

/// What the launcher has answered to the start of processes.
#[derive(Default)]
pub(super) struct StartAnswers {
    /// The processes that were not started.
    refused: BTreeSet<Domain>,
    /// The processes that were to be stopped before their start was accepted: the stop has missed them.
    pub(super) missed: Vec<(ProcId, Phase)>,
}

/// Gives answers to the commands that wait for them.
pub(super) struct Answers<'a> {
    pub(super) now: JobTime,
    pub(super) checks: &'a Checks,
    pub(super) procs: &'a mut BTreeMap<Role, Proc>,
    pub(super) pending: &'a mut BTreeMap<CommandId, Pending>,
    pub(super) starting: &'a mut BTreeMap<CommandId, BTreeSet<ProcId>>,
    pub(super) void: &'a mut BTreeMap<CommandId, DropReason>,
    pub(super) counts: &'a mut Counts,
    pub(super) found: &'a mut Findings,
}

impl Answers<'_> {
    /// Handles the answers to a command. Returns those that are evidence for detectors.
    pub(super) fn answered(&mut self, id: CommandId, results: &Results, starts: &StartAnswers) -> Vec<ProbeAnswer> {
        let mut evidence = Vec::new();
        let Some(pending) = self.pending.get_mut(&id) else {
            self.late(id, results);
            return evidence;
        };
        for (target, result) in results {
            let accepted_only =
                matches!(pending.action, Action::Start { .. } | Action::Stop { .. } | Action::SendDirectives(_))
                    && result.is_ok();
            let ready = matches!(&pending.action, Action::Start { until: Ready::Accepted, .. });
            if accepted_only && !ready {
                continue; // accepted by the launcher; its changes report the completion
            }
            let is_void =
                matches!(pending.action, Action::Start { .. }) && result.is_err() && !starts.refused.contains(target);
            if is_void || !pending.answer(target, result.clone()) {
                self.counts.drop(DropReason::RepeatedAnswer);
            } else if let Action::Collect(ask) = &pending.action {
                evidence.push((ask.clone(), target.clone(), result.clone()));
            }
        }
        evidence
    }

    /// Records if the launcher accepted the start of processes.
    ///
    /// Acceptance is a fact about the processes, even if the plan is void by now. The refusal of a process that the
    /// launcher has already reported is ignored: a repeated order was refused.
    pub(super) fn starts_answered(&mut self, id: CommandId, results: &Results) -> StartAnswers {
        let mut answers = StartAnswers::default();
        let Some(starting) = self.starting.remove(&id) else { return answers };
        let by_target: BTreeMap<&Domain, &Result<TargetReply, Failure>> = results.iter().map(|(d, r)| (d, r)).collect();
        let answer = |proc: &ProcId| by_target.get(&Domain::Process(proc.role.clone())).copied();
        let (answered, open): (BTreeSet<_>, BTreeSet<_>) =
            starting.into_iter().partition(|proc| answer(proc).is_some());
        if !open.is_empty() {
            self.starting.insert(id, open);
        }
        for proc in answered {
            if let Some(Err(failure)) = answer(&proc) {
                self.never_started(&proc, failure);
                answers.refused.insert(Domain::Process(proc.role));
                continue;
            }
            let known = self.procs.get(&proc.role).filter(|known| known.incarnation == proc.incarnation);
            if let Some(phase) = known.filter(|known| !known.wanted).map(|known| known.phase.clone()) {
                answers.missed.push((proc, phase));
            }
        }
        answers
    }

    /// Handles an answer to a command that is no longer awaited.
    ///
    /// The simulation switches this check off to show its effect: the answer then satisfies any other command that
    /// waits for the same target.
    fn late(&mut self, id: CommandId, results: &Results) {
        let Some(as_what) = self.void.remove(&id) else {
            return; // the launcher's "accepted", after its changes have reported the rest
        };
        if self.checks.has(Check::LateCompletionDrop) {
            return self.counts.drop(as_what);
        }
        for (target, result) in results {
            for pending in self.pending.values_mut() {
                pending.answer(target, result.clone());
            }
        }
    }

    /// Handles a refused start: the process has ended without having existed, which is not an exit.
    fn never_started(&mut self, proc: &ProcId, why: &Failure) {
        let mut exit = Exit::new(Termination::Unknown);
        exit.stderr_tail = format!("not started: {why}");
        let over = Phase::Exited(Box::new(exit));
        if let Some(known) = self.procs.get_mut(&proc.role).filter(|p| p.incarnation == proc.incarnation) {
            known.wanted = false;
            known.phase = over;
        }
        let target = Domain::Process(proc.role.clone());
        for pending in self.pending.values_mut() {
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
        if self.procs.get(&proc.role).is_some_and(|k| k.incarnation == proc.incarnation && k.wanted) {
            let about = Domain::Process(proc.role.clone());
            let suspect = Suspect::victim(about, FaultClass::Launch, Damage::PROCESS_GONE);
            let fault = Fault::new(Name::new("runtime"), self.now, suspect).with_incarnation(Some(proc.incarnation));
            self.found.blame(fault.with_evidence(Evidence::text("start", why)));
        }
        self.never_started(proc, &Failure::Unreachable(why.into()));
    }

    /// Answers starts and stops according to the phase of their processes.
    pub(super) fn by_phase(&mut self, proc: &ProcId, phase: &Phase) {
        let target = Domain::Process(proc.role.clone());
        let fenced = self.checks.has(Check::IncarnationFence);
        let never_steps = self.procs.get(&proc.role).is_none_or(|known| !known.reports_steps);
        for pending in self.pending.values_mut() {
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

    /// Answers starts that wait for a step of this process.
    pub(super) fn by_step(&mut self, target: &Domain, incarnation: Incarnation) {
        for pending in self.pending.values_mut() {
            let stepping = matches!(pending.action, Action::Start { until: Ready::Stepping | Ready::Training, .. });
            if stepping && pending.waiting.get(target) == Some(&Some(incarnation)) {
                pending.answer(target, Ok(TargetReply::Accepted));
            }
        }
    }

    /// Answers starts that wait until this process is parked.
    pub(super) fn parked(&mut self, proc: &ProcId) {
        let parked = |action: &Action| matches!(action, Action::Start { until: Ready::Parked, .. });
        _ = self.of(proc, None, parked, &Ok(TargetReply::Accepted));
    }

    /// Fails the directives to a process that has ended.
    pub(super) fn for_the_dead(&mut self, proc: &ProcId) {
        if self.checks.has(Check::AnswerForTheDead) {
            _ = self.of(proc, None, |action| matches!(action, Action::SendDirectives(_)), &Err(Failure::Gone));
        }
    }

    /// Handles the reply of a process to a directive.
    pub(super) fn directive(&mut self, id: CommandId, proc: &ProcId, result: &Result<Box<DirectiveReply>, String>) {
        if !self.pending.contains_key(&id) {
            let as_what = self.void.get(&id).copied().unwrap_or(DropReason::LateAnswer);
            return self.counts.drop(as_what);
        }
        let result = result.clone().map(TargetReply::Directive).map_err(Failure::Refused);
        if !self.of(proc, Some(id), |action| matches!(action, Action::SendDirectives(_)), &result) {
            self.counts.drop(DropReason::RepeatedAnswer);
        }
    }

    /// Answers the commands of one kind that wait for this process. Returns false if there are none.
    fn of(
        &mut self,
        proc: &ProcId,
        id: Option<CommandId>,
        kind: impl Fn(&Action) -> bool,
        result: &Result<TargetReply, Failure>,
    ) -> bool {
        let mut answered = false;
        let target = Domain::Process(proc.role.clone());
        for (_, pending) in self.pending.iter_mut().filter(|(known, _)| id.is_none_or(|id| id == **known)) {
            if kind(&pending.action) && pending.waiting.get(&target) == Some(&Some(proc.incarnation)) {
                answered |= pending.answer(&target, result.clone());
            }
        }
        answered
    }
}
