//! Follows a new host until it has left.

use super::host::Host;
use super::remote::RemoteLauncher;
use super::{Inner, facts, watchdog};
use std::sync::Arc;
use tokio::time::sleep_until;

/// Adds the launcher of a new host to the fleet, and watches the host.
pub(super) async fn introduce(manager: Arc<Inner>, host: Arc<Host>) {
    if let Some(members) = manager.members.get() {
        members.returns(&manager, &host.name);
    }
    let over = manager.over();
    tokio::select! {
        biased;
        _ = over => return,
        () = list(&manager, &host) => {}
        () = lease_is_over(&manager, &host) => {
            let why = format!("{} has given no sign of life before its processes were listed, and its lease is over", host.name);
            return manager.lose(&host, &why);
        }
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

/// Adds the launcher of a host to the fleet: again over each session that its agent opens, until its processes are
/// listed. The host is known meanwhile, because it may have a lease: its ranks must not be replaced before that is over.
async fn list(manager: &Arc<Inner>, host: &Arc<Host>) {
    loop {
        let session = host.session();
        let launcher = RemoteLauncher { host: Arc::clone(host), manager: Arc::clone(manager) };
        let Err(error) = manager.fleet.add(launcher).await else { return };
        tracing::warn!(host = %host.name, %error, "the processes of a host cannot be listed: it is not admitted yet");
        session.calls.end(&format!("the processes of this host cannot be listed: {error}"));
        host.other_session(session.id).await;
    }
}

/// Waits until a host has given no sign of life since the end of its lease.
async fn lease_is_over(manager: &Inner, host: &Host) {
    let mut heard = host.heard.subscribe();
    loop {
        let last = *heard.borrow_and_update();
        let silent = last + manager.settings.silent_after;
        sleep_until(silent.max(host.granted() + manager.settings.replace_after())).await;
        if manager.confirmed().await.is_err() {
            return std::future::pending().await; // the epoch is over
        }
        if *heard.borrow_and_update() == last {
            return;
        }
    }
}
