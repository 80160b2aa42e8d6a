//! The decision logic of the runtime: inputs go in, commands come out.
//!
//! The kernel never awaits, reads a clock, does I/O, draws random numbers or iterates a hash map: `now` is an argument,
//! maps are ordered, ids come from counters. The same inputs give the same commands, byte for byte.
//!
//! | file | responsibility |
//! |---|---|
//! | `input`, `output` | types of inputs, commands and events |
//! | `view` | the state that plugins read |
//! | `mailbox` | order in which inputs reach the kernel |
//! | `parts` | the state, and what each part borrows of it |
//! | `ingest` | passes listings, changes, answers and observations to the parts that they concern |
//! | `processes` | fences, phases of processes |
//! | `guards` | state of the hosts' guards, and what has to wait for them |
//! | `links` | control links of processes, and reports that have yet to arrive on them |
//! | `hosts` | hosts that are taken out of the job |
//! | `host_incidents` | the history of hosts, and what this job adds to it |
//! | `worlds` | what the next world changes |
//! | `plugins` | calls detectors and strategies |
//! | `replicas` | which ranks hold the same state, by checksum |
//! | `incidents` | turns findings into incidents |
//! | `correlation` | the incident that a fault belongs to: correlate, absorb, clear |
//! | `agenda` | when open incidents are decided |
//! | `closing` | the end of incidents, and their merging |
//! | `arbiter` | picks the proposal for an incident, with the reason (pure function) |
//! | `decide` | turns the arbiter's result into a decision |
//! | `budget` | how many recoveries are still allowed |
//! | `plans` | carries out proposals, as state machines over command ids |
//! | `commands` | effect of a command on processes, awaited answers and time limits |
//! | `answers` | matches answers to commands |
//! | `lifecycle` | first start, completion and final stop of the job |
//! | `outbox` | numbers the commands of a step |
//! | `calendar` | maps job time to wall-clock time |
//! | `order` | types of an operator's orders and their replies |
//! | `order_check` | what an order would do, or why it is refused |
//! | `operator` | carries out orders |
//! | `orders` | orders received, and their results |
//! | `switches` | what ranks record, as operators order it |
//! | `probation` | recoveries on trial: what is charged to one that does not hold |
//! | `shrunk_periods` | periods in which the job trained with fewer ranks than specified |
//! | `in_memory_checkpoints` | which checkpoint in the ranks' memory is complete |
//! | `dry_run` | a job that another system runs: observed, never touched |
//! | `ledger` | bookkeeping of incidents for the final report, from the first fault of each on |
//! | `report` | final report of the job |
//! | `summary` | the final report as text |
//! | `explain` | why an incident was decided as it was |
//! | `status` | current status of the job |
//! | `counts` | counters of decisions, branches and drops |
//! | `checks` | safety checks by name, for the simulation |
//! | `queries` | what the kernel returns when it is asked |
//! | `snapshot` | saves and restores the kernel's state |
//!
//! # Parts
//!
//! A part is a struct that borrows the fields of the state that it needs: `&` for what it reads, `&mut` for what it
//! changes. Its field list is therefore the documentation of what it can touch. `parts` creates each part, for one call.
//!
//! | part | changes |
//! |---|---|
//! | `SilentGuards`, `AwaitedReports`, `ObservedJob`, `OrderCheck`, `Reporter`, `StatusReader` | nothing |
//! | `Processes` | processes, starts without an answer |
//! | `Links` | links of processes, replicas |
//! | `Guards` | guards, the mark of processes that end with one |
//! | `Hosts` | hosts, cordons, removals |
//! | `HostIncidents` | history of hosts, and the hosts against which an incident was recorded |
//! | `Worlds` | world, generation of its processes, replicas, in-memory checkpoints, shrunk periods |
//! | `Commands` | wanted processes, awaited answers |
//! | `Answers` | awaited answers, processes that never started |
//! | `TimeLimits` | awaited answers |
//! | `Plans` | plans, and the answers that they await |
//! | `Correlation` | incidents, ledger |
//! | `Agenda` | the times at which incidents are decided |
//! | `Closing` | incidents, and all that refers to one by its number |
//! | `Probation` | the recovery on trial, attempts of incidents |
//! | `Account` | budget |
//! | `InMemoryCheckpoints`, `TraceSwitches`, `Controls` | the setting or the reports of that name |
//! | `Detectors`, `Strategies` | the detectors; findings |
//! | `Outbox` | the commands of the step |
//!
//! What remains on [`Kernel`] is the order of the calls: a part returns what it has found, for example the incidents to
//! close, and `Kernel` calls the next one. `ingest`, `incidents`, `decide`, `plans`, `operator` and `lifecycle` do that,
//! each for one kind of event.

mod agenda;
mod answers;
mod arbiter;
mod budget;
mod calendar;
mod checks;
mod closing;
mod commands;
mod correlation;
mod counts;
mod decide;
mod dry_run;
pub mod exit_code;
mod explain;
mod guards;
mod host_incidents;
mod hosts;
mod in_memory_checkpoints;
mod incidents;
mod ingest;
mod input;
mod ledger;
mod lifecycle;
mod links;
mod lost_hosts;
mod mailbox;
mod operator;
mod order;
mod order_check;
mod orders;
mod outbox;
mod output;
mod parts;
mod plans;
mod plugins;
mod probation;
mod processes;
mod queries;
mod report;
mod shrunk_periods;
mod snapshot;
mod status;
mod summary;
mod switches;
#[doc(hidden)]
pub mod text;
mod worlds;

pub use checks::{Check, Checks};
pub use counts::{Branch, Counts, DropReason};
#[doc(hidden)]
pub use decide::REPLACED;
pub use explain::{EXPLAINED_MAX, Explanation};
pub use in_memory_checkpoints::MemoryFigures;
pub use incidents::QUESTIONS_MAX;
pub use input::{Input, Request, Resume, Start};
pub use mailbox::Mailbox;
pub use operator::Paused;
#[doc(hidden)]
pub use order::NO_TRACE_CONTROL;
pub use order::{HoldReason, Order, OrderAccepted, OrderEnvelope, OrderRejected};
pub use orders::{ORDERS_KEPT_MAX, OrderReport};
pub use output::{Chosen, Command, Decision, Effect, Event, Lost, Refusal};
pub use plugins::Plugins;
pub use probation::{TRIAL_STEPS, TRIAL_WITHIN};
pub use report::{
    INCIDENTS_REPORTED_MAX, IncidentReport, JobReport, Outcome, PROCS_PER_INCIDENT_MAX, ProcReport, Saving, WallTimes,
};
pub use shrunk_periods::{SHRUNK_PERIODS_REPORTED_MAX, ShrunkPeriod};
pub use snapshot::{RestoreError, Snapshot};
pub use status::{INCIDENTS_SHOWN_MAX, JobStatus, NOT_RUNNING_SHOWN_MAX, NodeLine, ProcLine};
#[doc(hidden)]
pub use summary::output_in_words;

use crate::detect::Findings;
use crate::job::{JobTime, Seq};
use crate::recover::{Action, RecoveryStrategy};
use commands::Pending;
use dry_run::{MENDED, ObservedJob};
use lifecycle::Life;
use parts::State;
use plans::PlanId;
use plugins::Slot;
use probation::Trial;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The decision kernel of one job: a deterministic state machine that turns inputs into commands.
///
/// ```
/// # extern crate taskd_kernel as taskd_core;
/// use std::sync::Arc;
/// use taskd_core::job::{JobSpec, JobTime, WorkerSpec};
/// use taskd_core::kernel::{Effect, Input, Kernel, Plugins, Start};
/// use taskd_core::state::Listing;
/// use taskd_core::recover::Action;
///
/// let spec = Arc::new(JobSpec::new("demo", 2, WorkerSpec::new(["train"])));
/// let mut kernel = Kernel::new(Plugins::default());
/// assert!(kernel.step(JobTime::START, &Input::Start(Box::new(Start { spec, trace: None, rendezvous_service: None, resume: None }))).is_empty());
/// let commands = kernel.step(JobTime::START, &Input::Listed(Listing::default()));
/// let is_start = |effect: &Effect| matches!(effect, Effect::Act(Action::Start { batch, .. }) if batch.starts.len() == 2);
/// assert!(commands.iter().any(|command| is_start(&command.effect)));
/// ```
pub struct Kernel {
    detectors: Vec<Slot>,
    strategies: Vec<Box<dyn RecoveryStrategy>>,
    checks: Checks,
    found: Findings,
    out: Vec<Command>,
    /// True if all ranks may have ended successfully since the last check.
    maybe_complete: bool,
    state: State,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("seq", &self.state.seq).field("life", &self.state.life).finish_non_exhaustive()
    }
}

impl Kernel {
    /// Creates a decision kernel with these detectors and strategies. The kernel ignores all inputs before
    /// [`Input::Start`].
    #[must_use]
    pub fn new(plugins: Plugins) -> Kernel {
        Kernel {
            detectors: plugins.detectors.into_iter().map(Slot::new).collect(),
            strategies: plugins.strategies,
            checks: Checks::default(),
            found: Findings::default(),
            out: Vec::new(),
            maybe_complete: false,
            state: State::new(),
        }
    }

    /// Returns the same kernel with only these safety checks switched on, for a simulation that switches one off to
    /// show its effect.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn with_checks(mut self, checks: Checks) -> Kernel {
        self.checks = checks;
        self
    }

    /// Handles one input at job time `now` and returns the commands to carry out.
    ///
    /// The input is borrowed: the caller still has to write it to its log, and a replay owns its own copy.
    pub fn step(&mut self, now: JobTime, input: &Input) -> Vec<Command> {
        self.state.seq = Seq(self.state.seq.0.saturating_add(1));
        if self.state.life.ignores(input) {
            return Vec::new();
        }
        let before = self.now();
        self.pass_time(now);
        match input {
            Input::Start(start) => self.start(start, before),
            Input::Listed(listing) => self.listed(listing),
            Input::Changed(change) => self.changed(change),
            Input::Answered { id, results } => self.answered(*id, results),
            Input::Requested(request) => self.requested(request),
            Input::Observed(facts) => facts.iter().for_each(|o| self.observe(o)),
            Input::Deadline => self.expire(),
            Input::Slept { nanos } => self.slept(*nanos),
            Input::Ordered(ordered) => self.ordered(ordered),
            Input::WallClock { unix_ms } => {
                self.state.calendar.note(self.state.view.now, *unix_ms);
                self.host_incidents().pass_time();
            }
            Input::HostHistory(history) => self.host_incidents().take(history),
        }
        self.take_findings();
        self.settle();
        std::mem::take(&mut self.out)
    }

    /// Returns the job time at which to send [`Input::Deadline`], if no other input comes first. `None`: the kernel
    /// waits for other inputs only.
    #[must_use]
    pub fn deadline(&self) -> Option<JobTime> {
        if self.state.life.is_over() {
            return None;
        }
        let detectors = self.detectors.iter().filter_map(Slot::deadline);
        let decisions = self.state.incidents.values().filter_map(|open| open.decide_at);
        let guards = self.silent_guards();
        let waits = |pending: &&Pending| !pending.waiting.is_empty() && !guards.hold_up(pending);
        let answers = self.state.pending.values().filter(waits).map(|p| p.due);
        detectors.chain(decisions).chain(answers).min()
    }

    fn now(&self) -> JobTime {
        self.state.view.now
    }

    fn pass_time(&mut self, now: JobTime) {
        let State { view, budget, plans, incidents, life, trial, .. } = &mut self.state;
        let healthy = *life == Life::Training && plans.is_empty() && incidents.is_empty();
        view.now = view.now.max(now);
        view.mending = incidents.values().any(|open| open.held.is_none());
        budget.pass(view.now, healthy, &view.spec.policy.budget);
        Trial::pass(trial, view.now, &mut view.on_trial);
        self.host_incidents().pass_time();
    }

    /// Advances plans and decides incidents until nothing changes. Each round ends a stage or decides an incident, and
    /// proposals have finitely many stages, so the loop terminates.
    fn settle(&mut self) {
        while self.advance_one() || self.decide_one() {
            self.take_findings(); // a panic of a strategy, or a failed start, has become a finding
        }
        if self.state.view.is_dry_run() {
            let State { view, incidents, .. } = &self.state;
            for id in (ObservedJob { view, incidents }).mended_by_others() {
                self.state.counts.branch(Branch::MendedByOthers);
                self.close(id, MENDED, None);
            }
        }
        self.complete();
    }

    /// Issues a command, which can change the desired state of any part. Its effect on that state applies from now on,
    /// not from when it is carried out.
    fn command(&mut self, plan: Option<PlanId>, action: Action, within: Duration) {
        let mut entered = None;
        match &action {
            Action::Finish { ok, reason } => self.finishing(*ok, reason),
            Action::Enter(world) => {
                self.probation().world_entered(plan, world);
                self.worlds().enter(Arc::clone(world));
                entered = Some(Event::Entered { generation: world.generation(), restarts: world.restarts() });
            }
            Action::Cordon { nodes, reason } => {
                nodes.iter().for_each(|node| self.hosts().cordon(node, reason.clone()));
            }
            Action::Start { .. } | Action::Stop { .. } | Action::Collect(_) | Action::SendDirectives(_) => {}
        }
        self.commands().issue(plan, action, within);
        if let Some(entered) = entered {
            self.outbox().announce(None, entered);
        }
    }
}
