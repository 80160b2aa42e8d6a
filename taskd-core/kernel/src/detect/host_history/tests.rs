use super::*;
use crate::detect::ExitDetector;
use crate::detect::fixture::{KILLED, Scene, dead, fault, node};
use proptest::prelude::*;

const DAY: u64 = SECONDS_PER_DAY;

fn incident(unix_seconds: u64) -> HostIncident {
    HostIncident { unix_seconds, class: Name::new("device"), job: Name::new("j") }
}

fn host(number: u64) -> NodeId {
    NodeId(Name::from(format!("node-{number:02}")))
}

#[test]
fn the_weight_of_an_incident_halves_in_fourteen_days() {
    let mut history = HostHistory::new();
    history.record(&host(1), incident(100 * DAY));
    let at = |day: u64| history.score(&host(1), day * DAY);
    assert_eq!([at(100), at(114), at(128)], [1.0, 0.5, 0.25]);
    assert_eq!((at(90), history.score(&host(2), 100 * DAY)), (1.0, 0.0), "before it, and of an unknown host");
}

/// In the field 3 of 63 hosts accounted for over half of all exclusions: those hosts come first, for any order in which
/// incidents are recorded.
#[test]
fn the_hosts_with_most_incidents_are_found_and_avoided() {
    for seed in 1..50_u64 {
        let mut random = seed;
        let mut next = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        let bad = [next(21), 21 + next(21), 42 + next(21)];
        let mut history = HostHistory::new();
        for _ in 0..120 {
            let at = 1000 * DAY + next(28 * DAY);
            let which = if next(100) < 55 { bad[usize::try_from(next(3)).unwrap()] } else { next(63) };
            history.record(&host(which), incident(at));
        }
        let mut top: Vec<NodeId> = history.top(3, 1028 * DAY).into_iter().map(|(host, _)| host.clone()).collect();
        top.sort();
        assert_eq!(top, bad.map(host), "seed {seed}");
        let all: Vec<NodeId> = (0..63).map(host).collect();
        let preferred = history.preferred(&all, 1028 * DAY);
        assert!(preferred[..60].iter().all(|host| !top.contains(host)), "seed {seed}");
    }
}

#[test]
fn limits_drop_the_oldest_and_count_it() {
    let mut history = HostHistory::new();
    for at in 0..INCIDENTS_MAX as u64 + 5 {
        history.record(&host(1), incident(1000 + at));
    }
    assert_eq!(
        (history.hosts[&host(1)].len(), history.hosts[&host(1)][0].unix_seconds, history.dropped()),
        (INCIDENTS_MAX, 1005, 5)
    );
    for number in 0..HOSTS_MAX as u64 {
        history.record(&NodeId(Name::from(format!("other-{number}"))), incident(5000));
    }
    assert_eq!((history.hosts.len(), history.hosts.contains_key(&host(1))), (HOSTS_MAX, false));
    assert_eq!(history.dropped(), 5 + INCIDENTS_MAX as u64);
}

#[test]
fn a_stored_history_beyond_the_limits_is_bounded_when_it_is_read() {
    let incidents: Vec<HostIncident> = (0..200).rev().map(incident).collect();
    let stored = serde_json::json!({"hosts": {"a": incidents}}).to_string();
    let history: HostHistory = serde_json::from_str(&stored).unwrap();
    let kept = &history.hosts[&node("a")];
    assert_eq!((kept.len(), history.dropped()), (INCIDENTS_MAX, 136));
    assert!(kept.is_sorted());
}

#[test]
fn a_fault_on_a_host_with_incidents_carries_its_history() {
    let mut history = HostHistory::new();
    for day in [1, 95, 99, 100] {
        history.record(&node("a"), incident(day * DAY));
    }
    history.record(&node("b"), incident(98 * DAY));
    let mut scene = Scene::on(4, &[("a", 2), ("b", 2), ("c", 2)]);
    let mut detector = history.clone().with_evidence(ExitDetector::default(), 101 * DAY);
    let found = scene.tell(&mut detector, 0, dead(KILLED));
    let last = fault(&found).evidence.last().unwrap();
    assert_eq!((last.what.as_str(), last.value), ("host_incidents", Some(3.0)));
    assert_eq!(last.text, "node a had 3 of the last 4 incidents of all hosts in 14 days (device 3)");
    let plain = HostHistory::new().with_evidence(ExitDetector::default(), 0);
    assert_ne!(detector.config(), plain.config(), "a replay with another history is recognised");
    assert_eq!(detector.name(), "exit");
}

proptest! {
    #[test]
    fn the_order_of_records_does_not_matter_below_the_limits(mut times in prop::collection::vec(0..1_000_000_u64, 0..60)) {
        let of = |times: &[u64]| {
            let mut history = HostHistory::new();
            times.iter().for_each(|at| history.record(&host(at % 3), incident(*at)));
            history
        };
        let before = of(&times);
        times.reverse();
        prop_assert_eq!(of(&times), before);
    }
}
