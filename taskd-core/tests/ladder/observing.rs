//! A job that something else runs: everything is decided, and nothing is done.

use crate::job::{Job, KILLED, exited};
use taskd_core::detect::FaultClass;
use taskd_core::job::*;
use taskd_core::kernel::*;
use taskd_core::launch::*;
use taskd_core::trace::Signal;

/// Three ranks that something else has started.
fn observed() -> Job {
    let mut job = Job::with(3, &[], |policy| policy.mode = Mode::Observe);
    for rank in 0..3 {
        job.tell_of(ProcId::rank(rank, 1), Phase::Running);
    }
    job.pass(1_000);
    job
}

#[test]
fn a_death_is_blamed_decided_and_not_mended_and_what_others_do_about_it_is_the_measure() {
    let mut job = observed();
    job.tell(1, exited(KILLED, None));
    job.pass(100);
    let incident = job.last();
    assert_eq!(
        (incident.blamed.clone(), incident.held, incident.strategy.clone()),
        (vec![Rank(1)], Some(Held::Observing), Some(Name::new("restart")))
    );
    assert_eq!(incident.would_have_saved_s(), None, "it is not over");
    for rank in [0, 2] {
        job.tell(rank, exited(Termination::Signal { number: 15, core_dumped: false }, None)); // its own launcher stops them
    }
    job.pass(89_920);
    for rank in 0..3 {
        job.tell_of(ProcId::rank(rank, 2), Phase::Running); // and starts all again
    }
    job.pass(1_000);
    let incident = job.last();
    assert_eq!(incident.outcome, "mended by others: what was blamed was replaced, and the job trains");
    assert_eq!((incident.blamed.clone(), incident.resumed), (vec![Rank(1)], None));
    assert_eq!(incident.would_have_saved_s(), Some(90.0 - 60.0), "the restart would have taken a minute");
    assert_eq!(job.deeds, []);
    assert_eq!((job.kernel.budget_left(), job.kernel.report().incidents.len()), (10, 1));
    for rank in 0..3 {
        job.tell(rank, exited(Termination::Code(0), None));
    }
    assert_eq!(job.finished.as_ref().map(|(ok, _)| *ok), Some(true));
}

#[test]
fn a_process_that_was_missed_is_replaced_by_the_one_that_is_there() {
    let mut job = observed();
    job.tell_of(ProcId::rank(2, 5), Phase::Running);
    job.pass(100);
    assert_eq!((job.proc(2).incarnation, job.proc(2).wanted), (Incarnation(5), true));
    assert_eq!((job.last().blamed, job.deeds.len()), (vec![Rank(2)], 0));
    job.tell_of(ProcId::rank(2, 4), Phase::Running); // an old one is nobody's business
    assert_eq!((job.proc(2).incarnation, job.deeds.len()), (Incarnation(5), 0));
}

#[test]
fn a_rank_that_is_frozen_and_goes_on_by_itself_would_have_cost_more_than_it_saved() {
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
    assert_eq!(incident.outcome, "its detector took the blame back");
    assert!(incident.would_have_saved_s().is_some_and(|s| s < 0.0), "{incident:?}");
    assert_eq!(job.deeds, []);
}

#[test]
fn orders_that_would_touch_processes_are_refused_and_the_end_touches_none() {
    let mut job = observed();
    let why = job.order(Order::Restart { ranks: [Rank(1)].into() }).expect_err("it only observes");
    assert_eq!(why, "this runtime only observes: it starts and stops nothing");
    job.tell(1, exited(KILLED, None));
    job.pass(100);
    job.give(Input::Requested(Request::Stop { reason: "seen enough".into(), grace: None }));
    assert_eq!(job.finished, Some((false, "stopped: seen enough".into())));
    assert_eq!(job.deeds, []);
    assert!(job.last().would_have_saved_s().is_some(), "the end of the observation is the end of the account");
}
