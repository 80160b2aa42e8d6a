//! The guard of a host: what comes of its end is blamed on it, and one that does not answer is waited for.

use super::job::{Job, KILLED, exited};
use taskd_kernel::detect::{Damage, Fault, FaultClass, Health, Suspect};
use taskd_kernel::job::*;
use taskd_kernel::kernel::{Input, Request};
use taskd_kernel::recover::Action;
use taskd_kernel::state::*;
use taskd_kernel::trace::Signal;

fn guard(host: &'static str, pid: u32, state: GuardState) -> GuardStatus {
    let node = NodeId(Name::new(host));
    GuardStatus::new(node, Name::from(format!("{pid}:1")), pid, state)
}

fn set_guard(job: &mut Job, host: &'static str, pid: u32, state: GuardState) {
    job.give(Input::Changed(Change::Guard(guard(host, pid, state))));
}

fn gone(why: &str, was_agreed: bool) -> GuardEnd {
    GuardEnd::new(why.to_owned()).with_was_agreed(was_agreed)
}

fn stopped() -> GuardState {
    GuardState::Silent("process 7 is stopped (state T)".into())
}

fn job_on(hosts: &[&'static str]) -> Job {
    let mut job = Job::on(4, hosts);
    hosts.iter().zip(7..).for_each(|(host, pid)| set_guard(&mut job, host, pid, GuardState::Answers));
    job.pass(1_000);
    job
}

fn dies(job: &mut Job, ranks: impl IntoIterator<Item = u32> + Clone, how: Termination) {
    ranks.clone().into_iter().for_each(|rank| job.set_phase(rank, Phase::Dead(how)));
    ranks.into_iter().for_each(|rank| job.set_phase(rank, exited(how, None)));
}

#[test]
fn a_gone_guard_is_blamed_and_its_ranks_are_victims() {
    for how in [KILLED, Termination::Unknown, Termination::Code(1)] {
        let mut job = job_on(&["a"]);
        set_guard(&mut job, "a", 7, GuardState::Gone(gone("guard 7 was killed: signal 9 (SIGKILL)", false)));
        dies(&mut job, 0..4, how);
        set_guard(&mut job, "a", 8, GuardState::Answers);
        job.pass(100);
        let incident = job.last();
        assert_eq!((&incident.domain, &incident.class), (&Domain::Guard(NodeId(Name::new("a"))), &FaultClass::Exit));
        assert_eq!((incident.blamed, incident.victims), (vec![], (0..4).map(Rank).collect()));
        assert!(incident.evidence[0].contains("guard 7 was killed"), "{:?}", incident.evidence);
        assert_eq!(incident.outcome, "recovered by restart");
        assert_eq!(job.kernel.budget_left(), 9, "one recovery is paid for, however many ranks it had");
        assert_eq!(job.kernel.report().incidents.len(), 1);
    }
}

#[test]
fn ranks_of_other_hosts_that_fail_after_a_guard_are_victims() {
    let mut job = job_on(&["a", "b"]);
    set_guard(&mut job, "a", 7, GuardState::Gone(gone("guard 7 was killed", false)));
    dies(&mut job, 0..2, KILLED);
    job.set_phase(3, exited(Termination::Code(1), None));
    job.pass(100);
    let incident = job.last();
    assert_eq!((incident.blamed, incident.victims), (vec![], vec![Rank(0), Rank(1), Rank(3)]));
}

#[test]
fn a_rank_that_dies_before_its_guard_is_blamed_itself() {
    let mut job = job_on(&["a"]);
    dies(&mut job, [2], KILLED);
    set_guard(&mut job, "a", 7, GuardState::Gone(gone("guard 7 was killed", false)));
    dies(&mut job, [0, 1, 3], KILLED);
    job.pass(100);
    assert_eq!(job.last().blamed, [Rank(2)]);
}

#[test]
fn a_guard_that_ended_as_agreed_takes_nothing_from_the_budget() {
    let mut job = job_on(&["a"]);
    let why = "no owner came within the 60s that guard 7 was told to keep its processes for";
    let end = gone(why, true);
    let status = guard("a", 8, GuardState::Answers).with_before(end);
    let nodes = vec![NodeStatus::new(NodeId(Name::new("a")), NodeState::Ready, 4)];
    job.give(Input::Listed(Listing::default().with_nodes(nodes).with_guards(vec![status]))); // the next supervisor's first
    job.pass(100);
    let incident = job.last();
    assert_eq!(incident.domain, Domain::Guard(NodeId(Name::new("a"))));
    assert_eq!((incident.blamed, incident.victims.len()), (vec![], 4));
    assert!(incident.evidence[0].contains(why), "{:?}", incident.evidence);
    assert_eq!((incident.outcome.as_str(), job.kernel.budget_left()), ("recovered by restart", 10));
}

#[test]
fn a_guard_without_processes_may_end_without_an_incident() {
    let mut job = Job::on(1, &["a", "b"]);
    set_guard(&mut job, "b", 7, GuardState::Answers);
    set_guard(&mut job, "b", 7, GuardState::Gone(gone("guard 7 was killed", false)));
    set_guard(&mut job, "b", 8, GuardState::Answers);
    job.pass(1_000);
    assert_eq!(job.kernel.report().incidents, []);
}

#[test]
fn the_first_start_waits_for_a_guard_that_does_not_answer() {
    let mut job = Job::with(2, &["a"], |policy| policy.ready = Ready::Stepping);
    set_guard(&mut job, "a", 7, GuardState::Answers);
    set_guard(&mut job, "a", 7, stopped());
    job.pass(20_000);
    set_guard(&mut job, "a", 7, GuardState::Answers);
    job.pass(10_000);
    (0..2).for_each(|rank| job.observe(rank, Signal::Progress { step: 1 }));
    job.pass(60_000);
    (0..2).for_each(|rank| job.set_phase(rank, exited(Termination::Code(0), None)));
    job.pass(1_000);
    assert!(job.finished.as_ref().is_some_and(|(ok, _)| *ok), "{:?}", job.finished);
    assert_eq!(job.kernel.budget_left(), 10);
}

#[test]
fn a_host_fault_is_decided_when_its_silent_guard_answers() {
    let mut job = job_on(&["a"]);
    let host = Domain::Node(NodeId(Name::new("a")));
    let lost = Suspect::certain(host, FaultClass::Device, Damage { process: Health::Faulty, ..Damage::default() });
    let fault = Fault::new(Name::new("monitor"), job.now, lost);
    job.give(Input::Requested(Request::Fault(Box::new(fault))));
    set_guard(&mut job, "a", 7, stopped());
    job.pass(30_000);
    assert_eq!(job.chosen().len(), 0, "nothing could be done there");
    set_guard(&mut job, "a", 7, GuardState::Answers);
    job.pass(30_000);
    assert_eq!(job.chosen().len(), 1, "{:?}", job.last());
}

#[test]
fn a_silent_guard_is_reported_and_no_rank_is_restarted() {
    let mut job = job_on(&["a"]);
    let deeds = job.deeds.len();
    set_guard(&mut job, "a", 7, stopped());
    let open = job.last();
    assert_eq!((&open.domain, &open.class), (&Domain::Guard(NodeId(Name::new("a"))), &FaultClass::Silence));
    job.pass(3_600_000);
    set_guard(&mut job, "a", 7, GuardState::Answers);
    job.pass(60_000);
    let incident = job.last();
    assert_eq!(incident.outcome, "the guard of node a answers again, after 3600.0 s");
    assert_eq!((job.deeds.len(), job.kernel.budget_left()), (deeds, 10));
    assert!(job.finished.is_none());
}

#[test]
fn a_stall_under_a_silent_guard_is_waited_for_and_ends_with_it() {
    let mut job = job_on(&["a"]);
    let deeds = job.deeds.len();
    (0..4).for_each(|rank| job.observe(rank, Signal::Progress { step: 1 }));
    set_guard(&mut job, "a", 7, stopped()); // ranks wait until a process takes what they print
    job.pass(3_600_000);
    set_guard(&mut job, "a", 7, GuardState::Answers);
    job.pass(1_500);
    (0..4).for_each(|rank| job.observe(rank, Signal::Progress { step: 2 }));
    job.pass(60_000);
    assert_eq!((job.deeds.len(), job.kernel.budget_left()), (deeds, 10), "{:?}", job.kernel.report().incidents);
    assert!(job.kernel.report().incidents.iter().all(|incident| incident.blamed.is_empty()));
}

#[test]
fn a_death_under_a_silent_guard_is_recovered_when_it_answers() {
    let mut job = job_on(&["a"]);
    set_guard(&mut job, "a", 7, stopped());
    job.pass(10_000);
    let deeds = job.deeds.len();
    dies(&mut job, [2], KILLED); // as the launcher sees it by itself
    job.pass(600_000);
    assert_eq!(job.deeds.len(), deeds, "nothing can be started there");
    set_guard(&mut job, "a", 7, GuardState::Answers);
    job.pass(10_000);
    let incident = job.last();
    assert_eq!(incident.outcome, "recovered by restart");
    assert!(incident.blamed.contains(&Rank(2)), "{incident:?}");
}

#[test]
fn a_stop_that_waits_for_a_silent_guard_is_not_too_late() {
    let mut job = job_on(&["a", "b"]);
    job.slow = Some(0); // on host a
    dies(&mut job, [3], KILLED);
    job.pass(1_000);
    assert!(matches!(job.deeds.last(), Some(Action::Stop { .. })), "{:?}", job.deeds);
    set_guard(&mut job, "a", 7, stopped());
    job.pass(3_600_000);
    assert!(job.finished.is_none(), "the job waits");
    set_guard(&mut job, "a", 7, GuardState::Answers);
    job.slow = None;
    job.set_phase(0, exited(Termination::Signal { number: 15, core_dumped: false }, None));
    job.pass(10_000);
    let reports = job.kernel.report().incidents;
    assert!(reports.iter().any(|incident| incident.outcome == "recovered by restart"), "{reports:?}");
    assert_eq!(job.kernel.budget_left(), 9, "no attempt has failed");
}

#[test]
fn a_job_that_is_ended_does_not_wait_for_a_silent_guard() {
    let mut job = job_on(&["a"]);
    job.slow = Some(0);
    set_guard(&mut job, "a", 7, stopped());
    job.give(Input::Requested(taskd_kernel::kernel::Request::Stop { reason: "enough".into(), grace: None }));
    job.pass(120_000);
    assert!(job.finished.is_some());
}

#[test]
fn a_silent_guard_that_is_found_dead_is_blamed_for_its_end() {
    let mut job = job_on(&["a"]);
    set_guard(&mut job, "a", 7, stopped());
    job.pass(60_000);
    set_guard(&mut job, "a", 7, GuardState::Gone(gone("guard 7 was killed", false)));
    dies(&mut job, 0..4, KILLED);
    set_guard(&mut job, "a", 8, GuardState::Answers);
    job.pass(10_000);
    let incident = job.last();
    assert_eq!((incident.outcome.as_str(), incident.blamed), ("recovered by restart", vec![]));
    assert_eq!(job.generation(), 2);
}
