//! Hosts that are lost, or leave.

use super::Inner;
use super::host::{Host, Visibility};
use std::sync::Arc;
use taskd_runtime::job::NodeId;

impl Inner {
    /// Removes a host that is silent after the end of its lease, or has left.
    pub(super) fn lose(&self, host: &Arc<Host>, why: &str) {
        let known = self.lock().get(&host.name).is_some_and(|known| Arc::ptr_eq(known, host));
        if !known {
            return; // it has left before
        }
        tracing::error!(host = %host.name, peer = %host.peer(), %why, "a host is lost");
        self.lock().remove(&host.name);
        if host.is_listed() {
            self.listed.send_modify(|listed| *listed = listed.saturating_sub(1));
        }
        // First the loss, then the ends of its calls: a start that fails with its host is not the fault of its process.
        self.left(&host.name, why);
        host.sight.send_replace(Visibility::Left);
        host.session().calls.end(why);
    }

    /// Reports that no process of a host runs any more, at once or when the next world is decided.
    pub(super) fn left(&self, host: &NodeId, why: &str) {
        match self.members.get() {
            Some(members) => {
                self.fleet.lose_sight(host);
                members.left(host, why);
            }
            None => self.fleet.remove(host, why),
        }
        self.changed.notify_one();
    }
}
