//! Which domain explains hosts that were lost at the same time.

use super::{Domain, Topology};
use std::collections::{BTreeMap, BTreeSet};
use taskd_runtime::job::NodeId;

/// Smallest number of lost hosts for which a domain is blamed. One lost host is a fault of that host.
const LOST_MIN: usize = 2;

/// Hosts that were lost together, and the domain that explains the loss.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cause {
    /// The smallest domain that contains all these lost hosts, such as their switch; `None` if a single host was lost
    /// on its own.
    pub domain: Option<Domain>,
    /// The lost hosts.
    pub lost: BTreeSet<NodeId>,
    /// Number of hosts of the domain that are live.
    pub live: usize,
}

impl Topology {
    /// Groups hosts that were lost at the same time by their cause, so that ten hosts under one failed switch are one
    /// incident. Each lost host is in one group.
    ///
    /// A domain is blamed if it has lost at least two hosts, and more than are `live` in it: a switch takes all its
    /// hosts along, so live hosts speak against it, except for the few that the manager has not missed yet. Of the
    /// domains that may be blamed for a host the widest is taken, because one failed spine explains more than its
    /// leaves one by one, and then the narrowest that contains the same lost hosts. Hosts that are neither lost nor
    /// live, such as those lost earlier, do not count. The groups are in the order of their first lost hosts.
    ///
    /// ```
    /// use std::collections::BTreeSet;
    /// use taskd_cluster::topology::Topology;
    ///
    /// let topology = Topology::parse("
    ///     levels: spine, leaf
    ///     n1: leaf=l1, spine=s1
    ///     n2: leaf=l1
    ///     n3: leaf=l2, spine=s1
    ///     n4: leaf=l2
    /// ")?;
    /// let lost = BTreeSet::from(["n1".parse()?, "n2".parse()?]);
    /// let live = BTreeSet::from(["n3".parse()?, "n4".parse()?]);
    /// let cause = topology.common_cause(&lost, &live).ok_or("no cause")?;
    /// assert_eq!(cause.domain.map(|leaf| leaf.to_string()).as_deref(), Some("leaf l1"));
    ///
    /// // One host of each leaf, and as many are live: no domain is blamed.
    /// let lost = BTreeSet::from(["n1".parse()?, "n3".parse()?]);
    /// let live = BTreeSet::from(["n2".parse()?, "n4".parse()?]);
    /// assert_eq!(topology.common_cause(&lost, &live), None);
    /// assert_eq!(topology.causes(&lost, &live).len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn causes(&self, lost: &BTreeSet<NodeId>, live: &BTreeSet<NodeId>) -> Vec<Cause> {
        let lost_in = self.counts(lost, |_| true);
        // Domains without a loss do not matter, and most have none.
        let live_in = self.counts(live.difference(lost), |domain| lost_in.contains_key(&domain));
        let lost_of = |domain: u32| lost_in.get(&domain).copied().unwrap_or(0);
        let live_of = |domain: u32| live_in.get(&domain).copied().unwrap_or(0);
        let mut causes: Vec<Cause> = Vec::new();
        let mut of_domain: BTreeMap<u32, usize> = BTreeMap::new();
        for host in lost {
            let above = self.above(host);
            let known = || (0..above.len()).filter_map(|level| Topology::index_above(above, level));
            let widest = known().find(|domain| lost_of(*domain) >= LOST_MIN.max(live_of(*domain) + 1));
            let blamed = widest.and_then(|widest| known().rfind(|domain| lost_of(*domain) == lost_of(widest)));
            let group = blamed.and_then(|domain| of_domain.get(&domain).copied());
            if let Some(group) = group {
                causes[group].lost.insert(host.clone());
                continue;
            }
            if let Some(domain) = blamed {
                of_domain.insert(domain, causes.len());
            }
            causes.push(Cause {
                domain: blamed.map(|domain| self.domain(domain)),
                lost: BTreeSet::from([host.clone()]),
                live: blamed.map_or(0, live_of),
            });
        }
        causes
    }

    /// Returns the cause that explains all lost hosts, if one domain does: see [`causes`](Topology::causes).
    #[must_use]
    pub fn common_cause(&self, lost: &BTreeSet<NodeId>, live: &BTreeSet<NodeId>) -> Option<Cause> {
        let mut causes = self.causes(lost, live).into_iter();
        let first = causes.next().filter(|cause| cause.domain.is_some())?;
        causes.next().is_none().then_some(first)
    }

    fn counts<'a>(
        &self,
        hosts: impl IntoIterator<Item = &'a NodeId>,
        matters: impl Fn(u32) -> bool,
    ) -> BTreeMap<u32, usize> {
        let mut counts = BTreeMap::new();
        for host in hosts {
            let above = self.above(host);
            let domains = (0..above.len()).filter_map(|level| Topology::index_above(above, level));
            for domain in domains.filter(|domain| matters(*domain)) {
                *counts.entry(domain).or_insert(0) += 1;
            }
        }
        counts
    }
}
