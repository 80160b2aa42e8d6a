//! Which hosts vote in the embedded consensus engine.

use super::{Health, Host};
use crate::topology::Topology;
use std::collections::{BTreeMap, BTreeSet};
use taskd_runtime::job::{JobTime, NodeId};

/// Number of hosts from which on there are five voters instead of three.
const HOSTS_OF_FIVE_VOTERS: usize = 5;

/// The voters of the consensus engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Voters {
    /// The hosts that vote: 1, 3 or 5; 2 if there are only two hosts.
    pub voters: BTreeSet<NodeId>,
    /// True if there are two voters. Both must then be live for a majority, so the loss of either stops the job: run a
    /// third voter that runs no ranks, a *witness*, on another machine.
    pub needs_witness: bool,
}

/// Chooses the voters: 1 of one host, both of two, 3 of three or four, and 5 of more hosts.
///
/// Voters stay: a voter is replaced only if it has left, and only then three voters become five. A voter without an entry in `hosts` is out of sight and stays. New voters are ready hosts, in the widest domains with
/// the fewest voters, then in the narrower ones, so that the loss of one domain takes as few voters as possible.
///
/// ```
/// use std::collections::{BTreeMap, BTreeSet};
/// use taskd_cluster::membership::{Host, choose_voters};
/// use taskd_cluster::topology::Topology;
/// use taskd_runtime::job::JobTime;
///
/// let topology = Topology::parse("
///     levels: leaf
///     a: leaf=l1
///     b: leaf=l1
///     c: leaf=l2
///     d: leaf=l3
/// ")?;
/// let mut hosts = BTreeMap::new();
/// for host in topology.hosts() {
///     hosts.insert(host.clone(), Host::new(JobTime::START, 8));
/// }
/// let chosen = choose_voters(&hosts, &topology, &BTreeSet::new());
/// assert_eq!(chosen.voters, BTreeSet::from(["a".parse()?, "c".parse()?, "d".parse()?]));
/// assert!(!chosen.needs_witness);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn choose_voters(hosts: &BTreeMap<NodeId, Host>, topology: &Topology, current: &BTreeSet<NodeId>) -> Voters {
    let health = |name: &NodeId| hosts.get(name).map(|host| host.health);
    let is_gone = |name: &NodeId| matches!(health(name), Some(Health::Left { .. }));
    let kept: BTreeSet<&NodeId> = current.iter().filter(|name| !is_gone(name)).collect();
    let ready: BTreeSet<&NodeId> = hosts.keys().filter(|name| health(name) == Some(Health::Ready)).collect();
    let number = match kept.union(&ready).count() {
        few @ 0..=2 => few,
        HOSTS_OF_FIVE_VOTERS.. if kept.len() < current.len() || current.len() != 3 => 5,
        _ => 3,
    };
    let is_stable = kept.len() == current.len() && matches!(number, 3 | 5) && current.len() == number;
    let mut chosen = Spread::new(topology);
    if is_stable {
        return voters(kept.into_iter());
    }
    // Fewer voters than before: those that stay are spread, too.
    let mut candidates = if kept.len() > number { kept.clone() } else { &kept | &ready };
    if kept.len() <= number {
        for voter in kept {
            candidates.remove(voter);
            chosen.add(voter);
        }
    }
    while chosen.voters.len() < number && !candidates.is_empty() {
        let best = candidates.iter().copied().min_by_key(|host| (!ready.contains(host), chosen.crowd(host)));
        if let Some(best) = best {
            candidates.remove(best);
            chosen.add(best);
        }
    }
    voters(chosen.voters.into_iter())
}

/// Chooses the first voters of a job from the hosts that are listed for it: all of one, three or five, and otherwise as
/// [`choose_voters`] does. The others can replace lost voters. Every host of the job must choose from the same list and
/// the same topology.
///
/// ```
/// use std::collections::BTreeSet;
/// use taskd_cluster::membership::first_voters;
/// use taskd_cluster::topology::Topology;
///
/// let topology = Topology::parse("
///     levels: leaf
///     a: leaf=l1
///     b: leaf=l1
///     c: leaf=l2
///     d: leaf=l3
/// ")?;
/// let listed = topology.hosts().cloned().collect();
/// assert_eq!(first_voters(&listed, &topology), BTreeSet::from(["a".parse()?, "c".parse()?, "d".parse()?]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn first_voters(listed: &BTreeSet<NodeId>, topology: &Topology) -> BTreeSet<NodeId> {
    let ready = |host: &NodeId| (host.clone(), Host::new(JobTime::START, 1));
    choose_voters(&listed.iter().map(ready).collect(), topology, &BTreeSet::new()).voters
}

/// Chooses the host that votes instead of the host `lost`: of the hosts `can` that do not vote, the one in the
/// widest domains with the fewest remaining voters, then in the narrower ones. Returns `None` if there is no such host.
///
/// ```
/// use std::collections::BTreeSet;
/// use taskd_cluster::membership::replacement_voter;
/// use taskd_cluster::topology::Topology;
///
/// let topology = Topology::parse("
///     levels: leaf
///     a: leaf=l1
///     b: leaf=l2
///     c: leaf=l3
///     d: leaf=l2
///     e: leaf=l3
/// ")?;
/// let can = topology.hosts().cloned().collect();
/// let voters = BTreeSet::from(["a".parse()?, "b".parse()?, "c".parse()?]);
/// // Host c is lost: d is under the switch of b, and e under none of a voter that is left.
/// assert_eq!(replacement_voter(&can, &topology, &voters, &"c".parse()?), Some("e".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn replacement_voter(
    can: &BTreeSet<NodeId>,
    topology: &Topology,
    voters: &BTreeSet<NodeId>,
    lost: &NodeId,
) -> Option<NodeId> {
    let mut left = Spread::new(topology);
    voters.iter().filter(|voter| *voter != lost).for_each(|voter| left.add(voter));
    can.difference(voters).min_by_key(|host| left.crowd(host)).cloned()
}

fn voters<'a>(chosen: impl Iterator<Item = &'a NodeId>) -> Voters {
    let voters: BTreeSet<NodeId> = chosen.cloned().collect();
    Voters { needs_witness: voters.len() == 2, voters }
}

/// Voters, and how many of them each domain has.
struct Spread<'a> {
    topology: &'a Topology,
    voters: BTreeSet<&'a NodeId>,
    of_domain: BTreeMap<(usize, &'a str), usize>,
}

impl<'a> Spread<'a> {
    fn new(topology: &'a Topology) -> Spread<'a> {
        Spread { topology, voters: BTreeSet::new(), of_domain: BTreeMap::new() }
    }

    /// Returns the domains of a host, from the widest to the narrowest. An unknown domain has an empty name.
    fn domains(&self, host: &NodeId) -> Vec<(usize, &'a str)> {
        let topology = self.topology;
        let name = |level| topology.domain_of(host, level).map_or("", |name| name.as_str());
        topology.levels().iter().map(|level| name(level.as_str())).enumerate().collect()
    }

    /// Returns how many voters share the domains of a host, from the widest to the narrowest.
    fn crowd(&self, host: &NodeId) -> Vec<usize> {
        self.domains(host).iter().map(|domain| self.of_domain.get(domain).copied().unwrap_or(0)).collect()
    }

    fn add(&mut self, host: &'a NodeId) {
        self.voters.insert(host);
        for domain in self.domains(host) {
            *self.of_domain.entry(domain).or_insert(0) += 1;
        }
    }
}
