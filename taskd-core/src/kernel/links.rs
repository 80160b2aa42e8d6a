//! Control links to training processes: who can be told what, what they answer, and failures that they have survived.
//!
//! It decides nothing: answers go to the commands that wait for them, failures to the detectors.

use super::incidents::Open;
use super::{Branch, Check, Drop, Kernel, Proc};
use crate::job::{CommandId, Domain, Incarnation, IncidentId, JobTime, ProcId, Rank, Ready, Role};
use crate::launch::{Answered, LinkStatus, Phase, Point, Saying, StepFailure, WorkerSaid};
use crate::recover::{Action, Failure, Output};
use crate::trace::{Observation, Signal};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long word of a rank whose link has gone is waited for: its memory may take a while to go before its end is told.
const WORD_WITHIN: Duration = Duration::from_secs(1);

impl Kernel {
    /// A link has come, has gone, or its process stands elsewhere.
    pub(super) fn linked(&mut self, status: &LinkStatus) {
        let LinkStatus { proc, linked } = status;
        if linked.is_none() && forget_unread(&mut self.state.unread, proc) {
            self.has_word();
        }
        let now = self.now();
        let known = self.state.view.procs.get_mut(&proc.role);
        let Some(known) = known.filter(|known| known.incarnation == proc.incarnation) else {
            return self.state.counts.drop(Drop::OldIncarnation);
        };
        if known.link == *linked {
            return self.state.counts.drop(Drop::RepeatedChange);
        }
        known.unlinked_at = if linked.is_none() { Some(now) } else { None };
        known.link.clone_from(linked);
        if let (Some(rank), Some(digest)) = (proc.role.rank(), linked.as_ref().and_then(|link| link.digest.as_deref()))
        {
            self.state.view.replicas.hear(rank, digest, self.state.view.world.absent());
        }
        self.has_word();
        if linked.as_ref().is_some_and(|link| link.at == Point::Parked) {
            let parked = |action: &Action| matches!(action, Action::Start { until: Ready::Parked, .. });
            _ = self.answer_of(proc, None, parked, &Ok(Output::Accepted));
        }
    }

    /// Everything that the launcher knows: a link that is not listed is not there. As after the death of a supervisor, whose
    /// successor has none until its processes come back.
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

    /// Until when a decision waits for word of ranks whose link has just gone: of one that died that is told soon after, and one that
    /// lives comes back. Before, nobody could be told anything there, and all would have to start again.
    pub(super) fn awaits_word(&mut self, id: IncidentId) -> Option<JobTime> {
        let view = &self.state.view;
        let has_just_gone = |proc: &Proc| proc.unlinked_at.is_some_and(|at| view.now < at + WORD_WITHIN);
        let is_silent = |(rank, proc): (Rank, &Proc)| view.world.members().contains_key(&rank) && has_just_gone(proc);
        let is_one_silent = view.training().any(is_silent) || self.is_report_under_way();
        let open = self.state.incidents.get_mut(&id).filter(|_| is_one_silent)?;
        let until = *open.word_until.get_or_insert(view.now + WORD_WITHIN);
        (view.now < until).then_some(until)
    }

    /// Whether nothing is proven of a rank that has just ended only for want of a report that it may have sent: its death is known before
    /// its link was read to the end.
    fn is_report_under_way(&self) -> bool {
        let view = &self.state.view;
        self.state.unread.iter().any(|(role, (incarnation, since))| {
            let rank = role.rank().filter(|_| view.now < *since + WORD_WITHIN);
            let is_of_world =
                |rank: &Rank| view.world.members().get(rank).is_some_and(|m| m.incarnation == *incarnation);
            rank.filter(is_of_world).is_some_and(|rank| view.replicas.lacks_report(rank))
        })
    }

    /// Who waits for word may have it.
    fn has_word(&mut self) {
        let now = self.now();
        let waits = |open: &&mut Open| open.word_until.is_some() && open.decide_at == open.word_until;
        self.state.incidents.values_mut().filter(waits).for_each(|open| open.decide_at = Some(now));
    }

    /// What a process says of itself.
    pub(super) fn said(&mut self, said: &WorkerSaid) {
        let known = self.state.view.procs.get(&said.proc.role);
        if known.is_none_or(|known| known.incarnation != said.proc.incarnation) {
            return self.state.counts.drop(Drop::OldIncarnation);
        }
        match &said.what {
            Saying::Answer { id, result } => self.directive_answered(*id, &said.proc, result),
            Saying::Failed(failure) => self.failed_step(&said.proc, failure),
            Saying::Memory(copy) => self.copied_to_memory(&said.proc, copy),
            Saying::Recorded(error) => self.tell(&Observation {
                at: self.now(),
                about: Domain::Process(said.proc.role.clone()),
                incarnation: Some(said.proc.incarnation),
                generation: None,
                signal: Signal::FailureRecorded(error.clone()),
            }),
        }
    }

    fn directive_answered(&mut self, id: CommandId, proc: &ProcId, result: &Result<Box<Answered>, String>) {
        if !self.state.pending.contains_key(&id) {
            let as_what = self.state.void.get(&id).copied().unwrap_or(Drop::LateAnswer);
            return self.state.counts.drop(as_what);
        }
        let result = result.clone().map(Output::Answered).map_err(Failure::Refused);
        let answered = self.answer_of(proc, Some(id), |action| matches!(action, Action::Direct(_)), &result);
        if !answered {
            self.state.counts.drop(Drop::RepeatedAnswer);
        }
    }

    /// Answers the commands of one kind that wait for this process. False: none does.
    fn answer_of(
        &mut self,
        proc: &ProcId,
        id: Option<CommandId>,
        kind: impl Fn(&Action) -> bool,
        result: &Result<Output, Failure>,
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
            return self.state.counts.drop(Drop::OldGeneration);
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

    /// A process that has ended answers no directive any more, and has no link.
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
            _ = self.answer_of(proc, None, |action| matches!(action, Action::Direct(_)), &Err(Failure::Gone));
        }
    }
}

/// The link of a process that has ended was read to its end. False: that was known.
fn forget_unread(unread: &mut BTreeMap<Role, (Incarnation, JobTime)>, proc: &ProcId) -> bool {
    let is_of_it = unread.get(&proc.role).is_some_and(|(incarnation, _)| *incarnation == proc.incarnation);
    is_of_it && unread.remove(&proc.role).is_some()
}
