//! The verdict of a check, with the reason for each part of it.

use super::infer::Findings;
use super::times::Times;
use std::collections::{BTreeMap, BTreeSet};

/// A link between two hosts, the lower number first.
pub type Link = (usize, usize);

/// What is held against a host about which nothing is proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// Hosts of its groups that failed: one of them, or a link, is faulty.
    pub others: BTreeSet<usize>,
}

/// What a check has proven. A host without an entry is healthy, unless [`probes`](Verdict::probes) is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// Faulty hosts, each with the healthy hosts with which it failed, one at a time; none if it failed alone.
    pub faulty: BTreeMap<usize, BTreeSet<usize>>,
    /// Hosts with a slow computation, each with its share of the usual time in thousandths.
    pub slow_compute: BTreeMap<usize, u64>,
    /// Hosts with slow exchanges, each with the healthy hosts with which they were slow.
    pub slow_exchange: BTreeMap<usize, BTreeSet<usize>>,
    /// Faulty links between healthy hosts.
    pub faulty_links: BTreeSet<Link>,
    /// Slow links between healthy hosts.
    pub slow_links: BTreeSet<Link>,
    /// Hosts that failed, without a proof of which one is faulty.
    pub suspects: BTreeMap<usize, Suspect>,
    /// Hosts with slow exchanges, without a proof of which one is slow.
    pub slow_suspects: BTreeMap<usize, Suspect>,
    /// Number of probes.
    pub probes: usize,
}

impl Verdict {
    /// Returns true if every probe passed at the usual speed.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        *self == Verdict { probes: self.probes, ..Verdict::default() }
    }

    /// Returns the hosts that must not train: those that are proven to be faulty.
    pub fn faulty_hosts(&self) -> impl Iterator<Item = usize> + '_ {
        self.faulty.keys().copied()
    }

    /// Returns the hosts that are proven to be slow.
    #[must_use]
    pub fn slow_hosts(&self) -> BTreeSet<usize> {
        self.slow_compute.keys().chain(self.slow_exchange.keys()).copied().collect()
    }

    /// Returns one sentence per finding. `name` returns the name of a host.
    pub fn sentences(&self, name: impl Fn(usize) -> String) -> Vec<String> {
        let names = |hosts: &BTreeSet<usize>| hosts.iter().map(|host| name(*host)).collect::<Vec<_>>().join(", ");
        let mut sentences = Vec::new();
        for (host, partners) in &self.faulty {
            sentences.push(if partners.is_empty() {
                format!("{} is faulty: its probe failed although no other host took part", name(*host))
            } else {
                format!(
                    "{} is faulty: its probes failed with {}, each of which passed with others",
                    name(*host),
                    names(partners)
                )
            });
        }
        for (host, permille) in &self.slow_compute {
            let (whole, part) = (permille / 1000, permille % 1000 / 10);
            sentences.push(format!(
                "{} computes slowly: {whole}.{part:02} times the usual time, in two rounds",
                name(*host)
            ));
        }
        for (host, partners) in &self.slow_exchange {
            sentences.push(format!(
                "{} exchanges slowly: with {}, each of which is fast with others",
                name(*host),
                names(partners)
            ));
        }
        for (what, links) in [("faulty", &self.faulty_links), ("slow", &self.slow_links)] {
            for (one, other) in links {
                sentences.push(format!(
                    "the link between {} and {} is {what}: both work with others",
                    name(*one),
                    name(*other)
                ));
            }
        }
        for (what, suspects) in [("failed", &self.suspects), ("were slow", &self.slow_suspects)] {
            for (host, suspect) in suspects {
                sentences.push(format!(
                    "{} is a suspect: its probes with {} {what}, and no probe tells which of them is the cause",
                    name(*host),
                    names(&suspect.others)
                ));
            }
        }
        sentences
    }
}

pub(super) fn of(faults: &Findings, slow: &Findings, times: &Times) -> Verdict {
    let slow_compute: BTreeMap<usize, u64> = times
        .slow()
        .into_iter()
        .map(|slow| (slow.host, slow.permille))
        .filter(|(host, _)| !faults.bad.contains_key(host))
        .collect();
    let is_other = |host: &usize| !faults.bad.contains_key(host) && !slow_compute.contains_key(host);
    let suspects = |findings: &Findings| {
        let suspects = findings.suspects.iter().filter(|(host, _)| is_other(host));
        suspects.map(|(host, others)| (*host, Suspect { others: others.clone() })).collect()
    };
    let slow_exchange = slow.bad.iter().filter(|(host, _)| is_other(host));
    Verdict {
        slow_exchange: slow_exchange.map(|(host, with)| (*host, with.clone())).collect(),
        suspects: suspects(faults),
        slow_suspects: suspects(slow),
        faulty: faults.bad.clone(),
        faulty_links: faults.links.clone(),
        slow_links: slow.links.difference(&faults.links).copied().collect(),
        probes: faults.probes,
        slow_compute,
    }
}
