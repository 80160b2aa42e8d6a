//! What passed and failed probes prove about hosts and links.

use super::plan::pairs;
use std::collections::{BTreeMap, BTreeSet};

/// What is proven by probes of one kind: faults, or slow exchanges.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    /// Hosts of a probe that passed.
    pub(super) healthy: BTreeSet<usize>,
    /// Hosts that are blamed, with the healthy hosts with which they failed; none if they failed alone.
    pub(super) bad: BTreeMap<usize, BTreeSet<usize>>,
    /// Links that are blamed.
    pub(super) links: BTreeSet<(usize, usize)>,
    /// Hosts that failed, and are neither healthy nor blamed, with all hosts of those groups.
    pub(super) suspects: BTreeMap<usize, BTreeSet<usize>>,
    /// Links of groups that failed although all of their hosts are healthy, if the group has several that did not pass.
    pub(super) doubtful_links: BTreeSet<(usize, usize)>,
    /// Number of probes.
    pub(super) probes: usize,
}

impl Findings {
    /// Returns what these groups prove; `true` means that the group passed.
    pub(super) fn of<'a>(
        hosts: usize,
        partners: usize,
        groups: impl Iterator<Item = (&'a [usize], bool)> + Clone,
    ) -> Findings {
        let mut found = Findings { probes: groups.clone().count(), ..Findings::default() };
        let mut passed_links = BTreeSet::new();
        for (group, _) in groups.clone().filter(|(group, passed)| *passed && (group.len() > 1 || hosts == 1)) {
            found.healthy.extend(group);
            passed_links.extend(pairs(group));
        }
        let failed = groups.filter(|(_, passed)| !passed);
        let mut failed_with: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for (group, _) in failed.clone() {
            let doubtful: Vec<usize> = group.iter().copied().filter(|host| !found.healthy.contains(host)).collect();
            match *doubtful {
                [] => found.blame_link(group, &passed_links),
                [host] if group.len() == 1 => _ = found.bad.entry(host).or_default(),
                [host] if group.len() == 2 => {
                    failed_with.entry(host).or_default().extend(group.iter().copied().filter(|other| *other != host));
                }
                _ => {}
            }
            for host in doubtful {
                let others = group.iter().copied().filter(|other| *other != host);
                found.suspects.entry(host).or_default().extend(others);
            }
        }
        let blamed = failed_with.into_iter().filter(|(_, others)| others.len() >= partners.max(1));
        found.bad.extend(blamed);
        found.suspects.retain(|host, _| !found.bad.contains_key(host));
        found
    }

    /// Blames the only link of a group that did not pass elsewhere; several such links are doubtful.
    fn blame_link(&mut self, group: &[usize], passed: &BTreeSet<(usize, usize)>) {
        let open: Vec<(usize, usize)> = pairs(group).filter(|link| !passed.contains(link)).collect();
        match *open {
            [link] => _ = self.links.insert(link),
            _ => self.doubtful_links.extend(open),
        }
    }

    /// Returns true if this host was in a probe that failed, and nothing is proven about it.
    pub(super) fn is_suspect(&self, host: usize) -> bool {
        self.suspects.contains_key(&host)
    }
}
