//! A kernel without the log of the supervisor before it: it takes the running processes over, and recovers what is missing.

use super::job::{Job, exited, plugins};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use taskd_kernel::detect::FaultClass;
use taskd_kernel::job::*;
use taskd_kernel::kernel::*;
use taskd_kernel::recover::Action;
use taskd_kernel::state::*;

fn node(host: &'static str) -> NodeId {
    NodeId(Name::new(host))
}

fn on(incarnation: u32, host: &'static str) -> Member {
    Member { incarnation: Incarnation(incarnation), node: Some(node(host)), device: None }
}

/// Ranks 0 and 1 on `a`, ranks 2 and 3 on `b`; rank 3 was started for the second time.
fn left() -> Resume {
    let members = [(0, on(1, "a")), (1, on(1, "a")), (2, on(1, "b")), (3, on(2, "b"))];
    let world = World::first(members.into_iter().map(|(rank, member)| (Rank(rank), member)).collect());
    let world = world.successor(Counted::Yes, |_| ());
    Resume::new(Arc::new(world)).with_services(BTreeMap::from([(Name::new("store"), on(1, "a"))]))
}

fn start() -> Input {
    start_with(left())
}

fn start_with(resume: Resume) -> Input {
    let mut spec = JobSpec::new("test", 4, WorkerSpec::new(["train"])).with_nodes([node("a"), node("b")]);
    spec.services.insert(Name::new("store"), WorkerSpec::new(["store"]).into());
    let resume = Some(Box::new(resume));
    Input::Start(Box::new(Start { spec: Arc::new(spec), trace: None, rendezvous_service: None, resume }))
}

fn running(proc: ProcId, host: &'static str) -> ProcStatus {
    ProcStatus::new(proc, "1", Phase::Running).with_pid(1).with_node(node(host))
}

fn listing(procs: Vec<ProcStatus>, b: NodeState) -> Input {
    let ready = NodeStatus::new(node("a"), NodeState::Ready, 4);
    let spare = NodeStatus::new(node("c"), NodeState::Ready, 4);
    let nodes = vec![ready, NodeStatus::new(node("b"), b, 4), spare];
    Input::Listed(Listing::new(Revision::default(), procs, nodes))
}

fn on_a() -> Vec<ProcStatus> {
    let store = ProcId { role: Role::Service(Name::new("store")), incarnation: Incarnation(1) };
    vec![running(ProcId::rank(0, 1), "a"), running(ProcId::rank(1, 1), "a"), running(store, "a")]
}

fn on_b() -> Vec<ProcStatus> {
    vec![running(ProcId::rank(2, 1), "b"), running(ProcId::rank(3, 2), "b")]
}

fn starts_and_stops(commands: &[Command]) -> Vec<String> {
    let acts = commands.iter().filter_map(|command| match &command.effect {
        Effect::Act(Action::Start { .. }) => Some("start".to_owned()),
        Effect::Act(Action::Stop { .. }) => Some("stop".to_owned()),
        _ => None,
    });
    acts.collect()
}

#[test]
fn running_processes_are_taken_over_untouched() {
    let mut kernel = Kernel::new(plugins());
    let mut commands = kernel.step(JobTime::START, &start());
    commands.extend(kernel.step(JobTime::from_nanos(1), &listing([on_a(), on_b()].concat(), NodeState::Ready)));
    assert_eq!(starts_and_stops(&commands), [""; 0]);
    assert_eq!(kernel.view().world.generation(), Generation(2));
    assert!(kernel.view().procs.values().all(|proc| proc.wanted && proc.phase == Phase::Running));
    assert_eq!(kernel.report().incidents, []);
}

#[test]
fn processes_of_a_host_out_of_sight_are_waited_for_and_lost_with_it() {
    let mut job = Job::not_started();
    job.give(start());
    job.give(listing(on_a(), NodeState::OutOfSight));
    job.pass(1_000);
    assert_eq!(job.kernel.report().incidents, [], "nothing is known of b");
    job.give(Input::Changed(Change::Node(NodeStatus::new(node("b"), NodeState::Left, 4).with_why("b is lost"))));
    for status in on_b() {
        job.give(Input::Changed(Change::Proc(status.with_phase(exited(Termination::Unknown, None)))));
    }
    job.pass(100);
    let incident = job.last();
    assert_eq!((&incident.domain, &incident.class), (&Domain::Node(node("b")), &FaultClass::NodeLost));
    assert_eq!(incident.victims, [Rank(2), Rank(3)]);
}

#[test]
fn a_process_that_is_missing_on_a_host_in_sight_has_ended() {
    let mut job = Job::not_started();
    job.give(start());
    job.give(listing([on_a(), on_b()[..1].to_vec()].concat(), NodeState::Ready));
    job.pass(100);
    assert_eq!(job.last().blamed, [Rank(3)]);
    assert_eq!(job.proc(3).incarnation, Incarnation(3), "the next one");
}

#[test]
fn completed_ranks_that_no_host_lists_are_not_missing() {
    let mut job = Job::not_started();
    job.give(start_with(left().with_completed(BTreeSet::from([Rank(2), Rank(3)]))));
    job.give(listing(on_a(), NodeState::Ready));
    job.pass(1_000);
    assert_eq!(job.kernel.report().incidents, []);
    assert_eq!(job.proc(3).incarnation, Incarnation(2), "it was not started again");
    for status in on_a().into_iter().take(2) {
        job.give(Input::Changed(Change::Proc(status.with_phase(exited(Termination::Code(0), None)))));
    }
    job.pass(20_000);
    assert_eq!(job.kernel.report().outcome, Outcome::Completed);
}

#[test]
fn a_job_that_had_completed_ends_after_the_first_listing() {
    let mut job = Job::not_started();
    job.give(start_with(left().with_completed((0..4).map(Rank).collect())));
    job.give(listing(on_a()[2..].to_vec(), NodeState::Ready));
    job.pass(20_000);
    assert_eq!((job.kernel.report().incidents, job.kernel.report().outcome), (vec![], Outcome::Completed));
}
