//! What hosts without processes are to be ready for: the ranks of the host that has most of them.
//!
//! It starts nothing and never holds up what is ordered: each host is told beside that.

use super::Shared;
use crate::job::{NodeId, World};
use crate::launch::{Change, JOIN_VARIABLE, LaunchError, Place, Point, StartBatch, StartOrder};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

/// What is known of that; those who tell the hosts watch it.
#[derive(Debug, Default)]
pub(super) struct Spare(watch::Sender<Wanted>);

#[derive(Clone, Debug, Default)]
struct Wanted {
    /// As the host with most ranks was ordered when the job was started last.
    batch: Option<StartBatch>,
    /// Whether any rank has been in a step loop.
    in_loop: bool,
}

impl Spare {
    /// These were started, each by its launcher. Who joins ranks that run says nothing new.
    pub(super) fn started(&self, routed: &BTreeMap<usize, StartBatch>) {
        let mut by_host: BTreeMap<&NodeId, Vec<&StartOrder>> = BTreeMap::new();
        for order in routed.values().flat_map(|batch| &batch.orders) {
            let starts = order.proc.role.rank().is_some() && !order.spec.env.contains_key(JOIN_VARIABLE);
            if let (Place::On(node), true) = (&order.place, starts) {
                by_host.entry(node).or_default().push(order);
            }
        }
        let most = by_host.into_values().max_by_key(Vec::len);
        if let Some((orders, any)) = most.zip(routed.values().next()) {
            let orders = orders.into_iter().cloned().collect();
            let batch = Some(StartBatch { world: Arc::clone(&any.world), orders });
            self.0.send_modify(|wanted| wanted.batch = batch);
        }
    }

    pub(super) fn hear(&self, change: &Change) {
        let Change::Link(status) = change else { return };
        if status.linked.as_ref().is_some_and(|linked| linked.at == Point::Loop) {
            self.0.send_if_modified(|wanted| !std::mem::replace(&mut wanted.in_loop, true));
        }
    }
}

/// Has a launcher's hosts without processes get ready, whenever there is something new to be ready for. One that is busy now goes by
/// what it ran when it is idle.
pub(super) async fn keep_ready(shared: Arc<Shared>, part: usize) {
    let mut wanted = shared.spare.0.subscribe();
    wanted.mark_changed(); // what came before this task did is news, too
    while wanted.changed().await.is_ok() {
        let Wanted { batch: Some(batch), in_loop } = wanted.borrow_and_update().clone() else { continue };
        if let Err(why) = shared.prepare_idle(part, &batch, in_loop).await {
            tracing::warn!(%why, "a launcher's idle hosts do not get ready to take the place of another: ranks would come up slowly there");
        }
    }
}

impl Shared {
    async fn prepare_idle(&self, part: usize, batch: &StartBatch, in_loop: bool) -> Result<(), LaunchError> {
        for node in self.idle(&self.parts[part].list().await?) {
            self.parts[part].prepare(&as_on(&node, batch), in_loop).await?;
        }
        Ok(())
    }
}

/// The batch as that host would be ordered.
fn as_on(node: &NodeId, batch: &StartBatch) -> StartBatch {
    let ranks = batch.orders.iter().filter_map(|order| order.proc.role.rank()).collect();
    let world = Arc::new(World::clone(&batch.world).with_on(node, &ranks));
    let there = |order: &StartOrder| StartOrder { place: Place::On(node.clone()), ..order.clone() };
    StartBatch { world, orders: batch.orders.iter().map(there).collect() }
}
