//! Starts processes only while this host has a lease: without one, other hosts may run their successors.

use super::Shared;
use super::serve::{Special, read, serve, without_lease};
use crate::wire::proto::{Answer, Call};
use crate::wire::{StartArguments, method};
use std::time::Duration;
use taskd_runtime::job::ProcId;
use tokio::time::timeout;

/// Carries out a call. A start waits for a lease of this host, at most for
/// [`silent_after`](crate::ClusterSettings::silent_after): the first grant of a session can be on its way. A start during
/// which the lease has ended is undone, because the end of the lease has not stopped its processes.
pub(super) async fn serve_with_lease(shared: &Shared, call: &Call) -> (Answer, Option<Special>) {
    let starts = call.method == method::START;
    if starts && !shared.is_leased_within(shared.settings.silent_after).await {
        return (without_lease(call, &shared.host), None);
    }
    let answered = serve(shared, call).await;
    if starts && !shared.lease.borrow().is_in_force() {
        shared.undo(call).await;
        return (without_lease(call, &shared.host), None);
    }
    answered
}

impl Shared {
    /// Waits until this host has a lease. Returns false if it has none within this time.
    async fn is_leased_within(&self, within: Duration) -> bool {
        let mut lease = self.lease.subscribe();
        let leased = lease.wait_for(super::Lease::is_in_force);
        timeout(within, leased).await.is_ok_and(|leased| leased.is_ok())
    }

    /// Stops the processes that a call has started.
    async fn undo(&self, call: &Call) {
        let Ok(StartArguments { batch, .. }) = read(&call.arguments) else { return }; // it has started nothing
        let started: Vec<ProcId> = batch.starts.into_iter().map(|order| order.proc).collect();
        let (host, number) = (&self.host, started.len());
        tracing::error!(%host, "the lease of this host ended while {number} processes were started: they stop");
        if let Err(error) = self.launcher.stop(&started, Duration::ZERO).await {
            tracing::error!(%host, %error, "these processes could not be stopped: the guard of the host stops them");
            self.launcher.begin_shutdown(Duration::ZERO);
        }
    }
}
