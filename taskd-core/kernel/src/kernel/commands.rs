//! Issues commands: their effect on processes, the answers that they wait for, and their time limits.
//!
//! It issues none by itself, and handles no answers: that is the part of `answers`.

use super::plans::PlanId;
use super::{Check, Command, DropReason, Effect, Event, Kernel, State};
use crate::job::{CommandId, Domain, Incarnation, IncidentId, JobTime, ProcId, Ready, Role};
use crate::recover::{Action, Failure, TargetReply};
use crate::state::{Phase, Proc, StartBatch};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
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

impl Kernel {
    /// Commands what no plan waits for: an acknowledgement, an event, an answer, a switch of recorders.
    pub(super) fn effect(&mut self, plan: Option<PlanId>, effect: Effect) {
        let id = self.next_command_id();
        self.push(id, plan, effect);
    }

    fn next_command_id(&mut self) -> CommandId {
        self.state.commands += 1;
        CommandId(self.state.commands)
    }

    fn push(&mut self, id: CommandId, plan: Option<PlanId>, effect: Effect) {
        let (incident, generation) = (plan.and_then(PlanId::incident), self.state.view.world.generation());
        self.out.push(Command { id, generation, incident, effect });
    }

    /// Issues a command. Its effect on the desired state applies from now on, not from when it is carried out.
    pub(super) fn command(&mut self, plan: Option<PlanId>, action: Action, within: Duration) {
        if let Action::Finish { ok, reason } = &action {
            self.finishing(*ok, reason);
        }
        let id = self.next_command_id();
        let mut entered = None;
        match &action {
            Action::Enter(world) => {
                self.world_entered(plan, world);
                self.enter_world(Arc::clone(world));
                entered = Some(Event::Entered { generation: world.generation(), restarts: world.restarts() });
            }
            Action::Start { batch, .. } => self.order(id, batch),
            Action::Stop { procs, .. } => self.unwant(procs, plan.and_then(PlanId::incident)),
            Action::Cordon { nodes, reason } => nodes.iter().for_each(|node| self.cordon(node, reason.clone())),
            Action::Collect(_) | Action::SendDirectives(_) | Action::Finish { .. } => {}
        }
        let waiting = self.targets(&action);
        self.push(id, plan, action.clone().into());
        if !waiting.is_empty() {
            let due = self.now() + within;
            let pending = Pending { plan, action, waiting, results: BTreeMap::new(), due };
            self.state.pending.insert(id, pending);
        }
        self.answer_for_the_dead(id);
        if let Some(entered) = entered {
            self.announce(None, entered);
        }
    }

    /// Fails a directive at once for those of its processes that have ended.
    fn answer_for_the_dead(&mut self, id: CommandId) {
        if !self.checks.has(Check::AnswerForTheDead) {
            return;
        }
        let State { pending, view, .. } = &mut self.state;
        let Some(pending) = pending.get_mut(&id) else { return };
        let Action::SendDirectives(batch) = &pending.action else { return };
        let lives = |proc: &ProcId| {
            view.proc(&proc.role).is_some_and(|known| known.incarnation == proc.incarnation && !known.phase.is_over())
        };
        let dead: Vec<ProcId> =
            batch.directives.iter().map(|(proc, _)| proc).filter(|proc| !lives(proc)).cloned().collect();
        for proc in dead {
            pending.answer(&Domain::Process(proc.role), Err(Failure::Gone));
        }
    }

    fn order(&mut self, id: CommandId, batch: &StartBatch) {
        self.state.starting.insert(id, batch.starts.iter().map(|o| o.proc.clone()).collect());
        for order in &batch.starts {
            let place = match &order.place {
                crate::state::Place::On(node) => Some(node.clone()),
                crate::state::Place::AnyBut(_) => None,
            };
            let pending =
                Proc::pending(order.proc.incarnation, batch.world.generation(), "ordered", self.state.view.now);
            let before = self.state.view.procs.get(&order.proc.role);
            let reports_steps = before.is_some_and(|before| before.reports_steps);
            let proc = Proc { wanted: true, node: place, reports_steps, ..pending };
            self.state.view.procs.insert(order.proc.role.clone(), proc);
        }
    }

    fn unwant(&mut self, procs: &[ProcId], by: Option<IncidentId>) {
        for proc in procs {
            let known = self.state.view.procs.get_mut(&proc.role);
            if let Some(known) = known.filter(|k| k.incarnation == proc.incarnation && !k.phase.is_over()) {
                known.wanted = false;
                known.stopped_for = by;
            }
        }
    }

    /// Transfers the processes that one incident's recovery has stopped to another incident, or to any.
    pub(super) fn hand_over(&mut self, from: IncidentId, to: Option<IncidentId>) {
        let stopped = self.state.view.procs.values_mut().filter(|p| p.stopped_for == Some(from));
        stopped.for_each(|p| p.stopped_for = to);
    }

    fn targets(&self, action: &Action) -> BTreeMap<Domain, Option<Incarnation>> {
        let target = |p: &ProcId| (Domain::Process(p.role.clone()), Some(p.incarnation));
        match action {
            Action::Start { batch, .. } => batch.starts.iter().map(|o| target(&o.proc)).collect(),
            Action::Stop { procs, exact, .. } => {
                procs.iter().filter(|p| !self.has_ended(&p.role, p.incarnation, *exact)).map(target).collect()
            }
            Action::SendDirectives(batch) => batch.directives.iter().map(|(proc, _)| target(proc)).collect(),
            Action::Collect(ask) => ask.about.iter().map(|d| (d.clone(), None)).collect(),
            Action::Enter(_) | Action::Cordon { .. } | Action::Finish { .. } => BTreeMap::new(),
        }
    }

    pub(super) fn has_ended(&self, role: &Role, incarnation: Incarnation, exact: bool) -> bool {
        self.state.view.procs.get(role).is_none_or(|known| {
            known.incarnation != incarnation || known.phase.is_exited() || (!exact && known.phase.is_over())
        })
    }

    pub(super) fn void_commands(&mut self, id: PlanId) {
        let ours: Vec<CommandId> =
            self.state.pending.iter().filter(|(_, p)| p.plan == Some(id)).map(|(command, _)| *command).collect();
        self.state.pending.retain(|_, p| p.plan != Some(id));
        self.void(ours, DropReason::LateAnswer);
    }

    /// Marks commands as void: answers that still arrive are dropped, and counted under this reason.
    fn void(&mut self, commands: Vec<CommandId>, as_what: DropReason) {
        self.state.void.extend(commands.into_iter().map(|id| (id, as_what)));
        while self.state.void.len() > VOID_MAX {
            self.state.void.pop_first();
        }
    }

    /// Fails the targets whose time limit has passed. The silence of a probed source counts as evidence.
    pub(super) fn time_out(&mut self) {
        let now = self.now();
        let (mut silent, mut late) = (Vec::new(), Vec::new());
        let is_due = |pending: &Pending| pending.due <= now && !pending.waiting.is_empty() && !self.is_held_up(pending);
        let due = self.state.pending.iter().filter(|(_, p)| is_due(p)).map(|(id, _)| *id).collect::<BTreeSet<_>>();
        let State { pending, starting, view, .. } = &mut self.state;
        let runs = |target: &Domain, incarnation: Option<Incarnation>| {
            view.proc_of(target).is_some_and(|p| Some(p.incarnation) == incarnation && p.phase == Phase::Running)
        };
        let never_told_of = |target: &Domain, incarnation: Option<Incarnation>| {
            let (Domain::Process(role), Some(incarnation)) = (target, incarnation) else { return false };
            let proc = ProcId { role: role.clone(), incarnation };
            starting.values().any(|procs| procs.contains(&proc))
        };
        for (command, pending) in pending.iter_mut().filter(|(id, _)| due.contains(id)) {
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
        for (ask, about) in silent {
            self.deliver_probe_reply(&ask, &about, &Err(Failure::TimedOut));
        }
        self.void(late, DropReason::TimedOutAnswer);
        self.state.pending.retain(|_, p| p.plan.is_some() || !p.waiting.is_empty());
    }
}
