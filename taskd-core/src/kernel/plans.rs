//! Proposals carried out as state machines over command ids: stages begin, targets answer, stages end.
//!
//! It never chooses a proposal and knows no process by itself: what a stage waits for is answered by `intake`.

use super::arbiter::{Bench, Price, Verdict, arbitrate};
use super::incidents::Open;
use super::{Branch, Command, Decision, Drop, Event, Kernel, Proc};
use crate::detect::{Fault, Sound};
use crate::job::{CommandId, Domain, Incarnation, IncidentId, JobTime, Name, ProcId, Role};
use crate::launch::{Phase, StartBatch};
use crate::recover::{Action, Done, Failure, Need, Next, Output, Proposal, Run, Stage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Most commands without a plan that are remembered to count their late answers.
pub(super) const VOID_MAX: usize = 1024;

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum PlanId {
    /// The job's first start.
    Start,
    /// The job's last stop.
    End,
    /// A recovery.
    Recovery(IncidentId),
}

impl PlanId {
    pub(super) fn of(open: &Open) -> PlanId {
        PlanId::Recovery(open.incident.id)
    }

    pub(super) const fn incident(self) -> Option<IncidentId> {
        match self {
            PlanId::Recovery(id) => Some(id),
            PlanId::Start | PlanId::End => None,
        }
    }
}

/// A plan that is being carried out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) run: Run,
}

impl Plan {
    /// Whether this plan stops the process that a fault is about, and the fault is no reason to plan otherwise: when a
    /// collective breaks, peers end at any moment of the recovery that replaces them all.
    pub(super) fn replaces(&self, fault: &Fault) -> bool {
        let (Domain::Process(role), Some(incarnation)) = (&fault.prime().domain, fault.incarnation()) else {
            return false;
        };
        let plain = fault.prime().damage.program != Sound::No && fault.error.as_ref().is_none_or(|e| !e.retry_free);
        let proc = ProcId { role: role.clone(), incarnation };
        let done = self.run.done.iter().flatten().map(|done| &done.action);
        let stops = |action: &Action| matches!(action, Action::Stop { procs, .. } if procs.contains(&proc));
        plain && done.chain(self.run.proposal.stages.iter().flat_map(|stage| &stage.actions)).any(stops)
    }
}

/// A command whose targets have not all answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Pending {
    pub(super) plan: Option<PlanId>,
    pub(super) action: Action,
    /// Targets that have not answered; for processes with the incarnation that is meant.
    pub(super) waiting: BTreeMap<Domain, Option<Incarnation>>,
    pub(super) results: BTreeMap<Domain, Result<Output, Failure>>,
    pub(super) due: JobTime,
}

impl Pending {
    /// Takes the answer of one target; false if it had answered already or was never asked.
    pub(super) fn answer(&mut self, target: &Domain, result: Result<Output, Failure>) -> bool {
        let awaited = self.waiting.remove(target).is_some();
        if awaited {
            self.results.insert(target.clone(), result);
        }
        awaited
    }
}

impl Kernel {
    /// Decides one incident whose time has come. False: there is none.
    pub(super) fn decide_one(&mut self) -> bool {
        let now = self.now();
        let due = |o: &&Open| o.decide_at.is_some_and(|at| at <= now);
        let Some(id) = self.state.incidents.values().find(due).map(|o| o.incident.id) else { return false };
        if self.state.life.is_ending() {
            self.set_decide_at(id, None);
            return true;
        }
        let open = &self.state.incidents[&id];
        if open.incident.faults.iter().all(|f| matches!(f.prime().domain, Domain::Plugin(_))) {
            self.state.counts.branch(Branch::Noted);
            self.close(id, "noted: it concerns the runtime, not the job", None);
            return true;
        }
        if self.is_overtaken(open) {
            self.state.counts.branch(Branch::Overtaken);
            self.close(id, "another recovery has replaced what was blamed", None);
            return true;
        }
        let bench = self.bench(open);
        let verdict = arbitrate(&open.incident, &bench);
        let price = verdict.chosen.as_ref().map_or(Price::Nothing, |c| bench.price(&c.proposal));
        self.rule(id, verdict, price);
        true
    }

    /// Whether everything that was blamed has a newer process in its place, which another recovery has started.
    fn is_overtaken(&self, open: &Open) -> bool {
        let view = &self.state.view;
        let stands = |fault: &Fault| {
            let member = match &fault.prime().domain {
                Domain::Process(Role::Rank(rank)) => view.world.members().get(rank),
                _ => None,
            };
            member.is_none_or(|m| fault.incarnation().is_none_or(|of| of >= m.incarnation))
        };
        let own_failed = !open.incident.attempts.is_empty();
        !own_failed && view.stopped().next().is_none() && !open.incident.faults.iter().any(stands)
    }

    fn bench(&self, open: &Open) -> Bench<'_> {
        let touched = self.state.plans.values().flat_map(|p| p.run.proposal.touches.iter().cloned()).collect();
        Bench {
            view: &self.state.view,
            strategies: &self.strategies,
            budget_left: self.state.budget.left(),
            free_in_row: self.state.free_in_row,
            paid: open.paid >= open.worth(),
            touched,
            checks: &self.checks,
        }
    }

    /// Turns a verdict into a plan, a wait, or the end.
    fn rule(&mut self, id: IncidentId, verdict: Verdict, price: Price) {
        self.set_decide_at(id, None);
        for plugin in verdict.panicked {
            let fault =
                super::intake::plugin_fault(&self.state.view, plugin, "the strategy panicked in propose".into());
            self.found.blame(fault);
        }
        if verdict.waits {
            return self.state.counts.branch(Branch::Excluded); // asked again when a plan ends
        }
        verdict.branches.into_iter().for_each(|b| self.state.counts.branch(b));
        let at = self.now();
        let Some(open) = self.state.incidents.get_mut(&id) else { return };
        match price {
            Price::Nothing => {}
            Price::Token => {
                open.paid = open.worth();
                self.state.budget.withdraw();
                self.state.free_in_row = 0;
            }
            Price::FreeRetry => {
                open.paid = open.worth();
                self.state.counts.branch(Branch::FreeRetry);
                self.state.free_in_row += 1;
            }
        }
        let decision = Decision {
            at,
            incident: open.incident.clone(),
            rests_on: open.rests_on,
            chosen: verdict.chosen.clone(),
            lost: verdict.lost,
            refused: verdict.refused,
            budget_left: self.state.budget.left(),
            reason: verdict.reason,
        };
        self.state.ledger.decided(&decision);
        let last_words = decision.last_words();
        self.announce(Some(id), Event::Decided(Box::new(decision)));
        match verdict.chosen {
            None => self.end(false, &last_words),
            Some(chosen) => {
                if chosen.proposal.cost.ends_job {
                    self.state.life = super::ending::Life::Ending;
                    self.drop_other_plans(PlanId::Recovery(id));
                }
                self.begin(PlanId::Recovery(id), chosen.strategy, chosen.proposal);
            }
        }
    }

    fn set_decide_at(&mut self, id: IncidentId, at: Option<JobTime>) {
        if let Some(open) = self.state.incidents.get_mut(&id) {
            open.decide_at = at;
        }
    }

    pub(super) fn begin(&mut self, id: PlanId, strategy: Name, proposal: Proposal) {
        let run = Run { strategy, proposal, stage: 0, done: Vec::new(), began: self.now() };
        self.state.plans.insert(id, Plan { run });
        if let Some(open) = id.incident().and_then(|incident| self.state.incidents.get_mut(&incident)) {
            open.begun = true;
        }
        self.enter_stage(id);
    }

    fn enter_stage(&mut self, id: PlanId) {
        let plan = self.state.plans.get(&id);
        let Some(stage) = plan.and_then(|p| p.run.proposal.stages.get(p.run.stage)).cloned() else { return };
        if let Some(incident) = id.incident().filter(|_| self.is_outrun(&stage)) {
            return self.outrun(incident);
        }
        for action in stage.actions {
            self.command(Some(id), action, stage.within);
        }
    }

    /// Whether the stage would enter a world that is not the next one: another recovery was quicker, and what this one
    /// would put in force does not know of it.
    fn is_outrun(&self, stage: &Stage) -> bool {
        let in_force = self.state.view.world.generation();
        stage.actions.iter().any(|a| matches!(a, Action::Enter(world) if world.generation() != in_force.next()))
    }

    /// Decides anew, from the world that is in force now.
    fn outrun(&mut self, id: IncidentId) {
        self.state.counts.branch(Branch::Outrun);
        self.cancel(PlanId::Recovery(id), "another recovery has put a newer world in force");
        self.set_decide_at(id, Some(self.now()));
    }

    /// Carries one plan on whose stage is over. False: there is none.
    pub(super) fn advance_one(&mut self) -> bool {
        let waits = |id: &PlanId| self.state.pending.values().any(|p| p.plan == Some(*id) && !p.waiting.is_empty());
        let Some(id) = self.state.plans.keys().find(|id| !waits(id)).copied() else { return false };
        let ours: Vec<CommandId> =
            self.state.pending.iter().filter(|(_, p)| p.plan == Some(id)).map(|(c, _)| *c).collect();
        let pendings = ours.iter().filter_map(|c| self.state.pending.remove(c));
        let done: Vec<Done> = pendings.map(|p| Done { action: p.action, results: p.results }).collect();
        let Some(plan) = self.state.plans.get_mut(&id) else { return false };
        let shortfall = plan.run.proposal.stages.get(plan.run.stage).and_then(|stage| shortfall(stage, &done));
        plan.run.done.push(done);
        plan.run.stage += 1;
        match shortfall {
            Some((branch, why)) => {
                self.state.counts.branch(branch);
                self.fail(id, why);
            }
            None => self.stage_done(id),
        }
        true
    }

    fn stage_done(&mut self, id: PlanId) {
        let Some(plan) = self.state.plans.get(&id) else { return };
        self.state.counts.branch(Branch::StageDone);
        let stage = plan.run.ended_stage().map(|s| s.name.clone());
        let next = self.strategies.iter().find(|s| id.incident().is_some() && s.name() == plan.run.strategy).map_or(
            Next::AsProposed,
            |s| {
                catch_unwind(AssertUnwindSafe(|| s.advance(&plan.run, &self.state.view))).unwrap_or_else(|_| {
                    let what = "the strategy panicked in advance".into();
                    self.found.blame(super::intake::plugin_fault(&self.state.view, s.name(), what));
                    Next::GiveUp("the strategy panicked".into())
                })
            },
        );
        if let Some(stage) = stage {
            self.announce(id.incident(), Event::StageDone { incident: id.incident(), stage });
        }
        let Some(plan) = self.state.plans.get_mut(&id) else { return };
        match next {
            Next::AsProposed => {}
            Next::Instead(rest) => {
                self.state.counts.branch(Branch::Replaced);
                plan.run.proposal.stages.truncate(plan.run.stage);
                plan.run.proposal.stages.extend(rest);
            }
            Next::GiveUp(why) => {
                self.state.counts.branch(Branch::GaveUp);
                return self.fail(id, why);
            }
        }
        if plan.run.stage < plan.run.proposal.stages.len() {
            self.enter_stage(id);
        } else {
            self.plan_done(id);
        }
    }

    fn plan_done(&mut self, id: PlanId) {
        let Some(plan) = self.state.plans.remove(&id) else { return };
        match id {
            PlanId::Start => self.started(),
            PlanId::End => {}
            PlanId::Recovery(incident) => {
                self.started();
                self.state.counts.branch(Branch::Recovered);
                let how = format!("recovered by {}", plan.run.strategy);
                self.close(incident, &how, Some(&plan.run.strategy));
            }
        }
        self.reconsider();
    }

    fn fail(&mut self, id: PlanId, why: String) {
        let Some(plan) = self.state.plans.remove(&id) else { return };
        match id {
            PlanId::Start => self.start_failed(&plan.run, &why),
            PlanId::End => {} // its stop needs nobody and its finish has no targets
            PlanId::Recovery(incident) => {
                let last_words = plan.run.proposal.last_words();
                let strategy = plan.run.strategy;
                if let Some(open) = self.state.incidents.get_mut(&incident) {
                    open.incident.attempts.push((strategy.clone(), why.clone()));
                    open.decide_at = Some(self.state.view.now);
                }
                self.announce(Some(incident), Event::Failed { incident, strategy, reason: why.clone() });
                if self.state.life.is_ending() {
                    self.end(false, &last_words.unwrap_or(why)); // the last rung failed: the kernel's own end never does
                }
            }
        }
        self.reconsider();
    }

    /// Incidents that waited for a plan's end are decided now.
    fn reconsider(&mut self) {
        let now = self.now();
        for open in self.state.incidents.values_mut() {
            if open.decide_at.is_none() && !self.state.plans.contains_key(&PlanId::of(open)) {
                open.decide_at = Some(now);
            }
        }
    }

    /// Gives a plan up for a new fault. Its commands' answers will be late. False: there is no such plan.
    pub(super) fn cancel(&mut self, id: PlanId, reason: &str) -> bool {
        let Some(plan) = self.state.plans.remove(&id) else { return false };
        self.state.counts.branch(Branch::Cancelled);
        self.void_commands(id);
        if let Some(incident) = id.incident() {
            let strategy = plan.run.strategy;
            self.announce(Some(incident), Event::Cancelled { incident, strategy, reason: reason.to_owned() });
        }
        true
    }

    pub(super) fn void_commands(&mut self, id: PlanId) {
        let ours: Vec<CommandId> =
            self.state.pending.iter().filter(|(_, p)| p.plan == Some(id)).map(|(command, _)| *command).collect();
        self.state.pending.retain(|_, p| p.plan != Some(id));
        self.void(ours, Drop::LateAnswer);
    }

    /// What still comes under these commands is dropped, and counted as this.
    fn void(&mut self, commands: Vec<CommandId>, as_what: Drop) {
        self.state.void.extend(commands.into_iter().map(|id| (id, as_what)));
        while self.state.void.len() > VOID_MAX {
            self.state.void.pop_first();
        }
    }

    /// Targets whose time is over have failed; a silent witness has testified by that.
    pub(super) fn time_out(&mut self) {
        let now = self.now();
        let (mut silent, mut late) = (Vec::new(), Vec::new());
        for (command, pending) in self.state.pending.iter_mut().filter(|(_, p)| p.due <= now && !p.waiting.is_empty()) {
            late.push(*command);
            for (target, _) in std::mem::take(&mut pending.waiting) {
                if let Action::Collect(ask) = &pending.action {
                    silent.push((ask.clone(), target.clone()));
                }
                pending.results.insert(target, Err(Failure::TimedOut));
            }
        }
        for (ask, about) in silent {
            self.testify(&ask, &about, &Err(Failure::TimedOut));
        }
        self.void(late, Drop::TimedOutAnswer);
        self.state.pending.retain(|_, p| p.plan.is_some() || !p.waiting.is_empty());
    }

    /// Gives a command. What it wants counts from now on, not from when it is fulfilled.
    pub(super) fn command(&mut self, plan: Option<PlanId>, action: Action, within: Duration) {
        if let Action::Finish { ok, reason } = &action {
            self.finishing(*ok, reason);
        }
        self.state.commands += 1;
        let id = CommandId(self.state.commands);
        let mut entered = None;
        match &action {
            Action::Enter(world) => {
                self.enter_world(Arc::clone(world));
                entered = Some(Event::Entered { generation: world.generation(), restarts: world.restarts() });
            }
            Action::Start { batch, .. } => self.order(id, batch),
            Action::Stop { procs, .. } => self.unwant(procs),
            Action::Collect(_) | Action::Acknowledge(_) | Action::Announce(_) | Action::Finish { .. } => {}
        }
        let waiting = self.targets(&action);
        let incident = plan.and_then(PlanId::incident);
        let generation = self.state.view.world.generation();
        self.out.push(Command { id, generation, incident, action: action.clone() });
        if !waiting.is_empty() {
            let due = self.now() + within;
            let pending = Pending { plan, action, waiting, results: BTreeMap::new(), due };
            self.state.pending.insert(id, pending);
        }
        if let Some(entered) = entered {
            self.announce(None, entered);
        }
    }

    fn order(&mut self, id: CommandId, batch: &StartBatch) {
        self.state.starting.insert(id, batch.orders.iter().map(|o| o.proc.clone()).collect());
        for order in &batch.orders {
            let place = match &order.place {
                crate::launch::Place::On(node) => Some(node.clone()),
                crate::launch::Place::AnyBut(_) => None,
            };
            let proc = Proc {
                incarnation: order.proc.incarnation,
                generation: batch.world.generation(),
                wanted: true,
                node: place,
                pid: None,
                phase: Phase::Pending("ordered".into()),
                step: None,
                progress_at: self.state.view.now,
            };
            self.state.view.procs.insert(order.proc.role.clone(), proc);
        }
    }

    fn unwant(&mut self, procs: &[ProcId]) {
        for proc in procs {
            let known = self.state.view.procs.get_mut(&proc.role);
            if let Some(known) = known.filter(|k| k.incarnation == proc.incarnation && !k.phase.is_over()) {
                known.wanted = false;
            }
        }
    }

    fn targets(&self, action: &Action) -> BTreeMap<Domain, Option<Incarnation>> {
        let target = |p: &ProcId| (Domain::Process(p.role.clone()), Some(p.incarnation));
        match action {
            Action::Start { batch, .. } => batch.orders.iter().map(|o| target(&o.proc)).collect(),
            Action::Stop { procs, exact, .. } => {
                procs.iter().filter(|p| !self.has_ended(&p.role, p.incarnation, *exact)).map(target).collect()
            }
            Action::Collect(ask) => ask.about.iter().map(|d| (d.clone(), None)).collect(),
            Action::Enter(_) | Action::Acknowledge(_) | Action::Announce(_) | Action::Finish { .. } => BTreeMap::new(),
        }
    }

    fn has_ended(&self, role: &Role, incarnation: Incarnation, exact: bool) -> bool {
        self.state.view.procs.get(role).is_none_or(|known| {
            known.incarnation != incarnation || known.phase.is_exited() || (!exact && known.phase.is_over())
        })
    }
}

/// Why a stage has failed, if it has: which targets did not answer well.
fn shortfall(stage: &Stage, done: &[Done]) -> Option<(Branch, String)> {
    let results = || done.iter().flat_map(|d| &d.results);
    let well = results().filter(|(_, r)| r.is_ok()).count();
    let needed = match stage.need {
        Need::All => results().count(),
        Need::AtLeast(n) => n as usize,
    };
    if well >= needed {
        return None;
    }
    let failed: Vec<_> = results().filter_map(|(t, r)| Some((t, r.as_ref().err()?))).collect();
    let timed_out = failed.iter().any(|(_, why)| **why == Failure::TimedOut);
    let mut why: Vec<String> = failed.iter().take(3).map(|(target, why)| format!("{target}: {why}")).collect();
    if failed.len() > 3 {
        why.push(format!("and {} more", failed.len() - 3));
    }
    let branch = if timed_out { Branch::StageTimedOut } else { Branch::StageFailed };
    Some((branch, format!("stage {}: {well} of {needed} needed targets; {}", stage.name, why.join("; "))))
}
