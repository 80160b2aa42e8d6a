//! Issues commands: their effect on processes, the answers that they wait for, and their time limits.
//!
//! The callers decide which commands to issue, and `answers` handles the answers.

use super::guards::SilentGuards;
use super::outbox::Outbox;
use super::plans::PlanId;
use super::{Check, Checks, DropReason};
use crate::job::{CommandId, Domain, Incarnation, IncidentId, JobTime, ProcId, Ready, Role};
use crate::recover::{Action, Failure, TargetReply};
use crate::state::{Phase, Place, Proc, StartBatch};
use crate::trace::Probe;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Maximum number of commands that are remembered only to count their late answers.
pub(super) const VOID_MAX: usize = 1024;

/// A command whose targets have not all answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Pending {
    pub(super) plan: Option<PlanId>,
    pub(super) action: Action,
    /// Targets that have not answered; for processes, with the incarnation that is meant.
    pub(super) waiting: BTreeMap<Domain, Option<Incarnation>>,
    pub(super) results: BTreeMap<Domain, Result<TargetReply, Failure>>,
    pub(super) due: JobTime,
}

impl Pending {
    /// Records the answer of one target. Returns false if the target has answered already or was never asked.
    pub(super) fn answer(&mut self, target: &Domain, result: Result<TargetReply, Failure>) -> bool {
        let awaited = self.waiting.remove(target).is_some();
        if awaited {
            self.results.insert(target.clone(), result);
        }
        awaited
    }
}

/// Issues commands: what they mean for the desired state of processes, and which answers they wait for.
pub(super) struct Commands<'a> {
    pub(super) now: JobTime,
    pub(super) checks: &'a Checks,
    pub(super) procs: &'a mut BTreeMap<Role, Proc>,
    pub(super) pending: &'a mut BTreeMap<CommandId, Pending>,
    pub(super) starting: &'a mut BTreeMap<CommandId, BTreeSet<ProcId>>,
    pub(super) outbox: Outbox<'a>,
}

impl Commands<'_> {
    /// Issues a command. Its effect on the desired state of processes applies from now on, not from when it is carried
    /// out.
    pub(super) fn issue(&mut self, plan: Option<PlanId>, action: Action, within: Duration) {
        let incident = plan.and_then(PlanId::incident);
        let id = self.outbox.number(incident, action.clone().into());
        match &action {
            Action::Start { batch, .. } => self.order(id, batch),
            Action::Stop { procs, .. } => self.unwant(procs, incident),
            _ => {}
        }
        let waiting = self.targets(&action);
        if !waiting.is_empty() {
            let due = self.now + within;
            self.pending.insert(id, Pending { plan, action, waiting, results: BTreeMap::new(), due });
        }
        self.answer_for_the_dead(id);
    }

    /// Issues the commands without an answer again, as far as they are not carried out.
    ///
    /// They may have been logged but not carried out; commands may be repeated.
    pub(super) fn issue_again(&mut self) {
        for (id, pending) in self.pending.iter().filter(|(_, pending)| !pending.waiting.is_empty()) {
            let incident = pending.plan.and_then(PlanId::incident);
            self.outbox.again(*id, incident, not_ended(&pending.action, self.procs).into());
        }
    }

    /// Fails a directive at once for those of its processes that have ended.
    fn answer_for_the_dead(&mut self, id: CommandId) {
        if !self.checks.has(Check::AnswerForTheDead) {
            return;
        }
        let Some(pending) = self.pending.get_mut(&id) else { return };
        let Action::SendDirectives(batch) = &pending.action else { return };
        let lives = |proc: &ProcId| {
            let known = self.procs.get(&proc.role);
            known.is_some_and(|known| known.incarnation == proc.incarnation && !known.phase.is_over())
        };
        let dead: Vec<ProcId> =
            batch.directives.iter().map(|(proc, _)| proc).filter(|proc| !lives(proc)).cloned().collect();
        for proc in dead {
            pending.answer(&Domain::Process(proc.role), Err(Failure::Gone));
        }
    }

    fn order(&mut self, id: CommandId, batch: &StartBatch) {
        self.starting.insert(id, batch.starts.iter().map(|o| o.proc.clone()).collect());
        for order in &batch.starts {
            let place = match &order.place {
                Place::On(node) => Some(node.clone()),
                Place::AnyBut(_) => None,
            };
            let pending = Proc::pending(order.proc.incarnation, batch.world.generation(), "ordered", self.now);
            let before = self.procs.get(&order.proc.role);
            let reports_steps = before.is_some_and(|before| before.reports_steps);
            let proc = Proc { wanted: true, node: place, reports_steps, ..pending };
            self.procs.insert(order.proc.role.clone(), proc);
        }
    }

    fn unwant(&mut self, procs: &[ProcId], by: Option<IncidentId>) {
        for proc in procs {
            let known = self.procs.get_mut(&proc.role);
            if let Some(known) = known.filter(|k| k.incarnation == proc.incarnation && !k.phase.is_over()) {
                known.wanted = false;
                known.stopped_for = by;
            }
        }
    }

    /// Transfers the processes that one incident's recovery has stopped to another incident, or to any.
    pub(super) fn hand_over(&mut self, from: IncidentId, to: Option<IncidentId>) {
        let stopped = self.procs.values_mut().filter(|p| p.stopped_for == Some(from));
        stopped.for_each(|p| p.stopped_for = to);
    }

    fn targets(&self, action: &Action) -> BTreeMap<Domain, Option<Incarnation>> {
        let target = |p: &ProcId| (Domain::Process(p.role.clone()), Some(p.incarnation));
        match action {
            Action::Start { batch, .. } => batch.starts.iter().map(|o| target(&o.proc)).collect(),
            Action::Stop { procs, exact, .. } => {
                procs.iter().filter(|p| !has_ended(self.procs, p, *exact)).map(target).collect()
            }
            Action::SendDirectives(batch) => batch.directives.iter().map(|(proc, _)| target(proc)).collect(),
            Action::Collect(ask) => ask.about.iter().map(|d| (d.clone(), None)).collect(),
            Action::Enter(_) | Action::Cordon { .. } | Action::Finish { .. } => BTreeMap::new(),
        }
    }
}

/// Ends the wait for answers: at the time limit of a command, or with its plan.
pub(super) struct TimeLimits<'a> {
    pub(super) guards: SilentGuards<'a>,
    pub(super) starting: &'a BTreeMap<CommandId, BTreeSet<ProcId>>,
    pub(super) pending: &'a mut BTreeMap<CommandId, Pending>,
    pub(super) void: &'a mut BTreeMap<CommandId, DropReason>,
}

impl TimeLimits<'_> {
    /// Extends all time limits.
    pub(super) fn extend(&mut self, by: Duration) {
        for pending in self.pending.values_mut() {
            pending.due = pending.due + by;
        }
    }

    /// Extends the time limit of the commands that wait for the end of a process.
    pub(super) fn extend_stop(&mut self, proc: &ProcId, due: JobTime) {
        let target = Domain::Process(proc.role.clone());
        for pending in self.pending.values_mut() {
            let waits = pending.waiting.get(&target) == Some(&Some(proc.incarnation));
            if waits && matches!(pending.action, Action::Stop { .. }) {
                pending.due = pending.due.max(due);
            }
        }
    }

    /// Fails the targets whose time limit has passed. Returns the probes that were not answered, with their subjects.
    pub(super) fn time_out(&mut self) -> Vec<(Probe, Domain)> {
        let TimeLimits { guards, starting, .. } = self;
        let (view, now) = (guards.view, guards.view.now);
        let (mut silent, mut late) = (Vec::new(), Vec::new());
        let runs = |target: &Domain, incarnation: Option<Incarnation>| {
            view.proc_of(target).is_some_and(|p| Some(p.incarnation) == incarnation && p.phase == Phase::Running)
        };
        let never_told_of = |target: &Domain, incarnation: Option<Incarnation>| {
            let (Domain::Process(role), Some(incarnation)) = (target, incarnation) else { return false };
            let proc = ProcId { role: role.clone(), incarnation };
            starting.values().any(|procs| procs.contains(&proc))
        };
        let is_due = |pending: &Pending| pending.due <= now && !pending.waiting.is_empty() && !guards.hold_up(pending);
        for (command, pending) in self.pending.iter_mut().filter(|(_, pending)| is_due(pending)) {
            late.push(*command);
            for (target, incarnation) in std::mem::take(&mut pending.waiting) {
                let result = match &pending.action {
                    Action::Collect(ask) => {
                        silent.push((ask.clone(), target.clone()));
                        Err(Failure::TimedOut)
                    }
                    // The launcher has not completed the start yet: whenever it does, the process is stopped at once.
                    Action::Stop { .. } if never_told_of(&target, incarnation) => Ok(TargetReply::Accepted),
                    Action::Start { until: Ready::Training, .. } if runs(&target, incarnation) => {
                        Ok(TargetReply::Accepted)
                    }
                    _ => Err(Failure::TimedOut),
                };
                pending.results.insert(target, result);
            }
        }
        mark_void(self.void, late, DropReason::TimedOutAnswer);
        self.pending.retain(|_, p| p.plan.is_some() || !p.waiting.is_empty());
        silent
    }
}

/// Returns true if the process has ended, or was replaced. Not before its exact exit is known, if `exact`.
pub(super) fn has_ended(procs: &BTreeMap<Role, Proc>, proc: &ProcId, exact: bool) -> bool {
    procs.get(&proc.role).is_none_or(|known| {
        known.incarnation != proc.incarnation || known.phase.is_exited() || (!exact && known.phase.is_over())
    })
}

/// Returns the action without the start of processes that have existed and ended.
///
/// A launcher that has forgotten them would start them a second time.
fn not_ended(action: &Action, procs: &BTreeMap<Role, Proc>) -> Action {
    let mut action = action.clone();
    if let Action::Start { batch, .. } = &mut action {
        batch.starts.retain(|order| !has_ended(procs, &order.proc, true));
    }
    action
}

/// Marks commands as void: answers that still arrive are dropped, and counted under this reason.
pub(super) fn mark_void(void: &mut BTreeMap<CommandId, DropReason>, commands: Vec<CommandId>, as_what: DropReason) {
    void.extend(commands.into_iter().map(|id| (id, as_what)));
    while void.len() > VOID_MAX {
        void.pop_first();
    }
}
