//! Picks the replicas that a rank copies state from: one on its own host, else several remote ones, least loaded first.

use crate::job::{NodeId, Rank, World};
use std::collections::{BTreeMap, BTreeSet};

/// The replicas that have a state which others lack.
#[derive(Debug)]
pub(super) struct Givers<'w> {
    world: &'w World,
    /// All sources, ordered by the number of ranks that they already send to, least loaded first.
    all: BTreeSet<(usize, Rank)>,
    /// The same sources by host; the key `None` is for ranks whose host is unknown.
    on: BTreeMap<Option<&'w NodeId>, BTreeSet<(usize, Rank)>>,
}

impl<'w> Givers<'w> {
    pub(super) fn new(ranks: impl IntoIterator<Item = Rank>, world: &'w World) -> Givers<'w> {
        let mut givers = Givers { world, all: BTreeSet::new(), on: BTreeMap::new() };
        for rank in ranks {
            givers.put(0, rank);
        }
        givers
    }

    /// Returns the sources for a rank, and adds to their load.
    ///
    /// If a source is on the rank's own host, that one alone: several on one host are no faster, since they share one
    /// memory (three delivered 2 GB/s where one delivered 2.3 to 3.1, on two busy cores). Otherwise up to `most`
    /// sources, each of which has a network link of its own.
    pub(super) fn to(&mut self, rank: Rank, most: usize) -> Vec<Rank> {
        let near = self.on.get(&host(rank, self.world)).filter(|near| !near.is_empty());
        let (among, most) = near.map_or((&self.all, most), |near| (near, 1));
        let next: Vec<(usize, Rank)> = among.iter().take(most).copied().collect();
        for (gives, giver) in &next {
            self.all.remove(&(*gives, *giver));
            if let Some(on) = self.on.get_mut(&host(*giver, self.world)) {
                on.remove(&(*gives, *giver));
            }
            self.put(gives + 1, *giver);
        }
        next.into_iter().map(|(_, giver)| giver).collect()
    }

    fn put(&mut self, gives: usize, giver: Rank) {
        self.all.insert((gives, giver));
        self.on.entry(host(giver, self.world)).or_default().insert((gives, giver));
    }
}

fn host(rank: Rank, world: &World) -> Option<&NodeId> {
    world.members().get(&rank).and_then(|member| member.node.as_ref())
}
