//! Gives node ranks to hosts.

use super::{Health, NodeRanks, State};
use crate::topology::Topology;
use std::collections::{BTreeMap, BTreeSet};
use taskd_runtime::job::NodeId;

/// What the next world is formed from.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// Members that stay, with their node ranks.
    pub(super) kept: NodeRanks,
    /// Members that are lost or leave.
    pub(super) gone: NodeRanks,
    /// Hosts outside of the world that can join it.
    pub(super) spares: BTreeSet<NodeId>,
}

/// Forms the world of `size` hosts, at most as many as are kept and spare.
pub(super) fn assign(parts: &Parts, size: usize, is_compact: bool, state: &State) -> NodeRanks {
    let mut ranks = NodeRanks::new();
    let is_cordoned = |host: &NodeId| state.hosts.get(host).is_some_and(|host| host.health == Health::Cordoned);
    let mut stay: Vec<(&u32, &NodeId)> = parts.kept.iter().collect();
    stay.sort_by_key(|(rank, host)| (is_cordoned(host), **rank));
    stay.truncate(size);
    let vacant = size - stay.len();
    // In a compact world, hosts with ranks that it does not have take what the spares leave.
    let has = |rank: u32| !is_compact || usize::try_from(rank).is_ok_and(|rank| rank < size);
    let mut movers = BTreeMap::new();
    for (rank, host) in stay {
        let ranks = if has(*rank) { &mut ranks } else { &mut movers };
        ranks.insert(*rank, host.clone());
    }
    let taken: BTreeSet<u32> = ranks.keys().chain(movers.keys()).copied().collect();
    let mut joining = Joining { spares: parts.spares.clone(), ranks, vacant, taken, state };
    let replaced = parts.gone.iter().filter(|(rank, _)| has(**rank)).take(vacant);
    joining.replace(replaced.map(|(rank, host)| (*rank, host.clone())).collect(), &parts.kept);
    joining.grow(&has);
    let mut ranks = joining.ranks;
    let mut free = (0..).filter(|rank| !ranks.contains_key(rank)).take(movers.len()).collect::<Vec<u32>>().into_iter();
    ranks.extend(movers.into_values().filter_map(|host| Some((free.next()?, host))));
    ranks
}

/// Spares that join a world.
struct Joining<'a> {
    spares: BTreeSet<NodeId>,
    ranks: NodeRanks,
    /// Number of hosts that are missing.
    vacant: usize,
    /// Node ranks that no spare can take.
    taken: BTreeSet<u32>,
    state: &'a State,
}

impl Joining<'_> {
    /// Replaces lost hosts: first by a spare that states the node rank, then by one outside of the fault.
    fn replace(&mut self, mut lost: NodeRanks, kept: &NodeRanks) {
        for (_, host) in self.stated() {
            let rank = self.stated_rank(&host).filter(|rank| lost.contains_key(rank));
            if let Some(rank) = rank {
                lost.remove(&rank);
                self.join(rank, host);
            }
        }
        // Spares that state another node rank come last: their own may become vacant.
        for with_stated in [false, true] {
            if lost.is_empty() {
                return;
            }
            let suits = |host: &&NodeId| with_stated || self.stated_rank(host).is_none();
            let candidates: BTreeSet<NodeId> = self.spares.iter().filter(suits).cloned().collect();
            let live = kept.values().chain(&self.spares).cloned().collect();
            let mut chosen = self.topology().spares_for(&lost.values().cloned().collect(), &candidates, &live);
            lost.retain(|rank, host| match chosen.remove(host) {
                Some(spare) => {
                    self.join(*rank, spare);
                    false
                }
                None => true,
            });
        }
    }

    /// Fills the world: node ranks that spares state first, then the lowest ones that are free.
    fn grow(&mut self, has: &dyn Fn(u32) -> bool) {
        for (rank, host) in self.stated() {
            if has(rank) && !self.taken.contains(&rank) {
                self.join(rank, host);
            }
        }
        let stated: BTreeMap<u32, NodeId> = self.stated();
        let stated: BTreeSet<NodeId> = stated.into_values().collect();
        let free: BTreeSet<NodeId> = self.spares.difference(&stated).cloned().collect();
        let order = self.topology().pack(&free).into_iter().chain(stated);
        for (rank, host) in self.lowest_free().into_iter().zip(order) {
            self.join(rank, host);
        }
    }

    fn lowest_free(&self) -> Vec<u32> {
        (0..).filter(|rank| !self.taken.contains(rank)).take(self.vacant).collect()
    }

    fn join(&mut self, rank: u32, host: NodeId) {
        if let Some(vacant) = self.vacant.checked_sub(1) {
            self.vacant = vacant;
            self.spares.remove(&host);
            self.taken.insert(rank);
            self.ranks.insert(rank, host);
        }
    }

    /// Returns the spares that state a node rank. No two state the same: the second is refused.
    fn stated(&self) -> BTreeMap<u32, NodeId> {
        self.spares.iter().filter_map(|host| Some((self.stated_rank(host)?, host.clone()))).collect()
    }

    fn stated_rank(&self, host: &NodeId) -> Option<u32> {
        self.state.hosts.get(host)?.node_rank
    }

    fn topology(&self) -> &Topology {
        &self.state.topology
    }
}
