use super::super::replicas::replica_sets;
use super::super::tests::state;
use super::*;
use crate::detect::fixture::{Scene, node};
use crate::job::{Counted, GroupId, GroupKind};
use proptest::prelude::*;

/// Plans a state sync in which checksums prove what the groups declare.
fn plan_all(
    states: &BTreeMap<Rank, WorkerState>,
    replacements: &BTreeSet<Rank>,
    world: &World,
) -> Result<Repairs, String> {
    plan(states, replacements, &replica_sets(world, false), world)
}

#[test]
fn replicas_of_another_shape_are_no_replicas() {
    let world = Scene::of(3).view.world;
    let other = WorkerState { layout: "other".into(), ..state(5, Some(4), Window::Before) };
    let states = [(Rank(0), state(5, Some(4), Window::Before)), (Rank(1), other)].into();
    assert!(plan_all(&states, &[Rank(2)].into(), &world).is_err_and(|why| why.contains("rank 0 and rank 1")));
    let as_they_are = plan_all(&states, &BTreeSet::new(), &Scene::of(2).view.world).expect("nobody copies anything");
    assert!(as_they_are.places.values().all(|place| place.from.is_empty() && place.put_back));
}

#[test]
fn a_rank_that_receives_a_copy_may_have_an_incomplete_layout() {
    let world = Scene::of(3).view.world;
    let before_step_0 = WorkerState { layout: "no moments".into(), ..state(0, None, Window::Before) };
    let states = [
        (Rank(0), before_step_0),
        (Rank(1), state(0, Some(0), Window::Closed)), // its optimizer has stepped once
        (Rank(2), state(1, Some(0), Window::Before)),
    ];
    let repairs = plan_all(&states.into(), &BTreeSet::new(), &world).expect("rank 0 is given what the others have");
    assert_eq!((repairs.step, repairs.places[&Rank(0)].from.clone()), (1, vec![Rank(1)]));
}

#[test]
fn groups_of_replicas_have_states_and_buckets_of_their_own() {
    let group = |index, ranks: [u32; 2]| (GroupId { kind: GroupKind::Dp, index }, ranks.map(Rank).to_vec());
    let world = Scene::of(4).view.world.as_ref().clone().with_groups([group(0, [0, 2]), group(1, [1, 3])].into());
    let first = state(5, Some(4), Window::Before);
    let second = WorkerState { layout: "another part".into(), buckets: vec![3, 2, 1], ..first.clone() };
    let states = [(Rank(0), first.clone()), (Rank(1), second), (Rank(2), first)].into();
    let repairs = plan_all(&states, &[Rank(3)].into(), &world).expect("rank 1 is its replica");
    let buckets = |rank| repairs.places[&Rank(rank)].buckets.clone();
    assert_eq!((buckets(0), buckets(2)), (Some(vec![8, 4]), Some(vec![8, 4])));
    assert_eq!((buckets(1), buckets(3)), (Some(vec![3, 2, 1]), Some(vec![3, 2, 1])));
}

#[test]
fn a_replacement_copies_from_its_own_data_parallel_group_only() {
    let group = |index, ranks: [u32; 2]| (GroupId { kind: GroupKind::Dp, index }, ranks.map(Rank).to_vec());
    let world = Scene::of(4).view.world.as_ref().clone().with_groups([group(0, [0, 2]), group(1, [1, 3])].into());
    let before = state(5, Some(4), Window::Before);
    let states: BTreeMap<_, _> = [0, 1, 2].map(|rank| (Rank(rank), before.clone())).into();
    let repairs = plan_all(&states, &[Rank(3)].into(), &world).expect("rank 1 is its replica");
    assert_eq!(repairs.places[&Rank(3)].from, [Rank(1)]);
    let states = [0, 2].map(|rank| (Rank(rank), before.clone())).into();
    let why = plan_all(&states, &[Rank(1), Rank(3)].into(), &world).expect_err("none of group 1 is left");
    assert!(why.contains("no replica of rank 1"), "{why}");
}

fn large(bytes: u64) -> WorkerState {
    WorkerState { bytes, ..state(5, Some(4), Window::Before) }
}

/// Returns the sources of each rank in `lack`, if the other ranks have a state of `bytes` bytes.
fn givers(world: &World, lack: &[u32], bytes: u64) -> Vec<Vec<u32>> {
    let lack: BTreeSet<Rank> = lack.iter().copied().map(Rank).collect();
    let there = world.members().keys().filter(|rank| !lack.contains(rank));
    let repairs = plan_all(&there.map(|rank| (*rank, large(bytes))).collect(), &lack, world).expect("they have it");
    for (rank, place) in &repairs.places {
        assert!(place.from.iter().all(|giver| repairs.places[giver].to.contains(rank)), "each knows to whom it gives");
    }
    lack.iter().map(|rank| repairs.places[rank].from.iter().map(|giver| giver.0).collect()).collect()
}

/// Creates a world whose ranks are on these hosts.
fn on(hosts: &[&'static str]) -> World {
    Scene::of(u32::try_from(hosts.len()).unwrap()).view.world.successor(Counted::Yes, |members| {
        for (member, host) in members.values_mut().zip(hosts) {
            member.node = Some(node(host));
        }
    })
}

#[test]
fn a_large_state_has_several_sources_and_small_ones_take_turns() {
    let world = on(&["a", "b", "a", "a"]);
    assert_eq!(givers(&world, &[1], PARTS_MIN_BYTES), [vec![0, 2, 3]]);
    assert_eq!(givers(&world, &[1], PARTS_MIN_BYTES - 1), [vec![0]]);
    assert_eq!(givers(&on(&["a", "b", "b", "a"]), &[1, 2], PARTS_MIN_BYTES - 1), [vec![0], vec![3]]);
    let world = on(&["b", "a", "a", "a", "a", "a", "a", "a", "b"]);
    assert_eq!(givers(&world, &[0, 8], PARTS_MIN_BYTES), [vec![1, 2, 3, 4], vec![5, 6, 7, 1]], "four at most");
}

#[test]
fn a_source_on_the_same_host_is_preferred_over_other_hosts() {
    let world = on(&["a", "a", "a", "b", "b"]);
    assert_eq!(givers(&world, &[1], PARTS_MIN_BYTES), [vec![0]]);
    assert_eq!(givers(&world, &[3, 4], PARTS_MIN_BYTES), [vec![0, 1, 2], vec![0, 1, 2]]);
    assert_eq!(givers(&world, &[2, 4], 0), [vec![0], vec![3]]);
    assert_eq!(givers(&world, &[3, 4], 0), [vec![0], vec![1]]);
    assert_eq!(givers(&Scene::of(4).view.world, &[1, 2], PARTS_MIN_BYTES), [vec![0], vec![3]], "no host is known");
}

fn any_state() -> impl Strategy<Value = WorkerState> {
    let window = prop_oneof![Just(Window::Before), Just(Window::Torn), Just(Window::Closed)];
    (1..4_u64, window, prop_oneof![Just(12), Just(PARTS_MIN_BYTES)]).prop_map(|(step, window, bytes)| {
        let committed = if window == Window::Closed { step } else { step - 1 };
        WorkerState { bytes, ..state(step, Some(committed), window) }
    })
}

proptest! {
    #[test]
    fn everybody_ends_with_the_state_of_one_step(states in prop::collection::vec(prop::option::of(any_state()), 1..7)) {
        let world = Scene::of(u32::try_from(states.len()).unwrap()).view.world;
        let known: BTreeMap<Rank, WorkerState> =
            states.iter().zip(0..).filter_map(|(s, rank)| Some((Rank(rank), s.clone()?))).collect();
        let replacements = world.members().keys().filter(|rank| !known.contains_key(rank)).copied().collect();
        let planned = plan_all(&known, &replacements, &world);
        let Ok(Repairs { step, places, .. }) = planned else {
            prop_assert!(known.values().all(|state| !state.is_whole()), "it gave up although a replica was whole");
            return Ok(());
        };
        prop_assert!(known.values().filter(|s| s.is_whole()).all(|s| s.next_step() <= step), "the newest step wins");
        for rank in world.members().keys() {
            let Place { from, to, put_back, .. } = &places[rank];
            let has_it = |rank: &Rank| known.get(rank).is_some_and(|s| s.is_whole() && s.next_step() == step);
            prop_assert_eq!(from.is_empty(), has_it(rank), "who has it keeps it, who has not copies");
            for source in from {
                prop_assert!(has_it(source) && places[source].to.contains(rank));
            }
            prop_assert!(to.iter().all(|sink| places[sink].from.contains(rank)));
            prop_assert!(!put_back || has_it(rank) && known[rank].window == Window::Before);
        }
    }
}
