//! What the manager knows about the hosts, as the decision needs it.

use super::{Members, Seen, lock};
use crate::manager::Inner;
use crate::manager::host::{Host, Visibility};
use crate::membership::{self, Health, NODE_RANK_LABEL, NodeRanks, State};
use std::collections::BTreeMap;
use std::sync::Arc;
use taskd_runtime::job::{JobTime, NodeId, Rank, World};
use taskd_runtime::launch::NodeState;

impl Members {
    /// Returns what is known now. `world` is the one in force.
    pub(super) fn see(&self, manager: &Inner, world: Option<&World>) -> Seen {
        let registered: Vec<Arc<Host>> = manager.lock().values().cloned().collect();
        let mut state = State { topology: manager.topology(), since: JobTime::START, ..State::default() };
        for host in registered {
            let known = manager.fleet.node(&host.name).filter(|status| status.state != NodeState::Left);
            // A host without slots votes, and runs no ranks.
            if let Some(status) = known.filter(|status| host.is_listed() && status.slots > 0) {
                state.hosts.insert(host.name.clone(), self.host(&host, status.slots));
            }
        }
        state.world = match world {
            Some(world) => {
                *lock(&self.handed_out) = None;
                Some(node_ranks(world))
            }
            None => lock(&self.handed_out).clone(),
        };
        *lock(&self.in_force) = state.world.iter().flat_map(|ranks| ranks.values().cloned()).collect();
        let mut unreported = BTreeMap::new();
        for (host, gone) in &*lock(&self.gone) {
            let left = membership::Host::new(JobTime::START, 0).with_health(Health::Left { since: gone.since });
            state.hosts.entry(host.clone()).or_insert(left);
            if !gone.is_reported {
                unreported.insert(host.clone(), gone.why.clone());
            }
        }
        Seen { state, unreported, is_complete: world.is_some_and(|world| world.absent().is_empty()) }
    }

    fn host(&self, host: &Host, slots: u32) -> membership::Host {
        let heard = *host.heard.borrow();
        let health = match *host.sight.borrow() {
            Visibility::Seen => Health::Ready,
            Visibility::OutOfSight => Health::OutOfSight { since: self.time(heard) },
            Visibility::Left => Health::Left { since: self.time(heard) },
        };
        let known = membership::Host::new(self.time(host.joined), slots).with_health(health);
        let stated = host.labels().get(NODE_RANK_LABEL).cloned();
        match stated.as_deref().map(str::parse) {
            Some(Ok(node_rank)) => known.with_node_rank(node_rank),
            Some(Err(_)) => {
                tracing::warn!(host = %host.name, label = ?stated, "a node rank is not a number: it is ignored");
                known
            }
            None => known,
        }
    }
}

/// Returns the hosts of a world by node rank: the number of a host's first rank in units of the ranks of a host. So a
/// host that takes over the ranks of another one takes over its node rank.
fn node_ranks(world: &World) -> NodeRanks {
    let mut of_host: BTreeMap<&NodeId, (Rank, usize)> = BTreeMap::new();
    for (rank, member) in world.members() {
        if let Some(node) = &member.node {
            of_host.entry(node).or_insert((*rank, 0)).1 += 1;
        }
    }
    let per_host = of_host.values().map(|(_, ranks)| *ranks).max().and_then(|ranks| u32::try_from(ranks).ok());
    let mut hosts: Vec<(u32, &NodeId)> = of_host.into_iter().map(|(host, (first, _))| (first.0, host)).collect();
    hosts.sort_unstable();
    let mut ranks = NodeRanks::new();
    for (first, host) in hosts {
        let own = first / per_host.unwrap_or(1).max(1);
        let free = (own..).find(|rank| !ranks.contains_key(rank)).unwrap_or(own);
        ranks.insert(free, host.clone());
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskd_runtime::job::{Counted, JobSpec, WorkerSpec};

    fn host(name: &str) -> NodeId {
        name.parse().expect("a name")
    }

    fn ranks(world: &World) -> Vec<(u32, String)> {
        node_ranks(world).into_iter().map(|(rank, host)| (rank, host.0.to_string())).collect()
    }

    #[test]
    fn a_replacement_takes_over_the_node_rank_and_a_loss_leaves_a_gap() {
        let spec = JobSpec::new("job", 6, WorkerSpec::new(["train"])).with_nodes(["a", "b", "c"].map(host));
        let first = spec.first_world();
        assert_eq!(ranks(&first), [(0, "a".into()), (1, "b".into()), (2, "c".into())]);
        let replaced = first.successor(Counted::Yes, |members| {
            members.values_mut().filter(|member| member.node == Some(host("b"))).for_each(|member| {
                member.node = Some(host("d"));
            });
        });
        assert_eq!(ranks(&replaced), [(0, "a".into()), (1, "d".into()), (2, "c".into())]);
        let smaller = replaced.successor(Counted::Yes, |members| members.retain(|rank, _| !(2..4).contains(&rank.0)));
        assert_eq!(ranks(&smaller), [(0, "a".into()), (2, "c".into())]);
    }
}
