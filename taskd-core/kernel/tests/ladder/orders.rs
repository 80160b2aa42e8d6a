//! What an operator can order, and what it does to the job.

use crate::job::{Job, KILLED, exited, plugins};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use taskd_kernel::detect::{Damage, Fault, FaultClass, Health, OPERATOR, Suspect};
use taskd_kernel::job::*;
use taskd_kernel::kernel::*;
use taskd_kernel::recover::{
    Action, Advance, Cost, Incident, PlanExecution, Proposal, RecoveryStrategy, RefusalError, Stage,
};
use taskd_kernel::state::View;
use taskd_kernel::state::*;
use taskd_kernel::trace::Signal;

fn node(name: &'static str) -> NodeId {
    NodeId(Name::new(name))
}

fn may(strategy: &'static str, permission: Permission) -> BTreeMap<Name, Permission> {
    [(Name::new(strategy), permission)].into()
}

/// A job of four ranks on two hosts, each of which could hold all.
fn four() -> Job {
    Job::on(4, &["a", "b"])
}

/// The same with another strategy, before all others.
fn four_with(strategy: impl RecoveryStrategy + 'static) -> Job {
    let mut job = four();
    let mut plugins = plugins();
    plugins.strategies.insert(0, Box::new(strategy));
    job.kernel = Kernel::restore(plugins, &job.kernel.snapshot()).expect("the same version").0;
    job
}

fn kill(job: &mut Job, rank: u32) {
    job.set_phase(rank, exited(KILLED, None));
    job.pass(100);
}

#[test]
fn a_drained_host_is_left_and_unused_until_it_is_uncordoned() {
    let mut job = four();
    assert_eq!(job.hosts(), ["a", "a", "b", "b"]);
    let taken = job.order(Order::Drain { node: node("a") }).expect("b has room");
    assert_eq!((taken.incident, taken.text.as_str()), (Some(IncidentId(1)), "2 ranks move away from node a"));
    job.pass(100);
    assert_eq!(job.hosts(), ["b", "b", "b", "b"]);
    assert_eq!((job.kernel.budget_left(), job.kernel.view().world.restarts()), (10, 0), "it was asked for");
    let incident = job.last();
    assert_eq!(
        (incident.class, incident.by, incident.outcome.as_str()),
        (FaultClass::Leave, OPERATOR, "recovered by restart")
    );
    assert_eq!(incident.evidence, ["ann asks for it: she knows why"]);
    let ready = NodeStatus::new(node("a"), NodeState::Ready, 4);
    job.give(Input::Changed(Change::Node(ready)));
    assert!(!job.kernel.view().is_ready(&node("a")), "whatever its launcher reports");
    let line = job.kernel.status().nodes.remove(0);
    assert_eq!(line.taken_out.as_deref(), Some("drained by ann: she knows why"));
    assert_eq!(job.order(Order::Drain { node: node("a") }).expect("no harm").text, "node a is drained already");
    job.order(Order::Uncordon { node: node("a") }).expect("it was drained");
    assert!(job.kernel.view().is_ready(&node("a")));
    let why = job.order(Order::Uncordon { node: node("a") }).expect_err("it is in use");
    assert_eq!(why, "node a was not drained, nor taken out by a recovery");
}

#[test]
fn a_drain_without_room_is_refused_and_the_job_trains_on() {
    let mut job = Job::on(2, &["a"]);
    let why = job.order(Order::Drain { node: node("a") }).expect_err("there is no other host");
    assert_eq!(why, "node a takes nothing new, and no other host has room for rank 0");
    let why = job.order(Order::Drain { node: node("z") }).expect_err("a slip of the pen");
    assert_eq!(why, "node z is not a host of this job; its hosts are node a");
    job.pass(1_000);
    assert_eq!((job.generation(), job.finished, job.kernel.view().is_ready(&node("a"))), (1, None, true));
}

#[test]
fn an_ordered_restart_is_not_charged_to_the_budget() {
    let mut job = four();
    let taken = job.order(Order::Restart { ranks: BTreeSet::from([Rank(1)]) }).expect("it is there");
    assert_eq!(taken.text, "1 ranks are to be started anew");
    job.pass(100);
    assert_eq!((job.generation(), job.kernel.budget_left()), (2, 10));
    assert_eq!(job.last().blamed, [Rank(1)]);
    job.order(Order::Restart { ranks: BTreeSet::new() }).expect("all of them");
    job.pass(100);
    assert_eq!((job.generation(), job.kernel.budget_left()), (3, 10));
    let why = job.order(Order::Restart { ranks: BTreeSet::from([Rank(9)]) }).expect_err("there are four");
    assert_eq!(why, "there is no rank 9: the job has ranks 0 to 3");
}

#[test]
fn a_wish_that_nothing_grants_does_not_end_the_job() {
    let mut job = four();
    job.order(Order::Allow { strategies: may("restart", Permission::Never) }).expect("it is known");
    job.order(Order::Restart { ranks: BTreeSet::from([Rank(1)]) }).expect("it is taken");
    job.pass(100);
    let outcome = job.last().outcome;
    assert!(outcome.starts_with("not done: leave in rank 1"), "{outcome}");
    assert!(outcome.contains("restart: not in the allowed set"), "{outcome}");
    assert!(outcome.contains("exit: an operator's order does not end the job"), "{outcome}");
    assert_eq!((job.generation(), job.finished), (1, None));
}

#[test]
fn a_paused_runtime_holds_its_recoveries_until_it_is_resumed() {
    let mut job = four();
    job.order(Order::Pause).expect("it runs");
    let deeds = job.deeds.len();
    kill(&mut job, 2);
    let incident = job.last();
    assert_eq!((incident.held, incident.strategy), (Some(HoldReason::Paused), Some(Name::new("restart"))));
    assert!(incident.reason.ends_with("held: ann has paused the runtime (she knows why)"), "{}", incident.reason);
    job.pass(60_000);
    assert_eq!((job.deeds.len(), job.kernel.budget_left()), (deeds, 10), "nothing is done, nothing is paid");
    let paused = job.kernel.status().paused.expect("it is reported");
    assert_eq!((paused.by, paused.at), (Name::new("ann"), JobTime::START));
    assert_eq!(job.order(Order::Resume).expect("it is paused").text, "1 held incidents are decided anew");
    job.pass(100);
    assert_eq!((job.last().outcome.as_str(), job.last().held), ("recovered by restart", None));
    assert_eq!(job.order(Order::Resume).expect_err("it acts"), "the runtime is not paused");
}

#[test]
fn a_job_that_finishes_does_not_wait_for_what_is_held() {
    let mut job = four();
    job.order(Order::Pause).expect("it runs");
    job.order(Order::Restart { ranks: BTreeSet::from([Rank(1)]) }).expect("it is taken");
    job.pass(100);
    assert_eq!(job.last().held, Some(HoldReason::Paused));
    for rank in 0..4 {
        job.set_phase(rank, exited(Termination::Code(0), None));
    }
    assert_eq!(job.finished.as_ref().map(|(ok, _)| *ok), Some(true));
    assert_eq!(job.last().outcome, "all ranks finished");
}

#[test]
fn a_strategy_that_must_ask_waits_for_the_answer() {
    for (yes, outcome) in [(true, "recovered by restart"), (false, "open when the job ended")] {
        let mut job = Job::with(4, &["a", "b"], |policy| policy.strategies = may("restart", Permission::Ask));
        let why = job.order(Order::Approve { incident: IncidentId(1) }).expect_err("there is none");
        assert_eq!(why, "incident 1 is not open");
        kill(&mut job, 2);
        job.pass(600_000);
        assert_eq!(job.last().held, Some(HoldReason::AwaitingApproval));
        let incident = IncidentId(1);
        let taken = job.order(if yes { Order::Approve { incident } } else { Order::Decline { incident } });
        let answer = if yes { "restart is approved" } else { "restart is declined" };
        assert_eq!(taken.expect("it waits").text, answer);
        job.pass(100);
        assert_eq!(
            (job.last().outcome.as_str(), job.finished.is_some()),
            (outcome, !yes),
            "the next rung ends the job"
        );
    }
}

#[test]
fn a_declined_restart_is_asked_again_after_a_process_was_lost() {
    let mut job = four_with(Stops);
    job.order(Order::Allow { strategies: may("restart", Permission::Ask) }).expect("it is known");
    let wish = job.order(Order::Restart { ranks: BTreeSet::from([Rank(1)]) }).expect("a rank of it");
    job.pass(100);
    let incident = wish.incident.expect("an incident");
    job.order(Order::Decline { incident }).expect("restart asks");
    job.pass(10_000);
    assert_eq!(
        (job.last().held, &job.finished),
        (Some(HoldReason::AwaitingApproval), &None),
        "the job does not end over that"
    );
    job.order(Order::Approve { incident }).expect("it asks again");
    job.pass(100);
    assert_eq!(job.last().outcome, "recovered by restart");
}

#[test]
fn a_held_restart_is_decided_again_once_its_strategy_is_allowed() {
    let mut job = four();
    job.order(Order::Allow { strategies: may("restart", Permission::Ask) }).expect("it is known");
    kill(&mut job, 2);
    job.pass(100);
    assert_eq!(job.last().held, Some(HoldReason::AwaitingApproval));
    job.order(Order::Allow { strategies: may("restart", Permission::Auto) }).expect("it is known");
    job.pass(100);
    assert_eq!(job.last().outcome, "recovered by restart");
}

/// Stops what is to start again, and knows no further.
struct Stops;

impl RecoveryStrategy for Stops {
    fn name(&self) -> Name {
        Name::new("stops")
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        let lost = incident.lost_ranks(view);
        let procs = lost.iter().filter_map(|rank| view.world.proc(*rank)).collect();
        let stop = Action::Stop { procs, grace: Duration::ZERO, exact: true };
        Ok(Proposal::new(
            vec![Stage::new("stop", Duration::from_secs(1), vec![stop])],
            lost.iter().map(|rank| Domain::Process(Role::Rank(*rank))).collect(),
            Cost::downtime(Duration::ZERO).with_lost_work(Duration::from_secs(100_000)),
            Counted::Yes,
            "it is stopped",
        ))
    }

    fn advance(&self, _: &PlanExecution, _: &View) -> Advance {
        Advance::Fail("and nothing starts it".into())
    }
}

#[test]
fn a_fault_that_joins_a_wish_is_decided_as_a_fault() {
    let mut job = Job::with(4, &["a", "b"], |policy| policy.strategies = may("restart", Permission::Ask));
    job.order(Order::Restart { ranks: BTreeSet::new() }).expect("all of them");
    job.pass(100);
    assert!(job.kernel.explain(IncidentId(1)).is_some_and(|why| why.faults.len() == 1));
    kill(&mut job, 2);
    let why = job.kernel.explain(IncidentId(1)).expect("it was decided");
    assert_eq!((why.faults.len(), why.held, why.report.blamed), (2, Some(HoldReason::AwaitingApproval), vec![Rank(2)]));
}

#[test]
fn a_wish_waits_for_the_first_start_and_may_come_to_nothing() {
    let mut job = Job::with(2, &["a", "b"], |policy| {
        policy.strategies = may("restart", Permission::Ask);
        policy.ready = Ready::Stepping; // so that the start takes its time
    });
    let taken = job.order(Order::Restart { ranks: BTreeSet::new() }).expect("all of them");
    job.pass(100);
    for rank in 0..2 {
        job.observe(rank, Signal::Progress { step: 1 });
    }
    job.pass(100);
    job.order(Order::Decline { incident: taken.incident.expect("an incident") }).expect("it asks when it has started");
    for rank in 0..2 {
        job.set_phase(rank, exited(Termination::Code(0), None));
    }
    assert_eq!(job.finished.as_ref().map(|(ok, _)| *ok), Some(true));
}

#[test]
fn an_order_declined_during_a_pause_does_not_cover_later_faults() {
    let mut job = Job::with(4, &["a", "b"], |policy| policy.strategies = may("restart", Permission::Ask));
    let wish =
        job.order(Order::Restart { ranks: BTreeSet::new() }).expect("all of them").incident.expect("an incident");
    job.pass(100);
    job.order(Order::Pause).expect("it runs");
    job.order(Order::Decline { incident: wish }).expect("it asks");
    assert!(job.last().outcome.starts_with("not done: leave in the job"), "{}", job.last().outcome);
    kill(&mut job, 2);
    job.order(Order::Resume).expect("it is paused");
    job.pass(100);
    assert_eq!(
        (job.last().id, job.last().held, job.finished),
        (IncidentId(2), Some(HoldReason::AwaitingApproval), None)
    );
}

/// Thinks that it may pass, and then not any more.
struct Vain;

impl RecoveryStrategy for Vain {
    fn name(&self) -> Name {
        Name::new("vain")
    }

    fn propose(&self, incident: &Incident, _: &View) -> Result<Proposal, RefusalError> {
        let stages = vec![Stage::new("hope", Duration::from_secs(1), vec![])];
        let touches = incident.faults.iter().map(|fault| fault.primary_suspect().domain.clone()).collect();
        let cost = Cost::downtime(Duration::ZERO);
        Ok(Proposal::new(stages, touches, cost, Counted::Yes, "it may pass"))
    }

    fn advance(&self, _: &PlanExecution, _: &View) -> Advance {
        Advance::Fail("it did not pass".into())
    }
}

#[test]
fn a_failed_recovery_that_stopped_no_rank_does_not_end_the_job() {
    let restart = |job: &mut Job| job.order(Order::Restart { ranks: BTreeSet::from([Rank(1)]) }).map(drop);
    let reported = |job: &mut Job| {
        job.give(external_fault(job, Domain::Node(node("a"))));
        Ok(())
    };
    for (what, cause) in
        [("a wish", restart as fn(&mut Job) -> Result<(), String>), ("what is reported of a host", reported)]
    {
        let mut job = four_with(Vain);
        job.order(Order::Allow { strategies: may("restart", Permission::Never) }).expect("it is known");
        cause(&mut job).expect("it is taken");
        job.pass(10_000);
        let outcome = job.last().outcome;
        assert!(outcome.starts_with("not done: ") && outcome.contains("it did not pass"), "{what}: {outcome}");
        assert_eq!((job.generation(), job.finished), (1, None), "{what}");
    }
}

#[test]
fn an_operators_permission_outlives_the_supervisor() {
    let mut job = four();
    let why = job.order(Order::Allow { strategies: may("restrat", Permission::Never) }).expect_err("a slip of the pen");
    assert_eq!(
        why,
        "there is no strategy restrat; the runtime has retry, recover-in-place, recover, shrink, grow, dump, restart, \
         dump-exit, exit"
    );
    job.order(Order::Allow { strategies: may("restart", Permission::Ask) }).expect("it is known");
    let snapshot = job.kernel.snapshot();
    job.kernel = Kernel::restore(plugins(), &snapshot).expect("the same version").0;
    let spec = JobSpec::new("test", 4, WorkerSpec::new(["train"])).with_nodes([node("a"), node("b")]);
    job.give(Input::Start(Box::new(Start {
        spec: Arc::new(spec),
        trace: None,
        rendezvous_service: None,
        resume: None,
    })));
    assert_eq!(job.kernel.status().permissions[&Name::new("restart")], Permission::Ask);
}

#[test]
fn a_checkpoint_on_demand_is_unsupported_where_no_strategy_saves_one() {
    let mut job = four();
    let mut strategies = plugins().strategies;
    strategies.retain(|strategy| strategy.name().as_str() != "dump");
    job.kernel =
        Kernel::restore(Plugins { strategies, ..plugins() }, &job.kernel.snapshot()).expect("it is the same").0;
    let why = job.order(Order::Checkpoint).expect_err("no rank saves");
    let expected = "no strategy of this runtime saves a checkpoint on request: none is named dump (there are retry, recover-in-place, recover, shrink, grow, restart, dump-exit, exit)";
    assert_eq!(why, expected);
}

#[test]
fn a_checkpoint_order_that_cannot_be_saved_restarts_no_rank() {
    let mut job = four();
    job.order(Order::Checkpoint).expect("there is a strategy that saves");
    job.pass(100);
    let outcome = job.last().outcome;
    assert!(outcome.starts_with("not done: ") && outcome.contains("policy.checkpoint_dir"), "{outcome}");
    assert!(outcome.contains("the operator asks for dump"), "{outcome}");
    assert_eq!((job.generation(), job.finished), (1, None));
}

fn broken(job: &Job, host: &'static str) -> Input {
    external_fault(job, Domain::Device(node(host), 3))
}

fn external_fault(job: &Job, of: Domain) -> Input {
    let damage = Damage { device: Health::Faulty, ..Damage::default() };
    let suspect = Suspect::certain(of, FaultClass::Device, damage);
    Input::Requested(Request::Fault(Box::new(Fault::new(Name::new("dcgm"), job.now, suspect))))
}

#[test]
fn a_host_with_a_broken_device_is_left_by_a_recovery_that_counts() {
    let mut job = four();
    job.give(broken(&job, "a"));
    job.pass(100);
    assert_eq!(job.hosts(), ["b", "b", "b", "b"]);
    assert_eq!((job.kernel.budget_left(), job.kernel.view().is_ready(&node("a"))), (9, false));
    assert_eq!(job.kernel.status().nodes[0].taken_out.as_deref(), Some("reported as broken by dcgm"));
}

#[test]
fn a_host_removal_beyond_the_cap_needs_approval() {
    let within = Duration::from_secs(3600);
    let cap = RemovalCap { nodes_max: 1, within };
    let mut job = Job::with(2, &["a", "b", "c", "d"], |policy| policy.node_removals = cap);
    job.give(broken(&job, "a"));
    job.pass(100);
    assert_eq!(job.last().outcome, "recovered by restart");
    job.give(broken(&job, "b"));
    job.pass(100);
    let incident = job.last();
    assert_eq!(incident.held, Some(HoldReason::AwaitingApproval));
    let words = "held: 1 hosts were cordoned within 3600s, and 1 may be without an approval";
    assert!(incident.reason.ends_with(words), "{}", incident.reason);
    job.order(Order::Approve { incident: incident.id }).expect("it waits");
    job.pass(100);
    assert_eq!(job.last().outcome, "recovered by restart");
    job.pass(3_600_000);
    let host = job.hosts()[0].to_owned();
    let host = if host == "c" { "c" } else { "d" };
    job.give(broken(&job, host));
    job.pass(100);
    assert_eq!(job.last().held, None, "an hour later it is free again");
}

/// Two ranks on their only host, which is reported as broken.
fn reported_as_broken() -> Job {
    let mut job = Job::on(2, &["a"]);
    job.give(external_fault(&job, Domain::Node(node("a"))));
    job.pass(100);
    job
}

#[test]
fn a_host_fault_without_a_lost_rank_does_not_end_the_job() {
    let mut job = reported_as_broken();
    let incident = job.last();
    let words = "not done: device in node a; retry: no process has reported a failed step; recover-in-place: no rank \
                 is lost; recover: there is no other host; shrink: the job needs all of its 2 ranks; set \
                 policy.min_ranks to allow fewer; grow: the job needs all of its 2 ranks; set policy.min_ranks to \
                 allow fewer; dump: the job names no directory for checkpoints (policy.checkpoint_dir); restart: node \
                 a takes nothing new, and no other host has room for rank 0; dump-exit: the job names no directory for \
                 checkpoints (policy.checkpoint_dir); exit: no rank was lost: the job continues";
    assert_eq!((job.finished.clone(), job.generation(), incident.outcome.as_str()), (None, 1, words));
    kill(&mut job, 0);
    assert_eq!((job.finished.clone(), job.generation()), (None, 2), "a matter of its own");
}

#[test]
fn a_slow_rank_is_reported_and_not_restarted() {
    let mut job = Job::on(2, &["a"]);
    let damage = Damage { process: Health::Healthy, state: Health::Healthy, ..Damage::default() };
    let domain = Domain::Process(Role::Rank(Rank(1)));
    let slow = Suspect::new(domain, FaultClass::Slow, damage, 900);
    job.give(Input::Requested(Request::Fault(Box::new(Fault::new(Name::new("slow-rank"), job.now, slow)))));
    job.pass(100);
    let incident = job.last();
    let words = "not done: slow in rank 1; retry: no process has reported a failed step; recover-in-place: no rank is \
                 lost; recover: there is no other host; shrink: the job needs all of its 2 ranks; set policy.min_ranks \
                 to allow fewer; grow: the job needs all of its 2 ranks; set policy.min_ranks to allow fewer; dump: \
                 the job names no directory for checkpoints (policy.checkpoint_dir); restart: the blamed ranks still \
                 train, and would only restart in the same place; dump-exit: the job names no directory for \
                 checkpoints (policy.checkpoint_dir); exit: no rank was lost: the job continues";
    assert_eq!((job.finished.clone(), job.generation(), incident.outcome.as_str()), (None, 1, words));
    assert_eq!((incident.blamed, job.kernel.budget_left()), (vec![Rank(1)], 10), "reported, and not paid for");
    kill(&mut job, 1);
    assert_eq!((job.finished.clone(), job.generation()), (None, 2), "a matter of its own");
}

#[test]
fn a_host_fault_ends_no_paused_observed_or_restarted_job() {
    let mut job = Job::on(2, &["a"]);
    job.order(Order::Pause).expect("it runs");
    job.give(external_fault(&job, Domain::Node(node("a"))));
    job.pass(100);
    assert!(job.last().outcome.starts_with("not done"), "{}", job.last().outcome);
    kill(&mut job, 1);
    job.order(Order::Resume).expect("it is paused");
    job.pass(100);
    assert_eq!((job.finished.clone(), job.last().outcome.as_str()), (None, "recovered by restart"));

    let mut job = Job::on(2, &["a"]);
    job.give(external_fault(&job, Domain::Node(node("a"))));
    job.order(Order::Restart { ranks: BTreeSet::new() }).expect("it runs");
    let victim = Suspect::victim(Domain::Process(Role::Rank(Rank(1))), FaultClass::Slow, Damage::default());
    job.give(Input::Requested(Request::Fault(Box::new(Fault::new(Name::new("dcgm"), job.now, victim)))));
    job.pass(100);
    assert!(job.finished.is_none() && job.last().outcome.starts_with("not done"), "all in one window");

    let mut job = Job::with(2, &["a"], |policy| policy.mode = Mode::DryRun);
    job.give(external_fault(&job, Domain::Node(node("a"))));
    job.pass(100);
    assert_eq!(job.kernel.report().incidents.last().map(|incident| incident.held), Some(None), "it is closed");
}

#[test]
fn a_host_that_is_lost_with_its_ranks_ends_a_job_that_has_no_other() {
    let mut job = Job::on(2, &["a"]);
    job.give(external_fault(&job, Domain::Node(node("a"))));
    kill(&mut job, 0);
    let (ok, reason) = job.finished.clone().expect("there is no other host");
    assert_eq!((ok, reason.as_str()), (false, "device in node a; also exit in rank 0 on node a"));
}

#[test]
fn a_repeated_fault_of_a_removed_host_changes_nothing() {
    let mut job = four();
    for _ in 0..3 {
        job.give(broken(&job, "a"));
        job.pass(100);
    }
    assert_eq!((job.hosts(), job.generation()), (vec!["b", "b", "b", "b"], 2), "one recovery");
    assert_eq!((job.kernel.budget_left(), job.finished.clone()), (9, None));
}

#[test]
fn a_second_opinion_is_taken_once() {
    let mut job = four();
    let sure = |damage, permille| {
        let suspect = Suspect::certain(Domain::Device(node("a"), 0), FaultClass::Device, damage)
            .with_confidence_permille(permille);
        Input::Requested(Request::Fault(Box::new(Fault::new(Name::new("dcgm"), JobTime::START, suspect))))
    };
    job.slow = Some(0); // the recovery waits for this rank's end
    let broken = Damage { device: Health::Faulty, ..Damage::default() };
    job.give(sure(broken, 600));
    job.pass(100);
    for _ in 0..5 {
        job.give(sure(Damage { state: Health::Faulty, ..broken }, 950));
        job.pass(100);
    }
    assert_eq!(job.kernel.budget_left(), 8, "the first opinion and the second, not every repetition");
}

#[test]
fn a_host_that_could_not_be_left_can_be_drained_again() {
    let mut job = Job::with(2, &["a", "b"], |policy| policy.strategies = may("restart", Permission::Ask));
    let first = job.order(Order::Drain { node: node("a") }).expect("b has room").incident.expect("a rank is there");
    job.pass(100);
    job.order(Order::Decline { incident: first }).expect("it asks");
    job.pass(100);
    let again = job.order(Order::Drain { node: node("a") }).expect("it is still there");
    assert_eq!((again.text.as_str(), job.hosts()), ("1 ranks move away from node a", vec!["a", "b"]));
}

#[test]
fn a_broken_spare_host_is_removed_without_a_restart() {
    let mut job = Job::on(2, &["a", "b", "c"]);
    assert_eq!(job.hosts(), ["a", "b"]);
    job.give(broken(&job, "c"));
    job.pass(100);
    assert_eq!((job.generation(), job.kernel.view().is_ready(&node("c"))), (1, false));
    assert_eq!(job.last().outcome, "no process runs on it: cordoned");
}

#[test]
fn a_drain_is_refused_if_the_only_other_host_is_broken() {
    let cap = RemovalCap { nodes_max: 0, within: Duration::from_secs(3600) };
    let mut job = Job::with(4, &["a", "b"], |policy| policy.node_removals = cap);
    job.give(broken(&job, "a"));
    job.pass(100);
    assert_eq!(job.last().held, Some(HoldReason::AwaitingApproval));
    let why = job.order(Order::Drain { node: node("b") }).expect_err("where should its ranks go");
    assert_eq!(why, "node a takes nothing new, and no other host has room for rank 0");
    job.pass(100);
    assert_eq!(job.finished, None);
}

#[test]
fn an_external_fault_cannot_use_the_operator_name() {
    let mut job = four();
    let gone = Suspect::certain(Domain::Process(Role::Rank(Rank(1))), FaultClass::Exit, Damage::PROCESS_GONE);
    job.give(Input::Requested(Request::Fault(Box::new(Fault::new(OPERATOR, job.now, gone)))));
    job.pass(100);
    assert_eq!((job.last().by, job.kernel.budget_left()), (Name::new("outside"), 9));
}

#[test]
fn an_incident_is_explained_with_its_losers_and_its_evidence() {
    let mut job = four();
    kill(&mut job, 2);
    let why = job.kernel.explain(IncidentId(1)).expect("it was decided");
    assert_eq!(why.chosen.map(|(name, _)| name), Some(Name::new("restart")));
    assert_eq!((why.lost.len(), why.refused.len(), why.faults.len()), (1, 7, 1));
    assert_eq!((why.lost[0].strategy.as_str(), why.report.blamed), ("exit", vec![Rank(2)]));
    assert!(job.kernel.explain(IncidentId(2)).is_none());
}

#[test]
fn a_stop_has_an_author_a_reason_and_an_answer() {
    let mut job = four();
    job.slow = Some(1);
    let accepted = job.order(Order::Stop { grace: None }).expect("it is possible at any time");
    assert_eq!(accepted.text, "the job stops; processes that run after 10s are killed");
    let again = job.order(Order::Stop { grace: None }).expect("as above");
    assert_eq!(again.text, "the job stops already");
    let sooner = job.order(Order::Stop { grace: Some(Duration::from_secs(1)) }).expect("as above");
    assert_eq!(sooner.text, "the job stops already; processes that run after 1s are killed");
    let stops = job.deeds.iter().filter(|deed| matches!(deed, Action::Stop { .. })).count();
    assert_eq!(stops, 2, "the third order shortens the grace period of the first");
    let orders = job.kernel.status().orders;
    assert_eq!(orders.len(), 3);
    assert!(orders.iter().all(|order| (order.by.as_str(), order.reason.as_str()) == ("ann", "she knows why")));
}

#[test]
fn orders_for_a_job_that_is_ending_are_refused() {
    let mut job = four();
    job.slow = Some(1);
    job.order(Order::Stop { grace: None }).expect("it is possible at any time");
    assert_eq!(job.order(Order::Pause).expect_err("too late"), "the job is ending");
    assert!(
        !job.deeds.iter().any(|deed| matches!(deed, Action::Start { batch, .. } if batch.world.generation().0 > 1))
    );
}

/// Starts one killed rank again, in its place, and no other rank; it may disturb all ranks by that.
struct Narrow {
    disturbs_all: bool,
}

impl RecoveryStrategy for Narrow {
    fn name(&self) -> Name {
        Name::new("narrow")
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        let rank = *incident.lost_ranks(view).first().ok_or("no rank is lost")?;
        let world = Arc::new(view.world.successor(Counted::Yes, |members| {
            members.entry(rank).and_modify(|member| member.incarnation = member.incarnation.next());
        }));
        let proc = world.proc(rank).expect("a member");
        let node = world.members()[&rank].node.clone().expect("a host");
        let orders = vec![StartOrder::new(proc, Place::On(node), Arc::clone(&view.spec.worker))];
        let start = Action::Start { batch: StartBatch::new(Arc::clone(&world), orders), until: Ready::Running };
        let stages = vec![Stage::new("start", Duration::from_secs(60), vec![Action::Enter(world), start])];
        let touches = vec![if self.disturbs_all { Domain::Job } else { Domain::Process(Role::Rank(rank)) }];
        let cost = Cost::downtime(Duration::from_secs(1));
        Ok(Proposal::new(stages, touches, cost, Counted::Yes, "it is enough"))
    }
}

#[test]
fn a_drain_over_which_a_narrower_recovery_has_passed_is_taken_up_again() {
    let mut job = four_with(Narrow { disturbs_all: false });
    job.order(Order::Drain { node: node("a") }).expect("b has room");
    job.set_phase(3, exited(KILLED, None)); // on b, at the same time
    job.pass(1_000);
    let incidents = job.kernel.report().incidents;
    let outcomes: Vec<&str> = incidents.iter().map(|incident| incident.outcome.as_str()).collect();
    assert_eq!(outcomes, ["recovered by narrow", "recovered by restart"]);
    assert_eq!((job.hosts(), job.kernel.budget_left()), (vec!["b"; 4], 9), "only the kill is paid for");
}

#[test]
fn a_drain_that_came_with_another_wish_is_not_lost_over_it() {
    let mut job = four_with(Narrow { disturbs_all: true }); // as a strategy that keeps the processes of all others does
    job.order(Order::Drain { node: node("a") }).expect("b has room");
    job.order(Order::Restart { ranks: BTreeSet::from([Rank(3)]) }).expect("it is on b");
    job.pass(1_000);
    let incidents = job.kernel.report().incidents;
    let outcomes: Vec<&str> = incidents.iter().map(|incident| incident.outcome.as_str()).collect();
    assert_eq!((outcomes, job.hosts()), (vec!["recovered by narrow", "recovered by restart"], vec!["b"; 4]));
}

/// Starts ranks 2 and 3 again on host a, when rank 2 has stopped.
struct Move;

impl RecoveryStrategy for Move {
    fn name(&self) -> Name {
        Name::new("move")
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        if !incident.lost_ranks(view).contains(&Rank(3)) {
            return Err("rank 3 is there".into());
        }
        let ranks = [Rank(2), Rank(3)];
        let world = Arc::new(view.world.successor(Counted::Yes, |members| {
            for rank in ranks {
                let next = view.next_incarnation(&Role::Rank(rank));
                members.insert(rank, Member { incarnation: next, node: Some(node("a")), device: None });
            }
        }));
        let order = |rank| {
            StartOrder::new(world.proc(rank).expect("a member"), Place::On(node("a")), Arc::clone(&view.spec.worker))
        };
        let batch = StartBatch::new(Arc::clone(&world), ranks.map(order).to_vec());
        let procs = view.alive().filter(|proc| proc.role == Role::Rank(Rank(2))).collect();
        let within = Duration::from_secs(60);
        let stop = Action::Stop { procs, grace: Duration::ZERO, exact: true };
        let start = vec![Action::Enter(Arc::clone(&world)), Action::Start { batch, until: Ready::Running }];
        let stages = vec![Stage::new("stop", within, vec![stop]), Stage::new("start", within, start)];
        let touches = ranks.map(|rank| Domain::Process(Role::Rank(rank))).to_vec();
        let cost = Cost::downtime(Duration::from_secs(1));
        Ok(Proposal::new(stages, touches, cost, Counted::Yes, "there is room"))
    }
}

#[test]
fn a_host_drained_during_a_recovery_receives_no_starts() {
    let mut job = four_with(Move);
    job.slow = Some(2);
    kill(&mut job, 3);
    job.order(Order::Drain { node: node("a") }).expect("b has room");
    job.slow = None;
    job.set_phase(2, exited(KILLED, None));
    job.pass(1_000);
    let is_on_a = |order: &StartOrder| order.place == Place::On(node("a"));
    let later = |deed: &Action| matches!(deed, Action::Start { batch, .. } if batch.world.generation().0 > 1 && batch.starts.iter().any(is_on_a));
    assert!(!job.deeds.iter().any(later), "{:?}", job.deeds);
    assert_eq!(job.hosts(), ["b"; 4]);
}

#[test]
fn no_process_moves_before_the_first_listing() {
    let mut job = four();
    let spec = JobSpec::new("test", 4, WorkerSpec::new(["train"])).with_nodes([node("a"), node("b")]);
    job.kernel = Kernel::new(plugins());
    job.give(Input::Start(Box::new(Start {
        spec: Arc::new(spec),
        trace: None,
        rendezvous_service: None,
        resume: None,
    })));
    let why = job.order(Order::Restart { ranks: BTreeSet::from([Rank(1)]) }).expect_err("it is too early");
    assert_eq!(why, "the running processes are not known yet: repeat the order in a moment");
}

/// Thinks that it helps whatever happens, and touches no rank but rank 3.
struct Aside;

impl RecoveryStrategy for Aside {
    fn name(&self) -> Name {
        Name::new("aside")
    }

    fn propose(&self, _: &Incident, _: &View) -> Result<Proposal, RefusalError> {
        let stages = vec![Stage::new("nothing", Duration::from_secs(1), vec![])];
        let touches = vec![Domain::Process(Role::Rank(Rank(3)))];
        let cost = Cost::downtime(Duration::ZERO);
        Ok(Proposal::new(stages, touches, cost, Counted::No, "it is cheap"))
    }
}

#[test]
fn a_strategy_that_does_not_touch_the_order_target_is_refused() {
    let mut job = four();
    let mut plugins = plugins();
    plugins.strategies.insert(0, Box::new(Aside));
    let snapshot = job.kernel.snapshot();
    job.kernel = Kernel::restore(plugins, &snapshot).expect("the same version").0;
    job.order(Order::Drain { node: node("a") }).expect("b has room");
    job.pass(1_000);
    assert_eq!((job.last().outcome.as_str(), job.hosts()), ("recovered by restart", vec!["b"; 4]));
    let refused = job.kernel.explain(job.last().id).expect("it was decided").refused;
    assert_eq!(refused[0].reason, "it does not do what the operator asks for");
}
