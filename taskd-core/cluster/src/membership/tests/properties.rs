//! What holds for every decision: for all states of few hosts, and for random ones of more.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// Verifies a decision and those that follow from it.
fn verify(state: &State, policy: &Policy, now: JobTime) -> Result<(), String> {
    let decision = decide(state, policy, now);
    let fail = |what: &str| Err(format!("{what}: {decision:?} of {state:?} under {policy:?} at {now}"));
    let same_at = |time: JobTime| decide(state, policy, time).next == decision.next;
    let members: BTreeMap<&NodeId, u32> = state.world.iter().flatten().map(|(rank, host)| (host, *rank)).collect();
    let health = |host: &NodeId| state.hosts.get(host).map(|host| host.health);
    let is_lost =
        |host: &NodeId| matches!(health(host), Some(Health::Left { .. })) || decision.refused.contains_key(host);
    let any_lost = members.keys().any(|host| is_lost(host));
    match &decision.next {
        Next::World { ranks, spares, .. } => {
            world(state, policy, &decision, ranks, spares).or_else(|what| fail(&what))?;
            let next = decide(&State { world: Some(ranks.clone()), ..state.clone() }, policy, now).next;
            if !matches!(next, Next::Keep { .. }) {
                return fail(&format!("the next decision is {next:?}"));
            }
        }
        Next::Keep { .. } if any_lost || members.is_empty() => return fail("a world without a host continues"),
        Next::Wait { .. } | Next::Impossible { .. } if !any_lost && !members.is_empty() => {
            return fail("a world stops");
        }
        _ => {}
    }
    match decision.next.until() {
        Some(until) if until <= now => fail("the time is over"),
        Some(until) if !same_at(JobTime::from_nanos(until.as_nanos() - 1)) => fail("it changes earlier"),
        Some(until) if same_at(until) => fail("it does not change"),
        None if !same_at(now + Duration::from_secs(1_000_000)) => fail("it changes with time"),
        _ => Ok(()),
    }
}

/// Verifies a new world.
fn world(
    state: &State,
    policy: &Policy,
    decision: &Decision,
    ranks: &NodeRanks,
    spares: &BTreeSet<NodeId>,
) -> Result<(), String> {
    let empty = NodeRanks::new();
    let before = state.world.as_ref().unwrap_or(&empty);
    let [size, min, max, unit] =
        [ranks.len(), policy.min_hosts as usize, policy.max_hosts as usize, policy.node_unit as usize];
    let check = |is: bool, what: &str| if is { Ok(()) } else { Err(what.to_owned()) };
    check((min..=max).contains(&size) && size.is_multiple_of(unit), "size")?;
    let chosen: BTreeSet<&NodeId> = ranks.values().collect();
    check(chosen.len() == size, "a host has two node ranks")?;
    check(ranks.keys().all(|rank| (*rank as usize) < max), "a node rank is too great")?;
    check(policy.keep_node_rank || ranks.keys().copied().eq((0..).take(size)), "gaps in a compact world")?;
    let health = |host: &NodeId| state.hosts.get(host).map(|host| host.health);
    let can_stay = |host: &NodeId| {
        matches!(health(host), Some(Health::Ready | Health::Cordoned)) && !decision.refused.contains_key(host)
    };
    let kept: NodeRanks = before.iter().filter(|(_, host)| can_stay(host)).map(|(r, h)| (*r, h.clone())).collect();
    let is_new = |host: &NodeId| !before.values().any(|member| member == host);
    let can_join = |host: &NodeId| health(host) == Some(Health::Ready) && can_stay(host) && is_new(host);
    check(
        chosen.iter().all(|host| can_join(host) || kept.values().any(|kept| kept == *host)),
        "a host cannot be there",
    )?;
    check(spares.iter().all(|host| !chosen.contains(host) && health(host) == Some(Health::Ready)), "a spare")?;
    let staying = kept.values().filter(|host| chosen.contains(host)).count();
    check(staying == kept.len().min(size), "a survivor is out")?;
    for (rank, host) in kept.iter().filter(|(_, host)| chosen.contains(host)) {
        let moved = ranks.get(rank) != Some(host);
        check(!moved || !policy.keep_node_rank && *rank as usize >= size, "a survivor has another node rank")?;
    }
    let joining = state.hosts.keys().filter(|host| can_join(host)).count();
    if joining + kept.len() >= before.len() && before.len() <= max && before.len().is_multiple_of(unit) {
        check(before.keys().all(|rank| ranks.contains_key(rank)), "a lost host is not replaced")?;
    }
    Ok(())
}

fn policies() -> Vec<Policy> {
    let mut policies = Vec::new();
    for (min, max, unit) in [(1, 4, 1), (2, 3, 1), (2, 2, 1), (2, 4, 2)] {
        for spares in [0, 1] {
            policies.push(policy(min, max).with_node_unit(unit).with_spares(spares).with_keep_node_rank(spares == 0));
        }
    }
    policies
}

/// Verifies all states of `count` hosts with the given states of hosts and all their worlds, at the given times.
fn verify_all(count: u32, healths: &[Health], times: &[u64]) -> u32 {
    let (mut verified, policies) = (0, policies());
    let names: Vec<NodeId> = ["a", "b", "c", "d"].iter().take(count as usize).map(|name| host(name)).collect();
    for code in 0..healths.len().pow(count) {
        let digit = |index: u32| healths[code / healths.len().pow(index) % healths.len()];
        let join = |index: u32| Host::new(s(u64::from(index) + 1), 8).with_health(digit(index));
        let hosts: BTreeMap<NodeId, Host> =
            (0..).zip(&names).map(|(index, name)| (name.clone(), join(index))).collect();
        for members in 0_u32..1 << count {
            // The members are in reverse order, so that a node rank is not the position of a name.
            let in_world = (0..count as usize).rev().filter(|bit| members >> bit & 1 == 1);
            let world: NodeRanks = (0..).zip(in_world.map(|bit| names[bit].clone())).collect();
            let state = State { hosts: hosts.clone(), world: Some(world), ..State::default() };
            for policy in policies.iter().filter(|policy| members.count_ones() <= policy.max_hosts) {
                for now in times {
                    verify(&state, policy, s(*now)).expect("a sound decision");
                    verified += 1;
                }
            }
        }
    }
    verified
}

const LEFT: Health = Health::Left { since: JobTime::from_nanos(55_000_000_000) };
const UNSEEN: Health = Health::OutOfSight { since: JobTime::from_nanos(50_000_000_000) };

#[test]
fn every_state_of_up_to_three_hosts_is_decided_soundly() {
    let verified: u32 =
        (0..=3).map(|count| verify_all(count, &[Health::Ready, UNSEEN, LEFT, Health::Cordoned], &[5, 60, 200])).sum();
    assert!(verified > 10_000, "{verified}");
}

#[test]
fn every_state_of_four_hosts_is_decided_soundly() {
    let verified = verify_all(4, &[Health::Ready, UNSEEN, LEFT], &[60]);
    assert!(verified > 8_000, "{verified}");
}

fn health() -> impl Strategy<Value = Health> {
    let at = || (0_u64..100).prop_map(s);
    prop_oneof![
        6 => Just(Health::Ready),
        1 => at().prop_map(|since| Health::OutOfSight { since }),
        2 => at().prop_map(|since| Health::Left { since }),
        1 => Just(Health::Cordoned),
    ]
}

#[derive(Clone, Debug)]
struct Case {
    hosts: Vec<(Host, u8, bool)>,
    policy: Policy,
    now: u64,
}

fn case() -> impl Strategy<Value = Case> {
    let slots = prop_oneof![12 => Just(8_u32), 1 => Just(4), 1 => Just(0)];
    let node_rank = proptest::option::weighted(0.3, 0_u32..14);
    let one = (0_u64..100, health(), node_rank, slots, 0_u8..4, any::<bool>()).prop_map(
        |(at, health, node_rank, slots, leaf, member)| {
            (Host { node_rank, ..Host::new(s(at), slots).with_health(health) }, leaf, member)
        },
    );
    let policy = (1_u32..6, 0_u32..8, 1_u32..4, 0_u32..3, any::<bool>(), any::<bool>()).prop_map(
        |(min, more, unit, spares, equal, keep)| {
            let policy =
                policy(min, (min + more).max(min.div_ceil(unit) * unit)).with_node_unit(unit).with_spares(spares);
            policy.with_equal_slots(equal).with_keep_node_rank(keep)
        },
    );
    (vec(one, 0..14), policy, 0_u64..300).prop_map(|(hosts, policy, now)| Case { hosts, policy, now })
}

/// The state of a case, with hosts and places added in the given order.
fn state(case: &Case, is_reverse: bool) -> State {
    let mut state = State { topology: Topology::new(["leaf".into()]).expect("a level"), ..State::default() };
    let mut world = NodeRanks::new();
    let mut order: Vec<usize> = (0..case.hosts.len()).collect();
    if is_reverse {
        order.reverse();
    }
    for index in order {
        let (host, leaf, _) = &case.hosts[index];
        let name = self::host(&format!("n{index}"));
        let place = BTreeMap::from([("leaf".into(), format!("l{leaf}").into())]);
        if *leaf > 0 {
            state.topology.insert(&name, &place).expect("a place");
        }
        state.hosts.insert(name, host.clone());
    }
    // The greatest allowed number of members, in reverse order.
    let members = case.hosts.iter().enumerate().rev().filter(|(_, (_, _, is_member))| *is_member);
    for (rank, (index, _)) in (0..case.policy.max_hosts).zip(members) {
        world.insert(rank, self::host(&format!("n{index}")));
    }
    State { world: Some(world), ..state }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        rng_seed: proptest::test_runner::RngSeed::Fixed(11),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_decision_is_sound_and_independent_of_order(case in case()) {
        let one = state(&case, false);
        verify(&one, &case.policy, s(case.now)).map_err(TestCaseError::fail)?;
        let other = decide(&state(&case, true), &case.policy, s(case.now));
        prop_assert_eq!(decide(&one, &case.policy, s(case.now)), other);
    }

    /// Following all decisions to the end ends: in a world that is kept, or in a wait without a time.
    #[test]
    fn following_the_decisions_ends(case in case()) {
        let mut state = state(&case, false);
        let mut now = s(case.now);
        for _ in 0..8 {
            match decide(&state, &case.policy, now).next {
                Next::World { ranks, .. } => state.world = Some(ranks),
                Next::Wait { until: Some(until), .. } | Next::Keep { until: Some(until), .. } => now = until,
                _ => return Ok(()),
            }
        }
        prop_assert!(false, "it goes on");
    }

    #[test]
    fn voters_are_stable_and_apart(case in case()) {
        let state = state(&case, false);
        let chosen = choose_voters(&state.hosts, &state.topology, &BTreeSet::new());
        let ready = state.hosts.values().filter(|host| host.health == Health::Ready).count();
        prop_assert_eq!(chosen.voters.len(), match ready { 0..=2 => ready, 3 | 4 => 3, _ => 5 });
        prop_assert_eq!(&choose_voters(&state.hosts, &state.topology, &chosen.voters), &chosen);
        let Some(lost) = chosen.voters.first().cloned() else { return Ok(()) };
        let mut after = state.clone();
        after.host_mut(&lost).expect("a host").health = LEFT;
        let next = choose_voters(&after.hosts, &after.topology, &chosen.voters);
        prop_assert!(!next.voters.contains(&lost));
        let stayed = chosen.voters.intersection(&next.voters).count();
        prop_assert_eq!(stayed, (chosen.voters.len() - 1).min(next.voters.len()));
    }
}
