//! A job that something else runs: everything is decided, and nothing is done.

use crate::job::{Job, KILLED, exited, report};
use taskd_kernel::detect::{Damage, Fault, FaultClass, Health, Suspect};
use taskd_kernel::job::*;
use taskd_kernel::kernel::*;
use taskd_kernel::state::*;
use taskd_kernel::trace::Signal;

/// Three ranks that something else has started.
fn observed() -> Job {
    let mut job = Job::with(3, &[], |policy| policy.mode = Mode::DryRun);
    for rank in 0..3 {
        job.set_phase_of(ProcId::rank(rank, 1), Phase::Running);
    }
    job.pass(1_000);
    job
}

#[test]
fn a_death_in_dry_run_is_decided_and_compared_with_the_outcome() {
    let mut job = observed();
    job.set_phase(1, exited(KILLED, None));
    job.pass(100);
    let incident = job.last();
    assert_eq!(
        (incident.blamed.clone(), incident.held, incident.strategy.clone()),
        (vec![Rank(1)], Some(HoldReason::DryRun), Some(Name::new("restart")))
    );
    assert_eq!(incident.would_have_saved_s(), None, "it is not over");
    for rank in [0, 2] {
        job.set_phase(rank, exited(Termination::Signal { number: 15, core_dumped: false }, None)); // its own launcher stops them
    }
    job.pass(89_920);
    for rank in 0..3 {
        job.set_phase_of(ProcId::rank(rank, 2), Phase::Running); // and starts all again
    }
    job.pass(1_000);
    let incident = job.last();
    assert_eq!(incident.outcome, "repaired by another system: the blamed processes were replaced, and the job trains");
    assert_eq!((incident.blamed.clone(), incident.resumed), (vec![Rank(1)], None));
    assert_eq!(incident.would_have_saved_s(), Some(90.0 - 60.0), "the restart would have taken a minute");
    assert_eq!(job.deeds, []);
    assert_eq!((job.kernel.budget_left(), job.kernel.report().incidents.len()), (10, 1));
    for rank in 0..3 {
        job.set_phase(rank, exited(Termination::Code(0), None));
    }
    assert_eq!(job.finished.as_ref().map(|(ok, _)| *ok), Some(true));
}

#[test]
fn a_process_that_was_missed_is_replaced_by_the_one_that_is_there() {
    let mut job = observed();
    job.set_phase_of(ProcId::rank(2, 5), Phase::Running);
    job.pass(100);
    assert_eq!((job.proc(2).incarnation, job.proc(2).wanted), (Incarnation(5), true));
    assert_eq!((job.last().blamed, job.deeds.len()), (vec![Rank(2)], 0));
    job.set_phase_of(ProcId::rank(2, 4), Phase::Running); // an old one does not matter
    assert_eq!((job.proc(2).incarnation, job.deeds.len()), (Incarnation(5), 0));
}

#[test]
fn a_frozen_rank_that_resumes_has_a_negative_dry_run_saving() {
    let mut job = observed();
    for second in 0..20 {
        for rank in 0..3 {
            if rank != 1 || !(5..18).contains(&second) {
                job.observe(rank, Signal::Heartbeat);
            }
        }
        job.pass(1_000);
    }
    let incident = job.last();
    assert_eq!((incident.class.clone(), incident.blamed.clone()), (FaultClass::Silence, vec![Rank(1)]));
    assert_eq!(incident.outcome, "its detector withdrew the fault");
    assert!(incident.would_have_saved_s().is_some_and(|s| s < 0.0), "{incident:?}");
    assert_eq!(job.deeds, []);
}

#[test]
fn a_job_that_is_mended_and_finishes_before_anything_is_decided_is_over() {
    let mut job = observed();
    job.set_phase(1, exited(KILLED, None));
    for rank in 0..3 {
        job.set_phase_of(ProcId::rank(rank, 2), Phase::Running);
        job.set_phase(rank, exited(Termination::Code(0), None));
    }
    job.pass(100);
    assert_eq!(job.finished.as_ref().map(|(ok, _)| *ok), Some(true));
}

#[test]
fn orders_that_would_touch_processes_are_refused_and_the_end_touches_none() {
    let mut job = observed();
    let why = job.order(Order::Restart { ranks: [Rank(1)].into() }).expect_err("it only observes");
    assert_eq!(why, "this runtime only observes: it starts and stops no process");
    job.set_phase(1, exited(KILLED, None));
    job.pass(100);
    job.give(Input::Requested(Request::Stop { reason: "seen enough".into(), grace: None }));
    assert_eq!(job.finished, Some((false, "stopped: seen enough".into())));
    assert_eq!(job.deeds, []);
    assert!(job.last().would_have_saved_s().is_some(), "the end of the observation is the end of the account");
}

#[test]
fn an_external_restart_closes_a_stall_and_blames_no_rank() {
    let mut job = observed();
    for rank in 0..3 {
        job.observe(rank, Signal::Progress { step: 1 });
    }
    job.pass(600_100);
    assert_eq!((job.last().class, job.last().held), (FaultClass::Stall, Some(HoldReason::DryRun)));
    for (rank, number) in [(0, 15), (1, 15), (2, 9)] {
        let stopped = report("stopped", "others stop the job").with_follow_up(true);
        job.set_phase(rank, exited(Termination::Signal { number, core_dumped: false }, Some(stopped)));
        job.pass(100);
    }
    for rank in 0..3 {
        assert_eq!(job.last().outcome, "open");
        job.set_phase_of(ProcId::rank(rank, 2), Phase::Running);
        job.pass(100);
    }
    for rank in 0..3 {
        assert_eq!(job.last().outcome, "open", "they have reported steps, and run");
        job.observe(rank, Signal::Progress { step: 1 });
    }
    let incident = job.last();
    assert_eq!(incident.outcome, "repaired by another system: the blamed processes were replaced, and the job trains");
    assert_eq!((incident.blamed, job.kernel.report().incidents.len()), (vec![], 1));
}

#[test]
fn two_that_are_killed_together_are_both_blamed() {
    let mut job = observed();
    for rank in [0, 2] {
        job.set_phase(rank, exited(KILLED, None));
    }
    job.pass(100);
    assert_eq!(job.last().blamed, [Rank(0), Rank(2)]);
}

#[test]
fn a_host_fault_in_dry_run_closes_when_all_ranks_left_the_host() {
    let mut job = Job::with(2, &["a", "b"], |policy| policy.mode = Mode::DryRun);
    let found = |rank, incarnation, host| {
        let (node, phase) = (Some(NodeId(Name::new(host))), Phase::Running);
        let proc = ProcId::rank(rank, incarnation);
        Input::Changed(Change::Proc(ProcStatus::new(proc, "1", phase).with_node(node).with_pid(1)))
    };
    (0..2).for_each(|rank| job.give(found(rank, 1, "a")));
    let members = |job: &Job| -> Vec<Option<NodeId>> {
        job.kernel.view().world.members().values().map(|member| member.node.clone()).collect()
    };
    assert_eq!(members(&job), vec![Some(NodeId(Name::new("a"))); 2], "whatever the specification states");
    let damage = Damage { device: Health::Faulty, ..Damage::default() };
    let suspect = Suspect::certain(Domain::Node(NodeId(Name::new("a"))), FaultClass::Device, damage);
    job.give(Input::Requested(Request::Fault(Box::new(Fault::new(Name::new("dcgm"), job.now, suspect)))));
    job.pass(1_000);
    assert_eq!(job.last().outcome, "open");
    (0..2).for_each(|rank| job.set_phase(rank, exited(Termination::Signal { number: 15, core_dumped: false }, None)));
    job.give(found(0, 2, "b"));
    job.give(found(1, 2, "a"));
    job.pass(1_000);
    assert_eq!(job.last().outcome, "open", "one is there again");
    job.set_phase(1, exited(Termination::Signal { number: 15, core_dumped: false }, None));
    job.give(found(1, 3, "b"));
    assert_eq!(
        job.last().outcome,
        "repaired by another system: the blamed processes were replaced, and the job trains"
    );
}

#[test]
fn a_job_that_finishes_while_something_is_undecided_is_finished() {
    let mut job = observed();
    let suspect = Suspect::certain(Domain::Process(Role::Rank(Rank(1))), FaultClass::Device, Damage::default());
    job.give(Input::Requested(Request::Fault(Box::new(Fault::new(Name::new("dcgm"), job.now, suspect)))));
    (0..3).for_each(|rank| job.set_phase(rank, exited(Termination::Code(0), None)));
    assert_eq!(job.finished, None);
    job.pass(100);
    assert_eq!(job.finished, Some((true, "all 3 ranks finished".into())));
}
