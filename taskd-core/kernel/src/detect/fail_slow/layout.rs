//! Static layout of a job: the place of each rank in the pipeline, in the tensor groups and on the hosts.
//!
//! Ranks are positions from 0 here. The layout chooses the peers with which the engine compares a rank.

use crate::job::{GroupId, GroupKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Minimum number of ranks in a pool of peers.
const PEERS_MIN: usize = 4;

/// Place of one rank. Numbers count from 0; a job without a dimension has 0 there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// Number of the host.
    pub host: u32,
    /// Pipeline stage.
    pub stage: u32,
    /// Position in the tensor-parallel group.
    pub tp: u32,
    /// Position in the context-parallel group.
    pub cp: u32,
    /// Position in the expert-parallel group.
    pub ep: u32,
    /// Data-parallel replica: ranks with the same number process the same batch.
    pub replica: u32,
}

/// A communication group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// Kind and number of the group.
    pub id: GroupId,
    /// Positions of the members, in group order. Neighbours in a `pp` group send to each other.
    pub ranks: Vec<u32>,
}

/// Numbers of units along each dimension of a [`Layout::grid`]. Zero counts as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Data-parallel replicas.
    pub dp: u32,
    /// Ranks of a tensor-parallel group.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Ranks of a context-parallel group.
    pub cp: u32,
    /// Ranks of an expert-parallel group, which consists of neighbours along `dp`.
    pub ep: u32,
    /// Ranks of one host.
    pub per_host: u32,
}

/// Units, each with its ranks: each rank belongs to one unit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Partition {
    /// Unit of each rank.
    pub(super) of: Vec<u32>,
    /// Index of each unit's first rank in `ranks`, and the number of ranks.
    starts: Vec<u32>,
    ranks: Vec<u32>,
}

impl Partition {
    fn by<K: Ord>(places: &[Place], key: impl Fn(&Place) -> K) -> Partition {
        let mut units: BTreeMap<K, Vec<u32>> = BTreeMap::new();
        for (rank, place) in (0..).zip(places) {
            units.entry(key(place)).or_default().push(rank);
        }
        let mut partition = Partition { of: vec![0; places.len()], starts: vec![0], ranks: Vec::new() };
        for (unit, ranks) in (0..).zip(units.values()) {
            ranks.iter().for_each(|rank| partition.of[*rank as usize] = unit);
            partition.ranks.extend(ranks);
            partition.starts.push(u32::try_from(partition.ranks.len()).unwrap_or(u32::MAX));
        }
        partition
    }

    pub(super) fn count(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    pub(super) fn ranks(&self, unit: usize) -> &[u32] {
        let bound = |at: usize| self.starts.get(at).map_or(0, |start| *start as usize);
        self.ranks.get(bound(unit)..bound(unit + 1)).unwrap_or_default()
    }

    fn smallest(&self) -> usize {
        (0..self.count()).map(|unit| self.ranks(unit).len()).min().unwrap_or_default()
    }
}

/// The peers with which ranks are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Peers {
    /// Ranks of the same stage and the same position in the tensor, context and expert groups.
    Role,
    /// Ranks of the same stage.
    Stage,
    /// All ranks.
    Job,
}

/// Layout of a job.
///
/// A rank is compared with the ranks of the same role: the same stage, and the same position in its tensor, context
/// and expert groups. If a role has fewer than four ranks, all ranks of the same stage are its peers; if a stage has
/// fewer than four, or no group is known, all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layout {
    pub(super) places: Vec<Place>,
    pub(super) groups: Vec<Members>,
    pub(super) peers: Peers,
    pub(super) pools: Partition,
    pub(super) stages: Partition,
    pub(super) hosts: Partition,
    pub(super) replicas: Partition,
}

impl Layout {
    /// Creates a layout from the place of each rank and the communication groups. Members of groups that have no place
    /// are ignored.
    #[must_use]
    pub fn new(places: Vec<Place>, mut groups: Vec<Members>) -> Layout {
        groups.iter_mut().for_each(|group| group.ranks.retain(|rank| (*rank as usize) < places.len()));
        let stages = Partition::by(&places, |p| p.stage);
        let roles = Partition::by(&places, |p| (p.stage, p.tp, p.cp, p.ep));
        let (peers, pools) = if groups.is_empty() {
            (Peers::Job, Partition::by(&places, |_| ()))
        } else if roles.smallest() >= PEERS_MIN {
            (Peers::Role, roles)
        } else if stages.smallest() >= PEERS_MIN {
            (Peers::Stage, stages.clone())
        } else {
            (Peers::Job, Partition::by(&places, |_| ()))
        };
        let hosts = Partition::by(&places, |p| p.host);
        let replicas = Partition::by(&places, |p| p.replica);
        Layout { places, groups, peers, pools, stages, hosts, replicas }
    }

    /// Creates the layout of a regular job. Ranks are numbered along `tp` first, then `cp`, `dp` and `pp`, and fill the
    /// hosts in this order.
    #[must_use]
    pub fn grid(grid: Grid) -> Layout {
        let Grid { dp, tp, pp, cp, ep, per_host } = grid;
        let [dp, tp, pp, cp, ep, per_host] = [dp, tp, pp, cp, ep, per_host].map(|n| n.max(1));
        let mut places = Vec::new();
        let mut groups: BTreeMap<(GroupKind, [u32; 3]), Vec<u32>> = BTreeMap::new();
        for rank in 0..dp * tp * pp * cp {
            let (t, c, d, p) = (rank % tp, rank / tp % cp, rank / tp / cp % dp, rank / tp / cp / dp);
            places.push(Place { host: rank / per_host, stage: p, tp: t, cp: c, ep: d % ep, replica: d });
            let of_rank = [
                (GroupKind::Tp, tp, [p, d, c]),
                (GroupKind::Cp, cp, [p, d, t]),
                (GroupKind::Dp, dp, [p, c, t]),
                (GroupKind::Pp, pp, [d, c, t]),
                (GroupKind::Ep, ep, [p * dp.div_ceil(ep) + d / ep, c, t]),
            ];
            for (kind, size, key) in of_rank {
                if size > 1 {
                    groups.entry((kind, key)).or_default().push(rank);
                }
            }
        }
        let mut counts: BTreeMap<GroupKind, u32> = BTreeMap::new();
        let numbered = groups.into_iter().map(|((kind, _), ranks)| {
            let count = counts.entry(kind.clone()).or_default();
            *count += 1;
            Members { id: GroupId { kind, index: *count - 1 }, ranks }
        });
        Layout::new(places, numbered.collect())
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns true if the layout has no ranks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the place of each rank.
    #[must_use]
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Returns the communication groups.
    #[must_use]
    pub fn groups(&self) -> &[Members] {
        &self.groups
    }

    /// Returns true if the layout is the one that its places and groups define. It is not if it was read from damaged
    /// data.
    pub(super) fn is_sound(&self) -> bool {
        *self == Layout::new(self.places.clone(), self.groups.clone())
    }

    /// Returns true if effects that all ranks of a replica share, such as long sequences, are distinguished from effects
    /// of a single rank.
    pub(super) fn has_replicas(&self) -> bool {
        self.replicas.count() > 1 && self.replicas.smallest() >= PEERS_MIN
    }
}
