//! The groups of the next round.

use super::infer::Findings;
use std::collections::BTreeSet;

/// What the next round depends on.
pub(super) struct Known<'a> {
    pub(super) hosts: usize,
    /// Findings about faults, then about slow exchanges.
    pub(super) findings: [&'a Findings; 2],
    /// Hosts that need another computation.
    pub(super) compute: BTreeSet<usize>,
    /// Links that were in a group.
    pub(super) tested: BTreeSet<(usize, usize)>,
    /// Hosts that were probed alone.
    pub(super) alone: BTreeSet<usize>,
}

/// Returns the links of a group, the lower host first.
pub(super) fn pairs(group: &[usize]) -> impl Iterator<Item = (usize, usize)> + use<> {
    let group = group.to_vec();
    (0..group.len()).flat_map(move |first| {
        let group = group.clone();
        (first + 1..group.len()).filter_map(move |second| Some(link(*group.get(first)?, *group.get(second)?)))
    })
}

/// Returns a link with the lower host first.
pub(super) fn link(one: usize, other: usize) -> (usize, usize) {
    (one.min(other), one.max(other))
}

/// Returns neighbours in pairs; an odd last host joins the last pair. A single host is a group of its own.
pub(super) fn neighbours(hosts: usize) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = (0..hosts / 2).map(|pair| vec![2 * pair, 2 * pair + 1]).collect();
    if hosts % 2 == 1 {
        match groups.last_mut() {
            Some(last) => last.push(hosts - 1),
            None => groups.push(vec![0]),
        }
    }
    groups
}

/// Returns the groups of the next round; empty if nothing is in doubt that a probe could decide.
pub(super) fn next(known: &Known<'_>) -> Vec<Vec<usize>> {
    let (doubtful, certain): (BTreeSet<usize>, BTreeSet<usize>) =
        (0..known.hosts).partition(|host| known.is_doubtful(*host));
    let healthy = certain.into_iter().filter(|host| known.is_healthy(*host)).collect();
    let mut round = Round { known, doubtful, healthy, groups: Vec::new() };
    round.links();
    for host in round.doubtful.clone() {
        round.with_healthy(host);
    }
    for host in round.doubtful.clone() {
        round.with_doubtful(host);
    }
    if round.groups.is_empty() {
        round.alone();
    }
    round.groups
}

impl Known<'_> {
    fn is_doubtful(&self, host: usize) -> bool {
        self.findings.iter().any(|findings| findings.is_suspect(host)) || self.compute.contains(&host)
    }

    /// Returns true if this host passed, and nothing is proven against it.
    fn is_healthy(&self, host: usize) -> bool {
        let [faults, slow] = self.findings;
        faults.healthy.contains(&host) && !slow.bad.contains_key(&host)
    }

    fn is_new(&self, one: usize, other: usize) -> bool {
        one != other && !self.tested.contains(&link(one, other))
    }
}

/// A round while it is planned.
struct Round<'a> {
    known: &'a Known<'a>,
    /// Hosts in doubt without a group.
    doubtful: BTreeSet<usize>,
    /// Healthy hosts without a group.
    healthy: BTreeSet<usize>,
    groups: Vec<Vec<usize>>,
}

impl Round<'_> {
    fn pair(&mut self, one: usize, other: usize) {
        for host in [one, other] {
            self.healthy.remove(&host);
            self.doubtful.remove(&host);
        }
        self.groups.push(vec![one.min(other), one.max(other)]);
    }

    /// Probes the links of groups of healthy hosts that failed, one by one.
    fn links(&mut self) {
        for (one, other) in self.known.findings.into_iter().flat_map(|findings| &findings.doubtful_links) {
            if self.healthy.contains(one) && self.healthy.contains(other) {
                self.pair(*one, *other);
            }
        }
    }

    /// Pairs a host with a healthy one that it has not met: the next one by number.
    fn with_healthy(&mut self, host: usize) {
        let others = self.healthy.range(host..).chain(self.healthy.range(..host));
        if let Some(other) = others.copied().find(|other| self.known.is_new(host, *other)) {
            self.pair(host, other);
        }
    }

    /// Pairs a host without a healthy partner with another such: a probe that passes proves both healthy.
    fn with_doubtful(&mut self, host: usize) {
        if !self.doubtful.contains(&host) {
            return;
        }
        let others = self.doubtful.range(host + 1..);
        if let Some(other) = others.copied().find(|other| self.known.is_new(host, *other)) {
            self.pair(host, other);
        }
    }

    /// Probes hosts that have met all others alone: that separates a host from its links, and confirms a slow computation.
    fn alone(&mut self) {
        let faults = self.known.findings[0];
        let hosts = self.doubtful.iter().copied().filter(|host| {
            (faults.is_suspect(*host) && !self.known.alone.contains(host)) || self.known.compute.contains(host)
        });
        self.groups = hosts.map(|host| vec![host]).collect();
    }
}
