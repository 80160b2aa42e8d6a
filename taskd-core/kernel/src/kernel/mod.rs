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
//! | `ingest` | fences, process phases, observations to detectors |
//! | `guards` | state of the hosts' guards, and what has to wait for them |
//! | `links` | control links of processes, and their messages |
//! | `replicas` | which ranks hold the same state, by checksum |
//! | `incidents` | turns findings into incidents: correlate, absorb, clear |
//! | `arbiter` | picks the proposal for an incident, with the reason (pure function) |
//! | `decide` | turns the arbiter's result into a decision |
//! | `budget` | how many recoveries are still allowed |
//! | `plans` | carries out proposals, as state machines over command ids |
//! | `commands` | effect of a command on processes, awaited answers and time limits |
//! | `answers` | matches answers to commands |
//! | `lifecycle` | first start, completion and final stop of the job |
//! | `calendar` | maps job time to wall-clock time |
//! | `order` | types of an operator's orders and their replies |
//! | `operator` | carries out orders, or gives the reason for a refusal |
//! | `orders` | orders received, and their results |
//! | `switches` | what ranks record, as operators order it |
//! | `probation` | recoveries on trial: what is charged to one that does not hold |
//! | `shrunk_periods` | periods in which the job trained with fewer ranks than specified |
//! | `in_memory_checkpoints` | which checkpoint in the ranks' memory is complete |
//! | `dry_run` | a job that another system runs: observed, never touched |
//! | `ledger` | the bookkeeping behind it, from each first fault on |
//! | `report` | final report of the job |
//! | `summary` | the same as text |
//! | `explain` | why an incident was decided as it was |
//! | `status` | current status of the job |
//! | `counts` | counters of decisions, branches and drops |
//! | `checks` | safety checks by name, for the simulation |
//! | `snapshot` | saves and restores the kernel's state |

mod answers;
mod arbiter;
mod budget;
mod calendar;
mod checks;
mod commands;
mod counts;
mod decide;
mod dry_run;
pub mod exit_code;
mod explain;
mod guards;
mod in_memory_checkpoints;
mod incidents;
mod ingest;
mod input;
mod ledger;
mod lifecycle;
mod links;
mod mailbox;
mod operator;
mod order;
mod orders;
mod output;
mod plans;
mod probation;
mod report;
mod shrunk_periods;
mod snapshot;
mod status;
mod summary;
mod switches;
#[doc(hidden)]
pub mod text;

pub use checks::{Check, Checks};
pub use counts::{Branch, Counts, DropReason};
#[doc(hidden)]
pub use decide::REPLACED;
pub use explain::{EXPLAINED_MAX, Explanation};
pub use in_memory_checkpoints::MemoryFigures;
pub use incidents::QUESTIONS_MAX;
pub use input::{Input, Request, Start};
pub use mailbox::Mailbox;
pub use operator::Paused;
#[doc(hidden)]
pub use order::NO_TRACE_CONTROL;
pub use order::{HoldReason, Order, OrderAccepted, OrderEnvelope, OrderRejected};
pub use orders::{ORDERS_KEPT_MAX, OrderReport};
pub use output::{Chosen, Command, Decision, Effect, Event, Lost, Refusal};
pub use probation::{TRIAL_STEPS, TRIAL_WITHIN};
pub use report::{
    INCIDENTS_REPORTED_MAX, IncidentReport, JobReport, Outcome, PROCS_PER_INCIDENT_MAX, ProcReport, Saving, WallTimes,
};
pub use shrunk_periods::{SHRUNK_PERIODS_REPORTED_MAX, ShrunkPeriod};
pub use snapshot::{RestoreError, Snapshot};
pub use status::{INCIDENTS_SHOWN_MAX, JobStatus, NOT_RUNNING_SHOWN_MAX, NodeLine, ProcLine};
#[doc(hidden)]
pub use summary::output_in_words;

use crate::detect::{FaultDetector, Findings};
use crate::job::{
    CommandId, Incarnation, IncidentId, JobSpec, JobTime, Name, NodeId, Permission, ProcId, Role, Seq, WorkerSpec,
};
use crate::recover::RecoveryStrategy;
use crate::state::{Replicas, View};
use budget::Budget;
use calendar::Calendar;
use commands::Pending;
use in_memory_checkpoints::Memory;
use incidents::Open;
use ledger::Ledger;
use lifecycle::Life;
use operator::Cordon;
use orders::Orders;
use plans::{Plan, PlanId};
use probation::Trial;
use serde::{Deserialize, Serialize};
use shrunk_periods::SmallerTimes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use switches::Switches;

/// The fault detectors and recovery strategies with which a kernel makes its decisions.
#[derive(Debug, Default)]
pub struct Plugins {
    /// Fault detectors, called in this order.
    pub detectors: Vec<Box<dyn FaultDetector>>,
    /// Recovery strategies. If two proposals cost the same, the proposal of the strategy that is earlier in this list
    /// wins.
    pub strategies: Vec<Box<dyn RecoveryStrategy>>,
}

/// The decision kernel of one job: a deterministic state machine that turns inputs into commands.
///
/// ```
/// use std::sync::Arc;
/// use taskd_core::job::{JobSpec, JobTime, WorkerSpec};
/// use taskd_core::kernel::{Effect, Input, Kernel, Plugins, Start};
/// use taskd_core::state::Listing;
/// use taskd_core::recover::Action;
///
/// let spec = Arc::new(JobSpec::new("demo", 2, WorkerSpec::new(["train"])));
/// let mut kernel = Kernel::new(Plugins::default());
/// assert!(kernel.step(JobTime::START, &Input::Start(Box::new(Start { spec, trace: None, rendezvous_service: None }))).is_empty());
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

/// A registered detector. `detector` is `None` once it has panicked and is out of service.
struct Slot {
    detector: Option<Box<dyn FaultDetector>>,
    /// Earliest time at which a deadline of this detector is handled.
    ///
    /// It is set after the supervisor slept, or if the detector's deadline does not move.
    not_before: JobTime,
}

/// The state that a snapshot holds, besides the detectors' own states.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct State {
    seq: Seq,
    life: Life,
    view: View,
    incidents: BTreeMap<IncidentId, Open>,
    plans: BTreeMap<PlanId, Plan>,
    pending: BTreeMap<CommandId, Pending>,
    /// Start commands with the processes that the launcher has neither accepted nor refused.
    ///
    /// They are kept whether or not their plan still runs.
    starting: BTreeMap<CommandId, BTreeSet<ProcId>>,
    /// Commands whose answers are no longer awaited, with the reason under which a late answer is counted.
    ///
    /// At most [`commands::VOID_MAX`].
    void: BTreeMap<CommandId, DropReason>,
    /// Processes whose start may or may not have reached the launcher.
    ///
    /// The supervisor that sent the start is gone, and the start is not repeated.
    adrift: BTreeSet<ProcId>,
    budget: Budget,
    counts: Counts,
    ledger: Ledger,
    commands: u64,
    incident_ids: u64,
    /// Number of recoveries since the job last trained that did not count against the budget.
    free_in_row: u32,
    /// True after a new supervisor has taken over: commands without an answer are issued again after its first listing.
    reissue: bool,
    /// Set while an operator has paused the runtime: decisions are made, but not carried out.
    #[serde(default)]
    paused: Option<Paused>,
    /// Permissions set by operators; they override the specification.
    #[serde(default)]
    permissions: BTreeMap<Name, Permission>,
    /// Hosts that were drained by an operator or cordoned by a recovery.
    #[serde(default)]
    cordons: BTreeMap<NodeId, Cordon>,
    /// Times at which hosts were removed, as far back as the limit on removals looks.
    #[serde(default)]
    removals: VecDeque<JobTime>,
    /// Ended processes whose control link is not reported closed yet: incarnation and time of the end, by role. Their
    /// messages may still arrive.
    #[serde(default)]
    unread: BTreeMap<Role, (Incarnation, JobTime)>,
    /// What operators have ordered the ranks to record.
    #[serde(default)]
    switches: Switches,
    /// Known state of the ranks' in-memory checkpoints.
    #[serde(default)]
    memory: Memory,
    /// Hosts whose guard does not respond, and since when.
    #[serde(default)]
    silent_guards: BTreeMap<NodeId, JobTime>,
    /// The recovery on trial: the job has to train without a new failure for a while before it counts as successful.
    #[serde(default)]
    trial: Option<Trial>,
    /// Periods in which the job trained with fewer ranks than specified.
    #[serde(default)]
    smaller: SmallerTimes,
    /// Wall-clock times at known job times, to convert job times for display.
    #[serde(default)]
    calendar: Calendar,
    /// Orders received from operators.
    #[serde(default)]
    orders: Orders,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("seq", &self.state.seq).field("life", &self.state.life).finish_non_exhaustive()
    }
}

impl Kernel {
    /// Creates a decision kernel with these detectors and strategies. It ignores all inputs before [`Input::Start`].
    #[must_use]
    pub fn new(plugins: Plugins) -> Kernel {
        let spec = Arc::new(JobSpec::new("not-started", 0, WorkerSpec::new([""])));
        let view = View {
            now: JobTime::START,
            world: Arc::new(spec.first_world()),
            spec,
            procs: BTreeMap::new(),
            nodes: BTreeMap::new(),
            mending: false,
            replicas: Replicas::default(),
            guards: BTreeMap::new(),
            on_trial: None,
            rendezvous_service: None,
        };
        let budget = Budget::full(&view.spec.policy.budget);
        let state = State {
            seq: Seq(0),
            life: Life::New,
            view,
            incidents: BTreeMap::new(),
            plans: BTreeMap::new(),
            pending: BTreeMap::new(),
            starting: BTreeMap::new(),
            void: BTreeMap::new(),
            adrift: BTreeSet::new(),
            budget,
            counts: Counts::default(),
            ledger: Ledger::default(),
            commands: 0,
            incident_ids: 0,
            free_in_row: 0,
            reissue: false,
            paused: None,
            permissions: BTreeMap::new(),
            cordons: BTreeMap::new(),
            removals: VecDeque::new(),
            unread: BTreeMap::new(),
            switches: Switches::default(),
            memory: Memory::default(),
            silent_guards: BTreeMap::new(),
            trial: None,
            smaller: SmallerTimes::default(),
            calendar: Calendar::default(),
            orders: Orders::default(),
        };
        let slot = |detector| Slot { detector: Some(detector), not_before: JobTime::START };
        Kernel {
            detectors: plugins.detectors.into_iter().map(slot).collect(),
            strategies: plugins.strategies,
            checks: Checks::default(),
            found: Findings::default(),
            out: Vec::new(),
            maybe_complete: false,
            state,
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

    /// Handles one input and returns the commands to carry out.
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
            Input::WallClock { unix_ms } => self.state.calendar.note(self.state.view.now, *unix_ms),
        }
        self.take_findings();
        self.settle();
        std::mem::take(&mut self.out)
    }

    /// Returns the time at which to send [`Input::Deadline`], if no other input comes first.
    #[must_use]
    pub fn deadline(&self) -> Option<JobTime> {
        if self.state.life.is_over() {
            return None;
        }
        let detectors = self.detectors.iter().filter_map(Slot::deadline);
        let decisions = self.state.incidents.values().filter_map(|open| open.decide_at);
        let answers =
            self.state.pending.values().filter(|p| !p.waiting.is_empty() && !self.is_held_up(p)).map(|p| p.due);
        detectors.chain(decisions).chain(answers).min()
    }

    /// Returns the current state of the job.
    #[must_use]
    pub const fn view(&self) -> &View {
        &self.state.view
    }

    /// Returns the recovery strategies in the order in which the decision kernel asks them for proposals.
    #[doc(hidden)]
    pub fn strategies(&self) -> &[Box<dyn RecoveryStrategy>] {
        &self.strategies
    }

    /// Returns the sequence number of the last input that the decision kernel has handled. It equals the number of
    /// inputs handled so far.
    #[must_use]
    pub const fn seq(&self) -> Seq {
        self.state.seq
    }

    /// Returns the decision kernel's counters: items that it dropped, bounds that it reached, and decision branches
    /// that it took.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.state.counts
    }

    /// Returns the number of recoveries that the job's recovery budget still allows.
    #[must_use]
    pub fn budget_left(&self) -> u32 {
        self.state.budget.left()
    }

    fn now(&self) -> JobTime {
        self.state.view.now
    }

    fn pass_time(&mut self, now: JobTime) {
        let State { view, budget, plans, incidents, life, .. } = &mut self.state;
        let healthy = *life == Life::Training && plans.is_empty() && incidents.is_empty();
        view.now = view.now.max(now);
        view.mending = incidents.values().any(|open| open.held.is_none());
        budget.pass(view.now, healthy, &view.spec.policy.budget);
        self.pass_trial();
    }

    /// Advances plans and decides incidents until nothing changes. Each round ends a stage or decides an incident, and
    /// proposals have finitely many stages, so the loop terminates.
    fn settle(&mut self) {
        while self.advance_one() || self.decide_one() {
            self.take_findings(); // a panic of a strategy, or a failed start, has become a finding
        }
        if self.observes() {
            self.mended_by_others();
        }
        self.complete();
    }
}

impl Slot {
    fn deadline(&self) -> Option<JobTime> {
        self.detector.as_ref()?.deadline().map(|at| at.max(self.not_before))
    }
}
