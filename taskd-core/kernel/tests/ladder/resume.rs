//! A kernel without the log of the supervisor before it: it takes the running processes over, and recovers what is missing.

use super::job::{Job, KILLED, equal_digest, exited, plugins};
use super::lost_hosts::set_node;
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

fn start_with(left: Resume) -> Input {
    let mut spec = JobSpec::new("test", 4, WorkerSpec::new(["train"])).with_nodes([node("a"), node("b")]);
    spec.services.insert(Name::new("store"), WorkerSpec::new(["store"]).into());
    spec.rendezvous_service = Some(Name::new("store"));
    let resume = Some(Box::new(left));
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
    job.pass(1_500); // the links of the others may still be reported
    assert_eq!(job.last().blamed, [Rank(3)]);
    assert_eq!(job.proc(3).incarnation, Incarnation(3), "the next one");
}

/// What the checksums of all ranks proved to the supervisor before.
fn proof() -> ReplicaProof {
    let member = Member { incarnation: Incarnation(1), node: None, device: None };
    let mut replicas = Replicas::default();
    for rank in 0..4 {
        replicas.hear(Rank(rank), &equal_digest(0), &BTreeMap::new());
    }
    replicas.proof(&(0..4).map(|rank| (Rank(rank), member.clone())).collect()).expect("all have reported")
}

/// A job that was taken over, of which only host `c`, which is spare, is in sight.
fn taken_over(left: Resume) -> Job {
    let mut job = Job::not_started();
    job.loops = true;
    job.give(start_with(left));
    let out_of_sight = |host| NodeStatus::new(node(host), NodeState::OutOfSight, 0);
    let spare = NodeStatus::new(node("c"), NodeState::Ready, 4);
    let procs = [on_a(), on_b()].concat();
    let expected = procs.into_iter().map(|status| status.with_phase(Phase::Pending("out of sight".into())));
    let nodes = vec![out_of_sight("a"), out_of_sight("b"), spare];
    job.give(Input::Listed(Listing::new(Revision::default(), expected.collect(), nodes)));
    job
}

/// The agent of `b` registers: its ranks run, and one reports that a collective has failed.
fn find_b(job: &mut Job) {
    set_node(job, "b", NodeState::Ready);
    on_b().into_iter().for_each(|status| job.give(Input::Changed(Change::Proc(status))));
    let (generation, kind) = (job.kernel.view().world.generation(), FailureKind::Collective);
    let failure = StepFailure::new(generation, kind, "closed");
    let message = WorkerMessage::Failed(Box::new(failure));
    job.give(Input::Changed(Change::Worker(WorkerEvent::new(ProcId::rank(2, 1), message))));
    job.pass(100); // the links are reported later than the ranks
    on_b().into_iter().for_each(|status| job.link(status.proc, LoopPosition::InLoop));
}

fn lose_a(job: &mut Job) {
    set_node(job, "a", NodeState::Left);
    for status in on_a() {
        job.give(Input::Changed(Change::Proc(status.with_phase(exited(Termination::Unknown, None)))));
    }
    job.pass(100);
}

#[test]
fn the_ranks_of_other_hosts_are_kept_when_the_supervisors_host_is_lost_with_the_rendezvous() {
    let mut job = taken_over(left().with_replicas(Some(proof())));
    find_b(&mut job);
    job.pass(1_500);
    assert_eq!(job.chosen(), [""; 0], "whether the ranks of a can be kept is not known");
    lose_a(&mut job);
    assert_eq!(job.chosen(), ["recover"], "{:?}", job.decision().refused);
    let ranks = [0, 1, 2, 3].map(|rank| job.proc(rank).incarnation.0);
    assert_eq!(ranks, [2, 2, 1, 2], "rank 3 was at its second process before");
    assert_eq!([0, 1].map(|rank| job.proc(rank).node.clone()), [Some(node("c")), Some(node("c"))]);
    let store = job.kernel.view().proc(&Role::Service(Name::new("store"))).expect("it is of the job");
    assert_eq!((store.incarnation, &store.node), (Incarnation(2), &Some(node("c"))));
}

#[test]
fn without_a_proof_a_lost_ranks_state_is_copied_from_no_other_rank() {
    let mut job = taken_over(left());
    find_b(&mut job);
    lose_a(&mut job);
    assert_eq!(job.chosen(), ["restart"]);
    let refused = job.decision().refused;
    let recover = refused.iter().find(|refusal| refusal.strategy == "recover").expect("it was refused");
    assert!(recover.reason.contains("no replica of rank 0 is proven"), "{recover:?}");
}

#[test]
fn a_lost_host_with_the_rendezvous_and_no_rank_ends_no_process() {
    let services = BTreeMap::from([(Name::new("store"), on(1, "c"))]);
    let mut job = Job::not_started();
    job.loops = true;
    job.give(start_with(left().with_services(services)));
    let store = ProcId { role: Role::Service(Name::new("store")), incarnation: Incarnation(1) };
    let on_c = running(store.clone(), "c");
    let ranks = [on_a()[..2].to_vec(), on_b(), vec![on_c.clone()]].concat();
    job.give(listing(ranks, NodeState::Ready));
    [on_a()[..2].to_vec(), on_b()].concat().into_iter().for_each(|one| job.link(one.proc, LoopPosition::InLoop));
    set_node(&mut job, "c", NodeState::Left);
    job.give(Input::Changed(Change::Proc(on_c.with_phase(exited(Termination::Unknown, None)))));
    job.pass(2_000);
    assert_eq!((job.chosen(), job.generation()), (vec![], 2), "no rank needs it before the next recovery");
    job.set_phase(1, exited(KILLED, None));
    job.pass(100);
    assert_eq!(job.chosen(), ["recover-in-place"], "{:?}", job.decision().refused);
    assert_eq!([0, 1, 2, 3].map(|rank| job.proc(rank).incarnation.0), [1, 2, 1, 2]);
    let known = job.kernel.view().proc(&store.role).expect("it is of the job");
    assert_eq!((known.incarnation, &known.node), (Incarnation(2), &Some(node("a"))));
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

#[test]
fn a_step_that_failed_while_there_was_no_supervisor_is_repeated() {
    let mut job = Job::not_started();
    job.loops = true;
    job.give(start_with(left().with_replicas(Some(proof()))));
    let (generation, kind) = (Generation(2), FailureKind::Collective);
    let failed = WorkerMessage::Failed(Box::new(StepFailure::new(generation, kind, "closed")));
    let nodes = ["a", "b"].map(|host| NodeStatus::new(node(host), NodeState::Ready, 4)).into();
    let procs = [on_a(), on_b()].concat();
    let links = procs.iter().filter(|status| status.proc.role.rank().is_some()).map(|status| {
        let link = ControlLink::new(generation, "test", LoopPosition::InLoop);
        let link = link.with_capabilities(["abort", "join", "sync-state", "resume"].map(Name::new).into());
        LinkStatus::new(status.proc.clone(), Some(link))
    });
    let listing = Listing::new(Revision::default(), procs.clone(), nodes).with_links(links.collect());
    let failed = vec![WorkerEvent::new(ProcId::rank(2, 1), failed)];
    job.give(Input::Listed(listing.with_failed_steps(failed)));
    job.pass(100);
    assert_eq!((job.chosen(), job.generation()), (vec!["retry"], 3));
    assert_eq!([0, 1, 2, 3].map(|rank| job.proc(rank).incarnation.0), [1, 1, 1, 2]);
}
