//! Rules of the tree and of the choices.

use super::*;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use taskd_runtime::job::NodeId;

fn host(name: &str) -> NodeId {
    name.parse().expect("a name")
}

fn hosts(names: &str) -> BTreeSet<NodeId> {
    names.split_whitespace().map(host).collect()
}

fn names<'a>(hosts: impl IntoIterator<Item = &'a NodeId>) -> String {
    hosts.into_iter().map(|host| host.0.as_str()).collect::<Vec<_>>().join(" ")
}

fn place(pairs: &[(&'static str, &'static str)]) -> BTreeMap<Name, Name> {
    pairs.iter().map(|(level, name)| (Name::new(level), Name::new(name))).collect()
}

/// Two zones; zone east has two spines of two leaves with two hosts each, zone west one leaf with four hosts.
fn two_zones() -> Topology {
    let text = "levels: zone, spine, leaf
        spine s1: zone=east
        spine s2: zone=east
        leaf l1: spine=s1
        leaf l2: spine=s1
        leaf l3: spine=s2
        leaf l4: spine=s2
        leaf l9: spine=s9, zone=west
        a1: leaf=l1
        a2: leaf=l1
        b1: leaf=l2
        b2: leaf=l2
        c1: leaf=l3
        c2: leaf=l3
        d1: leaf=l4
        d2: leaf=l4
        w1: leaf=l9
        w2: leaf=l9
        w3: leaf=l9
        w4: leaf=l9";
    Topology::parse(text).expect("a topology")
}

#[test]
fn distance_counts_levels_to_the_common_domain() {
    let topology = two_zones();
    let to = |b: &str| topology.distance(&host("a1"), &host(b));
    assert_eq!([to("a1"), to("a2"), to("b1"), to("c1"), to("w1"), to("stranger")], [0, 1, 2, 3, 4, 4]);
    let common = |b: &str| topology.common_level(&host("a1"), &host(b)).map(Name::as_str);
    assert_eq!(
        [common("a2"), common("b1"), common("c1"), common("w1")],
        [Some("leaf"), Some("spine"), Some("zone"), None]
    );
    assert_eq!(topology.domains("zone").map(Name::as_str).collect::<Vec<_>>(), ["east", "west"]);
}

#[test]
fn partial_statements_complete_each_other_in_any_order() {
    let mut topology = Topology::new(["zone", "spine", "leaf"].map(Name::new)).expect("levels");
    topology.insert(&host("n1"), &place(&[("leaf", "l1")])).expect("n1");
    topology.insert(&host("n2"), &place(&[("leaf", "l1"), ("zone", "z1")])).expect("n2");
    topology.insert(&host("n3"), &place(&[("leaf", "l2"), ("spine", "s1")])).expect("n3");
    topology.insert(&host("n4"), &place(&[("leaf", "l1"), ("spine", "s1")])).expect("n4");
    // n1 is in l1, which is in s1 (n4) and z1 (n2), so s1 is in z1, and with it l2 and n3.
    assert_eq!(topology.domain_of(&host("n1"), "zone"), Some(&Name::new("z1")));
    assert_eq!(topology.domain_of(&host("n3"), "zone"), Some(&Name::new("z1")));
}

#[test]
fn a_contradiction_names_both_and_changes_nothing() {
    let mut topology = two_zones();
    let before = format!("{topology:?}");
    let error = topology.insert(&host("n7"), &place(&[("leaf", "l1"), ("spine", "new")]));
    let error = error.expect_err("a contradiction").to_string();
    assert_eq!(
        error,
        "leaf l1 lies in spine s1, and host n7 places it in spine new, too: it can lie in one spine only. Correct one \
         of the entries, or give two domains two names"
    );
    assert_eq!(format!("{topology:?}"), before);
    let twice = topology.insert(&host("a1"), &place(&[("leaf", "l2")])).expect_err("twice").to_string();
    assert_eq!(twice, "host a1 has two entries: merge them into one");
    topology.insert(&host("n7"), &place(&[("leaf", "l1"), ("spine", "s1")])).expect("valid now");
}

#[test]
fn files_with_faults_give_errors_that_name_them() {
    let cases = [
        (r#"{"levels": ["a"], "hosts": {"n1": {"a": "x"}, "n1": {"a": "y"}}}"#, "host n1 has two entries"),
        (r#"{"levels": ["a"], "hosts": {"n1": {"b": "x"}}}"#, "host n1 uses the level \"b\", the levels are a:"),
        (r#"{"levels": ["a"], "hosts": {"n1": {"a": ""}}}"#, "\"\" is not a name of a a:"),
        (r#"{"levels": ["a"], "hosts": {"": {"a": "x"}}}"#, "\"\" is not a name of a host:"),
        (r#"{"levels": ["a", "a"]}"#, "the level a is listed twice"),
        (r#"{"levels": ["a"], "version": 2}"#, "the topology has format version 2"),
        (r#"{"levels": ["a"], "host": {}}"#, "the topology cannot be read: unknown field `host`"),
        (
            r#"{"levels": ["a", "b", "c"],
                "domains": {"a": {"x": {"c": "z"}}, "b": {"y": {"a": "x"}}, "c": {"z": {"b": "y"}}}}"#,
            "a domain cannot contain itself, but these entries form a cycle: a x in c z in b y in a x.",
        ),
        (
            r#"{"levels": ["a"], "domains": {"a": {"x": {"a": "x"}}}}"#,
            "a domain cannot contain itself, but these entries form a cycle: a x in a x.",
        ),
        (
            r#"{"levels": ["a", "b"], "domains": {"a": {"x": {"b": "y"}}}}"#,
            "a x is placed in b y, which is not of a wider",
        ),
        ("levels: a\nn1", "line 2 of the topology, \"n1\", cannot be read"),
        ("n1: a=x", "line 1 of the topology, \"n1: a=x\", cannot be read: begin with"),
        ("levels: a\nn1: a=x\nn1: a=y", "host n1 has two entries"),
        ("levels: a, b\nb y: a=x\nb y: a=z", "b y has two entries"),
        ("levels: a\nn1: a=x, a=y", "level a of host n1 has two entries"),
    ];
    for (text, message) in cases {
        let error = Topology::parse(text).expect_err(text).to_string();
        assert!(error.starts_with(message), "{text}: {error}");
    }
    let levels: Vec<String> = (0..=LEVELS_MAX).map(|level| format!("l{level}")).collect();
    let error = Topology::new(levels.into_iter().map(Name::from)).expect_err("too many").to_string();
    assert!(error.starts_with("there are too many levels"), "{error}");
    let long = Name::from("x".repeat(NAME_BYTES_MAX + 1));
    Topology::new([long]).expect_err("too long");
}

#[test]
fn labels_of_three_kinds_count_in_their_order() {
    let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let all = BTreeMap::from([
        (host("n1"), labels(&[("taskd.io/topology.leaf", "l1"), ("leaf", "other"), ("example.com/leaf", "third")])),
        (host("n2"), labels(&[("leaf", "l1"), ("topology.kubernetes.io/zone", "z1"), ("app", "train")])),
        (host("n3"), labels(&[("leaf", "l2"), ("a.example/zone", "z1"), ("b.example/zone", "z2")])),
        (host("n4"), labels(&[("leaf", "l1"), ("zone", "z2")])),
        (host("n5"), labels(&[("leaf", ""), ("a.example/zone", "z1"), ("b.example/zone", "z1")])),
    ]);
    let (topology, errors) = Topology::from_valid_labels(DEFAULT_LEVELS, &all).expect("levels");
    assert_eq!(topology.common_level(&host("n1"), &host("n2")), Some(&Name::new("leaf")));
    assert_eq!(topology.domain_of(&host("n5"), "zone"), Some(&Name::new("z1")));
    let messages: Vec<String> = errors.values().map(ToString::to_string).collect();
    assert_eq!(names(errors.keys()), "n3 n4");
    assert!(messages[0].starts_with("host n3: label a.example/zone=z1 and label b.example/zone=z2"), "{messages:?}");
    assert!(messages[1].starts_with("leaf l1 lies in zone z1, and host n4 places it in zone z2"), "{messages:?}");
    assert_eq!(Topology::from_labels(DEFAULT_LEVELS, &all).expect_err("n3").to_string(), messages[0]);
}

#[test]
fn spread_takes_one_host_of_each_domain_first() {
    let topology = two_zones();
    let all: BTreeSet<NodeId> = topology.hosts().cloned().collect();
    assert_eq!(names(&topology.spread(&all, 5, "leaf").expect("a level")), "a1 w1 c1 b1 d1");
    assert_eq!(names(&topology.spread(&all, 3, "zone").expect("a level")), "a1 w1 a2");
    assert_eq!(topology.spread(&all, 99, "leaf").expect("a level").len(), all.len());
    let error = topology.spread(&all, 3, "rack").expect_err("unknown").to_string();
    assert!(error.contains("the level \"rack\", the levels are zone, spine, leaf"), "{error}");
}

#[test]
fn pack_keeps_domains_together_largest_first() {
    let topology = two_zones();
    assert_eq!(names(&topology.pack(&hosts("w1 a1 x d1 b2 c1 a2 w2"))), "a1 a2 b2 c1 d1 w1 w2 x");
    assert_eq!(names(&topology.pack(&hosts("w1 w2 w3 a1 b1"))), "w1 w2 w3 a1 b1");
}

#[test]
fn spare_is_outside_of_the_fault_and_near() {
    let topology = two_zones();
    let spare = |lost: &str, candidates: &str, live: &str| {
        let spares = topology.spares_for(&hosts(lost), &hosts(candidates), &hosts(live));
        spares.iter().map(|(lost, spare)| format!("{}>{}", lost.0, spare.0)).collect::<Vec<_>>().join(" ")
    };
    // The nearest that is not under the same leaf.
    assert_eq!(spare("a1", "a2 b1 c1 w1", "d1"), "a1>b1");
    // Both leaves of spine s1 are lost: it is the cause.
    assert_eq!(spare("a1 b1", "a2 b2 c1 w1", "d1 d2"), "a1>c1 b1>w1");
    // Only candidates inside are left: another leaf is better than the own.
    assert_eq!(spare("a1 b1", "a2 b2", "d1 d2"), "a1>b2 b1>a2");
    assert_eq!(spare("a1", "a2", "d1"), "a1>a2");
    assert_eq!(spare("x1 x2", "y1", ""), "x1>y1");
}

#[test]
fn ten_hosts_under_one_switch_are_one_incident() {
    let mut topology = Topology::new(["spine", "leaf"].map(Name::new)).expect("levels");
    let of = |leaf: &str, i: usize| host(&format!("{leaf}-{i}"));
    for leaf in ["l1", "l2", "l3"] {
        for i in 0..10 {
            let spine = ("spine".to_owned().into(), Name::new("s1"));
            topology
                .insert(&of(leaf, i), &BTreeMap::from([(Name::new("leaf"), leaf.to_owned().into()), spine]))
                .expect("a host");
        }
    }
    let all: BTreeSet<NodeId> = topology.hosts().cloned().collect();
    let under = |leaf: &str, n: usize| (0..n).map(|i| of(leaf, i)).collect::<BTreeSet<_>>();
    let cause = topology.common_cause(&under("l1", 10), &all).expect("a cause");
    assert_eq!((cause.domain.map(|d| d.to_string()).as_deref(), cause.live), (Some("leaf l1"), 0));
    // Two hosts are not missed yet; six hosts are too many.
    assert_eq!(topology.common_cause(&under("l1", 8), &all).expect("a cause").live, 2);
    assert_eq!(topology.common_cause(&under("l1", 5), &all), None);
    assert_eq!(topology.causes(&under("l1", 5), &all).len(), 5);
    // Two leaves of three: their spine.
    let two: BTreeSet<_> = under("l1", 10).union(&under("l2", 9)).cloned().collect();
    assert_eq!(
        topology.common_cause(&two, &all).and_then(|c| c.domain).map(|d| d.to_string()).as_deref(),
        Some("spine s1")
    );
    // One leaf, and two hosts elsewhere on their own: three incidents.
    let mixed: BTreeSet<_> = under("l1", 10).union(&under("l2", 2)).cloned().collect();
    let causes = topology.causes(&mixed, &all);
    assert_eq!(causes.iter().map(|cause| cause.lost.len()).collect::<Vec<_>>(), [10, 1, 1]);
    assert_eq!(topology.common_cause(&mixed, &all), None);
}

#[test]
fn partners_are_apart_and_balanced() {
    let topology = two_zones();
    let partners = topology.partners(&topology.hosts().cloned().collect(), "leaf").expect("a level");
    assert!(partners.not_separate.is_empty());
    // w has 3 of 5 hosts: one of its hosts must have its copy in the same leaf.
    let partners = topology.partners(&hosts("w1 w2 w3 a1 b1"), "leaf").expect("a level");
    assert_eq!(names(&partners.not_separate), "w3");
    assert_eq!(topology.partners(&hosts("a1"), "leaf").expect("a level"), Partners::default());
}

#[test]
fn partners_apart_are_in_the_widest_domain_that_separates_all() {
    let topology = |text: &str| Topology::parse(&format!("levels: zone, leaf\n{text}")).expect("no contradiction");
    let all = |topology: &Topology| topology.hosts().cloned().collect::<BTreeSet<_>>();
    let two = topology("leaf l1: zone=east\nleaf l2: zone=west\na1: leaf=l1\na2: leaf=l1\nb1: leaf=l2\nb2: leaf=l2");
    let partners = two.partners_apart(&all(&two));
    assert_eq!(partners, two.partners(&all(&two), "zone").expect("a level"));
    assert!(partners.not_separate.is_empty());
    // One zone has most of the hosts: its hosts are apart by their leaves only.
    let three =
        topology("leaf l1: zone=east\nleaf l2: zone=east\nleaf l3: zone=west\na: leaf=l1\nb: leaf=l2\nc: leaf=l3");
    assert_eq!(names(&three.partners(&all(&three), "zone").expect("a level").not_separate).split(' ').count(), 1);
    assert!(three.partners_apart(&all(&three)).not_separate.is_empty());
    let nowhere = topology("").partners_apart(&hosts("a b c"));
    assert_eq!((nowhere.of.len(), names(&nowhere.not_separate).as_str()), (3, "a b c"));
}

/// Hosts `n0`, `n1`, ... by (zone, spine of it, leaf of that); `None` omits the level.
fn arbitrary() -> impl Strategy<Value = BTreeMap<NodeId, BTreeMap<Name, Name>>> {
    let level = || proptest::option::weighted(0.8, 0_u8..3);
    btree_map(0_u8..30, (level(), level(), level()), 0..24).prop_map(|hosts| {
        let place = |(zone, spine, leaf): (Option<u8>, Option<u8>, Option<u8>)| {
            let parts = [(zone, "zone"), (spine, "spine"), (leaf, "leaf")];
            let mut path = String::new();
            let mut place = BTreeMap::new();
            for (part, level) in parts {
                path += &part.map_or("-".to_owned(), |part| part.to_string());
                if part.is_some() {
                    place.insert(Name::new(level), Name::from(path.clone()));
                }
            }
            place
        };
        hosts.into_iter().map(|(index, levels)| (host(&format!("n{index}")), place(levels))).collect()
    })
}

fn build<'a>(hosts: impl IntoIterator<Item = (&'a NodeId, &'a BTreeMap<Name, Name>)>) -> Topology {
    let mut topology = Topology::new(["zone", "spine", "leaf"].map(Name::new)).expect("levels");
    hosts.into_iter().for_each(|(host, place)| topology.insert(host, place).expect("no contradiction"));
    topology
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 128,
        rng_seed: proptest::test_runner::RngSeed::Fixed(7),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn choices_do_not_depend_on_the_order_of_hosts(
        places in arbitrary(), n in 0_usize..12, lost in vec(0_usize..24, 0..8),
    ) {
        let (one, other) = (build(&places), build(places.iter().rev()));
        let all: BTreeSet<NodeId> = places.keys().cloned().collect();
        let lost: BTreeSet<NodeId> = lost.iter().filter_map(|index| all.iter().nth(*index)).cloned().collect();
        let left: BTreeSet<NodeId> = all.difference(&lost).cloned().collect();
        prop_assert_eq!(one.pack(&all), other.pack(&all));
        prop_assert_eq!(one.causes(&lost, &left), other.causes(&lost, &left));
        prop_assert_eq!(one.spares_for(&lost, &left, &left), other.spares_for(&lost, &left, &left));
        for level in ["zone", "spine", "leaf"] {
            let chosen = one.spread(&all, n, level).expect("a level");
            prop_assert_eq!(&chosen, &other.spread(&all, n, level).expect("a level"));
            let partners = one.partners(&all, level).expect("a level");
            prop_assert_eq!(&partners, &other.partners(&all, level).expect("a level"));

            // As many domains as possible, and no host twice.
            let of = |hosts: &[NodeId]| -> BTreeSet<Option<u32>> {
                let level = one.level_index(level, "").expect("a level");
                hosts.iter().map(|host| Topology::narrowest(one.above(host), level)).collect()
            };
            let every: Vec<NodeId> = all.iter().cloned().collect();
            prop_assert_eq!(of(&chosen).len(), of(&every).len().min(n));
            prop_assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), n.min(all.len()));

            // Each host keeps one copy, none its own.
            let keepers: BTreeSet<&NodeId> = partners.of.values().collect();
            prop_assert_eq!(keepers.len(), if all.len() > 1 { all.len() } else { 0 });
            prop_assert!(partners.of.iter().all(|(host, partner)| host != partner));
        }
    }

    #[test]
    fn every_lost_host_is_in_one_incident(places in arbitrary(), lost in vec(0_usize..24, 0..12)) {
        let topology = build(&places);
        let all: BTreeSet<NodeId> = places.keys().cloned().collect();
        let lost: BTreeSet<NodeId> = lost.iter().filter_map(|index| all.iter().nth(*index)).cloned().collect();
        let causes = topology.causes(&lost, &all);
        let listed: Vec<&NodeId> = causes.iter().flat_map(|cause| &cause.lost).collect();
        prop_assert_eq!(listed.len(), lost.len());
        prop_assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), lost.iter().collect());
        for cause in causes.iter().filter(|cause| cause.domain.is_some()) {
            prop_assert!(cause.lost.len() > cause.live && cause.lost.len() > 1, "{:?}", cause);
        }
    }

    #[test]
    fn any_text_is_read_or_refused(
        text in "\\PC{0,40}",
        lines in vec("(levels: |leaf l1: |n[0-3]: )?(leaf=l[0-2]|zone|leaf)?(, (zone=z1|leaf))?", 0..6),
    ) {
        _ = Topology::parse(&text);
        _ = Topology::parse(&lines.join("\n"));
        _ = Topology::parse(&format!("{{\"levels\": [\"a\"], \"hosts\": {{{text}}}}}"));
    }
}

#[test]
fn labels_add_hosts_to_the_tree_of_a_file_and_change_none_of_its_own() {
    let mut tree =
        Topology::parse("levels: zone, leaf\n leaf l1: zone=z1\n n1: leaf=l1\n n2: leaf=l2").expect("a file");
    let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let all = BTreeMap::from([
        (host("n1"), labels(&[("leaf", "l2")])),
        (host("n3"), labels(&[("leaf", "l1"), ("rack", "r7")])),
        (host("n4"), labels(&[("leaf", "l1"), ("zone", "z2")])),
        (host("n5"), labels(&[])),
    ]);
    let errors = tree.add_labels(&all);
    assert_eq!(tree.domain_of(&host("n1"), "leaf").map(Name::as_str), Some("l1"), "the file takes precedence");
    assert_eq!(tree.domain_of(&host("n3"), "zone").map(Name::as_str), Some("z1"), "by the file's statement about l1");
    assert_eq!(errors.keys().collect::<Vec<_>>(), [&host("n4")], "{errors:?}");
    assert_eq!(tree.hosts().cloned().collect::<Vec<_>>(), ["n1", "n2", "n3", "n5"].map(host));
}
