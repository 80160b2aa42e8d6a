//! A host that leaves with its ranks: the host is blamed, and its ranks are victims.

use super::job::{Job, KILLED, exited};
use taskd_kernel::detect::FaultClass;
use taskd_kernel::job::*;
use taskd_kernel::kernel::Input;
use taskd_kernel::state::*;

const WHY: &str = "b has given no sign of life for 1.9 s";

fn node(host: &'static str) -> NodeId {
    NodeId(Name::new(host))
}

pub(crate) fn set_node(job: &mut Job, host: &'static str, state: NodeState) {
    let status = NodeStatus::new(node(host), state, 2);
    let status = if state == NodeState::Left { status.with_why(WHY) } else { status };
    job.give(Input::Changed(Change::Node(status)));
}

pub(crate) fn lose(job: &mut Job, host: &'static str, ranks: impl IntoIterator<Item = u32>) {
    set_node(job, host, NodeState::OutOfSight);
    job.pass(1_000);
    set_node(job, host, NodeState::Left);
    ranks.into_iter().for_each(|rank| job.set_phase(rank, exited(Termination::Unknown, None)));
}

#[test]
fn a_lost_host_is_blamed_and_its_ranks_are_victims() {
    let mut job = Job::on(4, &["a", "b", "c"]);
    lose(&mut job, "b", [2, 3]);
    job.pass(100);
    let incident = job.last();
    assert_eq!((&incident.domain, &incident.class), (&Domain::Node(node("b")), &FaultClass::NodeLost));
    assert_eq!((&incident.blamed[..], &incident.victims[..]), (&[][..], &[Rank(2), Rank(3)][..]));
    assert!(incident.evidence[0].contains(WHY), "{:?}", incident.evidence);
    assert!(incident.outcome.starts_with("recovered"), "{}", incident.outcome);
    assert!(!job.hosts().contains(&"b"), "{:?}", job.hosts());
    let hosts: Vec<_> =
        (0..4).filter_map(|rank| job.kernel.view().proc(&Role::Rank(Rank(rank)))?.node.clone()).collect();
    assert!(!hosts.contains(&node("b")), "{hosts:?}");
    assert_eq!(job.kernel.report().incidents.len(), 1);
}

#[test]
fn a_host_out_of_sight_loses_nothing() {
    let mut job = Job::on(4, &["a", "b", "c"]);
    set_node(&mut job, "b", NodeState::OutOfSight);
    job.pass(1_000);
    set_node(&mut job, "b", NodeState::Ready);
    job.pass(1_000);
    assert_eq!(job.kernel.report().incidents, []);
}

#[test]
fn a_host_without_ranks_may_leave_without_an_incident() {
    let mut job = Job::on(2, &["a", "b", "c"]);
    lose(&mut job, "c", []);
    job.pass(1_000);
    assert_eq!(job.kernel.report().incidents, []);
}

/// Four ranks in step loops on `a` and `b`, and a spare host `c`, with the number of standbys that each has ready.
fn with_standbys(ready: [u32; 3]) -> Job {
    let mut job = Job::of_spec(4, &["a", "b", "c"], |spec| spec.nodes.truncate(2));
    job.loops = true;
    for (host, ready) in ["a", "b", "c"].into_iter().zip(ready) {
        let status = NodeStatus::new(node(host), NodeState::Ready, 4).with_standbys(ready);
        job.give(Input::Changed(Change::Node(status)));
    }
    (0..4).for_each(|rank| job.link(ProcId::rank(rank, 1), LoopPosition::InLoop));
    job.pass(1_000);
    job
}

#[test]
fn a_lost_rank_starts_where_a_standby_is_ready_and_otherwise_on_its_own_host() {
    for (ready, strategy, host) in [
        ([1, 1, 2], "recover-in-place", "b"),
        ([1, 0, 2], "recover", "c"),
        ([1, 0, 0], "recover-in-place", "b"),
        ([1, 1, 0], "recover-in-place", "b"),
    ] {
        let mut job = with_standbys(ready);
        let rank = (0..4).rfind(|rank| job.proc(*rank).node == Some(node("b"))).expect("two ranks are on b");
        job.set_phase(rank, exited(KILLED, None));
        job.pass(100);
        assert_eq!((job.chosen(), job.proc(rank).node.clone()), (vec![strategy], Some(node(host))), "{ready:?}");
    }
    let mut job = with_standbys([1, 0, 2]);
    job.set_phase(3, exited(KILLED, None));
    job.pass(100);
    let lost = job.decision().lost;
    let in_place = lost.iter().find(|lost| lost.strategy == "recover-in-place").expect("it was possible");
    assert!(in_place.reason.contains("5.2 s down, the winner"), "{in_place:?}");
}
