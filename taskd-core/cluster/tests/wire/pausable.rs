//! The engine of one manager, which can be made unavailable as an etcd without majority is.

use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use taskd_cluster::consensus::{Candidate, Consensus, ConsensusError, ConsensusInfo, Epoch, Record, Single, Version};

/// [`Single`], unless it is paused. Clones share one record and one pause.
#[derive(Clone, Default)]
pub(crate) struct Pausable {
    inner: Single,
    paused: Arc<AtomicBool>,
}

impl Pausable {
    pub(crate) fn set_paused(&self, paused: bool) {
        self.paused.store(paused, Ordering::SeqCst);
    }

    fn answers(&self) -> Result<(), ConsensusError> {
        match self.paused.load(Ordering::SeqCst) {
            true => Err(ConsensusError::Unavailable("it is paused".into())),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Consensus for Pausable {
    fn info(&self) -> ConsensusInfo {
        self.inner.info()
    }

    async fn campaign(&self, candidate: &Candidate) -> Result<Epoch, ConsensusError> {
        self.inner.campaign(candidate).await
    }

    async fn confirm(&self, epoch: Epoch) -> Result<(), ConsensusError> {
        self.answers()?;
        self.inner.confirm(epoch).await
    }

    async fn compare_and_set(&self, epoch: Epoch, expected: Version, value: Bytes) -> Result<Version, ConsensusError> {
        self.answers()?;
        self.inner.compare_and_set(epoch, expected, value).await
    }

    async fn read(&self) -> Result<Record, ConsensusError> {
        self.answers()?;
        self.inner.read().await
    }

    async fn watch(&self, after: Version) -> Result<Record, ConsensusError> {
        self.inner.watch(after).await
    }

    async fn resign(&self, epoch: Epoch) -> Result<(), ConsensusError> {
        self.inner.resign(epoch).await
    }
}
