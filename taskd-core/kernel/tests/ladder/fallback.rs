//! A recovery that does not help is charged to its strategy: the next one follows, `restart` comes before `exit`, and
//! no rank is blamed for what the recovery did.

use super::job::{Job, KILLED, equal_digest, exited, failed, report};
use std::time::Duration;
use taskd_kernel::job::*;
use taskd_kernel::kernel::{HoldReason, IncidentReport, Input, Order};
use taskd_kernel::recover::TargetReply;
use taskd_kernel::state::*;
use taskd_kernel::trace::{ProbeResult, Signal};

/// A job whose ranks stand in step loops and have completed 80 steps.
fn in_loops(ranks: u32) -> Job {
    in_loops_with(ranks, |_| ())
}

fn in_loops_with(ranks: u32, adjust: impl FnOnce(&mut Policy)) -> Job {
    let mut job = Job::with(ranks, &[], adjust);
    job.loops = true;
    for rank in 0..ranks {
        job.link(ProcId::rank(rank, 1), LoopPosition::InLoop);
    }
    step(&mut job, 80);
    job
}

/// All ranks complete a step.
fn step(job: &mut Job, step: u64) {
    for rank in 0..u32::try_from(job.kernel.view().world.places().count()).expect("few ranks") {
        if job.kernel.view().world.members().contains_key(&Rank(rank)) {
            job.observe(rank, Signal::Progress { step });
        }
    }
}

fn zero_error() -> ErrorReport {
    report("RuntimeError", "output tensor size must be equal to world_size times input tensor size")
}

fn incidents(job: &Job) -> Vec<IncidentReport> {
    job.kernel.report().incidents
}

#[test]
fn a_replacement_that_fails_before_it_joins_leads_to_a_restart() {
    let mut job = in_loops(2);
    job.replacements_record = Some(zero_error());
    job.replacements_end = Some(failed(zero_error()));
    job.pass(1_000);
    job.set_phase(1, exited(KILLED, None));
    job.pass(1_000);
    assert_eq!(job.chosen(), ["recover-in-place", "recover-in-place", "restart"], "a record comes before an exit");
    let mut job = in_loops(2);
    job.replacements_end = Some(failed(zero_error()));
    job.pass(1_000);
    job.set_phase(1, exited(KILLED, None));
    job.pass(1_000);
    assert_eq!(job.chosen(), ["recover-in-place", "recover-in-place", "restart"]);
    assert_eq!(job.finished, None, "a restart works");
    let reason = job.decision().reason;
    let begins = "recover-in-place failed twice: rank 1#3 ended: exit code 1, python RuntimeError: output tensor size";
    assert!(reason.starts_with(begins), "{reason}");
    assert!(reason.contains("; restart, "), "{reason}");
    step(&mut job, 81);
    let incident = job.last();
    assert_eq!((incident.blamed, incident.outcome.as_str()), (vec![Rank(1)], "recovered by restart"));
    assert!(
        incident.evidence.iter().any(|line| line.contains("signal 9")),
        "the kill is the cause: {:?}",
        incident.evidence
    );
    let failed = incident.evidence.iter().filter(|line| line.starts_with("recover-in-place failed: rank 1#"));
    assert_eq!(failed.count(), 2, "what the replacements died of: {:?}", incident.evidence);
}

#[test]
fn a_replacement_that_crashes_or_reports_peers_is_charged() {
    let segfault = || exited(Termination::Signal { number: 11, core_dumped: false }, None);
    let peers = || failed(report("DistBackendError", "connection closed by peer").with_follow_up(true));
    for end in [segfault(), peers(), exited(Termination::Code(3), None)] {
        let mut job = in_loops(3);
        job.replacements_end = Some(end.clone());
        job.pass(1_000);
        job.set_phase(1, exited(KILLED, None));
        job.pass(1_000);
        assert_eq!(job.chosen(), ["recover-in-place", "recover-in-place", "restart"], "{end}");
        step(&mut job, 81);
        assert_eq!((job.last().blamed, job.finished), (vec![Rank(1)], None), "{end}");
    }
}

#[test]
fn replacements_killed_in_a_row_lead_to_a_restart() {
    let mut job = in_loops(3);
    job.replacements_end = Some(exited(KILLED, None));
    job.pass(1_000);
    job.set_phase(1, exited(KILLED, None));
    job.pass(1_000);
    assert_eq!(job.chosen(), ["recover-in-place", "recover-in-place", "restart"]);
    step(&mut job, 81);
    let incident = job.last();
    assert_eq!((incident.blamed, incident.outcome.as_str()), (vec![Rank(1)], "recovered by restart"));
}

#[test]
fn another_rank_that_is_killed_in_a_recovery_is_not_charged_to_it() {
    let mut job = in_loops(4);
    job.replacements_end = Some(exited(KILLED, None));
    job.pass(1_000);
    job.set_phase(1, Phase::Dead(KILLED));
    job.replacements_end = None;
    job.pass(1_000);
    assert_eq!(job.chosen().last(), Some(&"recover-in-place"), "{:?}", job.chosen());
}

#[test]
fn errors_soon_after_a_recovery_are_charged_to_it_not_to_a_rank() {
    let mut job = in_loops(3);
    job.pass(1_000);
    job.set_phase(1, exited(KILLED, None));
    job.pass(1_000);
    assert_eq!(job.last().outcome, "recovered by recover-in-place");
    for (rank, at) in [(0, 81), (2, 82)] {
        step(&mut job, at);
        job.pass(1_500);
        job.set_phase(rank, failed(report("ValueError", "the loss is not finite")));
        job.pass(1_000);
    }
    step(&mut job, 83);
    assert_eq!(job.chosen(), ["recover-in-place", "recover-in-place", "restart"]);
    let reason = job.decision().reason;
    assert!(reason.starts_with("recover-in-place failed twice: "), "{reason}");
    let incidents = incidents(&job);
    assert_eq!(incidents[0].blamed, [Rank(1)]);
    for incident in &incidents[1..] {
        assert_eq!(incident.blamed, [] as [Rank; 0], "the recovery is at fault: {incident:?}");
        let is_line = |line: &String| line.starts_with("charged to recover-in-place, which recovered incident ");
        assert!(incident.evidence.iter().any(is_line), "{:?}", incident.evidence);
    }
    assert_eq!(job.finished, None);
}

#[test]
fn an_error_repeated_in_the_recovered_rank_is_blamed_on_it() {
    let mut job = in_loops(3);
    job.pass(1_000);
    for at in 81..83 {
        job.set_phase(1, failed(report("AcceleratorError", "CUDA error: an illegal memory access")));
        job.pass(1_000);
        step(&mut job, at);
        job.pass(1_000);
    }
    assert_eq!(job.chosen(), ["recover-in-place", "recover-in-place"]);
    assert_eq!(job.last().blamed, [Rank(1)]);
}

#[test]
fn a_recovery_that_has_held_for_a_while_is_not_charged_any_more() {
    let mut job = in_loops(3);
    for round in 0..4 {
        job.pass(1_000);
        job.set_phase(round % 3, failed(report("ValueError", &format!("error {round} of many"))));
        job.pass(1_000);
        for at in 0..20 {
            step(&mut job, 81 + u64::from(round) * 20 + at);
            job.pass(10_000);
        }
        assert_eq!(job.last().blamed, [Rank(round % 3)]);
    }
    assert_eq!(job.chosen(), ["recover-in-place"; 4]);
}

#[test]
fn steps_that_fail_soon_after_a_recovery_are_charged_to_it() {
    let mut job = in_loops(2);
    for at in 80..83 {
        let generation = job.kernel.view().world.generation();
        let message = "tensors of other shapes".to_owned();
        let kind = FailureKind::Exception;
        let failure = StepFailure::new(generation, kind, message).with_step(at + 1);
        let what = WorkerMessage::Failed(Box::new(failure));
        let proc = ProcId { role: Role::Rank(Rank(0)), incarnation: job.proc(0).incarnation };
        job.give(Input::Changed(Change::Worker(WorkerEvent::new(proc, what))));
        job.pass(500);
        step(&mut job, at + 1);
    }
    assert_eq!(job.chosen(), ["retry", "retry", "restart"]);
    assert!(incidents(&job)[1..].iter().all(|incident| incident.blamed.is_empty()), "{:?}", incidents(&job));
}

#[test]
fn a_repeated_failure_at_one_step_ends_the_job_after_a_restart() {
    let mut job = in_loops(2);
    for _ in 0..5 {
        if job.finished.is_none() {
            let incarnation = job.proc(1).incarnation;
            job.set_phase_of(
                ProcId { role: Role::Rank(Rank(1)), incarnation },
                failed(report("ValueError", "bad batch").with_step(80)),
            );
            job.pass(1_000);
        }
    }
    assert_eq!(job.chosen(), ["recover-in-place", "recover-in-place", "restart", "exit"]);
    let (ok, reason) = job.finished.expect("the job is over");
    assert!(!ok && reason.starts_with("program in the job, the same ValueError twice at the same step"), "{reason}");
}

#[test]
fn repeated_in_place_recoveries_lead_to_a_restart_before_exit() {
    let mut job = in_loops_with(3, |policy| policy.budget.recoveries_max = 30);
    for _ in 0..6 {
        job.pass(1_000);
        job.set_phase(1, exited(KILLED, None));
        job.pass(1_000);
    }
    assert_eq!(job.chosen(), [["recover-in-place"; 6].as_slice(), &["restart"]].concat());
    let reason = job.decision().reason;
    assert!(reason.contains("as a detector advises"), "{reason}");
    for _ in 0..6 {
        job.pass(1_000);
        job.set_phase(1, exited(KILLED, None));
        job.pass(1_000);
    }
    let (ok, reason) = job.finished.expect("nothing helps");
    assert!(!ok && reason.starts_with("restart-storm in the job, "), "{reason}");
}

#[test]
fn the_world_does_not_shrink_unless_the_job_asks_for_it() {
    let never = |policy: &mut Policy| {
        for name in ["recover-in-place", "recover"] {
            policy.strategies.insert(Name::new(name), Permission::Never);
        }
    };
    let mut job = in_loops_with(3, never);
    let why = "the job needs all of its 3 ranks; set policy.min_ranks to allow fewer";
    assert_eq!(job.kernel.status().cannot.get(&Name::new("shrink")).map(String::as_str), Some(why));
    job.set_phase(1, exited(KILLED, None));
    job.pass(1_000);
    assert_eq!(job.chosen(), ["restart"]);

    let asks = |policy: &mut Policy| {
        never(policy);
        policy.min_ranks = 1;
    };
    let mut job = in_loops_with(3, asks);
    job.set_phase(1, exited(KILLED, None));
    job.pass(1_000);
    assert_eq!(job.chosen(), ["restart"], "its place is there: all of its ranks start again");
    let shrink = job.decision().refused.into_iter().find(|refusal| refusal.strategy == "shrink").expect("refused");
    assert_eq!(shrink.reason, "rank 1 can be placed again: a restart with all 3 ranks comes first");
}

#[test]
fn a_smaller_world_is_stated_in_status_and_report() {
    let forbidden = |policy: &mut Policy| {
        policy.min_ranks = 1;
        for name in ["recover-in-place", "recover", "restart"] {
            policy.strategies.insert(Name::new(name), Permission::Never);
        }
    };
    let mut job = in_loops_with(3, forbidden);
    job.pass(5_000);
    job.set_phase(1, exited(KILLED, None));
    job.pass(1_000);
    assert_eq!(job.chosen(), ["shrink"], "all ranks may not start again");
    step(&mut job, 81);
    step(&mut job, 90);
    let smaller = job.kernel.status().smaller;
    assert_eq!((smaller.len(), smaller[0].ranks, smaller[0].of, smaller[0].until), (1, 2, 3, None));
    assert_eq!((smaller[0].since, smaller[0].steps), (JobTime::START + Duration::from_secs(5), Some((81, 90))));
    for rank in [0, 2] {
        job.set_phase(rank, exited(Termination::Code(0), None));
    }
    job.pass(1_000);
    let report = job.kernel.report();
    assert!(report.ok);
    let expected =
        "2 of the job's 3 ranks finished; it trained with 2 of its 3 ranks from 5.000 s for 1.0 s, steps 81 to 90";
    assert_eq!(report.reason, expected);
    assert_eq!(report.smaller.len(), 1);
}

#[test]
fn a_recovery_ends_when_ranks_that_reported_steps_step_again() {
    let mut job = Job::of(2);
    job.observe(0, Signal::Progress { step: 7 });
    job.set_phase(1, exited(KILLED, None));
    job.pass(1_000);
    assert_eq!(job.chosen(), ["restart"]);
    assert_eq!(job.last().outcome, "open", "rank 0 has reported its steps, and of none since");
    job.observe(0, Signal::Progress { step: 5 });
    assert_eq!(job.last().outcome, "recovered by restart", "rank 1 never reports any");
}

#[test]
fn a_rank_that_runs_and_has_not_stepped_in_time_is_no_failed_start() {
    let mut job = Job::of(2);
    job.observe(0, Signal::Progress { step: 7 });
    job.set_phase(1, exited(KILLED, None));
    job.pass(601_000);
    assert_eq!(job.chosen(), ["restart"]);
    assert_eq!(job.last().outcome, "recovered by restart", "it may compile for longer than that");
}

#[test]
fn a_status_before_the_start_lists_no_unusable_strategy() {
    use taskd_kernel::kernel::{Kernel, Start};
    let mut kernel = Kernel::new(super::plugins());
    assert_eq!(kernel.status().cannot, [].into(), "the job is not known yet");
    let spec = std::sync::Arc::new(JobSpec::new("job", 2, WorkerSpec::new(["train"])));
    let start = Start { spec, trace: None, rendezvous_service: Some(Name::new("store")), resume: None };
    kernel.step(JobTime::START, &Input::Start(Box::new(start)));
    let cannot = kernel.status().cannot;
    let why = "the job has no `rendezvous_service`; add that of its framework";
    assert_eq!(cannot.get(&Name::new("recover-in-place")).map(String::as_str), Some(why));
    assert_eq!(cannot.get(&Name::new("retry")).map(String::as_str), Some(why));
}

#[test]
fn a_decision_gives_the_reason_that_the_status_gives() {
    let mut job = Job::meeting_at(2, "store");
    let cannot = job.kernel.status().cannot;
    job.set_phase(1, exited(KILLED, None));
    job.pass(1_000);
    let refused = job.decision().refused;
    for (strategy, why) in &cannot {
        let refusal = refused.iter().find(|refusal| refusal.strategy == *strategy).expect("it is refused");
        assert_eq!(refusal.reason, *why, "{strategy}");
    }
    assert!(cannot.len() >= 5, "{cannot:?}");
}

/// A rank reports that its step has failed, and lives.
fn fails_in_its_step(job: &mut Job, rank: u32, kind: FailureKind) {
    let proc = ProcId { role: Role::Rank(Rank(rank)), incarnation: job.proc(rank).incarnation };
    let generation = job.kernel.view().world.generation();
    let message = "tensors of other shapes".to_owned();
    let failure = StepFailure::new(generation, kind, message);
    let what = WorkerMessage::Failed(Box::new(failure));
    job.give(Input::Changed(Change::Worker(WorkerEvent::new(proc, what))));
}

#[test]
fn a_fault_charged_to_a_recovery_ends_the_job_when_the_budget_is_spent() {
    let mut job = in_loops_with(2, |policy| policy.budget = BudgetSpec::fixed(1));
    job.pass(1_000);
    job.set_phase(1, exited(KILLED, None));
    job.pass(1_000);
    step(&mut job, 81);
    fails_in_its_step(&mut job, 0, FailureKind::Exception);
    job.pass(3_600_000);
    let (ok, reason) = job.finished.expect("the rank waits for ever, and so do the others");
    assert!(!ok && reason.contains("charged to recover-in-place"), "{reason}");
}

#[test]
fn a_step_that_fails_again_before_all_resumed_is_no_repetition() {
    let mut job = in_loops(2);
    job.pass(1_000);
    job.slow_to_resume = Some(1);
    fails_in_its_step(&mut job, 0, FailureKind::Exception);
    job.pass(100);
    fails_in_its_step(&mut job, 0, FailureKind::Exception);
    job.slow_to_resume = None;
    job.pass(1_000);
    assert_eq!(job.chosen(), ["retry", "retry"]);
    step(&mut job, 81);
    assert_eq!(job.last().outcome, "recovered by retry");
}

#[test]
fn several_failures_before_the_next_decision_are_charged_once() {
    let crash = exited(Termination::Signal { number: 11, core_dumped: false }, None);
    for (first, second) in [(exited(KILLED, None), crash), (exited(Termination::Code(3), None), failed(zero_error()))] {
        let mut job = in_loops(3);
        job.replacements_end = Some(Phase::Running); // it is not parked, and the recovery waits for it
        job.pass(1_000);
        job.set_phase(1, first);
        job.pass(1_000);
        job.set_phase(0, failed(zero_error()));
        job.set_phase(2, second.clone());
        job.replacements_end = None;
        job.pass(1_000);
        step(&mut job, 81);
        assert_eq!((job.last().blamed, job.finished.clone()), (vec![Rank(1)], None), "{second}: {:?}", job.last());
        let charged = job.last().evidence.iter().filter(|line| line.starts_with("recover-in-place failed: ")).count();
        assert_eq!(charged, 1, "{second}: {:?}", job.last().evidence);
    }
}

#[test]
fn collectives_that_fail_soon_after_a_recovery_are_charged_to_it() {
    let mut job = in_loops(2);
    job.pass(1_000);
    job.set_phase(1, exited(KILLED, None));
    job.pass(1_000);
    for at in 81..84 {
        step(&mut job, at);
        for rank in 0..2 {
            fails_in_its_step(&mut job, rank, FailureKind::Collective);
        }
        job.pass(1_000);
    }
    assert_eq!(job.chosen(), ["recover-in-place", "retry", "retry", "restart"]);
}

#[test]
fn a_cancelled_recovery_is_not_attributed_to_another_incident() {
    let mut job = in_loops(3);
    job.replacements_end = Some(Phase::Running); // it is not parked, and the recovery waits for it
    job.observe(0, Signal::Heartbeat);
    job.pass(1_000);
    job.set_phase(1, exited(KILLED, None));
    job.order(Order::Pause).expect("it is taken");
    for _ in 0..100 {
        job.pass(100);
        if let Some((id, ask)) = job.asked.take() {
            let text = ProbeResult::Text("state=T beat_age_ms=9000".into());
            job.give(Input::Answered { id, results: vec![(ask.about[0].clone(), Ok(TargetReply::ProbeResult(text)))] });
        }
    }
    assert_eq!(job.decision().held, Some(HoldReason::Paused), "rank 0 is blamed for its silence: {:?}", job.decision());
    job.observe(0, Signal::Heartbeat);
    job.replacements_end = None;
    job.order(Order::Resume).expect("it is taken");
    job.pass(1_000);
    step(&mut job, 81);
    let incident = job.last();
    assert!(incident.outcome.starts_with("recovered by "), "{incident:?}");
}

#[test]
fn a_copy_without_a_checksum_is_no_proven_one() {
    let mut job = in_loops(2);
    job.without_digests = true;
    job.pass(1_000);
    job.set_phase(1, exited(KILLED, None));
    job.pass(1_000);
    assert_eq!(job.chosen(), ["recover-in-place", "recover-in-place", "restart"]);
    let reason = job.decision().reason;
    assert!(reason.contains("has no checksum of parameters and optimizer state after the state sync"), "{reason}");
}

#[test]
fn a_replacement_that_loses_a_race_at_its_start_is_charged_as_well() {
    let mut job = in_loops_with(2, |policy| policy.budget = BudgetSpec::fixed(5));
    let race = report("DistNetworkError", "address already in use").with_retry_free(true);
    job.replacements_end = Some(failed(race));
    job.pass(1_000);
    job.set_phase(1, exited(KILLED, None));
    job.pass(1_000);
    assert_eq!((job.chosen(), job.finished.clone()), (vec!["recover-in-place", "recover-in-place", "restart"], None));
}

#[test]
fn recoveries_that_are_always_interrupted_lead_to_a_restart() {
    let mut job = in_loops_with(40, |policy| policy.budget = BudgetSpec::fixed(100));
    job.replacements_end = Some(Phase::Running); // it is not parked, and the recovery waits for it
    job.pass(1_000);
    for rank in 1..20 {
        job.set_phase(rank, Phase::Dead(KILLED));
        job.observe(0, Signal::Progress { step: 80 + u64::from(rank) }); // else it is a restart storm, which ends the job
        job.pass(100);
    }
    let chosen = job.chosen();
    let in_place = chosen.iter().filter(|name| **name == "recover-in-place").count();
    assert_eq!((in_place, chosen.last()), (16, Some(&"restart")), "{chosen:?}");
    let reason = job.decision().reason;
    assert!(
        reason.starts_with("recover-in-place failed twice: cancelled 16 times, last for a new fault in "),
        "{reason}"
    );
}

/// Three ranks, of which two have reported behind a step of a new kind when the news comes that the third one is dead.
fn dead_ahead_of_its_report() -> Job {
    let mut job = in_loops(3);
    for rank in [0, 2] {
        job.link_with(ProcId::rank(rank, 1), LoopPosition::InLoop, Some(of_new_kind()));
    }
    job.pass(1_000);
    job.set_phase(1, Phase::Dead(KILLED));
    job.pass(300);
    job
}

fn of_new_kind() -> StateDigest {
    StateDigest { first_of_kind: true, ..equal_digest(81) }
}

#[test]
fn a_decision_waits_for_a_report_sent_before_the_ranks_death() {
    let mut job = dead_ahead_of_its_report();
    assert_eq!(job.chosen(), [""; 0], "its link was not read to the end");
    job.link_with(ProcId::rank(1, 1), LoopPosition::InLoop, Some(of_new_kind()));
    job.pass(1);
    assert_eq!(job.chosen(), ["recover-in-place"]);

    let mut job = dead_ahead_of_its_report();
    job.give(Input::Changed(Change::Link(LinkStatus::new(ProcId::rank(1, 1), None))));
    job.pass(1);
    assert_eq!(job.chosen(), ["restart"], "it has sent none");

    let mut job = dead_ahead_of_its_report();
    job.pass(1_000);
    assert_eq!(job.chosen(), ["restart"], "nothing is reported of its link");
}
