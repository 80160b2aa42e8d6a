//! Hosts whose leases have ended: they stop their ranks by force. That is no fault of the program, and the ranks start again
//! once their hosts have leases.

use super::job::{Job, KILLED, exited, report};
use super::lost_hosts::{lose, set_node};
use taskd_kernel::detect::FaultClass;
use taskd_kernel::job::*;
use taskd_kernel::kernel::Outcome;
use taskd_kernel::state::*;

/// More often than any budget, number of attempts or number of free recoveries allows.
const OFTEN: u32 = 24;

fn fenced() -> Phase {
    let why = "killed by this host's guard: the time until which the host may run processes was over";
    exited(KILLED, Some(ErrorReport::fenced(why)))
}

/// Four ranks on two hosts, with room for no more.
fn two_hosts(adjust: impl FnOnce(&mut Policy)) -> Job {
    let mut job = Job::with(4, &["a", "b"], |policy| {
        policy.ready = Ready::Stepping;
        adjust(policy);
    });
    ["a", "b"].into_iter().for_each(|host| set_node(&mut job, host, NodeState::Ready));
    job
}

/// Both hosts are out of sight until their leases have ended, and return one after the other.
fn overload(job: &mut Job) {
    ["a", "b"].into_iter().for_each(|host| set_node(job, host, NodeState::OutOfSight));
    job.pass(2_000);
    for (host, ranks) in [("a", [0, 1]), ("b", [2, 3])] {
        set_node(job, host, NodeState::Ready);
        ranks.into_iter().for_each(|rank| job.set_phase(rank, fenced()));
        job.pass(1_500);
    }
    job.pass(2_000);
}

#[test]
fn ranks_that_a_fence_stops_before_their_first_step_start_again_and_cost_nothing() {
    let mut job = two_hosts(|_| ());
    for time in 1..=OFTEN {
        overload(&mut job);
        assert_eq!(job.finished, None, "after {time} overloads");
        for rank in 0..4 {
            let proc = job.proc(rank);
            assert_eq!((&proc.phase, proc.incarnation), (&Phase::Running, Incarnation(time + 1)), "rank {rank}");
        }
    }
    assert_eq!((job.kernel.budget_left(), job.kernel.view().world.restarts()), (10, 0));
    let incident = job.last();
    assert_eq!((incident.class, incident.blamed.len(), incident.victims.len()), (FaultClass::Exit, 0, 4));
}

#[test]
fn a_job_that_can_shrink_waits_for_fenced_hosts_instead() {
    let mut job = two_hosts(|policy| policy.min_ranks = 2);
    overload(&mut job);
    assert_eq!((job.chosen(), job.kernel.view().world.size()), (vec!["restart"], 4));
}

#[test]
fn peers_that_fail_with_fenced_ranks_are_victims() {
    let mut job = two_hosts(|_| ());
    set_node(&mut job, "b", NodeState::OutOfSight);
    job.pass(2_000);
    job.set_phase(0, exited(Termination::Code(1), Some(report("DistError", "reset by peer").with_follow_up(true))));
    job.pass(500);
    assert_eq!(
        (job.finished.clone(), job.chosen().len()),
        (None, 0),
        "a host is out of sight: no room for its ranks yet"
    );
    set_node(&mut job, "b", NodeState::Ready);
    [2, 3].into_iter().for_each(|rank| job.set_phase(rank, fenced()));
    job.set_phase(1, exited(Termination::Code(1), None));
    job.pass(2_000);
    let incident = job.last();
    assert_eq!((incident.blamed, job.kernel.view().world.restarts()), (vec![], 0));
    assert_eq!(job.kernel.report().incidents.len(), 1);
    assert!((0..4).all(|rank| job.proc(rank).phase == Phase::Running));
}

#[test]
fn a_job_ends_when_hosts_stay_out_of_sight_for_too_long() {
    let mut job = two_hosts(|policy| policy.start_timeout = std::time::Duration::from_secs(60));
    set_node(&mut job, "b", NodeState::OutOfSight);
    job.set_phase(0, exited(KILLED, None));
    job.pass(59_000);
    assert_eq!(job.finished, None);
    job.pass(2_000);
    assert!(job.finished.is_some_and(|(ok, reason)| !ok && reason.starts_with("exit in rank 0")));
    assert_eq!(job.kernel.report().outcome, Outcome::Failed);
}

#[test]
fn hosts_that_were_lost_and_are_back_at_once_get_their_ranks_again() {
    let mut job = two_hosts(|_| ());
    lose(&mut job, "a", [0, 1]);
    lose(&mut job, "b", [2, 3]);
    job.pass(5_000);
    assert_eq!((job.finished.clone(), job.chosen().len()), (None, 0), "no host is left");
    set_node(&mut job, "b", NodeState::Ready);
    job.pass(5_000);
    assert_eq!(job.finished, None, "there is no room for the ranks of a");
    set_node(&mut job, "a", NodeState::Ready);
    job.pass(2_000);
    assert_eq!((job.chosen(), job.hosts()), (vec!["restart"], vec!["a", "a", "b", "b"]));
    assert!((0..4).all(|rank| job.proc(rank).phase == Phase::Running));

    let mut job = two_hosts(|_| ());
    lose(&mut job, "a", [0, 1]);
    job.pass(29_000);
    assert_eq!(job.finished, None);
    job.pass(2_000);
    let (ok, reason) = job.finished.clone().expect("it has waited long enough");
    assert!(!ok && reason.starts_with("node-lost in node a"), "{reason}");
}
