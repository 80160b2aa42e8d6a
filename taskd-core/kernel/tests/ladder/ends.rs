//! How ranks end, and which of them is named: one that leaves first, one that is interrupted, one that fails at every
//! start.

use super::job::{Job, KILLED, exited, failed, report};
use taskd_kernel::job::*;
use taskd_kernel::state::*;
use taskd_kernel::trace::Signal;

fn peer_lost() -> Phase {
    failed(report("RuntimeError", "Connection closed by peer").with_follow_up(true))
}

fn interrupted() -> Phase {
    let interrupt = Termination::Signal { number: 2, core_dumped: false };
    exited(interrupt, Some(report("KeyboardInterrupt", "KeyboardInterrupt")))
}

fn fails_at_start(line: &str) -> Phase {
    let stderr_tail = format!("loading\n{line}\n\n");
    Phase::Exited(Box::new(Exit::new(Termination::Code(3)).with_stderr_tail(stderr_tail)))
}

#[test]
fn a_rank_that_finished_before_its_peers_is_named_with_its_exit() {
    let mut job = Job::of(3);
    for (rank, step) in [(0, 20), (1, 20), (2, 20)] {
        job.observe(rank, Signal::Progress { step });
    }
    job.pass(1_000);
    // Its last heartbeat was of an earlier step than its exit.
    job.set_phase(1, Phase::Exited(Box::new(Exit::new(Termination::Code(0)).with_step(21))));
    job.pass(5_000);
    for rank in [0, 2] {
        job.set_phase(rank, Phase::Dead(Termination::Code(1)));
    }
    for rank in [0, 2] {
        job.set_phase(rank, peer_lost());
    }
    job.pass(100);
    let incident = job.last();
    assert_eq!((incident.blamed, incident.victims), (vec![Rank(1)], vec![Rank(0), Rank(2)]));
    let expected = "rank 1#1 exited first: code 0 after step 21, while ranks 0 and 2 had not finished";
    assert_eq!(incident.evidence, [expected]);
}

#[test]
fn the_report_names_the_rank_that_left_first_if_all_blame_peers() {
    let mut job = Job::of(3);
    job.observe(2, Signal::Progress { step: 4 });
    job.set_phase(2, peer_lost());
    job.pass(2);
    job.set_phase(0, peer_lost());
    job.pass(100);
    let incident = job.last();
    assert_eq!(incident.domain, Domain::Process(Role::Rank(Rank(2))));
    let first = &incident.evidence[0];
    assert_eq!(
        first,
        "rank 2#1 ended first: exit code 1 after step 4; every failure points to another rank, and no rank is known to \
         have failed by itself"
    );
    assert!(!incident.evidence.iter().any(|line| line.contains("has ended because of")), "{:?}", incident.evidence);
}

#[test]
fn a_rank_that_was_killed_explains_more_than_one_that_has_finished() {
    let mut job = Job::of(3);
    job.set_phase(1, exited(Termination::Code(0), None));
    job.pass(1_000);
    job.set_phase(0, peer_lost());
    job.pass(2);
    job.set_phase(2, exited(KILLED, None));
    job.pass(100);
    assert_eq!(job.last().blamed, [Rank(2)]);
}

#[test]
fn a_single_interrupted_rank_is_the_cause() {
    let mut job = Job::of(3);
    job.set_phase(1, Phase::Dead(Termination::Signal { number: 2, core_dumped: false }));
    job.set_phase(1, interrupted());
    job.pass(5);
    job.set_phase(0, peer_lost());
    job.pass(3_100);
    let incident = job.last();
    assert_eq!((incident.blamed, incident.victims), (vec![Rank(1)], vec![Rank(0)]));
    assert!(incident.evidence[0].contains("interrupted, and no other rank was interrupted"), "{:?}", incident.evidence);
}

#[test]
fn a_rank_that_has_ended_well_is_not_blamed_for_the_others_interrupts() {
    let mut job = Job::of(3);
    job.set_phase(0, exited(Termination::Code(0), None));
    for rank in [1, 2] {
        job.set_phase(rank, exited(Termination::Signal { number: 2, core_dumped: false }, None));
        job.pass(2);
    }
    job.pass(3_100);
    let incident = job.last();
    assert_eq!(incident.blamed, [], "{:?}", incident.evidence);
}

#[test]
fn ranks_that_are_interrupted_together_are_not_the_cause() {
    let mut job = Job::of(3);
    for (rank, until_the_next) in [(0, 1_300), (1, 2), (2, 2)] {
        job.set_phase(rank, interrupted());
        job.pass(until_the_next); // programs clean up when they are interrupted
    }
    job.pass(3_100);
    let incident = job.last();
    assert_eq!((incident.blamed, incident.victims.len()), (vec![], 3));
    let is_line = |line: &String| line.contains("with other ranks: the interrupt came from outside the job");
    assert!(incident.evidence.iter().any(is_line), "{:?}", incident.evidence);
    assert!(!incident.evidence.iter().any(|line| line.contains(" first: ")), "{:?}", incident.evidence);
}

#[test]
fn an_interrupt_that_reaches_the_supervisor_as_well_blames_no_rank() {
    use taskd_kernel::kernel::{Input, Request};
    let mut job = Job::of(2);
    job.slow = Some(0);
    job.set_phase(1, interrupted());
    job.pass(3_050);
    assert_eq!(job.last().blamed, [Rank(1)], "it is decided, and the stop of rank 0 waited for");
    job.slow = None;
    job.give(Input::Requested(Request::Stop { reason: "SIGINT".into(), grace: None }));
    job.pass(100);
    assert_eq!(job.kernel.report().outcome, taskd_kernel::kernel::Outcome::Stopped);
    assert_eq!(job.last().blamed, []);
}

#[test]
fn repeated_interrupt_is_no_program_error() {
    let mut job = Job::of(2);
    for _ in 0..4 {
        job.set_phase(1, interrupted());
        job.pass(6_000);
    }
    assert_eq!((job.chosen(), job.finished.as_ref()), (vec!["restart"; 4], None));
}

#[test]
fn repeated_equal_start_failures_end_the_job_with_their_message() {
    let mut job = Job::of(2);
    for attempt in 0..6 {
        if job.finished.is_none() {
            job.set_phase(1, fails_at_start(&format!("train: cannot open /data/shard-{attempt}: no such file")));
            job.pass(1_000);
        }
    }
    assert_eq!(job.chosen(), ["restart", "restart", "exit"]);
    let (ok, reason) = job.finished.expect("the job is over");
    let begins = "program in the job, the program fails at start: train: cannot open /data/shard-2: no such file (exit code 3, \
                  3 times in a row)";
    assert!(!ok && reason.starts_with(begins), "{reason}");
}

#[test]
fn failures_that_differ_or_follow_steps_do_not_end_the_job() {
    let mut job = Job::of(1);
    for line in ["one thing", "another", "one thing", "another"] {
        job.set_phase(0, fails_at_start(line));
        job.pass(1_000);
    }
    assert_eq!(job.chosen(), ["restart"; 4]);
    let mut job = Job::of(1);
    for step in 1..5 {
        job.observe(0, Signal::Progress { step });
        job.set_phase(0, fails_at_start("the same"));
        job.pass(1_000);
    }
    assert_eq!(job.chosen(), ["restart"; 4]);
}

#[test]
fn failures_after_a_long_run_without_steps_are_not_at_start() {
    let mut job = Job::of(1);
    for _ in 0..4 {
        job.pass(3_600_000);
        job.set_phase(0, fails_at_start("storage connection lost"));
        job.pass(1_000);
    }
    assert_eq!((job.chosen(), job.finished.as_ref()), (vec!["restart"; 4], None));
    let mut job = Job::of(1);
    for killed in [false, true, false, true, false] {
        if killed {
            job.pass(3_600_000);
            job.set_phase(0, exited(KILLED, None));
        } else {
            job.set_phase(0, fails_at_start("storage connection lost"));
        }
        job.pass(1_000);
    }
    assert_eq!((job.chosen().len(), job.finished.as_ref()), (5, None), "they were not in a row");
}

#[test]
fn a_program_that_fails_at_the_start_on_one_host_is_tried_on_another() {
    let mut job = Job::on(2, &["a", "b"]);
    let fail = |job: &mut Job| {
        job.set_phase(0, fails_at_start("libdriver.so: cannot open shared object"));
        job.pass(1_000);
    };
    fail(&mut job);
    fail(&mut job);
    assert_eq!(job.hosts(), ["b", "a"], "it failed on one host only");
    fail(&mut job);
    let (ok, reason) = job.finished.expect("it fails on the other one as well");
    assert!(!ok && reason.starts_with("program in the job, the program fails at start: libdriver.so"), "{reason}");
}
