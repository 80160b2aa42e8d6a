//! Chooses hosts by their domains: apart from each other, close to each other, or outside of a fault.

use super::{Topology, TopologyError};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use taskd_runtime::job::{Name, NodeId};

/// A host with the domains that contain it.
type Placed<'a> = (&'a NodeId, &'a [u32]);

/// For each host the host that keeps the second copy of its in-memory checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Partners {
    /// The partner of each host. Each host is the partner of exactly one; a host without others has none.
    pub of: BTreeMap<NodeId, NodeId>,
    /// The hosts with a partner that is not known to be in another domain: one domain has more hosts than all others
    /// together, or places are unknown. A fault of that domain can take both copies.
    pub not_separate: BTreeSet<NodeId>,
}

impl Topology {
    /// Chooses `n` of the hosts, or all if there are fewer, in as many different domains of a level as possible: no
    /// domain has two of the chosen hosts while another has none. Between equally good domains, those in different
    /// wider domains come first. The hosts are returned in the order of their choice.
    ///
    /// ```
    /// use taskd_cluster::topology::Topology;
    ///
    /// let topology = Topology::parse("
    ///     levels: zone, leaf
    ///     a1: leaf=l1, zone=east
    ///     a2: leaf=l1
    ///     b1: leaf=l2, zone=east
    ///     c1: leaf=l3, zone=west
    /// ")?;
    /// let hosts = topology.hosts().cloned().collect();
    /// let chosen = topology.spread(&hosts, 3, "leaf")?;
    /// assert_eq!(chosen.iter().map(|host| host.0.as_str()).collect::<Vec<_>>(), ["a1", "c1", "b1"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`TopologyError::UnknownLevel`].
    pub fn spread(&self, hosts: &BTreeSet<NodeId>, n: usize, level: &str) -> Result<Vec<NodeId>, TopologyError> {
        let level = self.level_index(level, "the choice of hosts in different domains")?;
        let mut of_domain: BTreeMap<Option<u32>, Vec<Placed<'_>>> = BTreeMap::new();
        for host in hosts {
            let above = self.above(host);
            of_domain.entry(Topology::narrowest(above, level)).or_default().push((host, above));
        }
        let firsts = of_domain.iter().map(|(domain, hosts)| ((hosts[0].0, hosts[0].1), *domain));
        let order = self.alternate(firsts.collect(), 0, level);
        let mut queues: Vec<VecDeque<Placed<'_>>> =
            order.into_iter().filter_map(|(_, domain)| of_domain.remove(&domain)).map(VecDeque::from).collect();
        let mut chosen = Vec::new();
        while chosen.len() < n && !queues.is_empty() {
            queues.retain_mut(|queue| {
                if chosen.len() < n {
                    chosen.extend(queue.pop_front().map(|(host, _)| host.clone()));
                }
                !queue.is_empty()
            });
        }
        Ok(chosen)
    }

    /// Orders domains, each with one of its hosts, so that the domains of each wider level take turns.
    fn alternate<'a, T>(&self, items: Vec<(Placed<'a>, T)>, level: usize, limit: usize) -> Vec<(Placed<'a>, T)> {
        if items.len() <= 1 || level > limit {
            return items;
        }
        let mut groups: BTreeMap<_, Vec<(Placed<'a>, T)>> = BTreeMap::new();
        for item in items {
            let name = self.name_above(item.0.1, level);
            groups.entry((name.is_none(), name)).or_default().push(item);
        }
        let mut turns = Vec::new();
        for group in groups.into_values() {
            turns.extend(self.alternate(group, level + 1, limit).into_iter().enumerate());
        }
        turns.sort_by_key(|(turn, _)| *turn);
        turns.into_iter().map(|(_, item)| item).collect()
    }

    /// Orders hosts so that those of one domain are next to each other, at every level; domains with more of the hosts
    /// come first, hosts of unknown places last. The first hosts of the order are close to each other, and a ring over
    /// the order crosses as few switches as possible.
    #[must_use]
    pub fn pack(&self, hosts: &BTreeSet<NodeId>) -> Vec<NodeId> {
        let placed = hosts.iter().map(|host| (host, self.above(host))).collect();
        let mut order = Vec::with_capacity(hosts.len());
        self.pack_from(placed, 0, &mut order);
        order
    }

    fn pack_from(&self, hosts: Vec<Placed<'_>>, level: usize, order: &mut Vec<NodeId>) {
        if hosts.len() <= 1 || level >= self.levels().len() {
            order.extend(hosts.into_iter().map(|(host, _)| host.clone()));
            return;
        }
        let mut groups: BTreeMap<Option<&Name>, Vec<Placed<'_>>> = BTreeMap::new();
        for host in hosts {
            groups.entry(self.name_above(host.1, level)).or_default().push(host);
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|(name, hosts)| (name.is_none(), Reverse(hosts.len())));
        for (_, group) in groups {
            self.pack_from(group, level + 1, order);
        }
    }

    /// Chooses a spare for each lost host from the candidates, as far as they suffice; no candidate is chosen twice.
    ///
    /// A spare is outside of the fault if possible: not in the narrowest domain of a lost host, and not in a domain
    /// that is the [cause](Topology::causes) of the loss. Of the candidates outside, the nearest to the lost host is
    /// taken, so that the ring crosses few switches. If all are inside, one from another narrowest domain than the lost
    /// host's is preferred. Lost hosts choose in the order of their names.
    #[must_use]
    pub fn spares_for(
        &self,
        lost: &BTreeSet<NodeId>,
        candidates: &BTreeSet<NodeId>,
        live: &BTreeSet<NodeId>,
    ) -> BTreeMap<NodeId, NodeId> {
        let levels = self.levels().len();
        let mut avoided: BTreeSet<u32> =
            lost.iter().filter_map(|host| Topology::narrowest(self.above(host), levels)).collect();
        let blamed = self.causes(lost, live).into_iter().filter_map(|cause| cause.domain);
        avoided.extend(blamed.filter_map(|domain| self.domain_index(&domain)));
        let is_inside = |host: &NodeId| self.above(host).iter().any(|domain| avoided.contains(domain));
        let candidates = candidates.iter().filter(|host| !lost.contains(*host));
        let (inside, outside): (Vec<&NodeId>, Vec<&NodeId>) = candidates.partition(|host| is_inside(host));
        let mut outside = Near::new(self, outside);
        let mut inside = Apart::new(self, inside);
        let mut spares = BTreeMap::new();
        for host in lost {
            let Some(spare) = outside.take(self, host).or_else(|| inside.take(self, host)) else { break };
            spares.insert(host.clone(), spare.clone());
        }
        spares
    }

    /// Chooses for each host the host that keeps the second copy of its in-memory checkpoint: in another domain of the
    /// level, and each host keeps one copy. If one domain has more than half of the hosts, some of its hosts have a
    /// partner in the same domain, and are listed.
    ///
    /// The choice depends on the set of hosts: after a change the copies move with the next checkpoint.
    ///
    /// ```
    /// use taskd_cluster::topology::Topology;
    ///
    /// let topology = Topology::parse("
    ///     levels: leaf
    ///     n1: leaf=l1
    ///     n2: leaf=l1
    ///     n3: leaf=l2
    ///     n4: leaf=l2
    /// ")?;
    /// let partners = topology.partners(&topology.hosts().cloned().collect(), "leaf")?;
    /// assert_eq!(partners.of[&"n1".parse()?], "n3".parse()?);
    /// assert_eq!(partners.of[&"n4".parse()?], "n2".parse()?);
    /// assert!(partners.not_separate.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`TopologyError::UnknownLevel`].
    pub fn partners(&self, hosts: &BTreeSet<NodeId>, level: &str) -> Result<Partners, TopologyError> {
        let level = self.level_index(level, "the choice of hosts for second copies")?;
        let domain = |host: &NodeId| Topology::narrowest(self.above(host), level);
        let order = self.pack(hosts);
        // The hosts of one domain at the level, in the order of `pack`: without those that a missing label separates.
        let mut of_domain: BTreeMap<Option<u32>, usize> = BTreeMap::new();
        let mut groups: Vec<Vec<&NodeId>> = Vec::new();
        for host in &order {
            let group = *of_domain.entry(domain(host)).or_insert(groups.len());
            match groups.get_mut(group) {
                Some(group) => group.push(host),
                None => groups.push(vec![host]),
            }
        }
        // In an order in which domains are contiguous, a step as long as the largest domain leaves every domain.
        let largest = groups.iter().map(Vec::len).max().unwrap_or(0);
        let order: Vec<&NodeId> = groups.concat();
        let step = if largest == order.len() { largest.div_ceil(2) } else { largest };
        let mut partners = Partners::default();
        for (index, host) in order.iter().enumerate().filter(|_| order.len() > 1) {
            let partner = order[(index + step) % order.len()];
            partners.of.insert((*host).clone(), partner.clone());
            if domain(host).is_none_or(|own| domain(partner).is_none_or(|other| own == other)) {
                partners.not_separate.insert((*host).clone());
            }
        }
        Ok(partners)
    }

    /// Chooses as [`partners`](Topology::partners) does, at the widest level at which every host has a partner in another
    /// domain. If there is none, at the widest level at which the fewest hosts have not.
    #[must_use]
    pub fn partners_apart(&self, hosts: &BTreeSet<NodeId>) -> Partners {
        let at = |level: &Name| self.partners(hosts, level.as_str()).ok();
        let choices = self.levels().iter().filter_map(at);
        choices.min_by_key(|partners| partners.not_separate.len()).unwrap_or_default() // the first of equal ones
    }
}

/// Candidates by domain, to take the nearest to a host.
struct Near<'a> {
    in_domain: BTreeMap<u32, BTreeSet<&'a NodeId>>,
    all: BTreeSet<&'a NodeId>,
}

impl<'a> Near<'a> {
    fn new(topology: &Topology, hosts: Vec<&'a NodeId>) -> Near<'a> {
        let mut in_domain: BTreeMap<u32, BTreeSet<&NodeId>> = BTreeMap::new();
        for host in &hosts {
            let above = topology.above(host);
            for domain in (0..above.len()).filter_map(|level| Topology::index_above(above, level)) {
                in_domain.entry(domain).or_default().insert(*host);
            }
        }
        Near { in_domain, all: hosts.into_iter().collect() }
    }

    fn take(&mut self, topology: &Topology, near: &NodeId) -> Option<&'a NodeId> {
        let above = topology.above(near);
        let domains = (0..above.len()).rev().filter_map(|level| Topology::index_above(above, level));
        let mut sets = domains.filter_map(|domain| self.in_domain.get(&domain));
        let taken = *sets.find_map(BTreeSet::first).or_else(|| self.all.first())?;
        self.all.remove(taken);
        for domain in topology.above(taken) {
            if let Some(set) = self.in_domain.get_mut(domain) {
                set.remove(taken);
            }
        }
        Some(taken)
    }
}

/// Candidates by narrowest domain, to take one from another domain than a host's.
struct Apart<'a>(Vec<(Option<u32>, VecDeque<&'a NodeId>)>);

impl<'a> Apart<'a> {
    fn new(topology: &Topology, hosts: Vec<&'a NodeId>) -> Apart<'a> {
        let mut groups: Vec<(Option<u32>, VecDeque<&NodeId>)> = Vec::new();
        let mut of_domain: BTreeMap<Option<u32>, usize> = BTreeMap::new();
        for host in hosts {
            let domain = Topology::narrowest(topology.above(host), topology.levels().len());
            let index = *of_domain.entry(domain).or_insert(groups.len());
            match groups.get_mut(index) {
                Some((_, group)) => group.push_back(host),
                None => groups.push((domain, VecDeque::from([host]))),
            }
        }
        // The last group is served first: the domain with the smallest name of a host.
        groups.reverse();
        Apart(groups)
    }

    fn take(&mut self, topology: &Topology, apart_from: &NodeId) -> Option<&'a NodeId> {
        let own = Topology::narrowest(topology.above(apart_from), topology.levels().len());
        let other = self.0.iter().rposition(|(domain, _)| *domain != own);
        let index = other.or(self.0.len().checked_sub(1))?;
        let taken = self.0[index].1.pop_front();
        if self.0[index].1.is_empty() {
            self.0.remove(index);
        }
        taken
    }
}
