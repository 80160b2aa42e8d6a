//! Control links to training processes: state, replies to directives, and step failures that processes survived.
//!
//! It decides nothing: replies are passed to the commands that wait for them, failures to the detectors.

use super::incidents::Open;
use super::{Branch, Check, DropReason, Kernel};
use crate::job::{CommandId, Domain, Incarnation, IncidentId, JobTime, ProcId, Rank, Ready, Role};
use crate::recover::{Action, Failure, TargetReply};
use crate::state::{DirectiveReply, LinkStatus, LoopPosition, Phase, Proc, StepFailure, WorkerEvent, WorkerMessage};
use crate::trace::{Observation, Signal};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a decision waits for a report of a rank whose link has closed.
///
/// It may take a while to release the memory of a process before its end is reported.
const WORD_WITHIN: Duration = Duration::from_secs(1);

impl Kernel {
    /// A link was opened or closed, or the loop position of its process changed.
    pub(super) fn linked(&mut self, status: &LinkStatus) {
        let LinkStatus { proc, link: linked } = status;
        if linked.is_none() && forget_unread(&mut self.state.unread, proc) {
            self.has_word();
        }
        let now = self.now();
        let known = self.state.view.procs.get_mut(&proc.role);
        let Some(known) = known.filter(|known| known.incarnation == proc.incarnation) else {
            return self.state.counts.drop(DropReason::OldIncarnation);
        };
        if known.link == *linked {
            return self.state.counts.drop(DropReason::RepeatedChange);
        }
        known.unlinked_at = if linked.is_none() { Some(now) } else { None };
        known.link.clone_from(linked);
        if let (Some(rank), Some(digest)) = (proc.role.rank(), linked.as_ref().and_then(|link| link.digest.as_deref()))
        {
            self.state.view.replicas.hear(rank, digest, self.state.view.world.absent());
        }
        self.has_word();
        if linked.as_ref().is_some_and(|link| link.position == LoopPosition::Parked) {
            let parked = |action: &Action| matches!(action, Action::Start { until: Ready::Parked, .. });
            _ = self.answer_of(proc, None, parked, &Ok(TargetReply::Accepted));
        }
    }

    /// Handles the complete list of links: a link that is not listed does not exist. For example, after a supervisor
    /// was replaced, there are no links until the processes reconnect.
    pub(super) fn links_listed(&mut self, links: &[LinkStatus]) {
        links.iter().for_each(|status| self.linked(status));
        let listed: BTreeSet<&ProcId> = links.iter().map(|status| &status.proc).collect();
        for (role, known) in self.state.view.procs.iter_mut().filter(|(_, known)| known.link.is_some()) {
            let proc = ProcId { role: role.clone(), incarnation: known.incarnation };
            if !listed.contains(&proc) {
                (known.link, known.unlinked_at) = (None, Some(self.state.view.now));
            }
        }
    }

    /// Returns the time until which a decision waits for a report of ranks whose link has just closed. If such a rank
    /// died, its end is reported soon; if it lives, it reconnects. Before that, it can receive no directive, and all
    /// ranks would have to restart.
    pub(super) fn awaits_word(&mut self, id: IncidentId) -> Option<JobTime> {
        let view = &self.state.view;
        let has_just_gone = |proc: &Proc| proc.unlinked_at.is_some_and(|at| view.now < at + WORD_WITHIN);
        let is_silent = |(rank, proc): (Rank, &Proc)| view.world.members().contains_key(&rank) && has_just_gone(proc);
        let is_one_silent = view.training().any(is_silent) || self.is_report_under_way();
        let open = self.state.incidents.get_mut(&id).filter(|_| is_one_silent)?;
        let until = *open.word_until.get_or_insert(view.now + WORD_WITHIN);
        (view.now < until).then_some(until)
    }

    /// Returns true if a rank has just ended, and only a report that it may have sent is missing to prove which ranks
    /// hold the same state.
    ///
    /// The end of a process can be known before its link was read to the end.
    fn is_report_under_way(&self) -> bool {
        let view = &self.state.view;
        self.state.unread.iter().any(|(role, (incarnation, since))| {
            let rank = role.rank().filter(|_| view.now < *since + WORD_WITHIN);
            let is_of_world =
                |rank: &Rank| view.world.members().get(rank).is_some_and(|m| m.incarnation == *incarnation);
            rank.filter(is_of_world).is_some_and(|rank| view.replicas.lacks_report(rank))
        })
    }

    /// Decides the incidents that wait for a report at once, because a report may have arrived.
    fn has_word(&mut self) {
        let now = self.now();
        let waits = |open: &&mut Open| open.word_until.is_some() && open.decide_at == open.word_until;
        self.state.incidents.values_mut().filter(waits).for_each(|open| open.decide_at = Some(now));
    }

    /// Handles a message of a process.
    pub(super) fn said(&mut self, said: &WorkerEvent) {
        let known = self.state.view.procs.get(&said.proc.role);
        if known.is_none_or(|known| known.incarnation != said.proc.incarnation) {
            return self.state.counts.drop(DropReason::OldIncarnation);
        }
        match &said.message {
            WorkerMessage::Reply { id, result } => self.directive_answered(*id, &said.proc, result),
            WorkerMessage::Failed(failure) => self.failed_step(&said.proc, failure),
            WorkerMessage::InMemoryCheckpoint(copy) => self.copied_to_memory(&said.proc, copy),
            WorkerMessage::ErrorRecorded(error) => self.tell(&Observation {
                at: self.now(),
                about: Domain::Process(said.proc.role.clone()),
                incarnation: Some(said.proc.incarnation),
                generation: None,
                signal: Signal::FailureRecorded(error.clone()),
            }),
        }
    }

    fn directive_answered(&mut self, id: CommandId, proc: &ProcId, result: &Result<Box<DirectiveReply>, String>) {
        if !self.state.pending.contains_key(&id) {
            let as_what = self.state.void.get(&id).copied().unwrap_or(DropReason::LateAnswer);
            return self.state.counts.drop(as_what);
        }
        let result = result.clone().map(TargetReply::Directive).map_err(Failure::Refused);
        let answered = self.answer_of(proc, Some(id), |action| matches!(action, Action::SendDirectives(_)), &result);
        if !answered {
            self.state.counts.drop(DropReason::RepeatedAnswer);
        }
    }

    /// Answers the commands of one kind that wait for this process. Returns false if there are none.
    fn answer_of(
        &mut self,
        proc: &ProcId,
        id: Option<CommandId>,
        kind: impl Fn(&Action) -> bool,
        result: &Result<TargetReply, Failure>,
    ) -> bool {
        let mut answered = false;
        let target = Domain::Process(proc.role.clone());
        for (_, pending) in self.state.pending.iter_mut().filter(|(known, _)| id.is_none_or(|id| id == **known)) {
            if kind(&pending.action) && pending.waiting.get(&target) == Some(&Some(proc.incarnation)) {
                answered |= pending.answer(&target, result.clone());
            }
        }
        answered
    }

    fn failed_step(&mut self, proc: &ProcId, failure: &StepFailure) {
        let is_old = failure.generation < self.state.view.world.generation();
        if is_old && self.checks.has(Check::StepFailureFence) {
            return self.state.counts.drop(DropReason::OldGeneration);
        }
        self.state.counts.branch(Branch::StepFailed);
        self.tell(&Observation {
            at: self.now(),
            about: Domain::Process(proc.role.clone()),
            incarnation: Some(proc.incarnation),
            generation: Some(failure.generation),
            signal: Signal::StepFailed(Box::new(failure.clone())),
        });
    }

    /// A process that has ended answers no directives any more, and has no link.
    pub(super) fn unlink(&mut self, proc: &ProcId, phase: &Phase) {
        if !phase.is_over() {
            return;
        }
        let known = self.state.view.procs.get_mut(&proc.role);
        if let Some(known) = known.filter(|known| known.incarnation == proc.incarnation) {
            if known.link.is_some() {
                self.state.unread.insert(proc.role.clone(), (proc.incarnation, self.state.view.now));
            }
            (known.link, known.unlinked_at) = (None, None);
        }
        if self.checks.has(Check::AnswerForTheDead) {
            _ = self.answer_of(proc, None, |action| matches!(action, Action::SendDirectives(_)), &Err(Failure::Gone));
        }
    }
}

/// Forgets an ended process whose link was read to its end. Returns false if it was forgotten before.
fn forget_unread(unread: &mut BTreeMap<Role, (Incarnation, JobTime)>, proc: &ProcId) -> bool {
    let is_of_it = unread.get(&proc.role).is_some_and(|(incarnation, _)| *incarnation == proc.incarnation);
    is_of_it && unread.remove(&proc.role).is_some()
}
