//! An engine that breaks one clause of the contract.

use super::super::*;
use super::leased::{Leased, LeasedHandle};
use crate::consensus::{Candidate, Consensus, ConsensusError, ConsensusInfo, Epoch, RECORD_BYTES_MAX, Record, Version};
use async_trait::async_trait;
use bytes::Bytes;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::sleep;

/// Time after which an engine ends an epoch too early or too late: close to the failover of the engine inside.
const LATE: Duration = Duration::from_secs(9);
/// An engine with falling epochs subtracts them from this one.
const GREATEST: u64 = 1_000_000;

/// What all hosts of a broken engine share.
pub(super) struct Shared {
    clause: Clause,
    pub(super) leased: Leased,
    lost: AtomicBool,
}

impl Shared {
    pub(super) fn new(clause: Clause) -> Arc<Shared> {
        Arc::new(Shared { clause, leased: Leased::new(), lost: AtomicBool::new(false) })
    }

    pub(super) fn kill(&self, host: u32) {
        self.lost.store(self.clause == WRITTEN_SURVIVES, SeqCst);
        if self.clause != FAILOVER {
            self.leased.kill(host);
        }
    }

    pub(super) fn cut(&self, host: u32) {
        self.leased.cut(host);
    }
}

pub(super) struct Broken {
    inner: LeasedHandle,
    shared: Arc<Shared>,
    /// Last record that the host has read.
    read: Mutex<Record>,
    /// Version of the last record that the host's `watch` has taken.
    taken: Mutex<Version>,
    gate: tokio::sync::Mutex<()>,
    permit: Semaphore,
}

/// The place of a host's `watch`, which moves on even if the call is dropped.
struct Delivery<'a> {
    taken: &'a Mutex<Version>,
    version: Version,
}

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        *self.taken.lock().unwrap() = self.version;
    }
}

impl Broken {
    pub(super) fn new(host: u32, shared: Arc<Shared>) -> Broken {
        let inner = shared.leased.handle(host);
        Broken {
            inner,
            shared,
            read: Mutex::default(),
            taken: Mutex::default(),
            gate: tokio::sync::Mutex::default(),
            permit: Semaphore::new(1),
        }
    }

    fn breaks(&self, clause: Clause) -> bool {
        self.shared.clause == clause
    }

    async fn gate(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        if self.breaks(CALLS_AT_ONCE) { Some(self.gate.lock().await) } else { None }
    }

    fn is_cut(&self) -> bool {
        self.shared.leased.is_cut(self.inner.host)
    }

    /// Converts an epoch of the engine inside to one of this engine, and back.
    fn epoch(&self, epoch: Epoch) -> Epoch {
        if self.breaks(EPOCHS_RISE) { Epoch(GREATEST.saturating_sub(epoch.0)) } else { epoch }
    }

    /// Returns the record inside, also of a host that is cut off.
    async fn inside(&self) -> Record {
        self.shared.leased.single.read().await.unwrap()
    }

    fn spoil(&self, mut record: Record) -> Record {
        record.epoch = self.epoch(record.epoch);
        let stale = self.breaks(WRITTEN_IS_READ) && self.inner.host == 3 && record.value.starts_with(b"written by");
        let lost = self.shared.lost.load(SeqCst) && record.value.ends_with(b"was killed");
        if stale || lost {
            record.value = Bytes::new();
        }
        if self.breaks(CAMPAIGN_STORES) {
            record.manager = None;
        }
        record
    }

    /// Waits like a campaign that takes the epoch away from a manager after some time.
    async fn impatient(&self, candidate: &Candidate) -> Result<Epoch, ConsensusError> {
        tokio::select! {
            epoch = self.inner.campaign(candidate) => epoch,
            () = sleep(LATE) => {
                self.inner.resign(self.inside().await.epoch).await?;
                self.inner.campaign(candidate).await
            }
        }
    }
}

#[async_trait]
impl Consensus for Broken {
    fn info(&self) -> ConsensusInfo {
        self.inner.info()
    }

    async fn campaign(&self, candidate: &Candidate) -> Result<Epoch, ConsensusError> {
        let _gate = self.gate().await;
        let (inner, own) = (self.inner.clone(), candidate.clone());
        let before = self.inside().await;
        let epoch = match self.shared.clause {
            ONE_MANAGER if before.manager.is_none() => {
                yield_now().await; // the other candidates see no manager either
                let other = async {
                    let mut record = before;
                    while record.manager.is_none() {
                        record = inner.watch(record.version).await?;
                    }
                    Ok(record.epoch)
                };
                tokio::select! { biased; epoch = self.inner.campaign(candidate) => epoch, epoch = other => epoch }
            }
            CAMPAIGN_WAITS if before.manager.is_some() => Ok(Epoch(before.epoch.0 + 1)),
            CAMPAIGN_CANCEL_SAFE => tokio::spawn(async move { inner.campaign(&own).await }).await.unwrap(),
            EPOCH_KEEPS => self.impatient(candidate).await,
            _ => inner.campaign(candidate).await,
        };
        epoch.map(|epoch| self.epoch(epoch))
    }

    async fn confirm(&self, epoch: Epoch) -> Result<(), ConsensusError> {
        let _gate = self.gate().await;
        let confirmed = self.inner.confirm(self.epoch(epoch)).await;
        match confirmed {
            Err(ConsensusError::Superseded { .. }) if self.breaks(CONFIRM_IN_FORCE) => Ok(()),
            Err(ConsensusError::Unavailable(_)) if self.breaks(MAJORITY_ONLY) => Ok(()),
            other => other,
        }
    }

    async fn compare_and_set(
        &self,
        epoch: Epoch,
        mut expected: Version,
        value: Bytes,
    ) -> Result<Version, ConsensusError> {
        let _gate = self.gate().await;
        let (mut epoch, now) = (self.epoch(epoch), self.inside().await);
        match self.shared.clause {
            WRITE_NEEDS_EPOCH if now.manager.is_some() => epoch = now.epoch,
            WRITE_NEEDS_VERSION if expected != now.version && expected.0 + 1 != now.version.0 => {
                expected = now.version;
            }
            WRITE_ATOMIC if expected == now.version && epoch == now.epoch => {
                yield_now().await; // the other writers compare
                let now = self.inside().await;
                return self.inner.compare_and_set(epoch, now.version, value).await;
            }
            WRITE_BOUND if value.len() > RECORD_BYTES_MAX => {
                return self.inner.compare_and_set(epoch, expected, value.slice(1..)).await;
            }
            DROP_BREAKS_NOTHING => {
                self.permit.acquire().await.unwrap().forget();
                yield_now().await;
                self.permit.add_permits(1);
            }
            _ => {}
        }
        let version = self.inner.compare_and_set(epoch, expected, value).await?;
        Ok(if self.breaks(VERSION_RISES) { expected } else { version })
    }

    async fn read(&self) -> Result<Record, ConsensusError> {
        let _gate = self.gate().await;
        match self.shared.clause {
            READ_UNAVAILABLE if self.is_cut() => pending().await,
            READ_NEVER_OLD if self.is_cut() => return Ok(self.read.lock().unwrap().clone()),
            _ => {}
        }
        let record = self.spoil(self.inner.read().await?);
        *self.read.lock().unwrap() = record.clone();
        Ok(record)
    }

    async fn watch(&self, after: Version) -> Result<Record, ConsensusError> {
        let _gate = self.gate().await;
        let inner = match self.shared.clause {
            WATCH_NEWS => self.inner.read().await,
            WATCH_MANAGER => {
                let before = self.inside().await;
                let mut record = self.inner.watch(after).await?;
                while before.version <= after && record.value == before.value {
                    record = self.inner.watch(record.version).await?;
                }
                Ok(record)
            }
            WATCH_CANCEL_SAFE => {
                let taken = *self.taken.lock().unwrap();
                let record = self.inner.watch(after.max(taken)).await?;
                let mut delivery = Delivery { taken: &self.taken, version: record.version };
                yield_now().await;
                delivery.version = taken; // it was not dropped
                Ok(record)
            }
            _ => self.inner.watch(after).await,
        };
        let mut record = inner?;
        record.epoch = self.epoch(record.epoch);
        Ok(record)
    }

    async fn resign(&self, epoch: Epoch) -> Result<(), ConsensusError> {
        let _gate = self.gate().await;
        let epoch = self.epoch(epoch);
        let in_force = self.inner.confirm(epoch).await;
        match self.shared.clause {
            RESIGN_ENDS if in_force.is_ok() => {
                let inner = self.inner.clone();
                tokio::spawn(async move {
                    sleep(LATE).await;
                    inner.resign(epoch).await
                });
                Ok(())
            }
            RESIGN_OLD_IS_FINE => in_force.and(self.inner.resign(epoch).await),
            _ => self.inner.resign(epoch).await,
        }
    }
}
