//! Chooses the ranks that hold second copies of in-memory checkpoints, by the places of their
//! hosts.

use super::Inner;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use taskd_runtime::job::{Generation, NodeId, Rank, World};
use taskd_runtime::launch::python::copy_holders;
use taskd_runtime::launch::{IN_MEMORY_CHECKPOINT_EVERY_VARIABLE, StartBatch};

/// The choice for one world.
#[derive(Debug)]
pub(super) struct Copies {
    generation: Generation,
    holders: Arc<BTreeMap<Rank, Rank>>,
}

impl Inner {
    /// Returns the ranks that hold second copies of the ranks of a batch; none if these make no in-memory checkpoints.
    pub(super) fn copies_of(&self, batch: &StartBatch) -> BTreeMap<Rank, Rank> {
        let copied = batch.starts.iter().filter(|o| o.spec.env.contains_key(IN_MEMORY_CHECKPOINT_EVERY_VARIABLE));
        let mut ranks = copied.filter_map(|order| order.proc.role.rank()).peekable();
        if ranks.peek().is_none() {
            return BTreeMap::new();
        }
        let holders = self.holders(&batch.world);
        ranks.filter_map(|rank| Some((rank, *holders.get(&rank)?))).collect()
    }

    /// Chooses once for each world: every host of it asks.
    fn holders(&self, world: &World) -> Arc<BTreeMap<Rank, Rank>> {
        let mut known = self.copies.lock().unwrap_or_else(PoisonError::into_inner); // no foreign code runs
        if let Some(copies) = known.as_ref().filter(|copies| copies.generation == world.generation()) {
            return Arc::clone(&copies.holders);
        }
        let holders = Arc::new(copy_holders(world, &self.partners(world)));
        *known = Some(Copies { generation: world.generation(), holders: Arc::clone(&holders) });
        holders
    }

    /// Returns the host that holds the second copies of each host of a world.
    fn partners(&self, world: &World) -> BTreeMap<NodeId, NodeId> {
        let hosts: BTreeSet<NodeId> = world.members().values().filter_map(|member| member.node.clone()).collect();
        let topology = self.topology();
        let partners = topology.partners_apart(&hosts);
        let (number, of) = (partners.not_separate.len(), hosts.len());
        if number > 0 && !topology.is_empty() {
            tracing::warn!("{number} of {of} hosts have second copies of their ranks' states in their own domain");
        }
        partners.of
    }
}
