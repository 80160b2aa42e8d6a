//! The decisions of the runtime: inputs go in, commands come out.
//!
//! It never awaits, reads a clock, does I/O, rolls dice or iterates a hash map: `now` is an argument, maps are ordered,
//! ids come from counters. The same inputs give the same commands, byte for byte.
//!
//! | file | its part of a step |
//! |---|---|
//! | `mailbox` | in which order inputs come |
//! | `intake` | fences, process phases, observations to detectors |
//! | `incidents` | findings become incidents: correlate, absorb, clear |
//! | `arbiter` | which proposal an incident gets, and why (pure function) |
//! | `decide` | what the arbiter says becomes a decision |
//! | `plans` | proposals carried out as state machines over command ids |
//! | `commands` | what commands make of processes, and who waits for their answers how long |
//! | `answers` | whose answer is what |
//! | `ending` | the first start, the last stop, and what lies between as a whole |
//! | `calendar` | which moment of the calendar a job time was |
//! | `operator` | orders: what each does, or why it is not followed |
//! | `orders` | what was ordered, and what became of it |
//! | `switches` | what ranks record, as operators order it |
//! | `trial` | what is charged to a recovery that does not hold |
//! | `smaller` | when the job trained with fewer ranks than it has |
//! | `memory` | which checkpoint in the ranks' memory is whole |
//! | `observe` | a job that something else runs: taken as it is, and never touched |
//! | `report` | what people are told in the end |
//! | `account` | the same in words |
//! | `explain` | why an incident was decided as it was |
//! | `status` | what people are told meanwhile |

mod account;
mod answers;
mod arbiter;
mod budget;
mod calendar;
mod checks;
mod commands;
mod counts;
mod decide;
mod ending;
mod explain;
mod guards;
mod incidents;
mod input;
mod intake;
mod links;
mod mailbox;
mod memory;
mod observe;
mod operator;
mod order;
mod orders;
mod output;
mod plans;
mod replicas;
mod report;
mod smaller;
mod snapshot;
mod status;
mod switches;
mod trial;
mod view;

pub(crate) use account::output_in_words;
pub use checks::{Check, Checks};
pub use counts::{Branch, Counts, Drop};
#[cfg(feature = "test-util")]
pub(crate) use decide::REPLACED;
pub use explain::{EXPLAINED_MAX, Explanation};
pub use incidents::{FAULTS_PER_INCIDENT_MAX, QUESTIONS_MAX};
pub use input::{Input, Request, Start};
pub use mailbox::Mailbox;
pub use memory::MemoryFigures;
pub use operator::Paused;
pub(crate) use order::NO_TRACE_CONTROL;
pub use order::{Denial, Held, Order, Ordered, Taken};
pub use orders::{ORDERS_KEPT_MAX, OrderReport};
pub use output::{Chosen, Command, Decision, Event, Lost, Refusal};
pub use replicas::{ReplicaFigures, Replicas};
pub use report::{
    INCIDENTS_REPORTED_MAX, IncidentReport, JobReport, Outcome, PROCS_PER_INCIDENT_MAX, ProcReport, Saving, WallTimes,
};
pub use smaller::{SMALLER_REPORTED_MAX, Smaller};
pub use snapshot::{RestoreError, Snapshot};
pub use status::{INCIDENTS_SHOWN_MAX, JobStatus, NOT_RUNNING_SHOWN_MAX, NodeLine, ProcLine};
pub use trial::{TRIAL_STEPS, TRIAL_WITHIN};
pub use view::{Proc, View};

use crate::detect::{FaultDetector, Findings};
use crate::job::{
    CommandId, Incarnation, IncidentId, JobSpec, JobTime, Name, NodeId, Permission, ProcId, Role, Seq, WorkerSpec,
};
use crate::recover::RecoveryStrategy;
use budget::Budget;
use calendar::Calendar;
use commands::Pending;
use ending::Life;
use incidents::Open;
use memory::Memory;
use operator::Cordon;
use orders::Orders;
use plans::{Plan, PlanId};
use report::Ledger;
use serde::{Deserialize, Serialize};
use smaller::SmallerTimes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use switches::Switches;
use trial::Trial;

/// The plugins that a kernel decides with.
#[derive(Debug, Default)]
pub struct Plugins {
    /// Asked in this order.
    pub detectors: Vec<Box<dyn FaultDetector>>,
    /// Among proposals of equal cost the earlier one wins.
    pub strategies: Vec<Box<dyn RecoveryStrategy>>,
}

/// One job's decisions.
///
/// ```
/// use std::sync::Arc;
/// use taskd_core::job::{JobSpec, JobTime, WorkerSpec};
/// use taskd_core::kernel::{Input, Kernel, Plugins, Start};
/// use taskd_core::launch::Listing;
/// use taskd_core::recover::Action;
///
/// let spec = Arc::new(JobSpec::new("demo", 2, WorkerSpec::new(["train"])));
/// let mut kernel = Kernel::new(Plugins::default());
/// assert!(kernel.step(JobTime::START, &Input::Start(Box::new(Start { spec, trace: None, meets_at: None }))).is_empty());
/// let commands = kernel.step(JobTime::START, &Input::Listed(Listing::default()));
/// let start = commands.iter().find(|c| matches!(&c.action, Action::Start { batch, .. } if batch.orders.len() == 2));
/// assert!(start.is_some());
/// ```
pub struct Kernel {
    detectors: Vec<Slot>,
    strategies: Vec<Box<dyn RecoveryStrategy>>,
    checks: Checks,
    found: Findings,
    out: Vec<Command>,
    /// Something happened after which all ranks may have ended well.
    maybe_complete: bool,
    state: State,
}

/// A detector's place. `detector` is `None` once it has panicked: out of service.
struct Slot {
    detector: Option<Box<dyn FaultDetector>>,
    /// Not to be called for a deadline before this time: after our own sleep, or when its deadline does not move.
    not_before: JobTime,
}

/// Everything that a snapshot has to hold, besides the detectors' own states.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct State {
    seq: Seq,
    life: Life,
    view: View,
    incidents: BTreeMap<IncidentId, Open>,
    plans: BTreeMap<PlanId, Plan>,
    pending: BTreeMap<CommandId, Pending>,
    /// Start commands, in a plan or not any more, with the processes that the launcher has neither taken on nor refused.
    starting: BTreeMap<CommandId, BTreeSet<ProcId>>,
    /// Commands whose answers nobody waits for any more, and as what they will be counted; at most [`commands::VOID_MAX`].
    void: BTreeMap<CommandId, Drop>,
    /// Processes whose start may or may not have reached the launcher: its caller is gone, and nobody asks again.
    adrift: BTreeSet<ProcId>,
    budget: Budget,
    counts: Counts,
    ledger: Ledger,
    commands: u64,
    incident_ids: u64,
    /// Uncounted recoveries since the job last trained.
    free_in_row: u32,
    /// A new supervisor has taken over: commands without an answer are given again after its first listing.
    reissue: bool,
    /// An operator wants decisions, and no deeds.
    #[serde(default)]
    paused: Option<Paused>,
    /// What operators have allowed and forbidden, over what the specification says.
    #[serde(default)]
    permissions: BTreeMap<Name, Permission>,
    /// Hosts that were drained, or taken out by a recovery.
    #[serde(default)]
    cordons: BTreeMap<NodeId, Cordon>,
    /// When hosts were taken out, as far back as the cap looks.
    #[serde(default)]
    removals: VecDeque<JobTime>,
    /// Processes that have ended while their control link is not reported closed: the incarnation of each role, and when it ended. Messages
    /// of theirs may still be on the way.
    #[serde(default)]
    unread: BTreeMap<Role, (Incarnation, JobTime)>,
    /// What ranks are to record.
    #[serde(default)]
    switches: Switches,
    /// What ranks have in memory.
    #[serde(default)]
    memory: Memory,
    /// Hosts whose guard does not answer, and since when.
    #[serde(default)]
    silent_guards: BTreeMap<NodeId, JobTime>,
    /// The recovery that has to hold before it counts as one that helps.
    #[serde(default)]
    trial: Option<Trial>,
    /// When the job trained with fewer ranks than it has.
    #[serde(default)]
    smaller: SmallerTimes,
    /// What the calendar said when.
    #[serde(default)]
    calendar: Calendar,
    /// What operators have ordered.
    #[serde(default)]
    orders: Orders,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("seq", &self.state.seq).field("life", &self.state.life).finish_non_exhaustive()
    }
}

impl Kernel {
    /// A kernel that waits for [`Input::Start`]; other inputs before it are ignored.
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
            meets_at: None,
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

    /// The same kernel with only these checks in force, to show what each is for.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn with_checks(mut self, checks: Checks) -> Kernel {
        self.checks = checks;
        self
    }

    /// Takes one input and says what is to be done.
    ///
    /// By reference: the shell still has to write the input to its log, and a replay owns its own.
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

    /// When to send [`Input::Deadline`], if nothing else comes first.
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

    /// The job as it stands.
    #[must_use]
    pub const fn view(&self) -> &View {
        &self.state.view
    }

    /// The strategies that it asks, in order.
    pub(crate) fn strategies(&self) -> &[Box<dyn RecoveryStrategy>] {
        &self.strategies
    }

    /// Number of inputs taken so far.
    #[must_use]
    pub const fn seq(&self) -> Seq {
        self.state.seq
    }

    /// What was counted.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.state.counts
    }

    /// Recoveries that the budget still allows.
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

    /// Advances plans and decides incidents until nothing moves. Each round ends a stage or decides an incident, and
    /// proposals have finitely many stages, so it ends.
    fn settle(&mut self) {
        while self.advance_one() || self.decide_one() {
            self.take_findings(); // a strategy that panicked, or a start that failed, has become a finding
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
