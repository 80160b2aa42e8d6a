//! Carries out proposals as state machines over command ids: stages begin, targets answer, stages end.
//!
//! The end of a stage can start processes, close an incident, or end the job, so the steps of a plan are carried out on
//! the whole kernel. This file chooses no proposal and inspects no process: answers to a stage come from `answers`.

use super::commands::{Pending, mark_void};
use super::hosts::Cordon;
use super::incidents::Open;
use super::outbox::Outbox;
use super::plugins::Strategies;
use super::worlds::hear_digests;
use super::{Branch, Counts, DropReason, Event, Kernel, State};
use crate::detect::{Fault, Health};
use crate::job::{CommandId, Domain, IncidentId, JobTime, Name, NodeId, ProcId, World};
use crate::recover::{Action, Advance, CommandOutcome, Failure, PlanExecution, Proposal, Quorum, Stage};
use crate::state::Place;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Purpose of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum PlanId {
    /// The plan is the first start of the job.
    Start,
    /// The plan is the final stop of the job.
    End,
    /// The plan is a recovery from this incident.
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
    pub(super) run: PlanExecution,
}

impl Plan {
    /// Returns true if this plan stops the process of the fault, and the fault is no reason to plan differently.
    pub(super) fn replaces(&self, fault: &Fault) -> bool {
        replaces(&self.run.proposal, &self.run.done, fault)
    }
}

/// Returns true if a proposal stops the process of the fault, and the fault is no reason to plan differently.
///
/// The part of the proposal that is done counts as well: when a collective breaks, peers may end at any moment of the
/// recovery that replaces them all.
pub(super) fn replaces(proposal: &Proposal, done: &[Vec<CommandOutcome>], fault: &Fault) -> bool {
    let (Domain::Process(role), Some(incarnation)) = (&fault.primary_suspect().domain, fault.incarnation()) else {
        return false;
    };
    let plain =
        fault.primary_suspect().damage.program != Health::Faulty && fault.error.as_ref().is_none_or(|e| !e.retry_free);
    let proc = ProcId { role: role.clone(), incarnation };
    let done = done.iter().flatten().map(|done| &done.action);
    let stops = |action: &Action| matches!(action, Action::Stop { procs, .. } if procs.contains(&proc));
    plain && done.chain(proposal.stages.iter().flat_map(|stage| &stage.actions)).any(stops)
}

/// The plans that are carried out, with the commands that each waits for.
pub(super) struct Plans<'a> {
    pub(super) now: JobTime,
    pub(super) plans: &'a mut BTreeMap<PlanId, Plan>,
    pub(super) pending: &'a mut BTreeMap<CommandId, Pending>,
    pub(super) void: &'a mut BTreeMap<CommandId, DropReason>,
    pub(super) counts: &'a mut Counts,
    pub(super) outbox: Outbox<'a>,
}

impl Plans<'_> {
    fn add(&mut self, id: PlanId, strategy: Name, proposal: Proposal) {
        let run = PlanExecution { strategy, proposal, stage: 0, done: Vec::new(), began: self.now };
        self.plans.insert(id, Plan { run });
    }

    /// Ends the stage of one plan that no command waits for any more. Returns the plan, with the reason if the stage has
    /// failed; `None` if there is none.
    fn end_stage(&mut self) -> Option<(PlanId, Option<String>)> {
        let waits = |id: &PlanId| self.pending.values().any(|p| p.plan == Some(*id) && !p.waiting.is_empty());
        let id = self.plans.keys().find(|id| !waits(id)).copied()?;
        let ours: Vec<CommandId> = self.commands_of(id);
        let pendings = ours.iter().filter_map(|c| self.pending.remove(c));
        let done: Vec<CommandOutcome> =
            pendings.map(|p| CommandOutcome { action: p.action, results: p.results }).collect();
        let plan = self.plans.get_mut(&id)?;
        let shortfall = plan.run.proposal.stages.get(plan.run.stage).and_then(|stage| shortfall(stage, &done));
        plan.run.done.push(done);
        plan.run.stage += 1;
        self.counts.branch(shortfall.as_ref().map_or(Branch::StageDone, |(branch, _)| *branch));
        Some((id, shortfall.map(|(_, why)| why)))
    }

    fn commands_of(&self, id: PlanId) -> Vec<CommandId> {
        self.pending.iter().filter(|(_, p)| p.plan == Some(id)).map(|(command, _)| *command).collect()
    }

    /// Cancels a plan, for example because of a new fault. Answers to its commands count as late. Returns its strategy;
    /// `None` if there is no such plan.
    pub(super) fn cancel(&mut self, id: PlanId, reason: &str) -> Option<Name> {
        let plan = self.plans.remove(&id)?;
        self.counts.branch(Branch::Cancelled);
        let ours = self.commands_of(id);
        self.pending.retain(|_, p| p.plan != Some(id));
        mark_void(self.void, ours, DropReason::LateAnswer);
        let strategy = plan.run.strategy;
        if let Some(incident) = id.incident() {
            let reason = reason.to_owned();
            self.outbox.announce(Some(incident), Event::Cancelled { incident, strategy: strategy.clone(), reason });
        }
        Some(strategy)
    }

    /// Cancels all plans but one, because the job ends.
    pub(super) fn cancel_others(&mut self, keep: PlanId) {
        let others: Vec<PlanId> = self.plans.keys().filter(|id| **id != keep).copied().collect();
        for id in others {
            self.cancel(id, "the job ends");
        }
    }
}

impl Kernel {
    pub(super) fn begin(&mut self, id: PlanId, strategy: Name, proposal: Proposal) {
        self.plans().add(id, strategy, proposal);
        self.enter_stage(id);
    }

    fn enter_stage(&mut self, id: PlanId) {
        let plan = self.state.plans.get(&id);
        let Some(stage) = plan.and_then(|p| p.run.proposal.stages.get(p.run.stage)).cloned() else { return };
        if let Some(incident) = id.incident() {
            if is_outrun(&stage, &self.state.view.world) {
                return self.outrun(incident);
            }
            if let Some(node) = left_host(&stage, &self.state.cordons) {
                self.state.counts.branch(Branch::StageFailed);
                return self.fail(id, format!("stage {}: {node} was cordoned meanwhile", stage.name));
            }
            if let Some(open) = self.state.incidents.get_mut(&incident)
                && stage.actions.iter().any(moves_processes)
            {
                open.begun = true;
                open.declined.clear(); // what was declined then was not the only option left
            }
        }
        for action in stage.actions {
            self.command(Some(id), action, stage.timeout);
        }
    }

    /// Decides the incident again, from the world that is in force now.
    fn outrun(&mut self, id: IncidentId) {
        self.state.counts.branch(Branch::Outrun);
        self.plans().cancel(PlanId::Recovery(id), "another recovery has entered a newer world");
        let now = self.now();
        self.agenda().set(id, Some(now));
    }

    /// Continues one plan whose stage is over. Returns false if there is none.
    pub(super) fn advance_one(&mut self) -> bool {
        match self.plans().end_stage() {
            None => return false,
            Some((id, None)) => self.stage_done(id),
            Some((id, Some(why))) => self.fail(id, why),
        }
        true
    }

    fn stage_done(&mut self, id: PlanId) {
        let Some(plan) = self.state.plans.get(&id) else { return };
        let stage = plan.run.ended_stage().map(|s| s.name.clone());
        let next = self.advance(id);
        if let Some(stage) = stage {
            self.outbox().announce(id.incident(), Event::StageDone { incident: id.incident(), stage });
        }
        let Some(plan) = self.state.plans.get_mut(&id) else { return };
        match next {
            Advance::Continue => {}
            Advance::ReplaceRest(rest) => {
                self.state.counts.branch(Branch::Replaced);
                plan.run.proposal.stages.truncate(plan.run.stage);
                plan.run.proposal.stages.extend(rest);
            }
            Advance::Fail(why) => {
                self.state.counts.branch(Branch::GaveUp);
                return self.fail(id, why);
            }
            Advance::RolledBack(why) => {
                self.state.counts.branch(Branch::GaveUp);
                if let Some(open) = id.incident().and_then(|incident| self.state.incidents.get_mut(&incident)) {
                    open.begun = false;
                }
                return self.fail(id, why);
            }
        }
        if plan.run.stage < plan.run.proposal.stages.len() {
            self.enter_stage(id);
        } else {
            self.plan_done(id);
        }
    }

    /// Asks the strategy of a recovery how to continue. Checksums that ranks reported in the stage are recorded after
    /// that: the strategy compares them with those known before.
    fn advance(&mut self, id: PlanId) -> Advance {
        let State { plans, view, .. } = &mut self.state;
        let Some(Plan { run }) = plans.get(&id) else { return Advance::Continue };
        let mut strategies = Strategies { view, strategies: &self.strategies, found: &mut self.found };
        let next = id.incident().map_or(Advance::Continue, |_| strategies.advance(run));
        if let Some(done) = run.done.last() {
            hear_digests(done, &view.world, &mut view.replicas);
        }
        next
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
                self.renew_drains(incident, &plan.run.proposal.affected_domains);
                self.close(incident, &how, Some(&plan.run.strategy));
            }
        }
        self.agenda().reconsider();
    }

    fn fail(&mut self, id: PlanId, why: String) {
        let Some(plan) = self.state.plans.remove(&id) else { return };
        match id {
            PlanId::Start => self.start_failed(&plan.run, &why),
            PlanId::End => {} // its stop has a quorum of 0, and its finish has no targets
            PlanId::Recovery(incident) => {
                let last_words = plan.run.proposal.final_reason();
                let window = self.now() + self.state.view.spec.policy.correlation_window; // the cause may follow soon
                let strategy = plan.run.strategy;
                if let Some(open) = self.state.incidents.get_mut(&incident) {
                    open.incident.attempts.push((strategy.clone(), why.clone()));
                    open.decide_at = Some(window);
                }
                self.outbox().announce(Some(incident), Event::Failed { incident, strategy, reason: why.clone() });
                if self.state.life.is_ending() {
                    self.end(false, &last_words.unwrap_or(why)); // last strategy failed; the kernel's own end cannot
                }
            }
        }
        self.agenda().reconsider();
    }
}

/// Returns true if the stage would put a world in force whose generation is not the next one.
///
/// Another recovery was faster, and this plan's world does not include its changes.
fn is_outrun(stage: &Stage, in_force: &World) -> bool {
    let next = in_force.generation().next();
    stage.actions.iter().any(|action| matches!(action, Action::Enter(world) if world.generation() != next))
}

/// Returns a host on which the stage would start a process although it was taken out of the job.
fn left_host(stage: &Stage, cordons: &BTreeMap<NodeId, Cordon>) -> Option<NodeId> {
    let orders = stage.actions.iter().filter_map(|action| match action {
        Action::Start { batch, .. } => Some(&batch.starts),
        _ => None,
    });
    orders.flatten().find_map(|order| match &order.place {
        Place::On(node) if cordons.contains_key(node) => Some(node.clone()),
        _ => None,
    })
}

/// Returns true if the action stops or starts processes; other actions only ask, send or record something.
const fn moves_processes(action: &Action) -> bool {
    matches!(action, Action::Stop { .. } | Action::Enter(_) | Action::Start { .. })
}

/// Returns the reason why a stage has failed, if it has: the targets that did not succeed.
fn shortfall(stage: &Stage, done: &[CommandOutcome]) -> Option<(Branch, String)> {
    let results = || done.iter().flat_map(|d| &d.results);
    let well = results().filter(|(_, r)| r.is_ok()).count();
    let needed = match stage.quorum {
        Quorum::All => results().count(),
        Quorum::AtLeast(n) => n as usize,
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
    Some((branch, format!("stage {}: {well} of {needed} needed targets succeeded; {}", stage.name, why.join("; "))))
}
