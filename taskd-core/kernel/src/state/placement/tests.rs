use super::*;
use crate::detect::fixture::{Scene, node};
use crate::state::NodeState;

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
