//! Voters are apart and change only with a loss.

use super::*;

fn chosen(state: &State, current: &str) -> String {
    let chosen = choose_voters(&state.hosts, &state.topology, &hosts(current));
    let names = chosen.voters.iter().map(|host| host.0.as_str()).collect::<Vec<_>>().join(" ");
    if chosen.needs_witness { format!("{names} + witness") } else { names }
}

#[test]
fn number_of_voters_follows_the_number_of_hosts() {
    assert_eq!(chosen(&joined(""), ""), "");
    assert_eq!(chosen(&joined("a"), ""), "a");
    assert_eq!(chosen(&joined("a b"), ""), "a b + witness");
    assert_eq!(chosen(&joined("a b c"), "a"), "a b c");
    assert_eq!(chosen(&joined("a b c d"), ""), "a b c");
    assert_eq!(chosen(&joined("a b c d e f"), ""), "a b c d e");
}

#[test]
fn voters_change_only_when_one_is_lost() {
    let mut state = joined("a b c d e f g");
    assert_eq!(chosen(&state, "c d e"), "c d e", "three voters become five with the next loss");
    set(&mut state, "c", Health::OutOfSight { since: s(9) });
    set(&mut state, "d", Health::Cordoned);
    assert_eq!(chosen(&state, "c d e"), "c d e");
    set(&mut state, "c", Health::Left { since: s(9) });
    assert_eq!(chosen(&state, "c d e"), "a b d e f");
    assert_eq!(chosen(&state, "b d e f g"), "b d e f g");
    set(&mut state, "a b", Health::Left { since: s(9) });
    assert_eq!(chosen(&state, "b d e f g"), "e f g", "four hosts are left, one is cordoned");
}

#[test]
fn voters_are_in_different_domains() {
    let mut state = joined("a b c d e f g h");
    state.topology = Topology::parse(
        "levels: zone, leaf
        a: leaf=l1, zone=z1
        b: leaf=l1
        c: leaf=l2, zone=z1
        d: leaf=l3, zone=z2
        e: leaf=l4, zone=z2
        f: leaf=l5, zone=z3
        g: leaf=l5
        h: leaf=l5",
    )
    .expect("a topology");
    assert_eq!(chosen(&state, ""), "a c d e f");
    set(&mut state, "d", Health::Left { since: s(9) });
    assert_eq!(chosen(&state, "a c d e f"), "a c e f g", "zone z3 has fewer voters than z1");
}

#[test]
fn of_more_hosts_than_voters_those_in_different_domains_vote_first() {
    let first = |listed: &str, topology: &Topology| {
        let chosen = first_voters(&hosts(listed), topology);
        chosen.iter().map(|host| host.0.as_str()).collect::<Vec<_>>().join(" ")
    };
    let unknown = Topology::default();
    for (listed, chosen) in
        [("a", "a"), ("a b c", "a b c"), ("a b c d", "a b c"), ("a b c d e", "a b c d e"), ("a b c d e f", "a b c d e")]
    {
        assert_eq!(first(listed, &unknown), chosen, "{listed}");
    }
    let file = "levels: leaf
        a: leaf=l1
        b: leaf=l1
        c: leaf=l1
        d: leaf=l2
        e: leaf=l3
        f: leaf=l4
        g: leaf=l4";
    let topology = Topology::parse(file).expect("a topology");
    assert_eq!(first("a b d e", &topology), "a d e");
    assert_eq!(first("a b c d e f g", &topology), "a b d e f");
}
