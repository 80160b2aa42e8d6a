//! The engine that stores the job's record in an etcd that exists, such as the one beside Kubernetes.

mod changes;
mod keys;
mod lease;
mod pool;
mod proto;
mod settings;
#[cfg(test)]
mod tests;

pub use settings::{EtcdSettings, LEASE_DEFAULT, LIMIT_DEFAULT};

use super::{Candidate, Consensus, ConsensusError, ConsensusInfo, Epoch, Record, Version, record};
use async_trait::async_trait;
use bytes::Bytes;
use keys::{Keys, State, number, revision_of};
use lease::Lease;
use pool::{Again, Pool, ROUND_PAUSE};
use proto::etcdserverpb as pb;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::sleep;
use tonic::{Code, Response};

/// Time that a failover takes beyond the lease. If the lost host was also etcd's leader, etcd elects another one within
/// two election timeouts, of 1 s by default; all leases begin again then, and last one election timeout longer. etcd
/// looks for ended leases every 500 ms, and the next candidate makes three requests.
pub const TAKEOVER: Duration = Duration::from_secs(4);

/// A job's record in an etcd from version 3.4 on. The manager holds a key with a lease, and the revision at which etcd
/// created the key is the epoch. Clones share one handle; a task keeps its lease alive until the last clone is dropped,
/// which ends the epoch of its manager.
///
/// The keys are below `/taskd/JOB/`. They stay after the job: `etcdctl del --prefix /taskd/JOB/` removes them. If
/// another program has written the manager's key, `read`, `watch` and `campaign` return an error that names the key.
///
/// A call asks one endpoint after the other within the [time limit](EtcdSettings::with_limit). `compare_and_set` is not
/// repeated once a server may have received it.
#[derive(Clone, Debug)]
pub struct Etcd {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pool: Arc<Pool>,
    keys: Keys,
    /// Time to live to request for a lease, in seconds.
    requested: u64,
    /// Time to live that etcd granted last, in seconds; the requested one before.
    granted: AtomicU64,
    /// The lease of this handle's manager.
    office: Mutex<Option<(Epoch, Lease)>>,
}

impl Etcd {
    /// Creates the engine without connecting to etcd. Its [`info`](Consensus::info) contains the requested lease until
    /// etcd has granted one.
    ///
    /// # Errors
    /// Returns [`ConsensusError::Refused`] if the settings cannot work, and outside a tokio runtime.
    pub fn new(settings: &EtcdSettings) -> Result<Etcd, ConsensusError> {
        settings.check()?;
        let requested = settings.lease_seconds();
        let inner = Inner {
            pool: Arc::new(Pool::new(settings)?),
            keys: Keys::new(settings.job.as_str()),
            requested,
            granted: AtomicU64::new(requested),
            office: Mutex::default(),
        };
        Ok(Etcd { inner: Arc::new(inner) })
    }

    /// Creates the engine, and requests a lease once to learn its time to live, so that [`info`](Consensus::info) is
    /// exact from the start.
    ///
    /// # Errors
    /// As [`new`](Etcd::new), and [`ConsensusError::Unavailable`] if no endpoint answers.
    pub async fn connect(settings: &EtcdSettings) -> Result<Etcd, ConsensusError> {
        let etcd = Etcd::new(settings)?;
        etcd.lease().await?; // dropped at once, and so revoked
        Ok(etcd)
    }

    /// Ends this handle as SIGKILL of its process would: its lease is not renewed any more, and not revoked.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    pub fn abandon(&self) {
        if let Some((_, lease)) = self.set_office(None) {
            lease.abandon();
        }
    }

    /// Returns the number of calls to one of the endpoints that failed, also of those that another endpoint answered.
    #[must_use]
    pub fn endpoint_failures(&self) -> u64 {
        self.inner.pool.failures()
    }

    fn set_office(&self, office: Option<(Epoch, Lease)>) -> Option<(Epoch, Lease)> {
        std::mem::replace(&mut *self.inner.office.lock().unwrap_or_else(PoisonError::into_inner), office)
    }

    async fn lease(&self) -> Result<Lease, ConsensusError> {
        let lease = Lease::grant(&self.inner.pool, self.inner.requested).await?;
        self.inner.granted.store(lease.ttl.as_secs(), Relaxed);
        Ok(lease)
    }

    /// Makes a transaction. Returns `None` if it names a lease that has ended.
    async fn transact(
        &self,
        what: &str,
        again: Again,
        transaction: pb::TxnRequest,
    ) -> Result<Option<pb::TxnResponse>, ConsensusError> {
        let call = |channel| {
            let transaction = transaction.clone();
            async move {
                match pb::kv_client::KvClient::new(channel).txn(transaction).await.map(Response::into_inner) {
                    Ok(answer) => Ok(Some(answer)),
                    Err(status) if status.code() == Code::NotFound => Ok(None),
                    Err(status) => Err(status),
                }
            }
        };
        self.inner.pool.call(what, again, call).await
    }

    async fn state(&self, with_value: bool) -> Result<State, ConsensusError> {
        let answer = self.transact("reading the record", Again::Always, self.inner.keys.read(with_value)).await?;
        let answer = answer.ok_or_else(|| ConsensusError::Unavailable("etcd: reading the record: not found".into()))?;
        Ok(self.inner.keys.state(answer))
    }

    /// Waits until no candidate is the manager, or until the wait failed.
    async fn vacancy(&self) -> Result<(), ConsensusError> {
        loop {
            let state = self.state(false).await?;
            let Some(manager) = &state.manager else { return Ok(()) };
            state.candidate()?;
            if manager.lease == 0 {
                let key = String::from_utf8_lossy(&manager.key);
                tracing::warn!(%key, "another program has overwritten the manager's key: it outlives its manager");
            }
            changes::changed(&self.inner.pool, &self.inner.keys, state.revision.saturating_add(1)).await?;
        }
    }

    /// Makes the candidate the manager, if there is none. Returns `None` if another one was faster.
    ///
    /// The lease belongs to this attempt. If the attempt fails or is dropped the lease is revoked, also while the
    /// transaction is under way: etcd refuses a key with a lease that has ended.
    async fn elect(&self, candidate: &Bytes) -> Result<Option<(Epoch, Lease)>, ConsensusError> {
        let lease = self.lease().await?;
        let transaction = self.inner.keys.elect(candidate.clone(), lease.id);
        let Some(answer) = self.transact("electing a manager", Again::Always, transaction).await? else {
            return Ok(None);
        };
        if answer.succeeded {
            return Ok(Some((Epoch(number(revision_of(&answer))), lease)));
        }
        // An earlier attempt of this call that got no answer may have been the one that succeeded.
        let state = self.inner.keys.state(answer);
        let own = state.manager.as_ref().is_some_and(|manager| manager.lease == lease.id);
        Ok(state.in_force().filter(|_| own).map(|epoch| (epoch, lease)))
    }
}

#[async_trait]
impl Consensus for Etcd {
    fn info(&self) -> ConsensusInfo {
        let lease = Duration::from_secs(self.inner.granted.load(Relaxed));
        let statement = "the record is in etcd: the job survives the loss of any host as long as a majority of etcd's \
                         members and one candidate are left";
        // The standby's endpoint may have been lost with the manager: the standby notices this within its limit.
        let longest = lease.max(self.inner.pool.limit).saturating_add(TAKEOVER);
        ConsensusInfo::new("etcd", statement).with_failover(longest)
    }

    async fn campaign(&self, candidate: &Candidate) -> Result<Epoch, ConsensusError> {
        let value = serde_json::to_vec(candidate).map(Bytes::from).map_err(|error| {
            ConsensusError::Refused(format!("etcd: candidate {candidate} cannot be stored: {error}"))
        })?;
        loop {
            let elected = match self.vacancy().await {
                Ok(()) => self.elect(&value).await,
                Err(error) => Err(error),
            };
            match elected {
                Ok(Some((epoch, lease))) => {
                    self.set_office(Some((epoch, lease)));
                    return Ok(epoch);
                }
                Ok(None) => {}
                Err(ConsensusError::Unavailable(why)) => {
                    tracing::debug!(why, "the campaign goes on");
                    sleep(ROUND_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn confirm(&self, epoch: Epoch) -> Result<(), ConsensusError> {
        self.state(false).await?.require(epoch)
    }

    async fn compare_and_set(&self, epoch: Epoch, expected: Version, value: Bytes) -> Result<Version, ConsensusError> {
        record::check_length(&value)?;
        let transaction = self.inner.keys.write(epoch, expected, value);
        let answer = self.transact("writing the record", Again::IfUnsent, transaction).await?;
        let answer = answer.ok_or_else(|| ConsensusError::Unavailable("etcd: writing the record: not found".into()))?;
        if answer.succeeded {
            return Ok(Version(2 * number(revision_of(&answer))));
        }
        let state = self.inner.keys.state(answer);
        state.require(epoch)?;
        Err(ConsensusError::Conflict { expected, found: state.version() })
    }

    async fn read(&self) -> Result<Record, ConsensusError> {
        self.state(true).await?.record()
    }

    async fn watch(&self, after: Version) -> Result<Record, ConsensusError> {
        loop {
            let state = self.state(true).await?;
            let from = state.revision.saturating_add(1);
            if state.version() > after {
                return state.record();
            }
            if let Err(error) = changes::changed(&self.inner.pool, &self.inner.keys, from).await {
                // Another endpoint may answer: reading shows it.
                tracing::debug!(%error, "the watch goes on");
                sleep(ROUND_PAUSE).await;
            }
        }
    }

    async fn resign(&self, epoch: Epoch) -> Result<(), ConsensusError> {
        // Whatever the answer, the lease is not renewed any more.
        let lease = {
            let mut office = self.inner.office.lock().unwrap_or_else(PoisonError::into_inner);
            office.take_if(|(own, _)| *own == epoch)
        };
        let resigned = self.transact("resigning", Again::Always, self.inner.keys.resign(epoch)).await;
        drop(lease);
        resigned.map(|_| ())
    }
}
