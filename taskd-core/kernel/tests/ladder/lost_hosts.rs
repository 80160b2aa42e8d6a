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

/// Reports that these hosts have left because of one domain, each with two ranks, in the order of a launcher.
fn lose_together(job: &mut Job, hosts: &[(&'static str, [u32; 2])]) {
    for (host, _) in hosts {
        set_node(job, host, NodeState::OutOfSight);
    }
    job.pass(1_000);
    for (host, _) in hosts {
        let why = "10 hosts of leaf l1 give no sign of life";
        let status = NodeStatus::new(node(host), NodeState::Left, 2).with_why(why).with_lost_with(Name::new("leaf l1"));
        job.give(Input::Changed(Change::Node(status)));
    }
    for rank in hosts.iter().flat_map(|(_, ranks)| ranks) {
        job.set_phase(*rank, exited(Termination::Unknown, None));
    }
}

#[test]
fn ten_hosts_that_fail_under_one_switch_are_one_incident() {
    const UNDER_IT: [&str; 10] = ["b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8", "b9"];
    const APART: [&str; 11] = ["a", "c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9"];
    let all = ["a"].into_iter().chain(UNDER_IT).chain(APART[1..].iter().copied()).collect::<Vec<_>>();
    for loops in [false, true] {
        let mut job = Job::of_spec(22, &all, |spec| spec.nodes.truncate(11)); // two on each; the others are spare
        if loops {
            job.loops = true;
            (0..22).for_each(|rank| job.link(ProcId::rank(rank, 1), LoopPosition::InLoop));
        }
        assert_eq!(job.hosts()[..6], ["a", "a", "b0", "b0", "b1", "b1"]);
        let ranks = |host: u32| [2 * host + 2, 2 * host + 3];
        let lost: Vec<_> = (0..).zip(UNDER_IT).map(|(at, host)| (host, ranks(at))).collect();
        lose_together(&mut job, &lost);
        job.pass(100);
        let report = job.kernel.report();
        assert_eq!(report.incidents.len(), 1, "{:#?}", report.incidents);
        let incident = job.last();
        let switch = Domain::Topology(Name::new("leaf l1"));
        assert_eq!((&incident.domain, &incident.class), (&switch, &FaultClass::NodeLost));
        assert_eq!(incident.domain.to_string(), "topology domain leaf l1");
        assert_eq!((incident.blamed.len(), incident.victims.len()), (0, 20), "{:?}", incident.victims);
        assert!(incident.evidence[0].contains("10 hosts of leaf l1"), "{:?}", incident.evidence);
        assert_eq!(incident.outcome, if loops { "recovered by recover" } else { "recovered by restart" });
        assert_eq!(job.chosen().len(), 1, "one decision for all: {:?}", job.chosen());
        assert!(job.hosts().iter().all(|host| !UNDER_IT.contains(host)), "{:?}", job.hosts());
    }
}

#[test]
fn a_switch_with_spare_hosts_only_is_no_incident() {
    let mut job = Job::on(1, &["a", "b", "c"]);
    for host in ["b", "c"] {
        let status = NodeStatus::new(node(host), NodeState::Left, 2).with_lost_with(Name::new("leaf l1"));
        assert!(!job.hosts().contains(&host), "it is spare");
        job.give(Input::Changed(Change::Node(status)));
    }
    job.pass(1_000);
    assert_eq!(job.kernel.report().incidents, []);
}

#[test]
fn a_rank_that_was_being_started_is_lost_with_its_host() {
    for is_placed in [true, false] {
        let mut job = Job::of_spec(4, &["a", "b", "c"], |spec| {
            if !is_placed {
                spec.nodes.clear(); // the launcher chooses the hosts
            }
        });
        let generation = job.generation();
        job.set_phase(0, exited(KILLED, None));
        job.starts_hang = Some(3);
        job.pass(100);
        assert_eq!(job.generation(), generation + 1);
        set_node(&mut job, "b", NodeState::Left);
        let status = ProcStatus::new(ProcId::rank(3, 2), "not-started", exited(Termination::Unknown, None));
        job.give(Input::Changed(Change::Proc(status.with_node(node("b")))));
        job.pass(100);
        let incidents = job.kernel.report().incidents;
        let blamed: Vec<_> = incidents.iter().flat_map(|incident| incident.blamed.clone()).collect();
        assert_eq!(blamed, [Rank(0)], "{incidents:#?}");
        assert!(incidents.iter().any(|one| one.victims.contains(&Rank(3))), "placed: {is_placed}; {incidents:#?}");
    }
}
