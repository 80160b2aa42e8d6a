use super::*;
use proptest::prelude::*;

const DAY: u64 = MS_PER_DAY;

fn day(day: u64) -> WallTime {
    WallTime::from_unix_ms(day * DAY)
}

fn incident(at: WallTime) -> HostIncident {
    HostIncident { at, class: Name::new("device"), job: Name::new("j"), incident: IncidentId(1) }
}

fn host(number: u64) -> NodeId {
    NodeId(Name::from(format!("node-{number:02}")))
}

#[test]
fn the_weight_of_an_incident_halves_in_fourteen_days() {
    let mut history = HostHistory::new();
    history.record(&host(1), incident(day(100)));
    let at = |of: u64| history.score(&host(1), day(of));
    assert_eq!([at(100), at(107), at(114), at(128)], [1_000_000, 750_000, 500_000, 250_000]);
    assert_eq!(
        (at(90), at(100_000), history.score(&host(2), day(100))),
        (1_000_000, 0, 0),
        "before, long after, unknown"
    );
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
            let at = WallTime::from_unix_ms(1000 * DAY + next(28 * DAY));
            let which = if next(100) < 55 { bad[usize::try_from(next(3)).unwrap()] } else { next(63) };
            history.record(&host(which), incident(at));
        }
        let mut top: Vec<NodeId> = history.top(3, day(1028)).into_iter().map(|(host, _)| host.clone()).collect();
        top.sort();
        assert_eq!(top, bad.map(host), "seed {seed}");
        let all: Vec<NodeId> = (0..63).map(host).collect();
        let preferred = history.preferred(&all, day(1028));
        assert!(preferred[..60].iter().all(|host| !top.contains(host)), "seed {seed}");
    }
}

#[test]
fn limits_drop_the_oldest_and_count_it() {
    let mut history = HostHistory::new();
    let at = |ms: u64| incident(WallTime::from_unix_ms(ms));
    for ms in 0..INCIDENTS_MAX as u64 + 5 {
        history.record(&host(1), at(1000 + ms));
    }
    let kept = &history.hosts[&host(1)];
    assert_eq!((kept.len(), kept[0].at.as_unix_ms(), history.dropped()), (INCIDENTS_MAX, 1005, 5));
    assert!(
        history.covers(&host(1), &at(3)) && !history.covers(&host(1), &at(9999)) && !history.covers(&host(2), &at(3))
    );
    for number in 0..HOSTS_MAX as u64 {
        history.record(&NodeId(Name::from(format!("other-{number}"))), at(5000));
    }
    assert_eq!((history.hosts.len(), history.hosts.contains_key(&host(1))), (HOSTS_MAX, false));
    assert_eq!((history.dropped(), history.len()), (5 + INCIDENTS_MAX as u64, HOSTS_MAX));
}

#[test]
fn the_limit_on_all_incidents_drops_the_oldest_of_any_host() {
    let mut history = HostHistory::new();
    for ms in 0..INCIDENTS_TOTAL_MAX as u64 {
        history.record(&host(ms % 300), incident(WallTime::from_unix_ms(ms)));
    }
    assert_eq!((history.len(), history.dropped()), (INCIDENTS_TOTAL_MAX, 0));
    history.record(&host(999), incident(day(1)));
    assert_eq!(
        (history.len(), history.dropped(), history.iter().count()),
        (INCIDENTS_TOTAL_MAX, 1, INCIDENTS_TOTAL_MAX)
    );
    assert!(history.iter().all(|(_, incident)| incident.at.as_unix_ms() > 0));
}

#[test]
fn a_stored_history_beyond_the_limits_is_bounded_when_it_is_read() {
    let incidents: Vec<HostIncident> = (0..200).rev().map(|ms| incident(WallTime::from_unix_ms(ms))).collect();
    let stored = serde_json::json!({"hosts": {"a": incidents}}).to_string();
    let history: HostHistory = serde_json::from_str(&stored).unwrap();
    let kept = &history.hosts[&NodeId(Name::new("a"))];
    assert_eq!((kept.len(), history.dropped()), (INCIDENTS_MAX, 136));
    assert!(kept.is_sorted());
}

#[test]
fn a_line_names_the_count_the_last_class_and_its_age() {
    let mut history = HostHistory::new();
    for at in [10, 100, 101, 110] {
        history.record(&host(7), incident(day(at)));
    }
    let line = |now| history.line(&host(7), now).unwrap();
    assert_eq!(line(day(112)), "node-07: 3 incidents in 14 days, last: device, 2 days ago");
    assert_eq!(line(day(200)), "node-07: 4 incidents, none in 14 days, last: device, 90 days ago");
    let soon = WallTime::from_unix_ms(110 * DAY + 3_700_000);
    assert_eq!(line(soon), "node-07: 3 incidents in 14 days, last: device, 1 hour ago");
    assert_eq!(line(day(110)), "node-07: 3 incidents in 14 days, last: device, just now");
    assert_eq!(history.line(&host(1), day(1)), None);
}

#[test]
fn the_report_names_the_top_hosts_and_their_share() {
    let mut history = HostHistory::new();
    for (number, count) in [(1, 1), (2, 2), (7, 6), (9, 1)] {
        for n in 0..count {
            history.record(&host(number), incident(day(100 + n)));
        }
    }
    let expected = "\
10 incidents on 4 hosts since 1970-04-11T00:00:00.000Z; the first 2 of them had 80 %
host     incidents   share  in 14 days  score  last, classes
node-07          6    60 %           6   5.25  device, 1 day ago (device 6)
node-02          2    20 %           2   1.60  device, 5 days ago (device 2)
";
    assert_eq!(history.report(2, day(106)), expected);
    assert_eq!(HostHistory::new().report(2, day(106)), "no host had an incident\n");
}

proptest! {
    #[test]
    fn records_merge_in_any_order_and_however_often(mut times in prop::collection::vec(0..1_000_000_u64, 0..60)) {
        let of = |times: &[u64]| {
            let mut history = HostHistory::new();
            for at in times {
                history.record(&host(at % 3), incident(WallTime::from_unix_ms(*at)));
            }
            history
        };
        let before = of(&times);
        times.reverse();
        prop_assert_eq!(of(&times), before.clone());
        times.extend(times.clone());
        prop_assert_eq!(of(&times), before);
    }

    #[test]
    fn an_older_incident_never_weighs_more(one in 0..u64::MAX, other in 0..u64::MAX) {
        let (young, old) = (one.min(other), one.max(other));
        prop_assert!(weight(old) <= weight(young) && weight(young) <= WEIGHT_NOW);
    }
}
