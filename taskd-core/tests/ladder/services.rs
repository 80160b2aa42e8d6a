//! Processes that ranks need but that do not train: they come and go with the world.

use super::job::{Job, KILLED, exited, report};
use std::time::Duration;
use taskd_core::job::*;
use taskd_core::kernel::Proc;
use taskd_core::launch::Phase;
use taskd_core::recover::Action;
use taskd_core::trace::Signal;

const SCHEDULER: Name = Name::new("scheduler");

fn job(adjust: impl FnOnce(&mut JobSpec)) -> Job {
    Job::of_spec(2, &["a", "b"], |spec| {
        spec.services.insert(SCHEDULER, WorkerSpec::new(["schedule"]).into());
        adjust(spec);
    })
}

fn service(job: &Job) -> &Proc {
    job.kernel.view().proc(&Role::Service(SCHEDULER)).expect("the job has a scheduler")
}

#[test]
fn it_starts_with_the_ranks_on_the_host_of_the_first_one() {
    let job = job(|_| ());
    let [Action::Start { batch, .. }] = &job.deeds[..] else { panic!("one start, not {:?}", job.deeds) };
    let started: Vec<_> = batch.orders.iter().map(|order| (order.proc.to_string(), &*order.spec.argv[0])).collect();
    assert_eq!(
        started,
        [
            ("service scheduler#1".to_owned(), "schedule"),
            ("rank 0#1".to_owned(), "train"),
            ("rank 1#1".to_owned(), "train"),
        ]
    );
    assert_eq!(service(&job).node, Some(NodeId(Name::new("a"))));
}

#[test]
fn its_death_is_a_fault_after_which_everybody_starts_again() {
    let mut job = job(|_| ());
    job.pass(1_000);
    job.tell_of(ProcId::service(SCHEDULER, 1), Phase::Dead(KILLED));
    job.tell_of(ProcId::service(SCHEDULER, 1), exited(KILLED, None));
    job.pass(5);
    let lost = ErrorReport { follow_up: true, ..report("SchedulerLost", "the scheduler is gone") };
    job.tell(1, exited(Termination::Signal { number: 15, core_dumped: false }, Some(lost)));
    job.pass(100);
    let incident = job.last();
    assert_eq!(incident.outcome, "recovered by restart");
    assert_eq!((incident.blamed, incident.blamed_services), (vec![], vec![SCHEDULER]));
    assert_eq!(incident.victims, [Rank(1)]);
    assert_eq!((service(&job).incarnation, &service(&job).phase), (Incarnation(2), &Phase::Running));
    for rank in 0..2 {
        assert_eq!((job.proc(rank).incarnation, &job.proc(rank).phase), (Incarnation(2), &Phase::Running));
    }
}

/// The job's ranks meet at the service, which dies after so many of them have completed a step.
fn that_loses_its_meeting(stepped: u32) -> Job {
    let mut job = job(|spec| spec.meeting = Some(SCHEDULER));
    job.pass(1_000);
    (0..stepped).for_each(|rank| job.observe(rank, Signal::Progress { step: 1 }));
    job.tell_of(ProcId::service(SCHEDULER, 1), exited(KILLED, None));
    job.pass(100);
    job
}

#[test]
fn where_ranks_meet_may_die_once_all_have_met_and_whoever_asks_it_then_has_all_start_again() {
    let mut job = that_loses_its_meeting(2);
    assert_eq!((job.generation(), job.proc(0).incarnation), (1, Incarnation(1)), "nobody needs it any more");
    job.tell(1, exited(Termination::Code(1), Some(report("DistStoreError", "the store is gone"))));
    job.pass(100);
    (0..2).for_each(|rank| job.observe(rank, Signal::Progress { step: 2 }));
    assert_eq!(job.last().outcome, "recovered by restart");
    assert_eq!((service(&job).incarnation, &service(&job).phase), (Incarnation(2), &Phase::Running));
}

#[test]
fn where_ranks_meet_is_started_again_with_all_of_them_while_some_are_still_on_their_way_there() {
    let mut job = that_loses_its_meeting(1);
    job.observe(0, Signal::Progress { step: 1 });
    assert_eq!(job.last().outcome, "recovered by restart");
    assert_eq!((service(&job).incarnation, &service(&job).phase), (Incarnation(2), &Phase::Running));
    assert_eq!((job.proc(0).incarnation, job.proc(1).incarnation), (Incarnation(2), Incarnation(2)));
}

#[test]
fn it_starts_anew_when_a_rank_is_lost() {
    let mut job = job(|_| ());
    job.pass(1_000);
    job.tell(1, exited(KILLED, None));
    job.pass(100);
    assert_eq!((job.generation(), service(&job).incarnation), (2, Incarnation(2)));
    let stopped = job.deeds.iter().find_map(|deed| match deed {
        Action::Stop { procs, .. } => Some(procs.clone()),
        _ => None,
    });
    assert_eq!(stopped, Some(vec![ProcId::rank(0, 1), ProcId::service(SCHEDULER, 1)]));
}

#[test]
fn a_start_waits_for_steps_of_ranks_and_for_a_service_that_runs() {
    let mut job = job(|spec| spec.policy.ready = Ready::Stepping);
    job.tell(1, exited(KILLED, None));
    job.pass(100);
    assert_eq!(job.generation(), 2);
    job.observe(0, Signal::Progress { step: 1 });
    job.pass(100);
    assert_ne!(job.last().outcome, "recovered by restart", "rank 1 has not stepped");
    job.observe(1, Signal::Progress { step: 1 });
    job.pass(100);
    assert_eq!(job.last().outcome, "recovered by restart");
}

#[test]
fn one_that_ends_well_is_not_missed_and_the_end_of_the_ranks_is_the_end_of_the_job() {
    let mut job = job(|_| ());
    job.tell_of(ProcId::service(SCHEDULER, 1), exited(Termination::Code(0), None));
    job.pass(60_000);
    assert_eq!((job.kernel.report().incidents.len(), &job.finished), (0, &None));
    job.tell(0, exited(Termination::Code(0), None));
    job.tell(1, exited(Termination::Code(0), None));
    assert_eq!(job.finished, Some((true, "all 2 ranks finished".to_owned())));
}

#[test]
fn one_that_still_runs_when_all_ranks_have_finished_is_stopped() {
    let mut job = job(|spec| spec.policy.stop_grace = Duration::from_secs(3));
    job.tell(0, exited(Termination::Code(0), None));
    job.tell(1, exited(Termination::Code(0), None));
    assert!(service(&job).phase.is_exited());
    assert_eq!(job.finished, Some((true, "all 2 ranks finished".to_owned())));
}

#[test]
fn what_is_wrong_with_one_is_told_with_its_setting() {
    let spec = JobSpec::new("test", 1, WorkerSpec::new(["train"]))
        .with_service("", WorkerSpec::new(["a\0b"]))
        .with_service("x", WorkerSpec::new([""]));
    let problems: Vec<String> = spec.problems().iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        [
            "services must have names",
            "services.*.argv must not contain a NUL byte",
            "services.*.argv must name a program",
        ]
    );
}
