//! Rules of the decision, by example.

mod properties;
mod refusals;
mod voters;

use super::*;
use crate::topology::Topology;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use taskd_runtime::job::{JobTime, NodeId};

pub(super) fn host(name: &str) -> NodeId {
    name.parse().expect("a name")
}

pub(super) fn hosts(names: &str) -> BTreeSet<NodeId> {
    names.split_whitespace().map(host).collect()
}

pub(super) fn s(seconds: u64) -> JobTime {
    JobTime::START + Duration::from_secs(seconds)
}

/// A policy with a last call of 10 s, as long a wait before a world shrinks, and a waiting timeout of 100 s.
pub(super) fn policy(min: u32, max: u32) -> Policy {
    let ten = Duration::from_secs(10);
    Policy::new(min, max).with_last_call(ten).with_shrink_after(ten).with_waiting_timeout(Duration::from_secs(100))
}

/// Hosts that joined at 1 s, 2 s, ... in the order of the names.
pub(super) fn joined(names: &str) -> State {
    let mut state = State::default();
    for (index, name) in (1..).zip(names.split_whitespace()) {
        state.hosts.insert(host(name), Host::new(s(index), 8));
    }
    state
}

/// The same, with a world of the hosts of `world` in their order.
pub(super) fn running(names: &str, world: &str) -> State {
    State { world: Some((0..).zip(world.split_whitespace().map(host)).collect()), ..joined(names) }
}

pub(super) fn set(state: &mut State, names: &str, health: Health) {
    names.split_whitespace().for_each(|name| state.host_mut(&host(name)).expect("a host").health = health);
}

/// The world as `0a 1b`, with spares behind a bar; other decisions as `wait`, `keep`, `impossible` with their time.
pub(super) fn short(next: &Next) -> String {
    let at =
        |until: &Option<JobTime>| until.map_or(String::new(), |until| format!(" {}", until.as_nanos() / 1_000_000_000));
    match next {
        Next::Wait { until, .. } => format!("wait{}", at(until)),
        Next::Keep { until, .. } => format!("keep{}", at(until)),
        Next::Impossible { .. } => "impossible".to_owned(),
        Next::World { ranks, spares, .. } => {
            let ranks = ranks.iter().map(|(rank, host)| format!("{rank}{}", host.0)).collect::<Vec<_>>().join(" ");
            let spares = spares.iter().map(|host| host.0.as_str()).collect::<Vec<_>>().join(" ");
            if spares.is_empty() { ranks } else { format!("{ranks} | {spares}") }
        }
    }
}

fn at(state: &State, policy: &Policy, seconds: u64) -> String {
    short(&decide(state, policy, s(seconds)).next)
}

fn reason(state: &State, policy: &Policy, seconds: u64) -> String {
    decide(state, policy, s(seconds)).next.reason().to_owned()
}

#[test]
fn first_world_waits_for_the_minimum_then_for_the_last_call() {
    let elastic = policy(3, 5);
    let few = joined("a b");
    assert_eq!(at(&few, &elastic, 50), "wait 100");
    assert_eq!(reason(&few, &elastic, 50), "2 of at least 3 hosts have joined; 1 more must join until 100.000 s");
    assert_eq!(at(&few, &elastic, 100), "impossible");
    assert_eq!(
        reason(&few, &elastic, 100),
        "2 of at least 3 hosts have joined within 100s: add hosts, or reduce min_hosts"
    );
    let enough = joined("a b c d");
    assert_eq!(at(&enough, &elastic, 4), "wait 13", "the last call begins with the third host");
    assert_eq!(
        reason(&enough, &elastic, 4),
        "4 of 5 hosts have joined; the world begins when 1 more joins, or at 13.000 s with 4 hosts"
    );
    assert_eq!(at(&enough, &elastic, 13), "0a 1b 2c 3d");
    assert_eq!(at(&joined("a b c d e f"), &elastic, 6), "0a 1b 2c 3d 4e | f");
    assert_eq!(at(&joined("a b c"), &policy(3, 3), 3), "0a 1b 2c", "nothing to wait for");
    let mut unseen = joined("a b c d");
    set(&mut unseen, "d", Health::OutOfSight { since: s(4) });
    assert!(reason(&unseen, &elastic, 4).starts_with("3 of 5 hosts have joined; 1 host is out of sight; the world"));
}

#[test]
fn node_unit_and_spares_bound_the_world() {
    let units = policy(2, 6).with_node_unit(2);
    assert_eq!(at(&joined("a b c d e"), &units, 20), "0a 1b 2c 3d | e");
    // DLRover's test R3: 8 to 12 in units of 4, 10 have joined.
    let ten = joined("a b c d e f g h i j");
    assert_eq!(at(&ten, &policy(8, 12).with_node_unit(4), 20), "0a 1b 2c 3d 4e 5f 6g 7h | i j");
    let spare = policy(3, 5).with_spares(1);
    assert_eq!(at(&joined("a b c"), &spare, 20), "0a 1b 2c", "a world of the minimum comes before spares");
    assert_eq!(at(&joined("a b c d e"), &spare, 20), "0a 1b 2c 3d | e");
    assert_eq!(at(&joined("a b c d e"), &spare, 5), "wait 13");
    assert_eq!(at(&joined("a b c d e f"), &spare, 6), "0a 1b 2c 3d 4e | f");
    for (wrong, message) in [
        (policy(0, 2), "min_hosts is 0"),
        (policy(3, 2), "min_hosts is 3 and max_hosts is 2"),
        (policy(1, 2).with_node_unit(0), "node_unit is 0"),
        (
            policy(5, 7).with_node_unit(4),
            "no multiple of node_unit, 4, is between min_hosts, 5, and max_hosts, 7: set max_hosts to 8",
        ),
    ] {
        assert_eq!(at(&ten, &wrong, 20), "impossible");
        assert!(reason(&ten, &wrong, 20).starts_with(message), "{}", reason(&ten, &wrong, 20));
    }
}

#[test]
fn replacement_takes_over_the_node_rank_at_once() {
    let mut state = running("a b c d e", "c b a");
    set(&mut state, "b", Health::Left { since: s(50) });
    assert_eq!(at(&state, &policy(3, 3), 50), "0c 1d 2a | e");
    assert_eq!(
        reason(&state, &policy(3, 3), 50),
        "host b has left; host d takes over node rank 1; the world has 3 hosts and 1 spare"
    );
    // The change for another reason grows the world, too.
    assert_eq!(at(&state, &policy(3, 4), 50), "0c 1d 2a 3e");
    set(&mut state, "c", Health::Left { since: s(50) });
    assert_eq!(at(&state, &policy(2, 3), 50), "0e 1d 2a", "hosts that are lost choose in the order of their names");
}

#[test]
fn spare_comes_from_another_fault_domain() {
    let mut state = running("a b c d", "a b");
    state.topology = Topology::parse(
        "levels: spine, leaf\na: leaf=l1, spine=s1\nb: leaf=l2, spine=s2\nc: leaf=l1\nd: leaf=l3, spine=s1",
    )
    .expect("a topology");
    set(&mut state, "a", Health::Left { since: s(50) });
    assert_eq!(at(&state, &policy(2, 2), 50), "0d 1b | c");
    set(&mut state, "d", Health::Left { since: s(50) });
    assert_eq!(at(&state, &policy(2, 2), 50), "0c 1b", "better inside than none");
    // The first world takes hosts that are close to each other.
    state = joined("a b c d");
    state.topology =
        Topology::parse("levels: leaf\na: leaf=l1\nb: leaf=l2\nc: leaf=l1\nd: leaf=l1").expect("a topology");
    assert_eq!(at(&state, &policy(3, 3), 50), "0a 1c 2d | b");
}

#[test]
fn world_shrinks_after_the_last_call_and_grows_again() {
    let (keep, compact) = (policy(2, 5), policy(2, 5).with_keep_node_rank(false));
    let mut state = running("a b c d e", "a b c d e");
    set(&mut state, "b c", Health::Left { since: s(50) });
    assert_eq!(at(&state, &keep, 59), "wait 60");
    assert_eq!(
        reason(&state, &keep, 59),
        "hosts b and c have left; 2 hosts have no replacement; the world shrinks to 3 hosts at 60.000 s"
    );
    assert_eq!(at(&state, &keep, 60), "0a 3d 4e");
    assert_eq!(at(&state, &compact, 60), "0a 1d 2e");
    assert_eq!(at(&state, &policy(2, 5).with_node_unit(2), 60), "0a 3d | e");

    let mut state = running("a d e", "a");
    state.world = Some(BTreeMap::from([(0, host("a")), (3, host("d")), (4, host("e"))]));
    assert_eq!(at(&state, &keep, 70), "keep");
    assert_eq!(reason(&state, &keep, 70), "the world has 3 hosts, 0 spares outside; it grows with 1 more");
    state.hosts.insert(host("b"), Host::new(s(70), 8));
    assert_eq!(at(&state, &keep, 70), "keep 80", "others may come back, too");
    assert_eq!(reason(&state, &keep, 70), "the world has 3 hosts, 1 spare outside; it grows to 4 at 80.000 s");
    assert_eq!(at(&state, &keep, 80), "0a 1b 3d 4e");
    state.hosts.insert(host("c"), Host::new(s(75), 8));
    assert_eq!(at(&state, &keep, 75), "0a 1b 2c 3d 4e", "nothing to wait for");
}

#[test]
fn world_grows_by_whole_units_only() {
    let units = policy(2, 6).with_node_unit(2).with_spares(1);
    let mut state = running("a b c d", "a b");
    assert_eq!(at(&state, &units, 500), "keep");
    assert_eq!(reason(&state, &units, 500), "the world has 2 hosts, 2 spares outside; it grows with 1 more");
    state.hosts.insert(host("e"), Host::new(s(500), 8));
    assert_eq!(at(&state, &units, 500), "keep 510");
    assert_eq!(at(&state, &units, 510), "0a 1b 2c 3d | e");
}

#[test]
fn below_the_minimum_the_job_waits_then_ends() {
    let mut state = running("a b c", "a b c");
    set(&mut state, "b", Health::Left { since: s(40) });
    set(&mut state, "c", Health::Left { since: s(50) });
    assert_eq!(at(&state, &policy(2, 3), 60), "wait 150");
    assert_eq!(
        reason(&state, &policy(2, 3), 60),
        "hosts b and c have left; 1 host is left, the job needs at least 2 hosts; 1 more must join until 150.000 s"
    );
    assert_eq!(at(&state, &policy(2, 3), 150), "impossible");
    state.hosts.insert(host("d"), Host::new(s(160), 8));
    assert_eq!(at(&state, &policy(2, 3), 160), "0a 1d", "the last call is over");
}

#[test]
fn host_out_of_sight_is_neither_lost_nor_replaced() {
    let unseen = Health::OutOfSight { since: s(40) };
    let mut state = running("a b c d e", "a b c");
    set(&mut state, "b", unseen);
    assert_eq!(at(&state, &policy(2, 3), 500), "keep");
    assert_eq!(at(&state, &policy(2, 4), 500), "keep", "no growth meanwhile");
    assert!(reason(&state, &policy(2, 4), 500).ends_with("it can grow to 4 when all its hosts are in sight"));
    set(&mut state, "c", Health::Left { since: s(50) });
    assert_eq!(at(&state, &policy(2, 3), 500), "wait");
    assert_eq!(
        reason(&state, &policy(2, 3), 500),
        "host c has left; host b is out of sight: the next world begins when each is back or has left"
    );
    set(&mut state, "b", Health::Left { since: s(510) });
    assert_eq!(at(&state, &policy(2, 3), 510), "0a 1d 2e");
    state.hosts.remove(&host("b"));
    assert_eq!(at(&state, &policy(2, 3), 510), "wait", "a member without an entry is out of sight");
}

#[test]
fn cordoned_host_stays_but_is_not_chosen() {
    let mut state = running("a b c d", "a b c");
    set(&mut state, "a d", Health::Cordoned);
    assert_eq!(at(&state, &policy(2, 4), 500), "keep");
    set(&mut state, "c", Health::Left { since: s(50) });
    assert_eq!(at(&state, &policy(2, 4), 60), "0a 1b");
    assert_eq!(at(&state, &policy(1, 1), 60), "1b", "a cordoned host is the first that a smaller world leaves out");
}

#[test]
fn a_world_that_lists_a_host_twice_is_repaired() {
    let state = running("a b", "a a");
    assert_eq!(at(&state, &policy(2, 2), 50), "0a 1b");
}
