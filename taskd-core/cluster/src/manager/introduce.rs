//! Follows a new host until it has left.

use super::host::Host;
use super::remote::RemoteLauncher;
use super::{Inner, facts, watchdog};
use std::sync::Arc;

/// Adds the launcher of a new host to the fleet, and watches the host.
pub(super) async fn introduce(manager: Arc<Inner>, host: Arc<Host>) {
    if let Some(members) = manager.members.get() {
        members.returns(&manager, &host.name);
    }
    let launcher = RemoteLauncher { host: Arc::clone(&host), manager: Arc::clone(&manager) };
    if let Err(error) = manager.fleet.add(launcher).await {
        tracing::warn!(host = %host.name, %error, "the processes of a host cannot be listed: it is not admitted");
        manager.lock().remove(&host.name);
        return host.session().calls.end(&format!("the processes of this host cannot be listed: {error}"));
    }
    host.set_listed();
    manager.listed.send_modify(|listed| *listed += 1);
    manager.changed.notify_one();
    manager.send_candidates(&host.session());
    let over = manager.over();
    tokio::select! {
        biased;
        _ = over => {}
        () = watchdog::watch(Arc::clone(&manager), Arc::clone(&host)) => {}
        () = facts::pull(&manager, &host) => {}
    }
}
