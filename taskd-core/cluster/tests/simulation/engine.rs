//! The consensus engine as its manager uses it, with a check of what the engine promises: no epoch is confirmed after the
//! next has begun, and what was written is read by every later reader.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use taskd_cluster::consensus::{Candidate, Consensus, ConsensusError, ConsensusInfo, Embedded, Epoch, Record, Version};

use crate::cluster::{Cluster, host};
use crate::ledger::Property;

/// The engine of one host.
pub(crate) struct Witnessed {
    pub(crate) inner: Embedded,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) index: usize,
}

impl Witnessed {
    /// Returns the greatest epoch that has begun, and the greatest version that was written or read.
    fn known(&self) -> (Epoch, Version) {
        let ledger = &self.cluster.lock().ledger;
        (ledger.manager().map_or(Epoch(0), |(epoch, _)| epoch), ledger.version)
    }

    fn violate(&self, what: &str) {
        let now = self.cluster.now();
        self.cluster.lock().ledger.violate(now, Property::Engine, format!("{}: {what}", host(self.index)));
    }

    /// An epoch was in force during a call that began when `known` had begun.
    fn in_force(&self, epoch: Epoch, known: Epoch) {
        if epoch < known {
            self.violate(&format!("epoch {epoch} is in force after epoch {known} has begun"));
        }
    }

    fn seen(&self, version: Version) {
        let ledger = &mut self.cluster.lock().ledger;
        ledger.version = ledger.version.max(version);
    }
}

#[async_trait]
impl Consensus for Witnessed {
    fn info(&self) -> ConsensusInfo {
        self.inner.info()
    }

    async fn campaign(&self, candidate: &Candidate) -> Result<Epoch, ConsensusError> {
        let epoch = self.inner.campaign(candidate).await?;
        let now = self.cluster.now();
        self.cluster.lock().ledger.elected(now, epoch, &host(self.index));
        Ok(epoch)
    }

    async fn confirm(&self, epoch: Epoch) -> Result<(), ConsensusError> {
        let (known, _) = self.known();
        self.inner.confirm(epoch).await?;
        self.in_force(epoch, known);
        Ok(())
    }

    async fn compare_and_set(&self, epoch: Epoch, expected: Version, value: Bytes) -> Result<Version, ConsensusError> {
        let (known, before) = self.known();
        let version = self.inner.compare_and_set(epoch, expected, value).await?;
        self.in_force(epoch, known);
        if version <= before {
            self.violate(&format!("version {version} is written after version {before}"));
        }
        self.seen(version);
        Ok(version)
    }

    async fn read(&self) -> Result<Record, ConsensusError> {
        let (_, before) = self.known();
        let record = self.inner.read().await?;
        if record.version < before {
            self.violate(&format!("version {} is read after version {before}", record.version));
        }
        self.seen(record.version);
        Ok(record)
    }

    async fn watch(&self, after: Version) -> Result<Record, ConsensusError> {
        self.inner.watch(after).await
    }

    async fn resign(&self, epoch: Epoch) -> Result<(), ConsensusError> {
        self.inner.resign(epoch).await
    }
}
