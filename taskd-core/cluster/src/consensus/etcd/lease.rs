//! A lease of etcd, which a task keeps alive until it is dropped.

use super::pool::{Again, Pool};
use super::proto::etcdserverpb as pb;
use crate::consensus::ConsensusError;
use pb::lease_client::LeaseClient;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Number of requests that keep a lease alive during its time to live: all but one can be lost.
const KEEP_ALIVES: u32 = 4;

/// A lease. Dropping it revokes it, and etcd then deletes the keys attached to it.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) id: i64,
    /// Time to live, as etcd granted it.
    pub(super) ttl: Duration,
    pool: Arc<Pool>,
    keep_alive: JoinHandle<()>,
    /// True if the lease is left to its end when it is dropped.
    abandoned: bool,
}

impl Lease {
    /// Requests a lease, and begins to keep it alive.
    pub(super) async fn grant(pool: &Arc<Pool>, seconds: u64) -> Result<Lease, ConsensusError> {
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        let grant = |channel| async move {
            let request = pb::LeaseGrantRequest { ttl: seconds, id: 0 };
            LeaseClient::new(channel).lease_grant(request).await.map(tonic::Response::into_inner)
        };
        let granted = pool.call("granting a lease", Again::Always, grant).await?;
        let ttl = Duration::from_secs(u64::try_from(granted.ttl).unwrap_or(0).max(1));
        let keep_alive = pool.runtime.spawn(keep_alive(Arc::clone(pool), granted.id, ttl));
        Ok(Lease { id: granted.id, ttl, pool: Arc::clone(pool), keep_alive, abandoned: false })
    }

    /// Stops to keep the lease alive, as the end of this process would.
    #[cfg(feature = "test-util")]
    pub(super) fn abandon(mut self) {
        self.abandoned = true;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.keep_alive.abort();
        if !self.abandoned {
            self.pool.runtime.spawn(revoke(Arc::clone(&self.pool), self.id));
        }
    }
}

/// Ends a lease. If no endpoint answers, the lease ends by itself.
async fn revoke(pool: Arc<Pool>, id: i64) {
    let revoke = |channel| async move {
        match LeaseClient::new(channel).lease_revoke(pb::LeaseRevokeRequest { id }).await {
            Err(status) if status.code() != Code::NotFound => Err(status),
            _ => Ok(()),
        }
    };
    if let Err(error) = pool.call("revoking a lease", Again::Always, revoke).await {
        tracing::warn!(%error, "the lease ends after its time to live");
    }
}

/// Keeps a lease alive until etcd has ended it.
async fn keep_alive(pool: Arc<Pool>, id: i64, ttl: Duration) {
    let every = ttl / KEEP_ALIVES;
    let mut due = interval(every);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    due.tick().await; // the lease has just been granted
    loop {
        due.tick().await;
        match pool.call_within(every, "keeping the lease", Again::Always, |channel| refresh(channel, id)).await {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(lease = id, "etcd has ended the lease of this manager: its epoch is over");
                return;
            }
            Err(error) => tracing::warn!(%error, failures = pool.failures(), "the manager's lease was not renewed"),
        }
    }
}

/// Renews a lease once. Returns false if it has ended.
async fn refresh(channel: Channel, id: i64) -> Result<bool, Status> {
    let requests = tokio_stream::once(pb::LeaseKeepAliveRequest { id });
    let mut answers = LeaseClient::new(channel).lease_keep_alive(requests).await?.into_inner();
    match answers.message().await? {
        Some(answer) => Ok(answer.ttl > 0),
        None => Err(Status::unavailable("the stream ended without an answer")),
    }
}
