//! Hosts that cannot take part as they are.

use super::{Health, Host, Policy, State};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use taskd_runtime::job::{JobTime, NodeId};

/// Error: a host cannot take part in the job. The other hosts are not affected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// Another host states the same node rank.
    #[error(
        "host {} states node rank {node_rank}, and so does host {}: give one of them another node rank",
        host.0, holder.0
    )]
    SameNodeRank {
        /// The host that is refused.
        host: NodeId,
        /// The node rank.
        node_rank: u32,
        /// The host that has it.
        holder: NodeId,
    },
    /// The node rank is greater than those of the largest world.
    #[error(
        "host {} states node rank {node_rank}, and the job has at most {hosts} hosts: state one below {hosts}", host.0
    )]
    NodeRank {
        /// The host that is refused.
        host: NodeId,
        /// The node rank.
        node_rank: u32,
        /// Largest number of hosts.
        hosts: usize,
    },
    /// The host has another number of slots than the others.
    #[error(
        "host {} has {slots} slots, and host {} and the others have {expected}: start its agent with {expected} slots, \
         or allow unequal numbers", host.0, example.0
    )]
    Slots {
        /// The host that is refused.
        host: NodeId,
        /// Number of its slots.
        slots: u32,
        /// The number that most hosts have.
        expected: u32,
        /// The first host that has this number.
        example: NodeId,
    },
    /// The host has no slots.
    #[error("host {} has 0 slots and can run no rank: start its agent with at least 1 slot", host.0)]
    NoSlots {
        /// The host that is refused.
        host: NodeId,
    },
}

/// Returns the hosts that cannot take part. `max` is the largest number of hosts of a world.
pub(super) fn refused(state: &State, policy: &Policy, max: usize) -> BTreeMap<NodeId, HostError> {
    let members: BTreeSet<&NodeId> = state.world.iter().flat_map(BTreeMap::values).collect();
    // A host that leaves can be replaced by one with the same node rank, and one that is out of sight is not judged.
    let is_there = |host: &Host| matches!(host.health, Health::Ready | Health::OutOfSight { .. } | Health::Cordoned);
    let mut hosts: Vec<(&NodeId, &Host)> = state.hosts.iter().filter(|(_, host)| is_there(host)).collect();
    hosts.sort_by_cached_key(|(name, host)| (!members.contains(*name), host.joined, *name));
    let expected = policy.equal_slots.then(|| expected_slots(state, &members)).flatten();
    let mut refused = BTreeMap::new();
    let mut holders: BTreeMap<u32, &NodeId> = BTreeMap::new();
    for (name, host) in hosts {
        let is_member = members.contains(name);
        let error = slots_error(name, host, expected).or_else(|| {
            let node_rank = host.node_rank?;
            match holders.get(&node_rank) {
                // A member has its node rank, whatever it states.
                _ if is_member => None,
                Some(holder) => {
                    Some(HostError::SameNodeRank { host: name.clone(), node_rank, holder: (*holder).clone() })
                }
                None if usize::try_from(node_rank).is_ok_and(|rank| rank < max) => None,
                None => Some(HostError::NodeRank { host: name.clone(), node_rank, hosts: max }),
            }
        });
        match (error, host.node_rank) {
            (Some(error), _) => _ = refused.insert(name.clone(), error),
            (None, Some(node_rank)) => _ = holders.entry(node_rank).or_insert(name),
            (None, None) => {}
        }
    }
    refused
}

fn slots_error(name: &NodeId, host: &Host, expected: Option<(u32, &NodeId)>) -> Option<HostError> {
    match expected {
        _ if matches!(host.health, Health::OutOfSight { .. }) => None,
        _ if host.slots == 0 => Some(HostError::NoSlots { host: name.clone() }),
        Some((expected, example)) if host.slots != expected => {
            let (host, slots, example) = (name.clone(), host.slots, example.clone());
            Some(HostError::Slots { host, slots, expected, example })
        }
        _ => None,
    }
}

/// How many hosts have a number of slots, and the first of them. More and earlier hosts are greater.
type Support<'a> = (usize, Reverse<(JobTime, &'a NodeId)>);

/// Returns the number of slots that most members have, or most ready hosts before the first world, and the first host
/// with this number. Of two numbers that are equally frequent, the one of the host that joined first counts.
fn expected_slots<'a>(state: &'a State, members: &BTreeSet<&NodeId>) -> Option<(u32, &'a NodeId)> {
    let of_members = members.iter().any(|member| state.hosts.get(*member).is_some_and(|host| host.slots > 0));
    let judges = |(name, host): &(&NodeId, &Host)| match of_members {
        true => members.contains(*name),
        false => host.health == Health::Ready,
    };
    let mut by_slots: BTreeMap<u32, Support<'_>> = BTreeMap::new();
    for (name, host) in state.hosts.iter().filter(|(_, host)| host.slots > 0).filter(judges) {
        let entry = by_slots.entry(host.slots).or_insert((0, Reverse((host.joined, name))));
        *entry = (entry.0 + 1, entry.1.max(Reverse((host.joined, name))));
    }
    let most = by_slots.into_iter().max_by_key(|(_, rank)| *rank)?;
    Some((most.0, most.1.1.0.1))
}
