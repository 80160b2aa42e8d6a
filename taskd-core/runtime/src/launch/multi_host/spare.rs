//! Preparation of hosts without processes: they get ready for the ranks of the host that has most of them.
//!
//! This module starts nothing and never delays an order: preparation runs in a separate task for each launcher.

use super::{PartId, Shared};
use crate::job::{NodeId, World};
use crate::launch::{Change, JOIN_VARIABLE, LaunchError, LoopPosition, Place, PrepareOptions, StartBatch, StartOrder};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

/// What spare hosts should prepare for; the tasks that prepare hosts watch it.
#[derive(Debug, Default)]
pub(super) struct Spare(watch::Sender<Wanted>);

#[derive(Clone, Debug, Default)]
struct Wanted {
    /// Start orders of the host with most ranks at the last start of the job.
    batch: Option<StartBatch>,
    /// True if any rank has been in a step loop.
    in_loop: bool,
}

impl Spare {
    /// Records the starts of each launcher. Ranks that join running ranks are ignored.
    pub(super) fn started(&self, routed: &BTreeMap<PartId, StartBatch>) {
        let mut by_host: BTreeMap<&NodeId, Vec<&StartOrder>> = BTreeMap::new();
        for order in routed.values().flat_map(|batch| &batch.starts) {
            let starts = order.proc.role.rank().is_some() && !order.spec.env.contains_key(JOIN_VARIABLE);
            if let (Place::On(node), true) = (&order.place, starts) {
                by_host.entry(node).or_default().push(order);
            }
        }
        let most = by_host.into_values().max_by_key(Vec::len);
        if let Some((orders, any)) = most.zip(routed.values().next()) {
            let orders = orders.into_iter().cloned().collect();
            let batch = Some(StartBatch::new(Arc::clone(&any.world), orders));
            self.0.send_modify(|wanted| wanted.batch = batch);
        }
    }

    pub(super) fn take(&self, change: &Change) {
        let Change::Link(status) = change else { return };
        if status.link.as_ref().is_some_and(|linked| linked.position == LoopPosition::InLoop) {
            self.0.send_if_modified(|wanted| !std::mem::replace(&mut wanted.in_loop, true));
        }
    }
}

/// Prepares a launcher's hosts that have no processes, whenever there is something new to prepare for. A host that is
/// busy now relies on what it ran last once it becomes idle.
pub(super) async fn keep_ready(shared: Arc<Shared>, part: PartId) {
    let mut wanted = shared.spare.0.subscribe();
    wanted.mark_changed(); // what was set before this task began counts as new
    while wanted.changed().await.is_ok() {
        let Wanted { batch: Some(batch), in_loop } = wanted.borrow_and_update().clone() else { continue };
        let options = PrepareOptions::new().with_in_loop(in_loop);
        if let Err(why) = shared.prepare_idle(part, &batch, &options).await {
            tracing::warn!(%why, "a launcher's idle hosts have no standbys: ranks would start slowly there");
        }
    }
}

impl Shared {
    async fn prepare_idle(
        &self,
        part: PartId,
        batch: &StartBatch,
        options: &PrepareOptions,
    ) -> Result<(), LaunchError> {
        if self.is_busy(part) {
            return Ok(()); // a start on 10,000 hosts asks none of them again
        }
        let launcher = self.part(part)?;
        for node in self.idle(&launcher.list().await?) {
            launcher.prepare(&as_on(&node, batch), options).await?;
        }
        Ok(())
    }
}

/// Returns the batch as it would be ordered for the host `node`.
fn as_on(node: &NodeId, batch: &StartBatch) -> StartBatch {
    let ranks = batch.starts.iter().filter_map(|order| order.proc.role.rank()).collect();
    let world = Arc::new(World::clone(&batch.world).with_on(node, &ranks));
    let there = |order: &StartOrder| order.clone().with_place(Place::On(node.clone()));
    StartBatch::new(world, batch.starts.iter().map(there).collect())
}
