//! Chooses the ranks that hold the second copies of in-memory checkpoints: pure, from the hosts of a world.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::job::{NodeId, Rank, World};
use crate::launch::{IN_MEMORY_CHECKPOINT_EVERY_VARIABLE, StartOrder};

/// Variable of a rank: the rank, on another host, that holds the second copies of its in-memory checkpoints. The launcher
/// sets it for ranks of a world with several hosts, unless the start order does.
pub const COPY_TO_VARIABLE: &str = "TASKD_COPY_TO";

/// Returns for each rank the rank that holds the second copies of its in-memory checkpoints: on the host that `partners`
/// names for the rank's host; if it names none with ranks, on the next host, in the order of their first ranks. The ranks
/// of a host are distributed over those of the partner's. Ranks of unknown hosts, and a world on one host, have none.
#[must_use]
pub fn copy_holders(world: &World, partners: &BTreeMap<NodeId, NodeId>) -> BTreeMap<Rank, Rank> {
    let mut hosts: Vec<&NodeId> = Vec::new();
    let mut on: BTreeMap<&NodeId, Vec<Rank>> = BTreeMap::new();
    for (rank, member) in world.members() {
        let Some(node) = &member.node else { continue };
        on.entry(node).or_insert_with(|| {
            hosts.push(node);
            Vec::new()
        });
        on.entry(node).or_default().push(*rank);
    }
    let mut holders = BTreeMap::new();
    for (at, host) in hosts.iter().enumerate().filter(|_| hosts.len() > 1) {
        let next = hosts[(at + 1) % hosts.len()];
        let named = partners.get(*host).filter(|named| named != host).and_then(|named| on.get(named));
        let Some(there) = named.or_else(|| on.get(next)) else { continue };
        let own = on.get(host).into_iter().flatten();
        holders.extend(own.zip(there.iter().cycle()).map(|(rank, holder)| (*rank, *holder)));
    }
    holders
}

/// Sets the variable of a rank that makes copies, unless the order sets it.
pub(super) fn with_holder(mut order: StartOrder, holders: &BTreeMap<Rank, Rank>) -> StartOrder {
    let holder = order.proc.role.rank().and_then(|rank| holders.get(&rank));
    if let Some(holder) = holder.filter(|_| order.spec.env.contains_key(IN_MEMORY_CHECKPOINT_EVERY_VARIABLE)) {
        let env = &mut Arc::make_mut(&mut order.spec).env;
        env.entry(COPY_TO_VARIABLE.into()).or_insert_with(|| holder.0.to_string());
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Counted, Incarnation, Member, Name};

    fn node(name: &'static str) -> NodeId {
        NodeId(Name::new(name))
    }

    fn world(nodes: &[Option<&'static str>]) -> World {
        let member =
            |name: &Option<&'static str>| Member { incarnation: Incarnation(1), node: name.map(node), device: None };
        World::first((0..).map(Rank).zip(nodes.iter().map(member)).collect())
    }

    fn holders(world: &World, partners: &[(&'static str, &'static str)]) -> Vec<(u32, u32)> {
        let partners = partners.iter().map(|(host, partner)| (node(host), node(partner))).collect();
        copy_holders(world, &partners).into_iter().map(|(rank, holder)| (rank.0, holder.0)).collect()
    }

    #[test]
    fn ranks_have_their_copies_at_the_same_place_of_the_next_host() {
        let three = world(&[Some("b"), Some("b"), Some("a"), Some("a"), Some("c"), Some("c")]);
        assert_eq!(holders(&three, &[]), [(0, 2), (1, 3), (2, 4), (3, 5), (4, 0), (5, 1)]);
        assert_eq!(holders(&world(&[Some("a"), Some("a"), Some("b")]), &[]), [(0, 2), (1, 2), (2, 0)]);
    }

    #[test]
    fn partner_of_another_domain_comes_before_the_next_host() {
        let four = world(&[Some("a"), Some("b"), Some("c"), Some("d")]);
        let partners = [("a", "c"), ("b", "d"), ("c", "a"), ("d", "b")];
        assert_eq!(holders(&four, &partners), [(0, 2), (1, 3), (2, 0), (3, 1)]);
        assert_eq!(holders(&four, &[("a", "spare"), ("b", "b")]), [(0, 1), (1, 2), (2, 3), (3, 0)], "they cannot");
    }

    #[test]
    fn ranks_without_another_host_have_no_holder() {
        assert_eq!(holders(&world(&[Some("a"), Some("a")]), &[]), []);
        assert_eq!(holders(&world(&[None, Some("a"), Some("b")]), &[]), [(1, 2), (2, 1)]);
        let shrunk = world(&[Some("a"), Some("b")]).successor(Counted::Yes, |members| drop(members.remove(&Rank(1))));
        assert_eq!(holders(&shrunk, &[]), []);
    }
}
