//! Hosts that cannot take part do no harm to others.

use super::*;

#[test]
fn second_host_with_a_node_rank_is_refused() {
    let mut state = joined("b a c d");
    for (name, rank) in [("a", 1), ("b", 1), ("c", 0)] {
        state.host_mut(&host(name)).expect("a host").node_rank = Some(rank);
    }
    let decision = decide(&state, &policy(3, 3), s(50));
    assert_eq!(short(&decision.next), "0c 1b 2d", "b joined first; c and b have the node ranks that they state");
    let errors: Vec<String> = decision.refused.values().map(ToString::to_string).collect();
    assert_eq!(errors, ["host a states node rank 1, and so does host b: give one of them another node rank"]);
    assert!(decision.next.reason().contains("1 host is refused"), "{}", decision.next.reason());

    // A member comes before a host that joined earlier.
    state.world = Some((0..).zip(["c", "a", "d"].map(host)).collect());
    let decision = decide(&state, &policy(3, 3), s(50));
    assert_eq!(short(&decision.next), "keep");
    assert_eq!(decision.refused.keys().collect::<Vec<_>>(), [&host("b")]);

    // Once the member leaves, the other one takes over its node rank.
    set(&mut state, "a", Health::Left { since: s(60) });
    let decision = decide(&state, &policy(3, 3), s(60));
    assert_eq!((short(&decision.next).as_str(), decision.refused.len()), ("0c 1b 2d", 0));
}

#[test]
fn stated_node_ranks_are_granted_where_they_are_vacant() {
    let mut state = joined("a b c d");
    for (name, rank) in [("a", 3), ("b", 1)] {
        state.host_mut(&host(name)).expect("a host").node_rank = Some(rank);
    }
    assert_eq!(short(&decide(&state, &policy(4, 4), s(50)).next), "0c 1b 2d 3a");
    // A spare without a stated node rank is preferred for a vacancy that no host states.
    state.world = Some((0..).zip(["c", "d"].map(host)).collect());
    set(&mut state, "d", Health::Left { since: s(50) });
    state.hosts.insert(host("e"), Host::new(s(50), 8));
    state.host_mut(&host("b")).expect("a host").node_rank = Some(0);
    assert_eq!(short(&decide(&state, &policy(2, 2), s(50)).next), "0c 1e | b", "a states 3, of 2");
    let decision = decide(&state, &policy(2, 2), s(50));
    assert_eq!(
        decision.refused[&host("a")].to_string(),
        "host a states node rank 3, and the job has at most 2 hosts: state one below 2"
    );
}

#[test]
fn host_with_other_slots_is_refused_if_they_must_be_equal() {
    let mut state = joined("a b c d");
    state.host_mut(&host("a")).expect("a host").slots = 4;
    state.host_mut(&host("d")).expect("a host").slots = 0;
    let decision = decide(&state, &policy(2, 4), s(50));
    assert_eq!(short(&decision.next), "0b 1c");
    let errors: Vec<String> = decision.refused.values().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        [
            "host a has 4 slots, and host b and the others have 8: start its agent with 8 slots, or \
             allow unequal numbers",
            "host d has 0 slots and can run no rank: start its agent with at least 1 slot",
        ]
    );
    assert_eq!(short(&decide(&state, &policy(2, 4).with_equal_slots(false), s(50)).next), "0a 1b 2c");

    // A member that comes back with fewer slots counts as lost.
    let mut state = running("a b c d", "a b c");
    state.host_mut(&host("b")).expect("a host").slots = 7;
    assert_eq!(short(&decide(&state, &policy(3, 3), s(50)).next), "0a 1d 2c");
}
