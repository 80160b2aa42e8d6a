//! A host that leaves with its ranks: the host is blamed, and its ranks are victims.

use super::job::{Job, exited};
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
