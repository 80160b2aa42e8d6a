//! Jobs that train with fewer ranks than they specify: from the start, after a loss, and until hosts come back.

use super::job::{Job, exited};
use std::time::Duration;
use taskd_kernel::detect::{ShrunkDetector, defaults};
use taskd_kernel::job::*;
use taskd_kernel::kernel::*;
use taskd_kernel::recover::{self, Action};
use taskd_kernel::state::*;
use taskd_kernel::trace::Signal;

const GROW_AFTER: Duration = Duration::from_millis(500);

fn node(host: &'static str) -> NodeId {
    NodeId(Name::new(host))
}

fn set_node(job: &mut Job, host: &'static str, state: NodeState) {
    job.give(Input::Changed(Change::Node(NodeStatus::new(node(host), state, 2))));
}

/// A job of six ranks, two on a host, that trains with two at least.
fn six(on: &[&'static str], adjust: impl FnOnce(&mut Policy)) -> Job {
    let mut job = Job::not_started();
    let mut detectors = defaults();
    detectors.retain(|detector| detector.name() != Name::new("shrunk"));
    detectors.push(Box::new(ShrunkDetector::after(GROW_AFTER)));
    job.kernel = Kernel::new(Plugins { detectors, strategies: recover::defaults() });
    let nodes: Vec<NodeId> = on.iter().map(|host| node(host)).collect();
    let mut spec = JobSpec::new("test", 6, WorkerSpec::new(["train"])).with_nodes(nodes.clone());
    spec.policy.min_ranks = 2;
    adjust(&mut spec.policy);
    let start = Start { spec: spec.into(), trace: None, rendezvous_service: None, resume: None };
    job.give(Input::Start(Box::new(start)));
    let nodes = nodes.into_iter().map(|node| NodeStatus::new(node, NodeState::Ready, 2)).collect();
    job.give(Input::Listed(Listing::default().with_nodes(nodes)));
    job
}

/// Lets all ranks be in their step loops.
fn train(job: &mut Job) {
    job.loops = true;
    let members: Vec<ProcId> =
        job.kernel.view().world.members().keys().filter_map(|rank| proc_of(job, *rank)).collect();
    members.into_iter().for_each(|proc| job.link(proc, LoopPosition::InLoop));
    job.observe(0, Signal::Progress { step: 1 });
}

fn proc_of(job: &Job, rank: Rank) -> Option<ProcId> {
    job.kernel.view().world.proc(rank)
}

fn members(job: &Job) -> Vec<u32> {
    job.kernel.view().world.members().keys().map(|rank| rank.0).collect()
}

fn lose(job: &mut Job, host: &'static str, ranks: [u32; 2]) {
    set_node(job, host, NodeState::Left);
    ranks.into_iter().for_each(|rank| job.set_phase(rank, exited(Termination::Unknown, None)));
    job.pass(100);
}

/// The ranks of each start so far.
fn starts(job: &Job) -> Vec<Vec<u32>> {
    let ranks = |deed: &Action| match deed {
        Action::Start { batch, .. } => {
            Some(batch.starts.iter().filter_map(|order| Some(order.proc.role.rank()?.0)).collect())
        }
        _ => None,
    };
    job.deeds.iter().filter_map(ranks).collect()
}

#[test]
fn a_job_starts_with_fewer_ranks_and_grows_as_hosts_join() {
    let mut job = six(&["a"], |policy| policy.start_ranks = 2);
    train(&mut job);
    assert_eq!((members(&job), job.kernel.view().world.absent().len()), (vec![0, 1], 4));
    job.pass(5_000);
    assert_eq!(members(&job), [0, 1], "no host has room");
    set_node(&mut job, "b", NodeState::Ready);
    job.pass(1_000);
    assert_eq!(members(&job), [0, 1, 2, 3]);
    set_node(&mut job, "c", NodeState::Ready);
    job.pass(1_000);
    assert_eq!(members(&job), [0, 1, 2, 3, 4, 5], "the wait does not double when some have come");
    assert_eq!(starts(&job), [vec![0, 1], vec![2, 3], vec![4, 5]], "no process was replaced");
    assert_eq!(job.kernel.view().world.restarts(), 0);
}

#[test]
fn a_host_that_returns_gets_its_ranks_back() {
    let mut job = six(&["a", "b", "c"], |_| ());
    train(&mut job);
    lose(&mut job, "b", [2, 3]);
    assert_eq!(members(&job), [0, 1, 4, 5]);
    set_node(&mut job, "b", NodeState::Ready);
    job.pass(1_000);
    assert_eq!(members(&job), [0, 1, 2, 3, 4, 5]);
    let member = &job.kernel.view().world.members()[&Rank(2)];
    assert_eq!((member.node.clone(), member.incarnation), (Some(node("b")), Incarnation(2)));
    assert_eq!(starts(&job), [vec![0, 1, 2, 3, 4, 5], vec![2, 3]]);
}

#[test]
fn ranks_leave_and_return_in_whole_units() {
    let mut job = six(&["a", "b", "c"], |policy| {
        (policy.rank_unit, policy.min_ranks) = (4, 4);
    });
    train(&mut job);
    lose(&mut job, "a", [0, 1]);
    assert_eq!(members(&job), [2, 3, 4, 5]);
    lose(&mut job, "b", [2, 3]);
    job.pass(30_000);
    assert_eq!(job.finished.as_ref().map(|(ok, _)| *ok), Some(false), "two are too few");

    let mut job = six(&["a", "b", "c"], |policy| (policy.rank_unit, policy.min_ranks) = (3, 3));
    train(&mut job);
    lose(&mut job, "b", [2, 3]);
    assert_eq!(members(&job), [0, 1, 4], "rank 5 leaves as well");
}

#[test]
fn a_restart_without_room_for_all_starts_as_many_as_have_a_place() {
    let mut job = six(&["a", "b", "c"], |_| ()); // none is in a step loop yet: no process can be kept
    lose(&mut job, "b", [2, 3]);
    job.pass(30_000);
    assert_eq!((members(&job), job.finished.clone()), (vec![0, 1, 2, 3], None));
    assert_eq!(job.chosen(), ["restart"]);
    let hosts: Vec<_> = job.kernel.view().world.members().values().filter_map(|member| member.node.clone()).collect();
    assert_eq!(hosts, ["a", "a", "c", "c"].map(node), "numbers without a gap: they form a process group anew");
    assert!(job.decision().reason.contains("2 more have no place"), "{}", job.decision().reason);
    train(&mut job);
    set_node(&mut job, "b", NodeState::Ready);
    job.pass(1_000);
    assert_eq!(members(&job), [0, 1, 2, 3, 4, 5]);

    let mut whole = six(&["a", "b", "c"], |policy| policy.min_ranks = 0);
    lose(&mut whole, "b", [2, 3]);
    whole.pass(31_000);
    assert_eq!(whole.finished.as_ref().map(|(ok, _)| *ok), Some(false), "all are needed");
}

#[test]
fn the_others_train_until_the_ranks_of_a_returned_host_are_ready_to_join() {
    let mut job = six(&["a", "b", "c"], |_| ());
    train(&mut job);
    lose(&mut job, "b", [2, 3]);
    assert_eq!(members(&job), [0, 1, 4, 5]);
    job.pass(10_000);
    job.starts_hang = Some(3); // it imports its libraries for a while
    let directives = job.directives;
    set_node(&mut job, "b", NodeState::Ready);
    job.pass(600);
    assert_eq!(starts(&job).last(), Some(&vec![2, 3]), "they start as soon as the host is there");
    job.pass(20_000);
    assert_eq!(job.directives, directives, "the others train on");
    let proc = proc_of(&job, Rank(3)).expect("a member of the next world");
    job.set_phase_of(proc.clone(), Phase::Running);
    job.link(proc, LoopPosition::Parked);
    assert!(job.directives > directives, "now they meet");
    job.pass(100);
    assert_eq!((members(&job), job.last().outcome.as_str()), (vec![0, 1, 2, 3, 4, 5], "recovered by grow"));
}
