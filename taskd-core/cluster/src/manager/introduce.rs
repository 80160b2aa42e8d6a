//! Welcomes the agent of a host, and follows a new host until it has left.

use super::host::{Host, Session};
use super::remote::RemoteLauncher;
use super::{Inner, facts, watchdog};
use crate::session::Outgoing;
use crate::wire::proto::{ToAgent, Welcome, to_agent};
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedSender;
use tonic::Status;

/// Sends the Welcome of a session, then the frames that the agent does not have. Returns the number of the connection.
pub(super) fn welcome(
    manager: &Inner,
    version: u32,
    session: &Session,
    sender: &UnboundedSender<Outgoing>,
    received: u64,
) -> Result<u64, Status> {
    let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let welcome = Welcome {
        version,
        epoch: manager.epoch.0,
        session: session.id,
        received: session.link.taken(),
        lease_interval_ms: millis(manager.settings.lease_interval),
        lease_ms: millis(manager.settings.lease),
    };
    let _ = sender.send(Ok(ToAgent { message: Some(to_agent::Message::Welcome(welcome)) }));
    session.link.attach(sender.clone(), received).map_err(|end| {
        session.calls.end(&end.0);
        Status::aborted(end.0)
    })
}

/// Adds the launcher of a new host to the fleet, and watches the host.
pub(super) async fn introduce(manager: Arc<Inner>, host: Arc<Host>) {
    let launcher = RemoteLauncher { host: Arc::clone(&host), manager: Arc::clone(&manager) };
    if let Err(error) = manager.fleet.add(launcher).await {
        tracing::warn!(host = %host.name, %error, "the processes of a host cannot be listed: it is not admitted");
        manager.lock().remove(&host.name);
        return host.session().calls.end(&format!("the processes of this host cannot be listed: {error}"));
    }
    manager.listed.send_modify(|listed| *listed += 1);
    let over = manager.over();
    tokio::select! {
        biased;
        _ = over => {}
        () = watchdog::watch(Arc::clone(&manager), Arc::clone(&host)) => {}
        () = facts::pull(&manager, &host) => {}
    }
}
