//! The life cycle of the job as a whole: first start, completion, and final stop.
//!
//! The phases of a job concern every part, so they change on the whole kernel. Nothing is recovered here: a start that
//! fails becomes a fault like any other.

use super::budget::Budget;
use super::plans::PlanId;
use super::plugins::plugin_fault;
use super::{Branch, Event, HoldReason, Input, Kernel, Outcome, Request, Resume, Start, State, worlds};
use crate::detect::host_history::HOST_PASSED_OVER;
use crate::detect::{Damage, Evidence, Fault, FaultClass, OPERATOR, Suspect};
use crate::job::{Counted, Domain, Exit, JobTime, Name, NodeId, ProcId, Role, Termination, World};
use crate::recover::stages::{STOP_MARGIN, end_all, start_all};
use crate::recover::{Action, Cost, Failure, PlanExecution, Proposal, Stage};
use crate::state::{Phase, Proc, ProcStatus, Replicas, View, placement};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
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
    /// The kernel has started for a job that another supervisor has left, and does not know yet which of its processes run.
    Resuming,
}

impl Life {
    pub(super) fn is_over(self) -> bool {
        self == Life::Over
    }

    pub(super) fn is_ending(self) -> bool {
        matches!(self, Life::Ending | Life::Stopping | Life::Over)
    }

    pub(super) fn is_listing(self) -> bool {
        matches!(self, Life::Listing | Life::Resuming)
    }

    pub(super) fn is_resuming(self) -> bool {
        self == Life::Resuming
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
    /// Handles the start of the kernel. `before` is the time of the previous input: the time since then is charged to
    /// no process.
    pub(super) fn start(&mut self, start: &Start, before: JobTime) {
        self.state.view.spec = Arc::clone(&start.spec);
        self.state.view.rendezvous_service.clone_from(&start.rendezvous_service);
        self.state.switches.start(start.trace);
        self.controls().apply_permissions();
        if self.state.life == Life::New {
            self.state.budget = Budget::full(&start.spec.policy.budget);
            match &start.resume {
                Some(resume) => self.expect_left(resume),
                None => {
                    self.state.view.world = Arc::new(start.spec.first_world());
                    self.state.life = Life::Listing;
                }
            }
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

    /// Expects the processes that another supervisor has left.
    fn expect_left(&mut self, resume: &Resume) {
        let Resume { world, services, replicas, completed } = resume;
        let (now, generation) = (self.now(), world.generation());
        let ranks = world.members().iter().map(|(rank, member)| (Role::Rank(*rank), member));
        let services = services.iter().map(|(name, member)| (Role::Service(name.clone()), member));
        for (role, member) in ranks.chain(services) {
            let ordered = Proc::ordered(member.incarnation, generation, now);
            let mut proc = Proc { node: member.node.clone(), ..ordered };
            match role.rank() {
                Some(rank) if completed.contains(&rank) => {
                    proc.phase = Phase::Exited(Box::new(Exit::new(Termination::Code(0))));
                    proc.ended_at = Some(now);
                }
                Some(_) => {
                    self.state.unseen.insert(ProcId { role: role.clone(), incarnation: member.incarnation });
                }
                None => {}
            }
            self.state.view.procs.insert(role, proc);
        }
        self.state.view.world = Arc::clone(world);
        if let Some(proof) = replicas {
            self.state.view.replicas = Replicas::of_proof(proof);
        }
        self.state.life = Life::Resuming;
    }

    /// Continues after a listing: the first one starts the job, or resumes what an earlier supervisor had in progress.
    pub(super) fn listing_taken(&mut self) {
        if self.state.life == Life::Resuming {
            self.state.counts.branch(Branch::Resumed);
            self.state.life = Life::Training;
            self.maybe_complete = true; // all ranks may have completed before
        }
        if self.state.life == Life::Listing {
            match self.state.view.is_dry_run() {
                true => self.state.life = Life::Training, // the running processes are the job
                false => self.bring_up(),
            }
        }
        if std::mem::take(&mut self.state.reissue) {
            self.commands().issue_again();
            self.trace_switches().switch_again();
            if !self.state.view.is_dry_run() {
                self.agenda().release(|held| held == HoldReason::DryRun); // the previous supervisor only observed
            }
        }
    }

    /// Enters the world of the processes that another system has started, if it is a new one.
    pub(super) fn expect<'a>(&mut self, told: impl IntoIterator<Item = &'a ProcStatus>) {
        if let Some(world) = worlds::observed(told, &self.state.view) {
            self.worlds().enter(Arc::new(world));
        }
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
        let (world, avoided) = seated_by_history(world, view);
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
        for (host, line) in avoided {
            let clue = Evidence::text(HOST_PASSED_OVER, format!("passed over: {line}"));
            self.outbox().announce(None, Event::Noted { about: Domain::Node(host), clue });
        }
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
                let fault = plugin_fault(&self.state.view, plugin.clone(), what.clone());
                self.found.blame(fault);
            }
        }
    }

    /// Ends the job successfully if all ranks of the world have completed successfully.
    pub(super) fn complete(&mut self) {
        if !std::mem::take(&mut self.maybe_complete) || !self.state.life.is_training() {
            return;
        }
        let State { view, incidents, plans, .. } = &self.state;
        let moot = incidents.values().all(|open| open.held.is_some()); // what they wait for is not needed
        if !all_ended_well(view) || !plans.is_empty() || !moot {
            return;
        }
        let (ranks, of) = (view.world.size(), view.world.places().count());
        for id in incidents.keys().copied().collect::<Vec<_>>() {
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

    /// Ends the job: stops all processes within a time limit, and then finishes, whether or not the stop succeeded.
    pub(super) fn end(&mut self, ok: bool, reason: &str) {
        self.end_as(Life::Ending, ok, reason, None);
    }

    pub(super) fn end_as(&mut self, life: Life, ok: bool, reason: &str, grace: Option<Duration>) {
        if self.state.plans.contains_key(&PlanId::End) || self.state.life.is_over() {
            return;
        }
        self.plans().cancel_others(PlanId::End);
        if life == Life::Stopping {
            self.correlation().absolve_interrupted();
        }
        self.agenda().clear();
        self.state.life = life;
        let grace = grace.unwrap_or(self.state.view.spec.policy.termination_grace_period);
        let mut stages = end_all(&self.state.view, grace, ok, reason.to_owned());
        if self.state.view.is_dry_run() {
            stages.retain(|stage| stage.actions.iter().all(|action| matches!(action, Action::Finish { .. })));
        }
        self.begin(PlanId::End, Name::new("end"), plain(stages, reason));
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

/// Returns the first world with the ranks on hosts, if the history distinguishes the hosts, and the hosts that were
/// passed over. Otherwise the launcher chooses the hosts.
fn seated_by_history(world: World, view: &View) -> (World, BTreeMap<NodeId, String>) {
    let Some(seats) = placement::first(view, &world) else { return (world, BTreeMap::new()) };
    let avoided = placement::passed_over(view, &seats, |view| placement::spread(view, &world));
    (world.located(|proc| seats.get(&proc.role.rank()?)?.node.clone()), avoided)
}

/// Returns true if all ranks of the world have completed successfully.
fn all_ended_well(view: &View) -> bool {
    view.world.members().iter().all(|(rank, member)| {
        view.procs.get(&Role::Rank(*rank)).is_some_and(|p| {
            let well = p.phase.termination().is_some_and(Termination::is_success);
            p.incarnation == member.incarnation && p.phase.is_exited() && well
        })
    })
}

/// Returns a proposal of the kernel itself, which no strategy made, at no cost.
fn plain(stages: Vec<Stage>, reason: &str) -> Proposal {
    let cost = Cost { ends_job: false, lost_work: Duration::ZERO, downtime: Duration::ZERO, nodes_removed: 0 };
    Proposal::new(stages, vec![Domain::Job], cost, Counted::No, reason)
}
