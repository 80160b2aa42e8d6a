//! Carries out proposals as state machines over command ids: stages begin, targets answer, stages end.
//!
//! It chooses no proposal and inspects no process: answers to a stage come from `answers`.

use super::incidents::Open;
use super::{Branch, Event, Kernel};
use crate::detect::{Fault, Health};
use crate::job::{CommandId, Domain, IncidentId, Name, NodeId, ProcId, Role};
use crate::recover::{Action, Advance, CommandOutcome, Failure, PlanExecution, Proposal, Quorum, Stage, TargetReply};
use crate::state::Place;
use serde::{Deserialize, Serialize};
use std::panic::{AssertUnwindSafe, catch_unwind};

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

impl Kernel {
    pub(super) fn begin(&mut self, id: PlanId, strategy: Name, proposal: Proposal) {
        let run = PlanExecution { strategy, proposal, stage: 0, done: Vec::new(), began: self.now() };
        self.state.plans.insert(id, Plan { run });
        self.enter_stage(id);
    }

    fn enter_stage(&mut self, id: PlanId) {
        let plan = self.state.plans.get(&id);
        let Some(stage) = plan.and_then(|p| p.run.proposal.stages.get(p.run.stage)).cloned() else { return };
        if let Some(incident) = id.incident().filter(|_| self.is_outrun(&stage)) {
            return self.outrun(incident);
        }
        if let Some(node) = self.left_host(&stage).filter(|_| id.incident().is_some()) {
            self.state.counts.branch(Branch::StageFailed);
            return self.fail(id, format!("stage {}: {node} was cordoned meanwhile", stage.name));
        }
        if let Some(open) = id.incident().and_then(|incident| self.state.incidents.get_mut(&incident))
            && stage.actions.iter().any(moves_processes)
        {
            open.begun = true;
            open.declined.clear(); // what was declined then was not the only option left
        }
        for action in stage.actions {
            self.command(Some(id), action, stage.timeout);
        }
    }

    /// Returns true if the stage would put a world in force whose generation is not the next one.
    ///
    /// Another recovery was faster, and this plan's world does not include its changes.
    fn is_outrun(&self, stage: &Stage) -> bool {
        let in_force = self.state.view.world.generation();
        stage.actions.iter().any(|a| matches!(a, Action::Enter(world) if world.generation() != in_force.next()))
    }

    /// Returns a host on which the stage would start a process although it was taken out of the job.
    fn left_host(&self, stage: &Stage) -> Option<NodeId> {
        let orders = stage.actions.iter().filter_map(|action| match action {
            Action::Start { batch, .. } => Some(&batch.starts),
            _ => None,
        });
        orders.flatten().find_map(|order| match &order.place {
            Place::On(node) if self.state.cordons.contains_key(node) => Some(node.clone()),
            _ => None,
        })
    }

    /// Decides the incident again, from the world that is in force now.
    fn outrun(&mut self, id: IncidentId) {
        self.state.counts.branch(Branch::Outrun);
        self.cancel(PlanId::Recovery(id), "another recovery has entered a newer world");
        self.set_decide_at(id, Some(self.now()));
    }

    /// Continues one plan whose stage is over. Returns false if there is none.
    pub(super) fn advance_one(&mut self) -> bool {
        let waits = |id: &PlanId| self.state.pending.values().any(|p| p.plan == Some(*id) && !p.waiting.is_empty());
        let Some(id) = self.state.plans.keys().find(|id| !waits(id)).copied() else { return false };
        let ours: Vec<CommandId> =
            self.state.pending.iter().filter(|(_, p)| p.plan == Some(id)).map(|(c, _)| *c).collect();
        let pendings = ours.iter().filter_map(|c| self.state.pending.remove(c));
        let done: Vec<CommandOutcome> =
            pendings.map(|p| CommandOutcome { action: p.action, results: p.results }).collect();
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
            Advance::Continue,
            |s| {
                catch_unwind(AssertUnwindSafe(|| s.advance(&plan.run, &self.state.view))).unwrap_or_else(|_| {
                    let what = "the strategy panicked in `advance`".into();
                    self.found.blame(super::ingest::plugin_fault(&self.state.view, s.name(), what));
                    Advance::Fail("the strategy panicked".into())
                })
            },
        );
        self.hear_digests(id);
        if let Some(stage) = stage {
            self.announce(id.incident(), Event::StageDone { incident: id.incident(), stage });
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

    /// Records the checksums that ranks reported in the stage that is over. The strategy has already compared them with
    /// those known before.
    fn hear_digests(&mut self, id: PlanId) {
        let Some(done) = self.state.plans.get(&id).and_then(|plan| plan.run.done.last()) else { return };
        for (target, result) in done.iter().flat_map(|done| &done.results) {
            if let (Domain::Process(Role::Rank(rank)), Ok(TargetReply::Directive(answered))) = (target, result)
                && let Some(digest) = &answered.digest
            {
                self.state.view.replicas.hear(*rank, digest, self.state.view.world.absent());
            }
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
                self.renew_drains(incident, &plan.run.proposal.affected_domains);
                self.close(incident, &how, Some(&plan.run.strategy));
            }
        }
        self.reconsider();
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
                self.announce(Some(incident), Event::Failed { incident, strategy, reason: why.clone() });
                if self.state.life.is_ending() {
                    self.end(false, &last_words.unwrap_or(why)); // last strategy failed; the kernel's own end cannot
                }
            }
        }
        self.reconsider();
    }

    /// Makes incidents due that waited for the plan of another one.
    pub(super) fn reconsider(&mut self) {
        let now = self.now();
        for open in self.state.incidents.values_mut() {
            if open.decide_at.is_none() && open.held.is_none() && !self.state.plans.contains_key(&PlanId::of(open)) {
                open.decide_at = Some(now);
            }
        }
    }

    /// Cancels a plan, for example because of a new fault. Answers to its commands count as late. Returns its strategy;
    /// `None` if there is no such plan.
    pub(super) fn cancel(&mut self, id: PlanId, reason: &str) -> Option<Name> {
        let plan = self.state.plans.remove(&id)?;
        self.state.counts.branch(Branch::Cancelled);
        self.void_commands(id);
        let strategy = plan.run.strategy;
        if let Some(incident) = id.incident() {
            let reason = reason.to_owned();
            self.announce(Some(incident), Event::Cancelled { incident, strategy: strategy.clone(), reason });
        }
        Some(strategy)
    }
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
