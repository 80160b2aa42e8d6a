//! The kernel through its public edge: inputs in, commands out.

use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::{Clue, Damage, Fault, FaultClass, FaultDetector, Suspect, detector};
use taskd_core::job::*;
use taskd_core::kernel::*;
use taskd_core::launch::*;
use taskd_core::recover::*;
use taskd_core::trace::{Fact, Observation, Signal};

const MS: u64 = 1_000_000;

/// Blames every process that ends and was not meant to.
fn exits() -> Box<dyn FaultDetector> {
    Box::new(detector("exit", |o, view, out| {
        let (Signal::Phase(phase), Domain::Process(role)) = (&o.signal, &o.about) else { return };
        let unwanted = view.proc(role).is_some_and(|p| !p.wanted);
        let well = phase.termination().is_some_and(Termination::is_success);
        if phase.is_over() && !unwanted && !well {
            let suspect = Suspect::certain(o.about.clone(), FaultClass::Exit, Damage::PROCESS_GONE);
            out.blame(Fault::new(Name::new("exit"), o.at, suspect).because(Clue::text("phase", phase.to_string())));
        }
    }))
}

/// Replaces lost ranks only; touches nothing but their processes.
struct Replace;

impl RecoveryStrategy for Replace {
    fn name(&self) -> Name {
        Name::new("replace")
    }
    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, String> {
        let lost = incident.lost(view);
        if lost.is_empty() {
            return Err("nothing is lost".into());
        }
        let world = Arc::new(view.world.successor(Counted::Yes, |members| {
            for rank in &lost {
                let next = view.next_incarnation(&Role::Rank(*rank));
                members.entry(*rank).and_modify(|m| m.incarnation = next);
            }
        }));
        let old = lost.iter().filter_map(|r| view.world.proc(*r)).collect();
        let orders = lost.iter().filter_map(|r| world.proc(*r)).map(|proc| StartOrder {
            proc,
            place: Place::anywhere(),
            spec: Arc::clone(&view.spec.worker),
        });
        let batch = StartBatch { world: Arc::clone(&world), orders: orders.collect() };
        let stop = Action::Stop { procs: old, grace: Duration::ZERO, exact: true };
        let start = Action::Start { batch, until: Ready::Running };
        Ok(Proposal {
            stages: vec![
                Stage::new("stop", Duration::from_secs(1), vec![stop]),
                Stage::new("start", Duration::from_secs(1), vec![Action::Enter(world), start]),
            ],
            touches: lost.iter().map(|r| Domain::Process(Role::Rank(*r))).collect(),
            cost: Cost {
                ends_job: false,
                lost_work: Duration::ZERO,
                downtime: Duration::from_secs(1),
                nodes_removed: 0,
            },
            counted: Counted::Yes,
            reason: format!("replace {lost:?}"),
        })
    }
}

/// A kernel that is driven by hand.
struct Bench {
    kernel: Kernel,
    now: u64,
}

impl Bench {
    fn new(ranks: u32, adjust: impl FnOnce(&mut Policy)) -> Bench {
        Bench::with(ranks, adjust, Plugins { detectors: vec![exits()], strategies: vec![Box::new(Replace)] })
    }

    fn with(ranks: u32, adjust: impl FnOnce(&mut Policy), plugins: Plugins) -> Bench {
        let mut spec = JobSpec::new("test", ranks, WorkerSpec::new(["train"]));
        adjust(&mut spec.policy);
        let mut bench = Bench { kernel: Kernel::new(plugins), now: 0 };
        assert!(bench.give(Input::Start(Box::new(Start { spec: Arc::new(spec) }))).is_empty());
        bench
    }

    fn give(&mut self, input: Input) -> Vec<Command> {
        self.kernel.step(JobTime::from_nanos(self.now), &input)
    }

    fn at(&mut self, ms: u64) -> Vec<Command> {
        self.now = ms * MS;
        self.give(Input::Deadline)
    }

    fn tell(&mut self, rank: u32, incarnation: u32, phase: Phase) -> Vec<Command> {
        let proc = ProcId::rank(rank, incarnation);
        let status = ProcStatus { proc, node: None, instance: Name::new("i"), pid: Some(1), phase };
        self.give(Input::Changed(Change::Proc(status)))
    }

    /// Lists nothing and lets the first world run.
    fn up(mut self) -> Bench {
        let commands = self.give(Input::Listed(Listing::default()));
        let id = start_of(&commands).expect("the first start").0;
        let ranks = self.kernel.view().world.size();
        let results = (0..ranks).map(|r| (rank_domain(r), Ok(Output::Accepted))).collect();
        self.give(Input::Answered { id, results });
        for rank in 0..ranks {
            self.tell(rank, 1, Phase::Running);
        }
        self
    }
}

fn rank_domain(rank: u32) -> Domain {
    Domain::Process(Role::Rank(Rank(rank)))
}

fn start_of(commands: &[Command]) -> Option<(CommandId, Vec<ProcId>)> {
    commands.iter().find_map(|c| match &c.action {
        Action::Start { batch, .. } => Some((c.id, batch.orders.iter().map(|o| o.proc.clone()).collect())),
        _ => None,
    })
}

fn stopped(commands: &[Command]) -> Vec<ProcId> {
    let stops = commands.iter().filter_map(|c| match &c.action {
        Action::Stop { procs, .. } => Some(procs.clone()),
        _ => None,
    });
    stops.flatten().collect()
}

fn finish(commands: &[Command]) -> Option<(bool, &str)> {
    commands.iter().find_map(|c| match &c.action {
        Action::Finish { ok, reason } => Some((*ok, reason.as_str())),
        _ => None,
    })
}

fn killed() -> Phase {
    Phase::Exited(Box::new(Exit::new(Termination::Signal { number: 9, core_dumped: false })))
}

fn done() -> Phase {
    Phase::Exited(Box::new(Exit::new(Termination::Code(0))))
}

#[test]
fn a_killed_rank_is_replaced_and_the_decision_says_why() {
    let mut bench = Bench::new(3, |_| ()).up();
    bench.now = 100 * MS;
    bench.tell(1, 1, killed());
    let commands = bench.at(120);
    let decision = commands.iter().find_map(|c| match &c.action {
        Action::Announce(event) => match &**event {
            Event::Decided(decision) => Some(decision.clone()),
            _ => None,
        },
        _ => None,
    });
    let decision = decision.expect("decided when the window is over");
    assert_eq!(decision.chosen.expect("one strategy").strategy, Name::new("replace"));
    assert!(decision.reason.contains("the only way left"), "{}", decision.reason);
    let (_, started) = start_of(&commands).expect("it has exited, so it is started at once");
    assert_eq!(started, [ProcId::rank(1, 2)]);
    bench.tell(1, 2, Phase::Running);
    let report = bench.kernel.report();
    assert_eq!(report.incidents[0].blamed, [Rank(1)]);
    assert_eq!(report.incidents[0].outcome, "recovered by replace");
    assert_eq!((report.restarts, bench.kernel.budget_left()), (1, 9));
}

#[test]
fn all_ranks_that_end_well_complete_the_job() {
    let mut bench = Bench::new(2, |_| ()).up();
    assert!(finish(&bench.tell(0, 1, done())).is_none());
    let commands = bench.tell(1, 1, done());
    assert_eq!(finish(&commands), Some((true, "all 2 ranks finished")));
    assert!(bench.kernel.is_over());
    assert_eq!(bench.kernel.deadline(), None);
}

#[test]
fn a_start_that_is_refused_ends_the_job_with_its_reason() {
    let mut bench = Bench::new(1, |_| ());
    let commands = bench.give(Input::Listed(Listing::default()));
    let id = start_of(&commands).expect("the first start").0;
    let why = Failure::Refused("the program \"nope\" does not exist".into());
    let commands = bench.give(Input::Answered { id, results: vec![(rank_domain(0), Err(why))] });
    let (ok, reason) = finish(&commands).expect("nothing runs, so it ends at once");
    assert!(!ok && reason.contains("\"nope\" does not exist"), "{reason}");
}

#[test]
fn the_same_rank_again_in_the_middle_of_its_recovery_cancels_and_replans() {
    let mut bench = Bench::new(2, |_| ()).up();
    bench.now = 100 * MS;
    bench.tell(0, 1, killed());
    let (first, _) = start_of(&bench.at(120)).expect("started");
    bench.tell(0, 2, killed()); // before it ever ran
    let (_, started) = start_of(&bench.at(140)).expect("started again");
    assert_eq!(started, [ProcId::rank(0, 3)], "an incarnation never runs twice");
    bench.give(Input::Answered { id: first, results: vec![(rank_domain(0), Ok(Output::Accepted))] });
    assert_eq!(bench.kernel.counts().drops.get(&Drop::LateAnswer), Some(&1));
    bench.tell(0, 3, Phase::Running);
    assert_eq!(bench.kernel.report().incidents.len(), 1, "one incident all along");
}

#[test]
fn what_an_older_incarnation_or_generation_says_is_dropped_and_counted() {
    let mut bench = Bench::new(2, |_| ()).up();
    bench.now = 100 * MS;
    bench.tell(0, 1, killed());
    bench.at(120);
    bench.tell(0, 2, Phase::Running);
    let old = Fact::new(rank_domain(0), Signal::Progress { step: 7 }).of(Incarnation(1)).observed(JobTime::START);
    let stale = Fact::new(rank_domain(1), Signal::Progress { step: 9 }).within(Generation(1)).observed(JobTime::START);
    let fresh = Fact::new(rank_domain(1), Signal::Progress { step: 8 }).within(Generation(2)).observed(JobTime::START);
    bench.give(Input::Observed(vec![old, stale, fresh]));
    let counts = bench.kernel.counts();
    assert_eq!(counts.drops.get(&Drop::OldIncarnation), Some(&1));
    assert_eq!(counts.drops.get(&Drop::OldGeneration), Some(&1));
    assert_eq!(bench.kernel.view().procs[&Role::Rank(Rank(1))].step, Some(8));
    assert_eq!(bench.kernel.view().procs[&Role::Rank(Rank(0))].step, None);
}

#[test]
fn an_empty_budget_ends_the_job_and_says_so() {
    let budget = BudgetSpec { recoveries_max: 1, refill_every: Duration::from_secs(3600) };
    let mut bench = Bench::new(1, |p| p.budget = budget).up();
    bench.now = 100 * MS;
    bench.tell(0, 1, killed());
    bench.at(120);
    bench.tell(0, 2, Phase::Running);
    bench.now = 200 * MS;
    bench.tell(0, 2, killed());
    let commands = bench.at(220);
    let (ok, reason) = finish(&commands).expect("nothing is left to stop");
    assert!(!ok && reason.contains("budget of 1 is spent") && reason.contains("exit in rank 0"), "{reason}");
}

#[test]
fn a_panicking_detector_is_out_of_service_and_nothing_else_happens() {
    let jumpy = detector("jumpy", |o, _, _| assert!(!matches!(o.signal, Signal::Heartbeat), "bug"));
    let plugins = Plugins { detectors: vec![Box::new(jumpy), exits()], strategies: vec![Box::new(Replace)] };
    let mut bench = Bench::with(1, |_| (), plugins).up();
    let beat = Fact::new(rank_domain(0), Signal::Heartbeat).observed(JobTime::START);
    bench.give(Input::Observed(vec![beat.clone()]));
    bench.at(100);
    let report = bench.kernel.report();
    assert_eq!(report.incidents[0].domain, Domain::Plugin(Name::new("jumpy")));
    assert!(report.incidents[0].outcome.starts_with("noted"));
    bench.give(Input::Observed(vec![beat]));
    assert_eq!(bench.kernel.report().incidents.len(), 1, "it is not called again");
    bench.now = 200 * MS;
    bench.tell(0, 1, killed());
    assert!(start_of(&bench.at(220)).is_some(), "the other detector still works");
}

#[test]
fn a_request_to_stop_stops_everything_within_a_bound() {
    let mut bench = Bench::new(2, |_| ()).up();
    let commands = bench.give(Input::Requested(Request::Stop { reason: "maintenance".into(), grace: None }));
    assert_eq!(stopped(&commands), [ProcId::rank(0, 1), ProcId::rank(1, 1)]);
    bench.tell(0, 1, killed());
    let due = bench.kernel.deadline().expect("the stop is bounded");
    bench.now = due.as_nanos();
    let commands = bench.give(Input::Deadline); // rank 1 never answered
    assert_eq!(finish(&commands), Some((false, "stopped: maintenance")));
}

#[test]
fn a_kernel_restored_in_the_middle_gives_the_open_commands_again() {
    let plugins = || Plugins { detectors: vec![exits()], strategies: vec![Box::new(Replace)] };
    let mut bench = Bench::with(2, |_| (), plugins()).up();
    bench.now = 100 * MS;
    bench.tell(0, 1, killed());
    let (id, procs) = start_of(&bench.at(120)).expect("started");
    let snapshot = bench.kernel.snapshot();
    let spec = Arc::clone(&bench.kernel.view().spec);
    let (kernel, cold) = Kernel::restore(plugins(), &snapshot).expect("same version");
    assert_eq!(cold, [Name::new("exit")], "a closure cannot be saved");
    let mut bench = Bench { kernel, now: 5_000 * MS };
    bench.give(Input::Start(Box::new(Start { spec })));
    let instance = Name::new("i");
    let running = ProcStatus { proc: ProcId::rank(1, 1), node: None, instance, pid: Some(1), phase: Phase::Running };
    let listing = Listing { procs: vec![running], ..Listing::default() };
    let commands = bench.give(Input::Listed(listing));
    assert_eq!(start_of(&commands), Some((id, procs)), "the order may never have left");
    bench.tell(0, 2, Phase::Running);
    assert_eq!(bench.kernel.report().incidents[0].outcome, "recovered by replace");
}

#[test]
fn observations_are_not_taken_before_the_start() {
    let mut kernel = Kernel::new(Plugins { detectors: vec![exits()], strategies: vec![] });
    let o: Observation = Fact::new(Domain::Job, Signal::Heartbeat).observed(JobTime::START);
    assert!(kernel.step(JobTime::START, &Input::Observed(vec![o])).is_empty());
    assert_eq!(kernel.deadline(), None);
}

#[test]
fn a_failing_plugin_does_not_disturb_a_recovery() {
    let mut bench = Bench::new(2, |_| ()).up();
    bench.now = 100 * MS;
    bench.tell(0, 1, killed());
    bench.at(120);
    let failed = Request::PluginFailed { plugin: Name::new("nvml"), what: "it panicked".into() };
    let commands = bench.give(Input::Requested(failed));
    assert!(start_of(&commands).is_none() && stopped(&commands).is_empty());
    bench.tell(0, 2, Phase::Running);
    let report = bench.kernel.report();
    assert_eq!(report.incidents[0].outcome, "recovered by replace");
    assert_eq!(bench.kernel.counts().branches.get(&Branch::Cancelled), None);
}

#[test]
fn a_start_that_fails_in_part_leaves_the_rest_to_its_own_answer() {
    let mut bench = Bench::new(2, |_| ());
    let commands = bench.give(Input::Listed(Listing::default()));
    let id = start_of(&commands).expect("the first start").0;
    bench.give(Input::Answered { id, results: vec![(rank_domain(1), Ok(Output::Accepted))] });
    let why = Failure::Unreachable("the host does not answer".into());
    bench.give(Input::Answered { id, results: vec![(rank_domain(0), Err(why))] });
    let procs = &bench.kernel.view().procs;
    assert!(procs[&Role::Rank(Rank(0))].phase.is_exited(), "it was never there");
    assert!(!procs[&Role::Rank(Rank(1))].phase.is_over());
}

#[test]
fn a_fault_that_comes_when_the_window_is_over_but_not_decided_yet_still_belongs_to_it() {
    let plugins = Plugins { detectors: vec![exits()], strategies: vec![Box::new(taskd_core::recover::Restart::new())] };
    let mut bench = Bench::with(3, |_| (), plugins).up();
    bench.now = 100 * MS;
    bench.tell(1, 1, killed());
    bench.now = 125 * MS; // the window ended at 120, but this change goes before the deadline
    bench.tell(2, 1, killed());
    assert_eq!(bench.kernel.report().incidents.len(), 1);
}

#[test]
fn a_peer_that_ends_while_everybody_is_stopped_anyway_does_not_cancel_the_restart() {
    let plugins = Plugins { detectors: vec![exits()], strategies: vec![Box::new(taskd_core::recover::Restart::new())] };
    let mut bench = Bench::with(3, |_| (), plugins).up();
    bench.now = 100 * MS;
    bench.tell(1, 1, killed());
    let peer = Termination::Code(1);
    let proc =
        |phase| ProcStatus { proc: ProcId::rank(2, 1), node: None, instance: Name::new("i"), pid: Some(1), phase };
    let late = Fault::new(Name::new("exit"), JobTime::START, {
        Suspect::certain(rank_domain(2), FaultClass::Exit, Damage::PROCESS_GONE)
    });
    bench.at(120);
    bench.give(Input::Requested(Request::Fault(Box::new(late.of(Some(Incarnation(1)))))));
    bench.give(Input::Changed(Change::Proc(proc(Phase::Exited(Box::new(Exit::new(peer)))))));
    let commands = bench.tell(0, 1, killed());
    assert_eq!(start_of(&commands).map(|(_, procs)| procs.len()), Some(3), "the restart goes on as planned");
    let counts = bench.kernel.counts();
    assert_eq!((counts.branches.get(&Branch::Covered), counts.branches.get(&Branch::Cancelled)), (Some(&1), None));
    assert_eq!(bench.kernel.budget_left(), 9, "paid for once");
}

/// What the kernel announces, in order.
fn events(commands: &[Command]) -> Vec<&Event> {
    let announced = commands.iter().filter_map(|c| match &c.action {
        Action::Announce(event) => Some(&**event),
        _ => None,
    });
    announced.collect()
}

fn count(bench: &Bench, what: Drop) -> u64 {
    bench.kernel.counts().drops.get(&what).copied().unwrap_or(0)
}

fn taken(bench: &Bench, branch: Branch) -> u64 {
    bench.kernel.counts().branches.get(&branch).copied().unwrap_or(0)
}

fn accepted(rank: u32) -> Vec<(Domain, Result<Output, Failure>)> {
    vec![(rank_domain(rank), Ok(Output::Accepted))]
}

fn asked_to_look_into(rank: u32, incarnation: u32) -> Input {
    let suspect = Suspect::certain(rank_domain(rank), FaultClass::Leave, Damage::PROCESS_GONE);
    let fault = Fault::new(Name::new("operator"), JobTime::START, suspect).of(Some(Incarnation(incarnation)));
    Input::Requested(Request::Fault(Box::new(fault)))
}

#[test]
fn a_start_that_is_accepted_after_its_stop_is_stopped_again() {
    let mut bench = Bench::new(2, |_| ()).up();
    bench.now = 100 * MS;
    bench.tell(0, 1, killed());
    let (slow, _) = start_of(&bench.at(120)).expect("the launcher takes its time with this start");
    bench.give(asked_to_look_into(0, 2));
    assert_eq!(stopped(&bench.at(140)), [ProcId::rank(0, 2)], "the launcher passes over it: it is not there yet");
    let commands = bench.give(Input::Answered { id: slow, results: accepted(0) });
    assert_eq!(stopped(&commands), [ProcId::rank(0, 2)]);
}

#[test]
fn an_answer_after_its_time_is_counted_as_such() {
    let mut bench = Bench::new(1, |p| p.tries_max = 1).up();
    bench.now = 100 * MS;
    bench.tell(0, 1, killed());
    let (id, _) = start_of(&bench.at(120)).expect("started");
    bench.at(1120); // the stage's time is over
    bench.give(Input::Answered { id, results: accepted(0) });
    assert_eq!((count(&bench, Drop::TimedOutAnswer), count(&bench, Drop::LateAnswer)), (1, 0));
}

#[test]
fn an_end_that_is_told_twice_is_one_end_whatever_it_says() {
    let mut bench = Bench::new(2, |_| ()).up();
    bench.tell(0, 1, killed());
    let commands = bench.tell(0, 1, Phase::Exited(Box::new(Exit::new(Termination::Unknown))));
    assert!(events(&commands).is_empty());
    assert_eq!(count(&bench, Drop::RepeatedChange), 1);
}

/// Looks first, so that two recoveries can be on their way to a new world at one time.
struct LookFirst;

impl RecoveryStrategy for LookFirst {
    fn name(&self) -> Name {
        Name::new("look-first")
    }
    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, String> {
        let mut proposal = Replace.propose(incident, view)?;
        let (by, what) = (self.name(), Name::new("process-state"));
        let (about, within) = (proposal.touches.clone(), Duration::from_secs(1));
        let ask = taskd_core::trace::Ask { by, tag: 1, what, about, within };
        proposal.stages.insert(0, Stage::new("look", within, vec![Action::Collect(ask)]));
        Ok(proposal)
    }
}

#[test]
fn a_recovery_whose_world_is_outrun_is_planned_anew_from_the_one_in_force() {
    let plugins = Plugins { detectors: vec![exits()], strategies: vec![Box::new(LookFirst)] };
    let mut bench = Bench::with(3, |_| (), plugins).up();
    let look = |commands: &[Command]| commands.iter().find(|c| matches!(c.action, Action::Collect(_))).map(|c| c.id);
    bench.now = 100 * MS;
    bench.tell(0, 1, killed());
    let first = look(&bench.at(120)).expect("it looks at rank 0");
    bench.tell(1, 1, killed());
    let second = look(&bench.at(140)).expect("and beside it at rank 1");
    assert!(start_of(&bench.give(Input::Answered { id: first, results: accepted(0) })).is_some());
    let commands = bench.give(Input::Answered { id: second, results: accepted(1) });
    assert_eq!(start_of(&commands), None, "the world it would enter does not know of rank 0's new process");
    assert_eq!(taken(&bench, Branch::Outrun), 1);
    let third = look(&commands).expect("it begins anew");
    let commands = bench.give(Input::Answered { id: third, results: accepted(1) });
    assert_eq!(start_of(&commands).expect("from the world in force").1, [ProcId::rank(1, 2)]);
    let members = bench.kernel.view().world.members();
    assert_eq!((members[&Rank(0)].incarnation, members[&Rank(1)].incarnation), (Incarnation(2), Incarnation(2)));
}

#[test]
fn an_incident_full_of_victims_still_takes_a_cause_and_all_that_is_lost() {
    let ranks = u32::try_from(FAULTS_PER_INCIDENT_MAX).unwrap() + 40;
    let mut bench = Bench::new(ranks, |_| ()).up();
    (0..ranks - 1).for_each(|rank| drop(bench.tell(rank, 1, killed())));
    let (_, started) = start_of(&bench.at(1_000)).expect("a recovery");
    assert_eq!(started.len(), ranks as usize - 1, "also those beyond the bound");
    bench.tell(7, 2, Phase::Running);
    bench.tell(7, 2, killed());
    let (_, again) = start_of(&bench.at(1_900)).expect("a death in the middle of the recovery is no less one");
    assert!(again.contains(&ProcId::rank(7, 3)), "{again:?}");
    assert!(count(&bench, Drop::IncidentBound) > 0);
}

#[test]
fn a_failed_recovery_is_tried_again_when_what_made_it_fail_may_be_known() {
    let mut bench = Bench::new(2, |p| p.correlate = Duration::from_millis(50)).up();
    bench.tell(1, 1, killed());
    let (id, _) = start_of(&bench.at(1_000)).expect("a recovery");
    let refused = vec![(rank_domain(1), Err(Failure::Refused("its host is gone".into())))];
    let commands = bench.give(Input::Answered { id, results: refused });
    assert_eq!(start_of(&commands), None, "not at once");
    assert_eq!(bench.kernel.deadline(), Some(JobTime::from_nanos(1_050 * MS)));
    assert!(start_of(&bench.at(1_050)).is_some());
}

#[test]
fn what_one_recovery_is_stopping_holds_up_no_other() {
    let mut bench = Bench::new(3, |_| ()).up();
    bench.now = 100 * MS;
    bench.give(asked_to_look_into(0, 1));
    assert_eq!(stopped(&bench.at(120)), [ProcId::rank(0, 1)], "it takes its time to stop");
    bench.tell(1, 1, killed());
    let (_, second) = start_of(&bench.at(140)).expect("the first recovery cannot end well without rank 1");
    assert_eq!(second, [ProcId::rank(1, 2)], "and rank 0 is its own to start");
    let (_, first) = start_of(&bench.tell(0, 1, killed())).expect("planned anew from the world in force");
    assert_eq!(first, [ProcId::rank(0, 2)]);
}

#[test]
fn what_a_cancelled_plan_has_stopped_is_started_by_the_next_one() {
    let strategies: Vec<Box<dyn RecoveryStrategy>> = vec![Box::new(Replace), Box::new(Restart::new())];
    let mut bench = Bench::with(4, |_| (), Plugins { detectors: vec![exits()], strategies }).up();
    bench.now = 100 * MS;
    let stall = Suspect::certain(Domain::Job, FaultClass::Stall, Damage::default());
    let stall = Fault::new(Name::new("test"), JobTime::START, stall);
    bench.give(Input::Requested(Request::Fault(Box::new(stall))));
    assert_eq!(stopped(&bench.at(120)).len(), 4, "nobody is named, so everybody is restarted");
    bench.give(asked_to_look_into(0, 5)); // it cancels the restart, and the cheaper strategy replaces what is lost
    bench.at(140);
    (0..4).for_each(|rank| drop(bench.tell(rank, 1, killed())));
    assert_eq!(bench.kernel.view().procs.values().filter(|p| p.incarnation == Incarnation(2)).count(), 4);
}

#[test]
fn an_incident_is_not_closed_by_an_all_clear_once_something_was_stopped_for_it() {
    let flaky = detector("flaky", |o, _, out| match o.signal {
        Signal::Metric { value: 1.0, .. } => {
            let suspect = Suspect::certain(o.about.clone(), FaultClass::Network, Damage::default());
            out.blame(Fault::new(Name::new("flaky"), o.at, suspect));
        }
        Signal::Metric { .. } => out.clear(o.about.clone(), FaultClass::Network),
        _ => {}
    });
    let plugins = Plugins { detectors: vec![Box::new(flaky)], strategies: vec![Box::new(Restart::new())] };
    let mut bench = Bench::with(2, |_| (), plugins).up();
    let metric = |value| {
        let fact = Fact::new(rank_domain(0), Signal::Metric { name: Name::new("down"), value });
        Input::Observed(vec![fact.observed(JobTime::START)])
    };
    bench.give(metric(1.0));
    bench.give(metric(0.0));
    assert_eq!(bench.kernel.report().incidents[0].outcome, "its detector took the blame back");
    bench.give(metric(1.0));
    assert_eq!(stopped(&bench.at(20)).len(), 2);
    bench.give(asked_to_look_into(1, 7)); // cancels the restart in its stop
    bench.give(metric(0.0));
    assert_eq!(bench.kernel.report().incidents[1].outcome, "open", "somebody has to start them again");
}

#[test]
fn victims_belong_to_the_incident_that_is_open_and_are_not_paid_for_again() {
    let mut bench = Bench::new(8, |_| ()).up();
    bench.now = 100 * MS;
    bench.tell(0, 1, killed());
    bench.at(120);
    for (rank, ms) in (1..5).zip([200, 300, 400, 500]) {
        let suspect = Suspect::victim(rank_domain(rank), FaultClass::Exit, Damage::PROCESS_GONE);
        let fault = Fault::new(Name::new("test"), JobTime::START, suspect).of(Some(Incarnation(1)));
        bench.now = ms * MS;
        bench.give(Input::Requested(Request::Fault(Box::new(fault))));
        bench.at(ms + 20);
    }
    assert_eq!(taken(&bench, Branch::Explained), 4);
    assert_eq!((bench.kernel.report().incidents.len(), bench.kernel.budget_left()), (1, 9));
}

#[test]
fn blame_that_is_refined_after_the_decision_is_right_in_the_report() {
    let mut bench = Bench::new(2, |_| ()).up();
    bench.now = 100 * MS;
    bench.tell(0, 1, killed());
    bench.tell(1, 1, Phase::Dead(Termination::Code(1))); // its error is not known yet
    bench.at(120);
    assert_eq!(bench.kernel.report().incidents[0].blamed, [Rank(0), Rank(1)]);
    let victim = Suspect::victim(rank_domain(1), FaultClass::Exit, Damage::PROCESS_GONE);
    let victim = Fault::new(Name::new("exit"), JobTime::START, victim).of(Some(Incarnation(1)));
    bench.give(Input::Requested(Request::Fault(Box::new(victim))));
    assert_eq!(bench.kernel.report().incidents[0].blamed, [Rank(0)]);
}

#[test]
fn what_is_learnt_after_the_decision_stands_in_the_report() {
    let told_twice = detector("exit", |o, _view, out| {
        let Signal::Phase(phase) = &o.signal else { return };
        let suspect = Suspect::certain(o.about.clone(), FaultClass::Exit, Damage::PROCESS_GONE);
        let fault = Fault::new(Name::new("exit"), JobTime::START, suspect).because(Clue::text("ended", "SIGSEGV"));
        match phase {
            Phase::Dead(_) => out.blame(fault),
            Phase::Exited(exit) => out.blame(fault.because(Clue::text("stderr", exit.stderr_tail.clone()))),
            _ => {}
        }
    });
    let strategies: Vec<Box<dyn RecoveryStrategy>> = vec![Box::new(Restart::new())];
    let mut bench = Bench::with(2, |_| (), Plugins { detectors: vec![Box::new(told_twice)], strategies }).up();
    let how = Termination::Signal { number: 11, core_dumped: false };
    bench.tell(1, 1, Phase::Dead(how));
    assert!(!stopped(&bench.at(1_000)).is_empty(), "it is decided");
    let exit = Exit { stderr_tail: "double free".into(), ..Exit::new(how) };
    bench.tell(1, 1, Phase::Exited(Box::new(exit)));
    let report = bench.kernel.report();
    assert_eq!(report.incidents[0].evidence, ["SIGSEGV", "double free"]);
    assert_eq!((count(&bench, Drop::RepeatedFault), taken(&bench, Branch::Cancelled)), (0, 0));
}

#[test]
fn a_start_whose_caller_is_gone_is_nobodys_fault_and_is_stopped_if_it_comes_after_all() {
    let plugins = || Plugins { detectors: vec![exits()], strategies: vec![Box::new(Replace)] };
    let mut bench = Bench::with(2, |_| (), plugins()).up();
    bench.now = 100 * MS;
    bench.tell(0, 1, killed());
    bench.at(120);
    bench.give(asked_to_look_into(0, 2));
    let snapshot = bench.kernel.snapshot();
    let spec = Arc::clone(&bench.kernel.view().spec);
    let (kernel, _) = Kernel::restore(plugins(), &snapshot).expect("same version");
    let mut bench = Bench { kernel, now: 5_000 * MS };
    bench.give(Input::Start(Box::new(Start { spec })));
    let instance = Name::new("i");
    let running = ProcStatus { proc: ProcId::rank(1, 1), node: None, instance, pid: Some(1), phase: Phase::Running };
    let commands = bench.give(Input::Listed(Listing { procs: vec![running], ..Listing::default() }));
    let (_, started) = start_of(&commands).expect("rank 0's second process was never there: no stop is waited for");
    assert!(started.contains(&ProcId::rank(0, 3)), "{started:?}");
    let commands = bench.tell(0, 2, Phase::Running);
    assert_eq!(stopped(&commands), [ProcId::rank(0, 2)]);
}

#[test]
fn a_sign_of_life_counts_in_whatever_world() {
    let beats = detector("beats", |o, _, out| {
        if o.signal == Signal::Heartbeat {
            let suspect = Suspect::certain(Domain::Plugin(Name::new("heard")), FaultClass::Plugin, Damage::default());
            out.blame(Fault::new(Name::new("beats"), o.at, suspect));
        }
    });
    let plugins = Plugins { detectors: vec![exits(), Box::new(beats)], strategies: vec![Box::new(Replace)] };
    let mut bench = Bench::with(2, |_| (), plugins).up();
    bench.now = 100 * MS;
    bench.tell(0, 1, killed());
    bench.at(120);
    let beat = Fact::new(rank_domain(1), Signal::Heartbeat).of(Incarnation(1)).within(Generation(1));
    let commands = bench.give(Input::Observed(vec![beat.observed(JobTime::START)]));
    assert_eq!(events(&commands).len(), 1, "it is shown to detectors");
    assert_eq!(count(&bench, Drop::OldGeneration), 0);
}

#[test]
fn commands_come_in_the_order_of_their_numbers_and_the_end_is_the_last() {
    let mut bench = Bench::new(1, |p| p.tries_max = 1);
    let mut all = bench.give(Input::Listed(Listing::default()));
    all.extend(bench.tell(0, 1, Phase::Running));
    bench.now = 100 * MS;
    all.extend(bench.tell(0, 1, killed()));
    all.extend(bench.give(Input::Requested(Request::Stop { reason: "test".into(), grace: None })));
    assert!(all.windows(2).all(|pair| pair[0].id < pair[1].id));
    assert!(matches!(all.last().map(|c| &c.action), Some(Action::Finish { .. })));
}

#[test]
fn a_recovery_that_could_not_start_anything_has_not_replaced_what_was_blamed() {
    let mut bench = Bench::new(2, |_| ()).up();
    bench.now = 100 * MS;
    bench.tell(0, 1, killed());
    let (id, _) = start_of(&bench.at(120)).expect("started");
    let no = Err(Failure::Unreachable("try again".into()));
    bench.give(Input::Answered { id, results: vec![(rank_domain(0), no)] });
    assert_eq!(start_of(&bench.at(140)).expect("tried again").1, [ProcId::rank(0, 3)]);
}

#[test]
fn a_refusal_of_what_runs_already_is_void() {
    let mut bench = Bench::new(2, |_| {}).up();
    bench.tell(1, 1, killed());
    let (id, started) = start_of(&bench.at(1_000)).expect("a replacement");
    assert_eq!(started, [ProcId::rank(1, 2)]);
    bench.tell(1, 2, Phase::Pending("queued".into()));
    let snapshot = bench.kernel.snapshot();
    let plugins = Plugins { detectors: vec![exits()], strategies: vec![Box::new(Replace)] };
    bench.kernel = Kernel::restore(plugins, &snapshot).expect("its own snapshot").0;
    let spec = Arc::clone(&bench.kernel.view().spec);
    bench.give(Input::Start(Box::new(Start { spec })));
    let running = |rank, incarnation, phase| ProcStatus {
        proc: ProcId::rank(rank, incarnation),
        node: None,
        instance: Name::new("i"),
        pid: None,
        phase,
    };
    let procs = vec![running(0, 1, Phase::Running), running(1, 2, Phase::Pending("queued".into()))];
    let again = bench.give(Input::Listed(Listing { procs, ..Listing::default() }));
    assert_eq!(
        start_of(&again).map(|s| s.0),
        Some(id),
        "the order is repeated: nobody knows whether it was carried out"
    );
    let refused = vec![(rank_domain(1), Err(Failure::Unreachable("connection refused".into())))];
    let commands = bench.give(Input::Answered { id, results: refused });
    assert!(commands.is_empty(), "{commands:?}");
    bench.tell(1, 2, Phase::Running);
    assert_eq!(taken(&bench, Branch::Recovered), 1);
    assert_eq!(count(&bench, Drop::RepeatedAnswer), 1);
}

#[test]
fn who_comes_after_its_stop_gets_the_time_of_a_stop_to_end() {
    let mut bench = Bench::new(2, |_| {}).up();
    bench.tell(1, 1, killed());
    let (id, _) = start_of(&bench.at(1_000)).expect("a replacement");
    bench.give(asked_to_look_into(1, 2)); // its plan is void, and the next one begins with its stop
    let stop = bench.at(1_900);
    assert_eq!(stopped(&stop), [ProcId::rank(1, 2)]);
    bench.now = 2_800 * MS;
    let again = bench.give(Input::Answered { id, results: accepted(1) });
    assert_eq!(stopped(&again), [ProcId::rank(1, 2)], "its stop was quicker than its start");
    assert!(bench.at(2_950).is_empty(), "the stage has 1 s, which is not over for a stop that begins now");
    bench.tell(1, 2, killed());
    assert_eq!(taken(&bench, Branch::StageTimedOut), 0);
}
