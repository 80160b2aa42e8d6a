use super::*;
use crate::detect::fixture::{Scene, node};
use crate::detect::{Damage, Suspect};
use crate::job::{ErrorReport, Incarnation, IncidentId, JobTime, Rank, Role};
use crate::state::HostIncident;

fn day(day: u64) -> WallTime {
    WallTime::from_unix_ms(day * 24 * 3600 * 1000)
}

fn of_rank(rank: u32) -> Fault {
    let suspect = Suspect::certain(Domain::Process(Role::Rank(Rank(rank))), FaultClass::Exit, Damage::PROCESS_GONE);
    Fault::new(Name::new("exit"), JobTime::START, suspect).with_incarnation(Some(Incarnation(1)))
}

#[test]
fn evidence_counts_the_incidents_of_a_host_among_all() {
    let mut history = HostHistory::new();
    let record = |at| {
        let (class, job) = (Name::new("device"), Name::new("j"));
        HostIncident { at: day(at), class, job, incident: IncidentId(at) }
    };
    for at in [1, 95, 99, 100] {
        history.record(&node("a"), record(at));
    }
    history.record(&node("b"), record(98));
    let evidence = history.evidence(&node("a"), day(101)).unwrap();
    assert_eq!((evidence.what.as_str(), evidence.value), ("host_incidents", Some(3.0)));
    assert_eq!(evidence.text, "node a had 3 of the last 4 incidents of all hosts in 14 days (device 3)");
    assert_eq!((history.evidence(&node("c"), day(101)), history.evidence(&node("a"), day(900))), (None, None));
}

#[test]
fn a_fault_counts_against_the_host_of_its_cause() {
    let scene = Scene::on(4, &[("a", 2), ("b", 2)]);
    let certain = |domain| {
        Fault::new(Name::new("d"), JobTime::START, Suspect::certain(domain, FaultClass::Device, Damage::default()))
    };
    assert_eq!(of_rank(3).host_at_fault(&scene.view), Some(&node("b")));
    for domain in [Domain::Node(node("a")), Domain::Device(node("a"), 1), Domain::Guard(node("a"))] {
        assert_eq!(certain(domain).host_at_fault(&scene.view), Some(&node("a")));
    }
    assert_eq!(certain(Domain::Job).host_at_fault(&scene.view), None);
}

#[test]
fn no_host_is_at_fault_for_the_program_an_order_or_a_victim() {
    let mut scene = Scene::on(4, &[("a", 2), ("b", 2)]);
    let error = |family| Some(Box::new(ErrorReport::new(family, "RuntimeError", "no")));
    let with = |error: ErrorReport| of_rank(0).with_error(Some(Box::new(error)));
    let victim = Suspect::victim(Domain::Node(node("a")), FaultClass::NodeLost, Damage::default());
    let program = Suspect::certain(Domain::Process(Role::Rank(Rank(0))), FaultClass::Exit, Damage::PROGRAM_BROKEN);
    let leaves = Suspect::certain(Domain::Node(node("a")), FaultClass::Leave, Damage::default());
    let mut ordered = of_rank(0);
    ordered.by = OPERATOR;
    let innocent = [
        of_rank(0).with_error(error("python")),
        with(ErrorReport::new("nccl", "remote", "no").with_follow_up(true)),
        with(ErrorReport::new("torch", "port", "no").with_retry_free(true)),
        of_rank(0).with_incarnation(Some(Incarnation(7))),
        ordered,
    ];
    let suspects = [victim, program, leaves].map(|suspect| Fault::new(Name::new("d"), JobTime::START, suspect));
    for fault in innocent.iter().chain(&suspects) {
        assert_eq!(fault.host_at_fault(&scene.view), None, "{fault:?}");
    }
    assert!(of_rank(0).with_error(error("cuda.xid")).host_at_fault(&scene.view).is_some());
    scene.restart();
    assert_eq!(of_rank(0).host_at_fault(&scene.view), None, "its process was replaced");
}
