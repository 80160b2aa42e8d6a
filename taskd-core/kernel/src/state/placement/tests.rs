use super::*;
use crate::detect::fixture::{Scene, node};
use crate::job::{IncidentId, Name, WallTime};
use crate::state::{HostHistory, HostIncident, NodeState};

const THREE: &[(&str, u32)] = &[("a", 4), ("b", 4), ("c", 4)];

fn seated(seats: &Seats) -> Vec<&str> {
    seats.values().map(|s| s.node.as_ref().map_or("-", |n| n.0.as_str())).collect()
}

fn settled(scene: &Scene) -> Result<Seats, String> {
    settle(&scene.view, current(&scene.view))
}

#[test]
fn a_rank_does_not_move_without_need() {
    let scene = Scene::on(4, THREE);
    let seats = settled(&scene).expect("room for all");
    assert_eq!(seats, current(&scene.view));
    assert_eq!(seated(&seats), ["a", "a", "b", "b"]);
}

#[test]
fn placement_is_left_to_the_launcher_without_listed_hosts() {
    let mut scene = Scene::of(2);
    scene.proc(1).node = Some(node("somewhere"));
    assert_eq!(seated(&settled(&scene).expect("nothing is checked")), ["-", "somewhere"]);
}

#[test]
fn ranks_leave_a_host_that_takes_nothing_new_together() {
    for state in [NodeState::Cordoned, NodeState::OutOfSight, NodeState::Left] {
        let mut scene = Scene::on(4, THREE);
        scene.set_node("a", state);
        assert_eq!(seated(&settled(&scene).expect("host c is empty")), ["c", "c", "b", "b"]);
    }
}

#[test]
fn ranks_spread_over_hosts_if_no_single_host_has_room() {
    let mut scene = Scene::on(6, &[("a", 3), ("b", 4), ("c", 2)]);
    scene.set_node("a", NodeState::Left);
    assert_eq!(seated(&settled(&scene).expect("three slots are free")), ["c", "c", "b", "b", "b", "b"]);
    scene.set_node("c", NodeState::Cordoned);
    let why = settled(&scene).expect_err("one slot is free");
    assert_eq!(why, "node a takes nothing new, and no other host has room for rank 1");
}

#[test]
fn a_device_that_is_taken_on_the_new_host_is_exchanged_for_a_free_one() {
    let mut scene = Scene::on(4, &[("a", 4), ("b", 4)]);
    scene.set_node("a", NodeState::Left);
    let mut seats = current(&scene.view);
    for (seat, device) in seats.values_mut().zip([0, 1, 0, 1]) {
        seat.device = Some(device);
    }
    let seats = settle(&scene.view, seats).expect("host b has room");
    let devices: Vec<_> = seats.values().map(|s| s.device).collect();
    assert_eq!(devices, [Some(2), Some(3), Some(0), Some(1)]);
}

#[test]
fn hosts_are_exchanged_as_a_whole_with_an_empty_one_first() {
    let scene = Scene::on(4, THREE);
    let moved = elsewhere(&scene.view, &current(&scene.view), Rank(1)).expect("two other hosts");
    assert_eq!(seated(&moved), ["c", "c", "b", "b"]);
    let scene = Scene::on(4, &THREE[..2]);
    let moved = elsewhere(&scene.view, &current(&scene.view), Rank(1)).expect("one other host");
    assert_eq!(seated(&moved), ["b", "b", "a", "a"]);
}

#[test]
fn without_another_host_devices_are_exchanged_and_without_them_nothing() {
    let scene = Scene::on(3, &[("a", 3)]);
    let mut seats = current(&scene.view);
    assert_eq!(elsewhere(&scene.view, &seats, Rank(1)), None);
    for (seat, device) in seats.values_mut().zip([4, 5, 6]) {
        seat.device = Some(device);
    }
    for (rank, expected) in [(1, [4, 6, 5]), (2, [6, 5, 4])] {
        let moved = elsewhere(&scene.view, &seats, Rank(rank)).expect("other devices");
        let devices: Vec<_> = moved.values().filter_map(|s| s.device).collect();
        assert_eq!(devices, expected);
    }
}

#[test]
fn a_host_that_cannot_take_the_ranks_is_no_other_place() {
    for hosts in [&[("a", 2), ("b", 1)], &[("a", 1), ("b", 2)]] {
        let mut scene = Scene::on(2, hosts);
        let all_on_a = scene.view.world.successor(crate::job::Counted::No, |members| {
            members.values_mut().for_each(|m| m.node = Some(node("a")));
        });
        scene.enter(std::sync::Arc::new(all_on_a));
        let expected = hosts[1].1 == 2;
        assert_eq!(can_move(&scene.view, &Role::Rank(Rank(0))), expected, "{hosts:?}");
    }
    let scene = Scene::on(2, THREE);
    assert!(!can_move(&scene.view, &Role::Service("store".into())));
}

#[test]
fn the_places_of_absent_ranks_are_where_they_last_ran() {
    let mut scene = Scene::on(4, THREE);
    let leaves = |members: &mut BTreeMap<Rank, Member>| drop(members.remove(&Rank(3)));
    scene.view.world = std::sync::Arc::new(scene.view.world.successor(crate::job::Counted::No, leaves));
    assert_eq!(absent(&scene.view).keys().copied().collect::<Vec<_>>(), [Rank(3)]);
    assert_eq!(seated(&absent(&scene.view)), ["b"]);
}

/// A scene in which these hosts had this many incidents.
fn with_incidents(mut scene: Scene, counts: &[(&'static str, u64)]) -> Scene {
    let mut history = HostHistory::new();
    for (host, count) in counts {
        for number in 0..*count {
            let at = WallTime::from_unix_ms(1_000_000 + number);
            let (class, job) = (Name::new("device"), Name::new("j"));
            history.record(&node(host), HostIncident { at, class, job, incident: IncidentId(number) });
        }
    }
    scene.view.host_history = Some(std::sync::Arc::new(history));
    scene.view.wall = Some(WallTime::from_unix_ms(2_000_000));
    scene
}

#[test]
fn of_equally_empty_hosts_the_one_with_fewer_incidents_is_taken() {
    const FOUR: &[(&str, u32)] = &[("a", 4), ("b", 4), ("c", 4), ("d", 4)];
    let mut scene = with_incidents(Scene::on(4, FOUR), &[("c", 2), ("d", 1)]);
    let moved = elsewhere(&scene.view, &current(&scene.view), Rank(1)).expect("other hosts");
    assert_eq!(seated(&moved), ["d", "d", "b", "b"]);
    scene.set_node("a", NodeState::Left);
    let seats = settled(&scene).expect("two hosts are empty");
    assert_eq!(seated(&seats), ["d", "d", "b", "b"]);
    let text = passed_over_text(&scene.view, &seats, |view| settle(view, current(view)).ok());
    assert_eq!(text, "; passed over: c: 2 incidents in 14 days, last: device, 16 minutes ago");
    scene.set_node("d", NodeState::Cordoned);
    let seats = settled(&scene).expect("host c is empty");
    assert_eq!(seated(&seats), ["c", "c", "b", "b"], "a cordon outweighs every history");
    assert_eq!(passed_over_text(&scene.view, &seats, |view| settle(view, current(view)).ok()), "");
}

#[test]
fn room_outweighs_the_history_of_a_host() {
    let mut scene = with_incidents(Scene::on(4, &[("a", 2), ("b", 2), ("c", 2), ("d", 1)]), &[("c", 9)]);
    scene.set_node("a", NodeState::Left);
    assert_eq!(seated(&settled(&scene).expect("host c has room for both")), ["c", "c", "b", "b"]);
}

#[test]
fn a_first_world_avoids_hosts_with_incidents_where_the_history_decides() {
    let view = |counts| {
        let mut scene = with_incidents(Scene::on(2, &[("a", 1), ("b", 1), ("c", 1)]), counts);
        let spec = crate::job::JobSpec::new("j", 2, crate::job::WorkerSpec::new(["train"]));
        scene.view.world = std::sync::Arc::new(spec.first_world());
        scene.view
    };
    let seats = |view: &View| first(view, &view.world).map(|seats| seated(&seats).join(" "));
    assert_eq!(seats(&view(&[("a", 1)])).as_deref(), Some("b c"));
    assert_eq!(seats(&view(&[])), None, "the launcher chooses");
    assert_eq!(seats(&view(&[("a", 1), ("b", 1), ("c", 1)])), None, "all are equal");
    let mut named = view(&[("a", 1)]);
    named.world = std::sync::Arc::new(named.world.as_ref().clone().with_on(&node("a"), &[Rank(0)].into()));
    assert_eq!(seats(&named), None, "the job names its hosts");
    let mut full = view(&[("a", 1)]);
    full.nodes.remove(&node("c"));
    full.nodes.remove(&node("b"));
    assert_eq!(seats(&full), None, "only one rank has room");
}

proptest::proptest! {
    /// Incidents reorder equal hosts only: each chosen host has as few ranks as the choice without a history.
    #[test]
    fn a_history_never_changes_which_loads_are_chosen(
        counts in proptest::collection::vec(0..4_u64, 5), slots in proptest::collection::vec(1..4_u32, 5), gone in 0..2_usize,
    ) {
        const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
        let hosts: Vec<(&'static str, u32)> = NAMES.into_iter().zip(slots).collect();
        let counts: Vec<(&'static str, u64)> = NAMES.into_iter().zip(counts).collect();
        let mut scene = with_incidents(Scene::on(2, &hosts), &counts);
        scene.set_node(NAMES[gone], NodeState::Left);
        let chosen = settled(&scene);
        scene.view.host_history = None;
        let plain = settled(&scene);
        proptest::prop_assert_eq!(chosen.is_ok(), plain.is_ok());
        let loads = |seats: &Seats| {
            let mut load: BTreeMap<&NodeId, usize> = BTreeMap::new();
            seats.values().filter_map(|seat| seat.node.as_ref()).for_each(|host| *load.entry(host).or_default() += 1);
            let mut loads: Vec<usize> = load.into_values().collect();
            loads.sort_unstable();
            loads
        };
        if let (Ok(chosen), Ok(plain)) = (chosen, plain) {
            proptest::prop_assert!(chosen.values().all(|seat| seat.node.as_ref() != Some(&node(NAMES[gone]))));
            proptest::prop_assert_eq!(loads(&chosen), loads(&plain));
        }
    }
}

#[test]
fn a_host_with_standbys_is_preferred_among_equally_loaded_ones() {
    let mut scene = Scene::on(4, &[("a", 4), ("b", 4), ("c", 4), ("d", 4)]);
    for (host, ready) in [("b", 0), ("c", 1), ("d", 2)] {
        let status = scene.view.nodes.get_mut(&node(host)).expect("it is listed");
        *status = status.clone().with_standbys(ready);
    }
    scene.set_node("a", NodeState::Left);
    assert_eq!(seated(&settled(&scene).expect("there is room")), ["d", "d", "b", "b"], "two ranks move together");
}
