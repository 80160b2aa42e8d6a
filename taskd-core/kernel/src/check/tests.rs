//! Every pattern of faults on few hosts, random patterns on many, and times with noise.

use super::{CheckSettings, NodeCheck, Outcome, Report, Verdict};
use std::collections::BTreeSet;

/// The faults of a cluster.
#[derive(Clone, Debug, Default)]
struct Cluster {
    faulty: BTreeSet<usize>,
    faulty_links: BTreeSet<(usize, usize)>,
    /// Factors of hosts and of links, in thousandths.
    slow_compute: Vec<(usize, u64)>,
    slow_network: BTreeSet<usize>,
    slow_links: BTreeSet<(usize, usize)>,
    noise_permille: u64,
    state: u64,
}

impl Cluster {
    fn random(&mut self, limit: u64) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % limit.max(1)
    }

    fn noisy(&mut self, time: u64) -> u64 {
        time + time * self.random(self.noise_permille + 1) / 1000
    }

    fn probe(&mut self, group: &[usize]) -> Outcome {
        let links: Vec<(usize, usize)> = super::plan::pairs(group).collect();
        if group.iter().any(|host| self.faulty.contains(host))
            || links.iter().any(|link| self.faulty_links.contains(link))
        {
            return Outcome::Failed;
        }
        let slow = self.slow_compute.clone();
        let factor = |host: &usize| slow.iter().find(|slow| slow.0 == *host).map_or(1000, |slow| slow.1);
        let compute_ns = group.iter().map(|host| self.noisy(1_000_000 * factor(host) / 1000)).collect();
        let is_slow = group.iter().any(|host| self.slow_network.contains(host))
            || links.iter().any(|link| self.slow_links.contains(link));
        Outcome::Passed { compute_ns, exchange_ns: self.noisy(if is_slow { 8_000_000 } else { 1_000_000 }) }
    }

    /// Runs a check to its end. Returns its verdict and the number of its rounds.
    fn check(&mut self, hosts: usize, settings: CheckSettings) -> (Verdict, u32) {
        let mut check = NodeCheck::new(hosts, settings);
        while let Some(round) = check.next_round() {
            let members: Vec<usize> = round.iter().flatten().copied().collect();
            assert_eq!(members.len(), members.iter().collect::<BTreeSet<_>>().len(), "a host is in one group at most");
            let reports: Vec<Report> =
                round.into_iter().map(|group| Report { outcome: self.probe(&group), group }).collect();
            check.record(reports);
        }
        (check.verdict(), check.rounds())
    }
}

fn unlimited() -> CheckSettings {
    CheckSettings { rounds_max: 1000, ..CheckSettings::default() }
}

/// The hosts of a pattern of bits.
fn hosts_of(pattern: u32) -> BTreeSet<usize> {
    (0..32).filter(|host| pattern & (1 << host) != 0).collect()
}

#[test]
fn every_pattern_of_faulty_hosts_is_found_while_two_healthy_hosts_remain() {
    for hosts in 1..=10_usize {
        for pattern in 0..1_u32 << hosts {
            let faulty = hosts_of(pattern);
            let (verdict, rounds) = Cluster { faulty: faulty.clone(), ..Cluster::default() }.check(hosts, unlimited());
            let blamed: BTreeSet<usize> = verdict.faulty_hosts().collect();
            assert!(blamed.is_subset(&faulty), "{hosts} hosts, {faulty:?}: {verdict:?}");
            assert!(
                verdict.faulty_links.is_empty() && verdict.slow_hosts().is_empty(),
                "{hosts}, {faulty:?}: {verdict:?}"
            );
            if faulty.is_empty() {
                assert!(verdict.is_healthy() && rounds == 1, "{hosts} hosts: {verdict:?}");
            } else if hosts - faulty.len() >= 2 || hosts == 1 {
                assert_eq!(blamed, faulty, "{hosts} hosts after {rounds} rounds: {verdict:?}");
                assert!(verdict.suspects.is_empty(), "{hosts} hosts, {faulty:?}: {verdict:?}");
            } else {
                let known: BTreeSet<usize> = blamed.into_iter().chain(verdict.suspects.into_keys()).collect();
                assert!(known.is_superset(&faulty), "{hosts} hosts, {faulty:?}: nothing is kept silent");
            }
        }
    }
}

#[test]
fn a_faulty_link_beside_faulty_hosts_blames_no_healthy_host() {
    for hosts in 2..=6_usize {
        for pattern in 0..1_u32 << hosts {
            for one in 0..hosts {
                for other in one + 1..hosts {
                    let faulty = hosts_of(pattern);
                    let link = (one, other);
                    let mut cluster =
                        Cluster { faulty: faulty.clone(), faulty_links: [link].into(), ..Cluster::default() };
                    let (verdict, _) = cluster.check(hosts, unlimited());
                    let context = || format!("{hosts} hosts, {faulty:?}, link {link:?}: {verdict:?}");
                    assert!(verdict.faulty_hosts().all(|host| faulty.contains(&host)), "{}", context());
                    assert!(verdict.faulty_links.iter().all(|found| *found == link), "{}", context());
                    let was_probed = verdict.faulty_links.contains(&link) || !verdict.suspects.is_empty();
                    let is_first_pair = one % 2 == 0 && other == one + 1;
                    if faulty.is_empty() && is_first_pair {
                        assert!(was_probed, "{}", context());
                        assert!(hosts < 4 || verdict.faulty_links.contains(&link), "{}", context());
                    }
                }
            }
        }
    }
}

#[test]
fn random_patterns_on_many_hosts_are_exact_within_the_default_rounds() {
    let mut random = Cluster { state: 5, ..Cluster::default() };
    for round in 0..16_usize {
        let hosts = 2 + usize::try_from(random.random(4_095)).unwrap();
        // Up to a tenth of the hosts.
        let count = random.random((hosts as u64 / 10).max(1)) + u64::from(round % 2 == 0);
        let faulty: BTreeSet<usize> =
            (0..count).map(|_| usize::try_from(random.random(hosts as u64)).unwrap()).collect();
        let (verdict, rounds) =
            Cluster { faulty: faulty.clone(), ..Cluster::default() }.check(hosts, CheckSettings::default());
        let blamed: BTreeSet<usize> = verdict.faulty_hosts().collect();
        assert!(blamed.is_subset(&faulty), "{hosts} hosts: {verdict:?}");
        assert!(
            hosts - faulty.len() < 4 || blamed == faulty,
            "{hosts} hosts, {} faulty, {rounds} rounds",
            faulty.len()
        );
    }
}

#[test]
fn a_faulty_host_whose_partner_is_healthy_is_found_in_two_rounds_as_the_reference_does() {
    let (verdict, rounds) = Cluster { faulty: [1].into(), ..Cluster::default() }.check(4, CheckSettings::default());
    assert_eq!((verdict.faulty_hosts().collect::<Vec<_>>(), rounds), (vec![1], 2));
    let sentences = verdict.sentences(|host| format!("node-{host}"));
    assert_eq!(
        sentences,
        ["node-1 is faulty: its probes failed with node-0, node-3, each of which passed with others"]
    );
}

#[test]
fn two_hosts_that_fail_together_are_suspects_unless_one_fails_alone() {
    let (verdict, _) = Cluster { faulty_links: [(0, 1)].into(), ..Cluster::default() }.check(2, unlimited());
    assert_eq!(verdict.faulty_hosts().count(), 0);
    assert_eq!(verdict.suspects.keys().copied().collect::<Vec<_>>(), [0, 1]);
    let sentences = verdict.sentences(|host| format!("node-{host}"));
    assert_eq!(
        sentences[0],
        "node-0 is a suspect: its probes with node-1 failed, and no probe tells which of them is the cause"
    );
    let (verdict, _) = Cluster { faulty: [1].into(), ..Cluster::default() }.check(2, unlimited());
    assert_eq!(verdict.faulty_hosts().collect::<Vec<_>>(), [1], "it fails alone");
}

#[test]
fn a_host_that_computes_half_as_fast_again_is_named_and_noise_is_not() {
    for hosts in [2, 3, 4, 5, 8, 33] {
        for seed in 0..30 {
            let noise_permille = 200;
            let clean =
                Cluster { noise_permille, state: seed, ..Cluster::default() }.check(hosts, CheckSettings::default()).0;
            assert!(clean.is_healthy(), "{hosts} hosts, seed {seed}: {clean:?}");
            let slow = usize::try_from(seed).unwrap() % hosts;
            let mut cluster =
                Cluster { slow_compute: vec![(slow, 1600)], noise_permille, state: seed, ..Cluster::default() };
            let found = cluster.check(hosts, CheckSettings::default()).0;
            assert_eq!(found.slow_hosts(), [slow].into(), "{hosts} hosts, seed {seed}: {found:?}");
        }
    }
}

#[test]
fn slow_exchanges_name_the_host_or_the_link_even_of_four_hosts() {
    for hosts in [4, 5, 6, 9, 16] {
        for bad in 0..hosts {
            let mut cluster = Cluster { slow_network: [bad].into(), noise_permille: 100, ..Cluster::default() };
            let found = cluster.check(hosts, CheckSettings::default()).0;
            assert_eq!(found.slow_hosts(), [bad].into(), "{hosts} hosts: {found:?}");
            assert!(found.slow_links.is_empty() && found.faulty.is_empty(), "{hosts} hosts: {found:?}");
        }
        let mut cluster = Cluster { slow_links: [(0, 1)].into(), noise_permille: 100, ..Cluster::default() };
        let found = cluster.check(hosts, CheckSettings::default()).0;
        assert_eq!((found.slow_links.into_iter().collect::<Vec<_>>(), found.slow_exchange.len()), (vec![(0, 1)], 0));
    }
}

#[test]
fn results_that_were_not_planned_do_not_count_and_missing_ones_time_out() {
    let mut check = NodeCheck::new(4, CheckSettings::default());
    assert_eq!(check.next_round(), Some(vec![vec![0, 1], vec![2, 3]]));
    let passed = |group: Vec<usize>| Report {
        outcome: Outcome::Passed { compute_ns: vec![1; group.len()], exchange_ns: 1 },
        group,
    };
    check.record([passed(vec![0, 1]), passed(vec![0, 1]), passed(vec![1, 2]), passed(vec![7, 9])]);
    assert_eq!(check.reports().len(), 1);
    assert!(check.next_round().is_some(), "the other group has timed out");
    assert_eq!(check.reports()[1], Report { group: vec![2, 3], outcome: Outcome::TimedOut });
    assert_eq!(NodeCheck::new(0, CheckSettings::default()).next_round(), None);
}
