//! Where each rank sits in its world.

use std::collections::BTreeMap;

use crate::job::{NodeId, Rank, World};

/// Where a rank sits in its world, as frameworks count: without gaps. In a world that has shrunk the places of those who left stay
/// theirs: who starts there has the numbers, and the device, that it would have if they were there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Its number among all ranks.
    pub rank: usize,
    /// Its number among the ranks of its host.
    pub local_rank: usize,
    /// How many ranks its host has.
    pub local_world_size: usize,
    /// Its host's number. Hosts are counted in the order of their first ranks; no host counts as one.
    pub group_rank: usize,
    /// How many hosts there are.
    pub group_world_size: usize,
}

/// The seats of all ranks of a world, and of those that are absent.
#[must_use]
pub fn seats(world: &World) -> BTreeMap<Rank, Seat> {
    let mut hosts: BTreeMap<Option<&NodeId>, (usize, usize)> = BTreeMap::new(); // group rank, ranks so far
    let mut seats = BTreeMap::new();
    for (rank, (name, member)) in world.places().enumerate() {
        let next = hosts.len();
        let (group_rank, ranks) = hosts.entry(member.node.as_ref()).or_insert((next, 0));
        seats.insert(
            name,
            Seat { rank, local_rank: *ranks, local_world_size: 0, group_rank: *group_rank, group_world_size: 0 },
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
        let third = Seat { rank: 3, local_rank: 2, local_world_size: 3, group_rank: 0, group_world_size: 2 };
        assert_eq!(seats[&Rank(3)], third);
        let other = Seat { rank: 2, local_rank: 0, local_world_size: 1, group_rank: 1, group_world_size: 2 };
        assert_eq!(seats[&Rank(2)], other);
    }

    #[test]
    fn who_is_placed_by_name_sits_beside_those_whom_the_launcher_put_there() {
        let of_second = |world: World| seats(&world)[&Rank(1)];
        let placed = world(&[None, Some("a"), None]);
        let together = Seat { rank: 1, local_rank: 1, local_world_size: 3, group_rank: 0, group_world_size: 1 };
        assert_eq!(of_second(placed.clone().located(|_| None)), together);
        let node = |name| Some(NodeId(Name::new(name)));
        let seen = |proc: &ProcId| if *proc == ProcId::rank(0, 1) { node("b") } else { node("a") };
        let apart = Seat { rank: 1, local_rank: 0, local_world_size: 2, group_rank: 1, group_world_size: 2 };
        assert_eq!(of_second(placed.located(seen)), apart);
        assert_eq!(of_second(world(&[None; 3]).located(|_| None)), together);
    }

    #[test]
    fn a_shrunk_world_keeps_everybodys_place() {
        let world = world(&[None; 4]).successor(Counted::Yes, |members| drop(members.remove(&Rank(1))));
        let seat = seats(&world)[&Rank(3)];
        assert_eq!((seat.rank, seat.local_rank, seat.local_world_size), (3, 3, 4));
    }
}
