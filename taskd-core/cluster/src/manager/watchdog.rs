//! Watches the signs of life of one host: it is out of sight when it is silent, and has left when its lease is over.

use super::Inner;
use super::host::{Host, Visibility};
use std::collections::BTreeMap;
use std::sync::Arc;
use taskd_runtime::job::{NodeId, ProcId};
use tokio::time::{Instant, sleep_until};

/// Waits for the hosts of a world that an earlier manager has left. A host that does not register before its lease is over, by
/// whichever manager granted it, has left.
pub(super) async fn expect(manager: Arc<Inner>, hosts: BTreeMap<NodeId, Vec<ProcId>>, elected: Instant) {
    let within = manager.settings.replace_after();
    sleep_until(elected + within).await;
    if manager.confirmed().await.is_err() {
        return;
    }
    for host in hosts.into_keys() {
        let known = manager.lock().contains_key(&host);
        if !known {
            let why =
                format!("{host} has not registered within {:.1} s of the manager's election", within.as_secs_f64());
            tracing::error!(%host, %why, "a host is lost");
            manager.left(&host, &why);
        }
    }
}

/// Watches a host until it has left.
pub(super) async fn watch(manager: Arc<Inner>, host: Arc<Host>) {
    let mut heard = host.heard.subscribe();
    loop {
        let last = *heard.borrow_and_update();
        sleep_until(last + manager.settings.silent_after).await;
        if *heard.borrow_and_update() > last {
            continue;
        }
        host.sight.send_replace(Visibility::OutOfSight);
        manager.changed.notify_one();
        tracing::warn!(host = %host.name, peer = %host.peer(), "a host is out of sight: its processes are left as they are");
        let lost_at = host.granted() + manager.settings.replace_after();
        let is_over = async {
            sleep_until(lost_at.max(Instant::now())).await;
            manager.confirmed().await
        };
        tokio::select! {
            biased;
            changed = heard.changed() => match changed {
                Ok(()) => {
                    host.sight.send_replace(Visibility::Seen);
                    manager.changed.notify_one();
                }
                Err(_) => return,
            },
            confirmed = is_over => {
                if confirmed.is_err() {
                    return;
                }
                let silent = manager.settings.replace_after();
                let why = format!(
                    "{} has given no sign of life for {:.1} s, so its lease ended and it has stopped its processes",
                    host.name,
                    last.elapsed().max(silent).as_secs_f64()
                );
                return manager.lose(&host, &why);
            }
        }
    }
}
