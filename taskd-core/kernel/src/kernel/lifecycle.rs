//! The life cycle of the job as a whole: first start, completion, and final stop.
//!
//! It recovers nothing: a start that fails becomes a fault like any other.

use super::plans::PlanId;
use super::{Branch, Command, HoldReason, Input, Kernel, Outcome, Request, Start, State};
use crate::detect::{Damage, Evidence, Fault, FaultClass, INTERRUPTED, OPERATOR, Suspect};
use crate::job::{Counted, Domain, JobTime, Member, Name, ProcId, Rank, Role, World};
use crate::recover::stages::{STOP_MARGIN, end_all, start_all};
use crate::recover::{Action, Cost, Failure, PlanExecution, Proposal, Stage};
use crate::state::View;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Confidence, in permille, that a start which did not complete in time is the launcher's fault.
const START_FAILED_PERMILLE: u16 = 500;

/// Detector name for an outside fault that was reported under a reserved name.
const OUTSIDE: Name = Name::new("outside");

/// Phase of the job's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Life {
    /// The kernel has not been started.
    New,
    /// The kernel has started, and does not know yet which processes already run.
    Listing,
    /// The first start of the job's processes is in progress.
    Starting,
    /// The job's processes have been started once; later recoveries do not change this phase.
    Training,
    /// The job is ending: new faults do not matter any more.
    Ending,
    /// The job has ended.
    Over,
    /// The job is ending because a stop was requested.
    Stopping,
}

impl Life {
    pub(super) fn is_over(self) -> bool {
        self == Life::Over
    }

    pub(super) fn is_ending(self) -> bool {
        matches!(self, Life::Ending | Life::Stopping | Life::Over)
    }

    pub(super) fn is_listing(self) -> bool {
        self == Life::Listing
    }

    pub(super) fn is_training(self) -> bool {
        self == Life::Training
    }

    /// Returns true if an input has no meaning in this phase: before the start, or after the end.
    pub(super) fn ignores(self, input: &Input) -> bool {
        self.is_over() || (self == Life::New && !matches!(input, Input::Start(_)))
    }
}

impl Kernel {
    /// Returns true if the job has ended: nothing is decided any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state.life.is_over()
    }

    /// Handles the start of the kernel. `before` is the time of the previous input: the time since then is charged to
    /// no process.
    pub(super) fn start(&mut self, start: &Start, before: JobTime) {
        self.state.view.spec = Arc::clone(&start.spec);
        self.state.view.rendezvous_service.clone_from(&start.rendezvous_service);
        self.state.switches.start(start.trace);
        self.apply_permissions();
        if self.state.life == Life::New {
            self.state.budget = super::Budget::full(&start.spec.policy.budget);
            self.state.view.world = Arc::new(start.spec.first_world());
            self.state.life = Life::Listing;
            return;
        }
        self.state.reissue = true;
        let State { starting, pending, adrift, .. } = &mut self.state;
        starting.retain(|id, procs| {
            let again = pending.get(id).is_some_and(|p| !p.waiting.is_empty());
            if !again {
                adrift.append(procs);
            }
            again
        });
        let away = self.now().since(before);
        if !away.is_zero() {
            self.slept(u64::try_from(away.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// Continues after a listing: the first one starts the job, or resumes what an earlier supervisor had in progress.
    pub(super) fn listing_taken(&mut self) {
        if self.state.life == Life::Listing {
            match self.observes() {
                true => self.state.life = Life::Training, // the running processes are the job
                false => self.bring_up(),
            }
        }
        if std::mem::take(&mut self.state.reissue) {
            let generation = self.state.view.world.generation();
            let open = self.state.pending.iter().filter(|(_, p)| !p.waiting.is_empty());
            let again = open.map(|(id, p)| {
                let incident = p.plan.and_then(PlanId::incident);
                Command { id: *id, generation, incident, effect: self.not_ended(&p.action).into() }
            });
            let again: Vec<Command> = again.collect();
            self.out.extend(again); // they may have been logged but not carried out; commands may be repeated
            self.switch_again();
            if !self.observes() {
                self.release(|held| held == HoldReason::DryRun); // the previous supervisor only observed
            }
        }
    }

    /// Returns the action without the start of processes that have existed and ended.
    ///
    /// A launcher that has forgotten them would start them a second time.
    fn not_ended(&self, action: &Action) -> Action {
        let mut action = action.clone();
        if let Action::Start { batch, .. } = &mut action {
            batch.starts.retain(|order| !self.has_ended(&order.proc.role, order.proc.incarnation, true));
        }
        action
    }

    /// Starts the first world, after stopping processes that an earlier run of the job has left.
    fn bring_up(&mut self) {
        let strays: Vec<ProcId> = self.state.view.alive().collect();
        let view = &self.state.view;
        let mut world = view.spec.first_world();
        if !view.procs.is_empty() {
            world = world.successor(Counted::No, |members| {
                for (rank, member) in members.iter_mut() {
                    member.incarnation = view.next_incarnation(&Role::Rank(*rank));
                }
            });
        }
        let world = Arc::new(world);
        let mut stages = Vec::new();
        if !strays.is_empty() {
            let grace = view.spec.policy.termination_grace_period;
            let stop = Action::Stop { procs: strays, grace, exact: true };
            stages.push(Stage::new("clear", grace + STOP_MARGIN, vec![stop]));
        }
        stages.push(start_all(Name::new("start"), world, view));
        self.state.life = Life::Starting;
        self.begin(PlanId::Start, Name::new("start"), plain(stages, "the job starts"));
    }

    /// The first start, or a recovery in its place, has succeeded.
    pub(super) fn started(&mut self) {
        if self.state.life == Life::Starting {
            self.state.life = Life::Training;
        }
        self.maybe_complete = true;
    }

    pub(super) fn start_failed(&mut self, run: &PlanExecution, why: &str) {
        let results = run.done.iter().flatten().flat_map(|d| d.results.values());
        if results.filter_map(|r| r.as_ref().err()).any(|f| matches!(f, Failure::Refused(_))) {
            self.state.counts.branch(Branch::StartRefused);
            return self.end(false, &format!("the job cannot be started: {why}"));
        }
        self.state.counts.branch(Branch::StartFailed);
        let certain = Suspect::certain(Domain::Job, FaultClass::Launch, Damage::default());
        let suspect = Suspect { confidence_permille: START_FAILED_PERMILLE, ..certain }; // any other cause explains more
        let fault = Fault::new(Name::new("runtime"), self.now(), suspect);
        self.found.blame(fault.with_evidence(Evidence::text("start", why)));
    }

    pub(super) fn enter_world(&mut self, world: Arc<World>) {
        for (rank, member) in world.members() {
            let known = self.state.view.procs.get_mut(&Role::Rank(*rank));
            if let Some(known) = known.filter(|k| k.incarnation == member.incarnation) {
                known.generation = world.generation(); // the process survives into the new world
            }
        }
        let before = self.state.view.world.members();
        let lives_on = |(rank, member): (&Rank, &Member)| {
            before.get(rank).is_some_and(|was| was.incarnation == member.incarnation)
        };
        if !world.members().iter().any(lives_on) {
            self.state.view.replicas.start_again();
        }
        self.state.view.world = world;
        self.state.memory.new_world();
        self.note_size();
    }

    pub(super) fn requested(&mut self, request: &Request) {
        match request {
            Request::Stop { reason, grace } => self.stop(reason, *grace),
            Request::Fault(fault) => {
                let mut fault = (**fault).clone();
                if fault.by == OPERATOR {
                    fault.by = OUTSIDE; // an operator's request must come as an order, which names its sender
                }
                self.found.blame(fault);
            }
            Request::PluginFailed { plugin, what } => {
                let fault = super::ingest::plugin_fault(&self.state.view, plugin.clone(), what.clone());
                self.found.blame(fault);
            }
        }
    }

    /// Ends the job successfully if all ranks of the world have completed successfully.
    pub(super) fn complete(&mut self) {
        if !std::mem::take(&mut self.maybe_complete) || !self.state.life.is_training() {
            return;
        }
        let view = &self.state.view;
        let ended_well = |rank, incarnation| {
            view.procs.get(&Role::Rank(rank)).is_some_and(|p| {
                let well = p.phase.termination().is_some_and(crate::job::Termination::is_success);
                p.incarnation == incarnation && p.phase.is_exited() && well
            })
        };
        let all = view.world.members().iter().all(|(rank, m)| ended_well(*rank, m.incarnation));
        let moot = self.state.incidents.values().all(|open| open.held.is_some()); // what they wait for is not needed
        if all && self.state.plans.is_empty() && moot {
            let (ranks, of) = (view.world.size(), view.world.places().count());
            for id in self.state.incidents.keys().copied().collect::<Vec<_>>() {
                self.close(id, "all ranks finished", None);
            }
            self.state.counts.branch(Branch::Completed);
            let which = if ranks as usize == of {
                format!("all {ranks} ranks")
            } else {
                format!("{ranks} of the job's {of} ranks")
            };
            let smaller = self.state.smaller.text(self.now()).map(|text| format!("; {text}")).unwrap_or_default();
            self.end(true, &format!("{which} finished{smaller}"));
            self.settle();
        }
    }

    /// Ends the job: stops all processes within a time limit, and then finishes, whether or not the stop succeeded.
    pub(super) fn end(&mut self, ok: bool, reason: &str) {
        self.end_as(Life::Ending, ok, reason, None);
    }

    pub(super) fn end_as(&mut self, life: Life, ok: bool, reason: &str, grace: Option<Duration>) {
        if self.state.plans.contains_key(&PlanId::End) || self.state.life.is_over() {
            return;
        }
        self.drop_other_plans(PlanId::End);
        if life == Life::Stopping {
            self.absolve_interrupted();
        }
        self.state.incidents.values_mut().for_each(|open| open.decide_at = None);
        self.state.life = life;
        let grace = grace.unwrap_or(self.state.view.spec.policy.termination_grace_period);
        let mut stages = end_all(&self.state.view, grace, ok, reason.to_owned());
        if self.observes() {
            stages.retain(|stage| stage.actions.iter().all(|action| matches!(action, Action::Finish { .. })));
        }
        self.begin(PlanId::End, Name::new("end"), plain(stages, reason));
    }

    /// Withdraws the blame from ranks that were interrupted when the job was asked to stop: both had the same reason.
    fn absolve_interrupted(&mut self) {
        let State { incidents, view, ledger, .. } = &mut self.state;
        for open in incidents.values_mut() {
            let causes = || open.incident.faults.iter().filter(|fault| fault.primary_suspect().is_cause());
            if causes().next().is_none() || !causes().all(|fault| is_interrupted(fault, view)) {
                continue;
            }
            let why =
                Evidence::text(INTERRUPTED, "the supervisor was asked to stop as well: no rank caused the interrupt");
            for fault in &mut open.incident.faults {
                *fault = fault.clone().charged(why.clone());
            }
            ledger.judged(&open.incident, view);
        }
    }

    pub(super) fn drop_other_plans(&mut self, keep: PlanId) {
        let others: Vec<PlanId> = self.state.plans.keys().filter(|id| **id != keep).copied().collect();
        for id in others {
            self.cancel(id, "the job ends");
        }
    }

    /// Closes the open incidents, before the last command.
    pub(super) fn finishing(&mut self, ok: bool, reason: &str) {
        let outcome = match (ok, self.state.life) {
            (true, _) => Outcome::Completed,
            (false, Life::Stopping) => Outcome::Stopped,
            (false, _) => Outcome::Failed,
        };
        self.state.life = Life::Over;
        self.state.plans.clear();
        self.state.pending.clear();
        let open: Vec<_> = self.state.incidents.keys().copied().collect();
        for id in open {
            self.close(id, "open when the job ended", None);
        }
        self.state.ledger.finished(outcome, reason, self.state.view.now);
    }
}

/// Returns true if the fault is the end of a process that was interrupted.
fn is_interrupted(fault: &Fault, view: &View) -> bool {
    let proc =
        view.proc_of(&fault.primary_suspect().domain).filter(|proc| fault.incarnation() == Some(proc.incarnation));
    let how = proc.and_then(|proc| proc.phase.termination());
    how.is_some_and(|how| how.is_interrupt(fault.error.as_deref()))
}

/// Returns a proposal of the kernel itself, which no strategy made, at no cost.
fn plain(stages: Vec<Stage>, reason: &str) -> Proposal {
    let cost = Cost { ends_job: false, lost_work: Duration::ZERO, downtime: Duration::ZERO, nodes_removed: 0 };
    Proposal::new(stages, vec![Domain::Job], cost, Counted::No, reason)
}
