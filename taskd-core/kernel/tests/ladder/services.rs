//! Processes that ranks need but that do not train: they come and go with the world.

use super::job::{Job, KILLED, exited, report};
use super::lost_hosts::lose;
use std::time::Duration;
use taskd_kernel::job::*;
use taskd_kernel::recover::Action;
use taskd_kernel::state::{LoopPosition, Phase, Proc};
use taskd_kernel::trace::Signal;

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
fn a_service_starts_with_the_ranks_on_the_first_ranks_host() {
    let job = job(|_| ());
    let [Action::Start { batch, .. }] = &job.deeds[..] else { panic!("one start, not {:?}", job.deeds) };
    let started: Vec<_> = batch.starts.iter().map(|order| (order.proc.to_string(), &*order.spec.argv[0])).collect();
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
fn its_death_is_a_fault_after_which_all_ranks_start_again() {
    let mut job = job(|_| ());
    job.pass(1_000);
    job.set_phase_of(ProcId::service(SCHEDULER, 1), Phase::Dead(KILLED));
    job.set_phase_of(ProcId::service(SCHEDULER, 1), exited(KILLED, None));
    job.pass(5);
    let lost = report("SchedulerLost", "the scheduler is gone").with_follow_up(true);
    job.set_phase(1, exited(Termination::Signal { number: 15, core_dumped: false }, Some(lost)));
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

/// A job whose ranks meet at the service, which dies after `stepped` ranks have completed a step.
fn that_loses_its_meeting(stepped: u32) -> Job {
    let mut job = job(|spec| spec.rendezvous_service = Some(SCHEDULER));
    job.pass(1_000);
    (0..stepped).for_each(|rank| job.observe(rank, Signal::Progress { step: 1 }));
    job.set_phase_of(ProcId::service(SCHEDULER, 1), exited(KILLED, None));
    job.pass(100);
    job
}

#[test]
fn a_rendezvous_lost_after_joining_restarts_all_once_it_is_used() {
    let mut job = that_loses_its_meeting(2);
    assert_eq!((job.generation(), job.proc(0).incarnation), (1, Incarnation(1)), "no rank needs it any more");
    job.set_phase(1, exited(Termination::Code(1), Some(report("DistStoreError", "the store is gone"))));
    job.pass(100);
    (0..2).for_each(|rank| job.observe(rank, Signal::Progress { step: 2 }));
    assert_eq!(job.last().outcome, "recovered by restart");
    assert_eq!((service(&job).incarnation, &service(&job).phase), (Incarnation(2), &Phase::Running));
}

#[test]
fn a_rendezvous_lost_while_ranks_are_joining_restarts_all() {
    let mut job = that_loses_its_meeting(1);
    job.observe(0, Signal::Progress { step: 1 });
    assert_eq!(job.last().outcome, "recovered by restart");
    assert_eq!((service(&job).incarnation, &service(&job).phase), (Incarnation(2), &Phase::Running));
    assert_eq!((job.proc(0).incarnation, job.proc(1).incarnation), (Incarnation(2), Incarnation(2)));
}

#[test]
fn a_service_is_restarted_when_a_rank_is_lost() {
    let mut job = job(|_| ());
    job.pass(1_000);
    job.set_phase(1, exited(KILLED, None));
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
    job.set_phase(1, exited(KILLED, None));
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
fn a_service_that_ends_well_is_no_fault_and_ends_no_job() {
    let mut job = job(|_| ());
    job.set_phase_of(ProcId::service(SCHEDULER, 1), exited(Termination::Code(0), None));
    job.pass(60_000);
    assert_eq!((job.kernel.report().incidents.len(), &job.finished), (0, &None));
    job.set_phase(0, exited(Termination::Code(0), None));
    job.set_phase(1, exited(Termination::Code(0), None));
    assert_eq!(job.finished, Some((true, "all 2 ranks finished".to_owned())));
}

#[test]
fn a_running_service_is_stopped_when_all_ranks_have_finished() {
    let mut job = job(|spec| spec.policy.termination_grace_period = Duration::from_secs(3));
    job.set_phase(0, exited(Termination::Code(0), None));
    job.set_phase(1, exited(Termination::Code(0), None));
    assert!(service(&job).phase.is_exited());
    assert_eq!(job.finished, Some((true, "all 2 ranks finished".to_owned())));
}

#[test]
fn invalid_service_settings_are_reported_with_their_field() {
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

/// Four ranks on `a` and `b` that meet at a service on `a`, and a spare host; the ranks have completed some steps.
fn on_two_hosts_and_a_spare() -> Job {
    let mut job = Job::of_spec(4, &["a", "b", "c"], |spec| {
        spec.services.insert(SCHEDULER, WorkerSpec::new(["schedule"]).into());
        spec.rendezvous_service = Some(SCHEDULER);
        spec.nodes.truncate(2);
    });
    job.loops = true;
    for rank in 0..4 {
        job.link(ProcId::rank(rank, 1), LoopPosition::InLoop);
        job.observe(rank, Signal::Progress { step: 7 });
    }
    job.pass(1_000);
    job
}

fn incarnations(job: &Job) -> [u32; 4] {
    [0, 1, 2, 3].map(|rank| job.proc(rank).incarnation.0)
}

#[test]
fn the_host_of_the_rendezvous_and_rank_0_is_lost_and_the_other_ranks_are_kept() {
    let mut job = on_two_hosts_and_a_spare();
    let lost: Vec<u32> = (0..4).filter(|rank| job.proc(*rank).node == Some(NodeId(Name::new("a")))).collect();
    assert!(lost.contains(&0) && lost.len() == 2, "{:?}", job.hosts());
    job.deeds.clear();
    lose(&mut job, "a", lost.clone());
    job.set_phase_of(ProcId::service(SCHEDULER, 1), exited(Termination::Unknown, None));
    job.pass(100);
    assert_eq!(job.chosen(), ["recover"], "{:?}", job.decision().refused);
    let expected = [0, 1, 2, 3].map(|rank| if lost.contains(&rank) { 2 } else { 1 });
    assert_eq!(incarnations(&job), expected);
    assert_eq!((service(&job).incarnation, &service(&job).phase), (Incarnation(2), &Phase::Running));
    assert_eq!(service(&job).node, job.proc(0).node, "the service is on the host of the first rank");
    assert_eq!(job.proc(0).node, Some(NodeId(Name::new("c"))));
    assert!(!job.deeds.iter().any(|deed| matches!(deed, Action::Stop { .. })), "{:?}", job.deeds);
    assert_eq!(job.last().outcome, "recovered by recover");
}
