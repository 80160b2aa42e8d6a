//! Whose turn it is to give of its state: one on the same host, else several; of those whoever gives to the fewest.
//!
//! It knows nothing of what they give.

use crate::job::{NodeId, Rank, World};
use std::collections::{BTreeMap, BTreeSet};

/// Replicas that have a state which others lack.
#[derive(Debug)]
pub(super) struct Givers<'w> {
    world: &'w World,
    /// By how many they give to, so that the next ones stand first.
    all: BTreeSet<(usize, Rank)>,
    /// The same of each host, or of those of whom no host is known.
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

    /// Who gives to this rank: one on its own host, if there is one. Several there are no faster, since they share one memory (three
    /// gave 2 GB/s where one gave 2.3 to 3.1, on two busy cores). Else so many, or as many as there are: each has a link of its own.
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
