//! An engine in memory that gives managers leases, on hosts that can be killed and cut off.

use crate::consensus::{Candidate, Consensus, ConsensusError, ConsensusInfo, Epoch, Record, Single, Version};
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::sleep;

/// Time from the loss of a manager to the end of its epoch.
const LEASE: Duration = Duration::from_secs(9);
/// Time that the engine states for a failover.
const FAILOVER: Duration = Duration::from_secs(10);
/// Time limit of a call without a majority.
pub(super) const LIMIT: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, Default)]
struct Host {
    cut: bool,
    epoch: Option<Epoch>,
}

/// All hosts of one job.
#[derive(Clone, Debug)]
pub(super) struct Leased {
    pub(super) single: Single,
    hosts: Arc<Mutex<BTreeMap<u32, Host>>>,
}

impl Leased {
    pub(super) fn new() -> Leased {
        Leased { single: Single::default(), hosts: Arc::default() }
    }

    pub(super) fn handle(&self, host: u32) -> LeasedHandle {
        LeasedHandle { host, leased: self.clone() }
    }

    pub(super) fn is_cut(&self, host: u32) -> bool {
        self.hosts.lock().unwrap().get(&host).is_some_and(|host| host.cut)
    }

    pub(super) fn kill(&self, host: u32) {
        self.expire(host);
    }

    pub(super) fn cut(&self, host: u32) {
        self.hosts.lock().unwrap().entry(host).or_default().cut = true;
        self.expire(host);
    }

    pub(super) fn reconnect(&self, host: u32) {
        self.hosts.lock().unwrap().entry(host).or_default().cut = false;
    }

    /// Ends the host's epoch when its lease is over.
    fn expire(&self, host: u32) {
        let epoch = self.hosts.lock().unwrap().entry(host).or_default().epoch.take();
        let single = self.single.clone();
        tokio::spawn(async move {
            sleep(LEASE).await;
            single.resign(epoch.unwrap_or_default()).await
        });
    }
}

/// The handle of one host.
#[derive(Clone, Debug)]
pub(super) struct LeasedHandle {
    pub(super) host: u32,
    pub(super) leased: Leased,
}

impl LeasedHandle {
    async fn reach(&self) -> Result<&Single, ConsensusError> {
        if self.leased.is_cut(self.host) {
            sleep(LIMIT).await;
            return Err(ConsensusError::Unavailable("the host is cut off".into()));
        }
        Ok(&self.leased.single)
    }
}

#[async_trait]
impl Consensus for LeasedHandle {
    fn info(&self) -> ConsensusInfo {
        ConsensusInfo::new("leased", "in memory, for tests").with_voters(3).with_failover(FAILOVER)
    }

    async fn campaign(&self, candidate: &Candidate) -> Result<Epoch, ConsensusError> {
        let epoch = self.leased.single.campaign(candidate).await?;
        self.leased.hosts.lock().unwrap().entry(self.host).or_default().epoch = Some(epoch);
        Ok(epoch)
    }

    async fn confirm(&self, epoch: Epoch) -> Result<(), ConsensusError> {
        self.reach().await?.confirm(epoch).await
    }

    async fn compare_and_set(&self, epoch: Epoch, expected: Version, value: Bytes) -> Result<Version, ConsensusError> {
        self.reach().await?.compare_and_set(epoch, expected, value).await
    }

    async fn read(&self) -> Result<Record, ConsensusError> {
        self.reach().await?.read().await
    }

    async fn watch(&self, after: Version) -> Result<Record, ConsensusError> {
        self.reach().await?.watch(after).await
    }

    async fn resign(&self, epoch: Epoch) -> Result<(), ConsensusError> {
        self.reach().await?.resign(epoch).await
    }
}
