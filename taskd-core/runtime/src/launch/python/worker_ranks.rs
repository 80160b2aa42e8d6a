//! Rank numbers of each rank in its world.

use std::collections::BTreeMap;

use crate::job::{NodeId, Rank, World};

/// Numbers of one rank as torch defines them (`RANK`, `LOCAL_RANK` and so on): consecutive, from 0. If the job has
/// shrunk to fewer ranks, an absent rank keeps its place: a rank that starts on its host has the numbers, and the
/// device, that it would have if the absent rank were present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerRanks {
    /// Number of the rank among all ranks (torch's `RANK`).
    pub rank: usize,
    /// Number of the rank among the ranks of its host (torch's `LOCAL_RANK`).
    pub local_rank: usize,
    /// Count of the ranks on the rank's host (torch's `LOCAL_WORLD_SIZE`).
    pub local_world_size: usize,
    /// Number of the rank's host among the hosts (torch's `GROUP_RANK`). Hosts are numbered in the order of their first
    /// ranks; ranks without a host count as one host.
    pub group_rank: usize,
    /// Count of the hosts (torch's `GROUP_WORLD_SIZE`).
    pub group_world_size: usize,
}

/// Returns torch's rank numbers for all ranks of a world (the ranks that train together), and for its absent ranks.
#[must_use]
pub fn seats(world: &World) -> BTreeMap<Rank, WorkerRanks> {
    let mut hosts: BTreeMap<Option<&NodeId>, (usize, usize)> = BTreeMap::new(); // group rank, ranks so far
    let mut seats = BTreeMap::new();
    for (rank, (name, member)) in world.places().enumerate() {
        let next = hosts.len();
        let (group_rank, ranks) = hosts.entry(member.node.as_ref()).or_insert((next, 0));
        seats.insert(
            name,
            WorkerRanks { rank, local_rank: *ranks, local_world_size: 0, group_rank: *group_rank, group_world_size: 0 },
        );
        *ranks += 1;
    }
    let sizes: BTreeMap<usize, usize> = hosts.values().copied().collect();
    for seat in seats.values_mut() {
        seat.local_world_size = sizes.get(&seat.group_rank).copied().unwrap_or_default();
        seat.group_world_size = sizes.len();
    }
    seats
}

#[cfg(test)]
mod tests {
    use crate::job::{Counted, Incarnation, Member, Name, ProcId};

    use super::*;

    fn world(nodes: &[Option<&'static str>]) -> World {
        let member = |node: &Option<&'static str>| Member {
            incarnation: Incarnation(1),
            node: node.map(|node| NodeId(Name::new(node))),
            device: None,
        };
        World::first((0..).map(Rank).zip(nodes.iter().map(member)).collect())
    }

    #[test]
    fn two_hosts_of_different_size() {
        let seats = seats(&world(&[Some("b"), Some("b"), Some("a"), Some("b")]));
        let third = WorkerRanks { rank: 3, local_rank: 2, local_world_size: 3, group_rank: 0, group_world_size: 2 };
        assert_eq!(seats[&Rank(3)], third);
        let other = WorkerRanks { rank: 2, local_rank: 0, local_world_size: 1, group_rank: 1, group_world_size: 2 };
        assert_eq!(seats[&Rank(2)], other);
    }

    #[test]
    fn local_ranks_follow_placement_by_name_and_by_the_launcher() {
        let of_second = |world: World| seats(&world)[&Rank(1)];
        let placed = world(&[None, Some("a"), None]);
        let together = WorkerRanks { rank: 1, local_rank: 1, local_world_size: 3, group_rank: 0, group_world_size: 1 };
        assert_eq!(of_second(placed.clone().located(|_| None)), together);
        let node = |name| Some(NodeId(Name::new(name)));
        let seen = |proc: &ProcId| if *proc == ProcId::rank(0, 1) { node("b") } else { node("a") };
        let apart = WorkerRanks { rank: 1, local_rank: 0, local_world_size: 2, group_rank: 1, group_world_size: 2 };
        assert_eq!(of_second(placed.located(seen)), apart);
        assert_eq!(of_second(world(&[None; 3]).located(|_| None)), together);
    }

    #[test]
    fn a_rank_in_a_shrunk_world_has_the_same_worker_ranks() {
        let world = world(&[None; 4]).successor(Counted::Yes, |members| drop(members.remove(&Rank(1))));
        let seat = seats(&world)[&Rank(3)];
        assert_eq!((seat.rank, seat.local_rank, seat.local_world_size), (3, 3, 4));
    }
}
