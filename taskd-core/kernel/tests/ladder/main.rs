//! The built-in detectors and strategies in the kernel: what a job does about faults of every kind, and about orders.

mod elastic;
mod ends;
mod fallback;
mod fences;
mod guards;
mod job;
mod lost_hosts;
mod observing;
mod orders;
mod resume;
mod services;

use job::{Job, KILLED, exited, failed, plugins, report};
use std::time::Duration;
use taskd_kernel::detect;
use taskd_kernel::job::*;
use taskd_kernel::kernel::*;
use taskd_kernel::recover::TargetReply;
use taskd_kernel::state::*;
use taskd_kernel::trace::{ProbeResult, Signal};

#[test]
fn all_ranks_restart_after_a_kill_and_only_the_killed_is_blamed() {
    let mut job = Job::of(3);
    job.pass(1_000);
    let peer = report("DistError", "connection closed by peer").with_follow_up(true);
    job.set_phase(0, failed(peer)); // its victim is known first
    job.pass(3);
    job.set_phase(2, Phase::Dead(KILLED));
    job.set_phase(2, exited(KILLED, None));
    job.pass(100);
    let incident = job.last();
    assert_eq!((incident.blamed, incident.victims), (vec![Rank(2)], vec![Rank(0)]));
    assert_eq!(incident.outcome, "recovered by restart");
    for rank in 0..3 {
        assert_eq!((job.proc(rank).incarnation, &job.proc(rank).phase), (Incarnation(2), &Phase::Running));
    }
    assert_eq!((job.generation(), job.kernel.budget_left()), (2, 9));
}

#[test]
fn a_second_fault_during_a_stop_reuses_no_incarnation() {
    let mut job = Job::of(3);
    job.slow = Some(1);
    job.set_phase(0, exited(KILLED, None));
    job.pass(100);
    assert_eq!((job.generation(), &job.proc(1).phase), (1, &Phase::Running), "the stop waits for rank 1");
    job.set_phase_of(ProcId::rank(0, 4), Phase::Running); // one without an order comes to light
    job.slow = None;
    job.set_phase(1, exited(KILLED, None));
    job.pass(100);
    assert_eq!(job.proc(0).incarnation, Incarnation(5));
    assert_eq!(job.proc(1).incarnation, Incarnation(2));
    assert_eq!(job.last().outcome, "recovered by restart");
}

#[test]
fn the_same_exception_on_two_hosts_ends_the_job_with_a_report() {
    let mut job = Job::on(4, &["a", "b"]);
    job.set_phase(1, failed(report("ValueError", "bad batch at 0x7f12")));
    job.pass(100);
    assert_eq!(job.proc(1).node, Some(NodeId(Name::new("b"))), "it is tried elsewhere");
    assert_eq!(job.last().outcome, "recovered by restart");
    job.set_phase(1, failed(report("ValueError", "bad batch at 0x55c3")));
    job.pass(100);
    let (ok, reason) = job.finished.expect("the job is over");
    let expected = "program in the job, the same ValueError twice at the same step: the program fails, not the machine, \
                    ValueError in rank 1#1 on node a, before its first step (generation 1, at 0.000 s), \
                    ValueError in rank 1#2 on node b, before its first step (generation 2, at 0.100 s), \
                    python ValueError: bad batch at 0x55c3; also exit in rank 1 on node b";
    assert_eq!((ok, reason.as_str()), (false, expected));
}

#[test]
fn a_script_that_asks_not_to_be_restarted_is_not() {
    let mut job = Job::of(2);
    job.set_phase(1, Phase::Dead(Termination::Code(64)));
    assert_eq!(job.kernel.report().incidents, [], "its last words are still to come");
    job.pass(100);
    job.set_phase(1, exited(Termination::Code(64), None));
    job.pass(100);
    let (ok, reason) = job.finished.expect("the job is over");
    let expected = "program in rank 1, rank 1#1 ended: exit code 64 (the script requests no restart with this exit \
                    code), no completed step was seen";
    assert_eq!((ok, reason.as_str()), (false, expected));
}

#[test]
fn a_race_lost_at_start_up_costs_nothing() {
    let mut job = Job::of(2);
    job.set_phase(0, failed(report("DistNetworkError", "address already in use").with_retry_free(true)));
    job.pass(100);
    assert_eq!((job.generation(), job.kernel.view().world.restarts(), job.kernel.budget_left()), (2, 0, 10));
    assert_eq!(job.last().outcome, "recovered by restart");
}

#[test]
fn a_lost_race_that_is_known_late_is_still_free() {
    let mut job = Job::of(2);
    job.set_phase(0, Phase::Dead(Termination::Code(1)));
    job.slow = Some(0); // it takes long to tear its memory down
    job.pass(10_050);
    assert_eq!(job.last().outcome, "open");
    job.set_phase(0, failed(report("DistNetworkError", "address already in use").with_retry_free(true)));
    job.pass(100);
    assert_eq!((job.last().class, job.kernel.view().world.restarts()), (detect::FaultClass::Launch, 0));
    assert_eq!(job.last().outcome, "recovered by restart");
}

#[test]
fn a_frozen_rank_is_asked_about_blamed_and_killed_at_once() {
    let mut job = Job::of(3);
    for second in 0..15 {
        for rank in 0..3 {
            if rank != 1 || second < 5 {
                job.observe(rank, Signal::Heartbeat);
            }
        }
        job.pass(1_000);
    }
    let (id, ask) = job.asked.take().expect("a question");
    let about = ask.about[0].clone();
    let exhibit = Ok(TargetReply::ProbeResult(ProbeResult::Text("state=T beat_age_ms=9000".into())));
    job.give(Input::Answered { id, results: vec![(about, exhibit)] });
    job.pass(100);
    let incident = job.last();
    assert_eq!((incident.class, incident.blamed), (detect::FaultClass::Silence, vec![Rank(1)]));
    assert_eq!(incident.outcome, "recovered by restart");
    assert_eq!(incident.onset, JobTime::START + Duration::from_secs(4));
}

#[test]
fn a_busy_rank_without_a_heartbeat_is_let_alone_for_minutes() {
    let mut job = Job::of(3);
    for second in 0..320 {
        for rank in 0..3 {
            if rank != 1 || second < 5 {
                job.observe(rank, Signal::Heartbeat);
            }
        }
        job.pass(1_000);
        if let Some((id, ask)) = job.asked.take() {
            let about = ask.about[0].clone();
            let exhibit = Ok(TargetReply::ProbeResult(ProbeResult::Text("state=R beat_age_ms=9000 runnable=1".into())));
            job.give(Input::Answered { id, results: vec![(about, exhibit)] });
        }
        if second < 300 {
            assert_eq!(job.kernel.report().incidents, [], "after {second} s");
        }
    }
    let incident = job.last();
    assert_eq!((incident.class, incident.blamed), (detect::FaultClass::Silence, vec![Rank(1)]));
    assert!(incident.evidence[2].contains("the limit for a busy process is 300 s"), "{:?}", incident.evidence);
}

#[test]
fn a_stalled_job_is_restarted_and_no_rank_is_blamed() {
    let mut job = Job::of(2);
    job.observe(0, Signal::Progress { step: 1 });
    job.pass(600_100);
    job.observe(0, Signal::Progress { step: 1 });
    let incident = job.last();
    assert_eq!((incident.class, incident.blamed.len()), (detect::FaultClass::Stall, 0));
    assert_eq!(incident.outcome, "recovered by restart");
}

#[test]
fn a_forbidden_strategy_is_refused_with_the_policy_reason() {
    let mut job = Job::with(1, &[], |policy| {
        policy.strategies.insert(Name::new("restart"), Permission::Never);
        policy.reasons.insert(Name::new("restart"), "its data is on loan".into());
    });
    job.set_phase(0, exited(KILLED, None));
    job.pass(1_000);
    let refused = job.decision().refused;
    let restart = refused.iter().find(|refusal| refusal.strategy == "restart").expect("it was refused");
    assert_eq!(restart.reason, "not in the allowed set: its data is on loan");
    assert!(job.finished.is_some_and(|(ok, _)| !ok), "nothing but exit is left");
}

#[test]
fn a_policy_reason_is_not_reported_after_an_operator_change() {
    let mut job = Job::with(1, &[], |policy| drop(policy.reasons.insert(Name::new("restart"), "outdated".into())));
    let strategies = [(Name::new("restart"), Permission::Never)].into();
    job.order(Order::Allow { strategies }).expect("it is known");
    job.set_phase(0, exited(KILLED, None));
    job.pass(1_000);
    let refused = job.decision().refused;
    assert!(refused.iter().any(|refusal| refusal.reason == "not in the allowed set"), "{refused:?}");
}

#[test]
fn a_spent_fixed_budget_is_not_refilled_and_refuses_restart() {
    let mut job = Job::with(1, &[], |policy| policy.budget = BudgetSpec::fixed(1));
    for _ in 0..2 {
        job.set_phase(0, exited(KILLED, None));
        job.pass(30 * 86_400_000);
    }
    let refused = job.decision().refused;
    let restart = refused.iter().find(|refusal| refusal.strategy == "restart").expect("it was refused");
    assert_eq!(restart.reason, "the recovery budget of 1 is spent, and is never refilled");
    assert!(job.finished.is_some_and(|(ok, _)| !ok), "nothing but exit is left");
}

#[test]
fn restarts_in_vain_end_the_job() {
    let mut job = Job::of(1);
    job.observe(0, Signal::Progress { step: 7 });
    for _ in 0..6 {
        job.set_phase(0, exited(KILLED, None));
        job.pass(1_000);
    }
    let (ok, reason) = job.finished.expect("the job is over");
    assert!(!ok && reason.starts_with("restart-storm in the job, 6 restarts since"), "{reason}");
    assert!(reason.contains("the job never got beyond step 7"), "{reason}");
}

#[test]
fn a_kernel_with_the_built_in_detectors_is_saved_whole() {
    let mut job = Job::of(2);
    job.observe(0, Signal::Heartbeat);
    job.set_phase(1, Phase::Dead(Termination::Code(1)));
    let snapshot = job.kernel.snapshot();
    assert!(snapshot.is_complete());
    let (kernel, cold) = Kernel::restore(plugins(), &snapshot).expect("the same version");
    assert_eq!(cold, Vec::<Name>::new());
    assert_eq!(kernel.deadline(), job.kernel.deadline());
}

#[test]
fn peers_that_fail_around_the_stop_cost_one_recovery() {
    let mut job = Job::of(4);
    job.set_phase(0, Phase::Dead(KILLED));
    for rank in 1..4 {
        job.pass(2);
        job.set_phase(rank, Phase::Dead(Termination::Code(1)));
    }
    job.slow = Some(1); // the others' memory is torn down when they are stopped
    job.pass(50);
    let peer = report("DistError", "connection closed by peer").with_follow_up(true);
    job.set_phase(1, failed(peer));
    job.pass(100);
    let incident = job.last();
    assert_eq!((incident.blamed, incident.victims), (vec![Rank(0)], vec![Rank(1), Rank(2), Rank(3)]));
    assert_eq!((job.generation(), job.kernel.budget_left()), (2, 9));
}

#[test]
fn a_script_that_fails_at_once_is_a_program_fault() {
    let mut job = Job::with(2, &[], |policy| policy.ready = Ready::Stepping);
    for _ in 0..2 {
        for rank in 0..2 {
            job.set_phase(rank, Phase::Dead(Termination::Code(1)));
        }
        job.pass(100);
        for rank in 0..2 {
            job.set_phase(rank, failed(report("ImportError", "no module named nonsense")));
        }
        job.pass(100);
    }
    let (ok, reason) = job.finished.expect("the job is over");
    assert!(!ok && reason.starts_with("program in the job, the same ImportError twice"), "{reason}");
}
