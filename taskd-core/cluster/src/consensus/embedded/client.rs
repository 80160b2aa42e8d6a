//! The engine on a host without a voter.

use super::links::Links;
use super::{Connect, EmbeddedSettings, TcpConnect, reader, statement};
use crate::consensus::{Candidate, Consensus, ConsensusError, ConsensusInfo, Epoch, Record, Version, record};
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;
use taskd_runtime::job::Name;
use tokio::time::{Instant, sleep};

/// The engine on a host without a voter: it reads the record and watches it, through any voter. It cannot be the manager.
#[derive(Clone, Debug)]
pub struct EmbeddedClient {
    addresses: Vec<String>,
    links: Links,
}

impl EmbeddedClient {
    /// Creates the client of a job with voters at these addresses, `HOST:PORT`.
    pub fn new(job: impl Into<Name>, addresses: impl IntoIterator<Item = impl Into<String>>) -> EmbeddedClient {
        EmbeddedClient::with_connect(job, addresses, EmbeddedSettings::default(), TcpConnect::default())
    }

    /// Creates a client with the voters' settings, and with what opens connections.
    pub fn with_connect(
        job: impl Into<Name>,
        addresses: impl IntoIterator<Item = impl Into<String>>,
        settings: EmbeddedSettings,
        connect: impl Connect,
    ) -> EmbeddedClient {
        let links = Links::new(job.into(), settings, Arc::new(connect));
        EmbeddedClient { addresses: addresses.into_iter().map(Into::into).collect(), links }
    }

    fn refused() -> ConsensusError {
        ConsensusError::Refused("this host runs no voter: only a voter's process can be the manager".into())
    }
}

#[async_trait]
impl Consensus for EmbeddedClient {
    fn info(&self) -> ConsensusInfo {
        let voters = u32::try_from(self.addresses.len()).unwrap_or(u32::MAX);
        let info = ConsensusInfo::new("embedded", statement(self.addresses.len())).with_voters(voters);
        info.with_failover(self.links.settings.failover())
    }

    async fn campaign(&self, _: &Candidate) -> Result<Epoch, ConsensusError> {
        Err(EmbeddedClient::refused())
    }

    async fn confirm(&self, epoch: Epoch) -> Result<(), ConsensusError> {
        let record = self.read().await?;
        match record.manager {
            Some(_) if record.epoch == epoch => Ok(()),
            other => Err(ConsensusError::Superseded { epoch, by: other.map(|manager| manager.to_string()) }),
        }
    }

    async fn compare_and_set(&self, _: Epoch, _: Version, value: Bytes) -> Result<Version, ConsensusError> {
        record::check_length(&value)?;
        Err(EmbeddedClient::refused())
    }

    async fn read(&self) -> Result<Record, ConsensusError> {
        let deadline = Instant::now() + self.links.settings.request_limit();
        loop {
            match reader::read(&self.links, None, &self.addresses).await {
                Ok(record) => return Ok(record),
                Err(reason) if Instant::now() >= deadline => return Err(ConsensusError::Unavailable(reason)),
                Err(_) => sleep(self.links.settings.heartbeat()).await,
            }
        }
    }

    async fn watch(&self, after: Version) -> Result<Record, ConsensusError> {
        reader::watch(&self.links, &self.addresses, after).await
    }

    async fn resign(&self, _: Epoch) -> Result<(), ConsensusError> {
        Ok(())
    }
}
