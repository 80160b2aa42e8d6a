//! The kernel's state, and the parts of the kernel with what each borrows of it.
//!
//! A part that only reads is borrowed with `&`, and a part can only change what is borrowed with `&mut`.

use super::agenda::Agenda;
use super::answers::Answers;
use super::budget::Budget;
use super::calendar::Calendar;
use super::closing::Closing;
use super::commands::{Commands, Pending, TimeLimits};
use super::correlation::Correlation;
use super::guards::{Guards, SilentGuards};
use super::host_incidents::{HostIncidents, Recorded};
use super::hosts::{Cordon, Hosts};
use super::in_memory_checkpoints::{InMemoryCheckpoints, Memory};
use super::incidents::Open;
use super::ledger::Ledger;
use super::lifecycle::Life;
use super::links::Links;
use super::lost_hosts::LostHosts;
use super::operator::Controls;
use super::order_check::OrderCheck;
use super::orders::Orders;
use super::outbox::Outbox;
use super::plans::{Plan, PlanId, Plans};
use super::plugins::Detectors;
use super::probation::{Probation, Trial};
use super::processes::Processes;
use super::shrunk_periods::SmallerTimes;
use super::switches::{Switches, TraceSwitches};
use super::worlds::Worlds;
use super::{Counts, DropReason, Kernel, Paused};
use crate::job::{
    CommandId, Incarnation, IncidentId, JobSpec, JobTime, Name, NodeId, Permission, ProcId, Role, Seq, WorkerSpec,
};
use crate::state::View;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The state that a snapshot holds, besides the detectors' own states.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) seq: Seq,
    pub(super) life: Life,
    pub(super) view: View,
    pub(super) incidents: BTreeMap<IncidentId, Open>,
    pub(super) plans: BTreeMap<PlanId, Plan>,
    pub(super) pending: BTreeMap<CommandId, Pending>,
    /// Start commands with the processes that the launcher has neither accepted nor refused.
    ///
    /// They are kept whether or not their plan still runs.
    pub(super) starting: BTreeMap<CommandId, BTreeSet<ProcId>>,
    /// Commands whose answers are no longer awaited, with the reason under which a late answer is counted.
    ///
    /// At most [`VOID_MAX`](super::commands::VOID_MAX).
    pub(super) void: BTreeMap<CommandId, DropReason>,
    /// Processes whose start may or may not have reached the launcher.
    ///
    /// The supervisor that sent the start is gone, and the start is not repeated.
    pub(super) adrift: BTreeSet<ProcId>,
    pub(super) budget: Budget,
    pub(super) counts: Counts,
    pub(super) ledger: Ledger,
    pub(super) commands: u64,
    pub(super) incident_ids: u64,
    /// Number of recoveries since the job last trained that did not count against the budget.
    pub(super) free_in_row: u32,
    /// True after a new supervisor has taken over: commands without an answer are issued again after its first listing.
    pub(super) reissue: bool,
    /// Set while an operator has paused the runtime: decisions are made, but not carried out.
    #[serde(default)]
    pub(super) paused: Option<Paused>,
    /// Permissions set by operators; they override the specification.
    #[serde(default)]
    pub(super) permissions: BTreeMap<Name, Permission>,
    /// Hosts that were drained by an operator or cordoned by a recovery.
    #[serde(default)]
    pub(super) cordons: BTreeMap<NodeId, Cordon>,
    /// Times at which hosts were removed, as far back as the limit on removals looks.
    #[serde(default)]
    pub(super) removals: VecDeque<JobTime>,
    /// Ended processes whose control link is not reported closed yet: incarnation and time of the end, by role. Their
    /// messages may still arrive.
    #[serde(default)]
    pub(super) unread: BTreeMap<Role, (Incarnation, JobTime)>,
    /// Ranks that another supervisor has left, and of which nothing was reported yet.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) unseen: BTreeSet<ProcId>,
    /// What operators have ordered the ranks to record.
    #[serde(default)]
    pub(super) switches: Switches,
    /// Known state of the ranks' in-memory checkpoints.
    #[serde(default)]
    pub(super) memory: Memory,
    /// Hosts whose guard does not respond, and since when.
    #[serde(default)]
    pub(super) silent_guards: BTreeMap<NodeId, JobTime>,
    /// The recovery on trial: the job has to train without a new failure for a while before it counts as successful.
    #[serde(default)]
    pub(super) trial: Option<Trial>,
    /// Periods in which the job trained with fewer ranks than specified.
    #[serde(default)]
    pub(super) smaller: SmallerTimes,
    /// Wall-clock times at known job times, to convert job times for display.
    #[serde(default)]
    pub(super) calendar: Calendar,
    /// Orders received from operators.
    #[serde(default)]
    pub(super) orders: Orders,
    /// Incidents that this job has recorded against hosts.
    #[serde(default, skip_serializing_if = "Recorded::is_empty")]
    pub(super) recorded: Recorded,
}

impl State {
    /// Creates the state of a job that has not been started.
    pub(super) fn new() -> State {
        let spec = Arc::new(JobSpec::new("not-started", 0, WorkerSpec::new([""])));
        let world = Arc::new(spec.first_world());
        let view = View::new(JobTime::START, spec, world);
        State {
            seq: Seq(0),
            life: Life::New,
            budget: Budget::full(&view.spec.policy.budget),
            view,
            incidents: BTreeMap::new(),
            plans: BTreeMap::new(),
            pending: BTreeMap::new(),
            starting: BTreeMap::new(),
            void: BTreeMap::new(),
            adrift: BTreeSet::new(),
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
            unseen: BTreeSet::new(),
            switches: Switches::default(),
            memory: Memory::default(),
            silent_guards: BTreeMap::new(),
            trial: None,
            smaller: SmallerTimes::default(),
            calendar: Calendar::default(),
            orders: Orders::default(),
            recorded: Recorded::default(),
        }
    }
}

impl Kernel {
    pub(super) fn outbox(&mut self) -> Outbox<'_> {
        let State { view, commands, .. } = &mut self.state;
        Outbox { out: &mut self.out, commands, generation: view.world.generation() }
    }

    pub(super) fn detectors(&mut self) -> Detectors<'_> {
        let State { view, counts, .. } = &mut self.state;
        Detectors { view, slots: &mut self.detectors, found: &mut self.found, counts }
    }

    pub(super) fn processes(&mut self) -> Processes<'_> {
        let State { view, starting, adrift, counts, .. } = &mut self.state;
        let View { now, world, procs, nodes, .. } = view;
        let (now, generation) = (*now, world.generation());
        Processes { now, generation, checks: &self.checks, nodes, procs, starting, adrift, counts }
    }

    pub(super) fn links(&mut self) -> Links<'_> {
        let State { view, unread, counts, .. } = &mut self.state;
        let View { now, world, procs, replicas, .. } = view;
        Links { now: *now, world, procs, replicas, unread, counts }
    }

    pub(super) fn guards(&mut self) -> Guards<'_> {
        let State { view, silent_guards, .. } = &mut self.state;
        let View { now, procs, guards, .. } = view;
        Guards { now: *now, known: guards, silent: silent_guards, procs, found: &mut self.found }
    }

    pub(super) fn lost_hosts(&mut self) -> LostHosts<'_> {
        let View { now, procs, .. } = &mut self.state.view;
        LostHosts { now: *now, procs, found: &mut self.found }
    }

    pub(super) fn silent_guards(&self) -> SilentGuards<'_> {
        let State { view, silent_guards, life, .. } = &self.state;
        SilentGuards { view, silent: silent_guards, life: *life }
    }

    pub(super) fn hosts(&mut self) -> Hosts<'_> {
        let State { view, cordons, removals, counts, .. } = &mut self.state;
        let View { now, spec, nodes, .. } = view;
        Hosts { now: *now, cap: spec.policy.node_removals, nodes, cordons, removals, counts }
    }

    pub(super) fn host_incidents(&mut self) -> HostIncidents<'_> {
        let State { view, incidents, calendar, recorded, .. } = &mut self.state;
        HostIncidents { view, incidents, calendar, recorded }
    }

    pub(super) fn worlds(&mut self) -> Worlds<'_> {
        let State { view, memory, smaller, .. } = &mut self.state;
        let View { now, world, procs, replicas, .. } = view;
        Worlds { now: *now, world, procs, replicas, memory, smaller }
    }

    pub(super) fn correlation(&mut self) -> Correlation<'_> {
        let State { seq, life, view, incidents, plans, counts, ledger, incident_ids, trial, .. } = &mut self.state;
        let (seq, life, trial) = (*seq, *life, trial.as_ref());
        Correlation { view, life, seq, plans, trial, incidents, incident_ids, counts, ledger }
    }

    pub(super) fn closing(&mut self) -> Closing<'_> {
        let State { view, incidents, plans, trial, ledger, orders, counts, commands, .. } = &mut self.state;
        let outbox = Outbox { out: &mut self.out, commands, generation: view.world.generation() };
        Closing { view, plans, incidents, trial, ledger, orders, counts, outbox }
    }

    pub(super) fn agenda(&mut self) -> Agenda<'_> {
        let State { view, plans, incidents, counts, .. } = &mut self.state;
        Agenda { view, plans, incidents, counts }
    }

    pub(super) fn probation(&mut self) -> Probation<'_> {
        let State { view, plans, incidents, trial, counts, ledger, .. } = &mut self.state;
        Probation { view, plans, incidents, trial, counts, ledger }
    }

    pub(super) fn plans(&mut self) -> Plans<'_> {
        let State { view, plans, pending, void, counts, commands, .. } = &mut self.state;
        let outbox = Outbox { out: &mut self.out, commands, generation: view.world.generation() };
        Plans { now: view.now, plans, pending, void, counts, outbox }
    }

    pub(super) fn commands(&mut self) -> Commands<'_> {
        let State { view, pending, starting, commands, .. } = &mut self.state;
        let View { now, world, procs, .. } = view;
        let outbox = Outbox { out: &mut self.out, commands, generation: world.generation() };
        Commands { now: *now, checks: &self.checks, procs, pending, starting, outbox }
    }

    pub(super) fn time_limits(&mut self) -> TimeLimits<'_> {
        let State { view, silent_guards, life, pending, starting, void, .. } = &mut self.state;
        let guards = SilentGuards { view, silent: silent_guards, life: *life };
        TimeLimits { guards, starting, pending, void }
    }

    pub(super) fn answers(&mut self) -> Answers<'_> {
        let State { view, pending, starting, void, counts, .. } = &mut self.state;
        let View { now, procs, .. } = view;
        let found = &mut self.found;
        Answers { now: *now, checks: &self.checks, procs, pending, starting, void, counts, found }
    }

    pub(super) fn in_memory_checkpoints(&mut self) -> InMemoryCheckpoints<'_> {
        let State { view, memory, counts, .. } = &mut self.state;
        InMemoryCheckpoints { world: &view.world, memory, counts }
    }

    pub(super) fn order_check(&self) -> OrderCheck<'_> {
        let State { view, life, incidents, cordons, .. } = &self.state;
        OrderCheck { view, life: *life, incidents, cordons, strategies: &self.strategies }
    }

    pub(super) fn controls(&mut self) -> Controls<'_> {
        let State { view, paused, permissions, .. } = &mut self.state;
        Controls { paused, permissions, spec: &mut view.spec }
    }

    pub(super) fn trace_switches(&mut self) -> TraceSwitches<'_> {
        let State { view, switches, commands, .. } = &mut self.state;
        let outbox = Outbox { out: &mut self.out, commands, generation: view.world.generation() };
        TraceSwitches { is_dry_run: view.is_dry_run(), switches, outbox }
    }
}
