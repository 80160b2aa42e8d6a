//! The engine on a host without a voter.

use super::calls::Answers;
use super::links::Links;
use super::messages::{Call, CallAnswer};
use super::{Connect, EmbeddedSettings, TcpConnect, calls, statement};
use crate::consensus::{Candidate, Consensus, ConsensusError, ConsensusInfo, Epoch, Record, Version};
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;
use taskd_runtime::job::Name;

/// The engine on a host without a voter: it reads, confirms, writes and
/// watches through any voter. It cannot be the manager.
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
}

impl Answers for EmbeddedClient {
    fn settings(&self) -> &EmbeddedSettings {
        &self.links.settings
    }

    async fn attempt(&self, call: &Call) -> CallAnswer {
        calls::ask_voters(&self.links, None, &self.addresses, call).await
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
        Err(ConsensusError::Refused("this host runs no voter: only a voter's process can be the manager".into()))
    }

    async fn confirm(&self, epoch: Epoch) -> Result<(), ConsensusError> {
        calls::confirm(self, epoch).await
    }

    async fn compare_and_set(&self, epoch: Epoch, expected: Version, value: Bytes) -> Result<Version, ConsensusError> {
        calls::compare_and_set(self, epoch, expected, value).await
    }

    async fn read(&self) -> Result<Record, ConsensusError> {
        calls::read(self).await
    }

    async fn watch(&self, after: Version) -> Result<Record, ConsensusError> {
        calls::watch(&self.links, &self.addresses, after).await
    }

    async fn resign(&self, _: Epoch) -> Result<(), ConsensusError> {
        Ok(())
    }
}
