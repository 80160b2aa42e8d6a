//! The engine for jobs without etcd or Kubernetes: Raft among three or five voters that run inside agents.
//!
//! No part of Raft is written here: [openraft](https://docs.rs/openraft) elects and replicates,
//! [redb](https://docs.rs/redb) stores. The other Raft engine in Rust that is widely used, raft-rs of TiKV, is as well
//! proven, but leaves transport, storage and the driving loop to its user. openraft 0.10 is not used yet: its interface
//! and its format on the disk change between its releases.
//!
//! # The manager is the leader
//! A candidate is the manager only while its process leads the voters: [`campaign`](Consensus::campaign) waits until
//! this voter leads, and commits the candidate's name, which begins an epoch. A change of the leader ends the epoch.
//! `confirm` is one round of messages to a majority, and `compare_and_set` one entry that a majority has flushed to its
//! disks.
//!
//! # Stores and reboots
//! A voter's identifier is random, and is stored with the identifier of the machine's boot. A restarted process of the
//! same boot continues with its store. After a reboot, or if the store is missing or damaged, the store is discarded
//! and the voter has another identifier: it does not vote until the leader has admitted it in the place of the lost one
//! ([`Embedded::request_admission`], [`Embedded::replace_voter`]). A voter therefore never votes twice because it
//! forgot its first vote, and the directory may be on a temporary file system. [`Embedded::keep_admitted`] requests the
//! admission; [`Manager::keep_voters`](crate::Manager::keep_voters) replaces the voters of lost hosts.
//!
//! # Formation
//! The first listed voter starts the job when all listed voters have stated that they have no log, and never had one.
//! If one has, the job exists, and the first voter waits for admission like any other: the voters of the job can be
//! others than the listed ones by now. If the hosts of a majority are rebooted, the record is lost with the processes
//! that it described. The caller then removes the directories, and starts the voters again as a new job
//! ([`EmbeddedConfig::with_epochs_after`]).
//!
//! # Elections
//! A voter stands while it campaigns or is the manager. A witness, and a voter that does not campaign, stands only
//! after a long silence, because it may be the only one with the whole log, and hands the leadership over to a voter
//! that campaigns. A voter stands only after a majority has stated that it hears no leader: one that was cut off does
//! not end the epoch of a manager when it is back.
//!
//! # Messages of the engine
//! openraft logs every message that does not arrive, at level ERROR. A program that lost a voter filters the target
//! `openraft`.
//!
//! # Mounting
//! [`Embedded::service`] is a tonic service: the caller mounts it on its own server. [`Connect`] opens the connections
//! to other voters; the caller can put TLS or a simulated network below it.

mod calls;
mod client;
mod config;
mod connect;
mod disk;
mod formation;
#[cfg(feature = "test-util")]
pub(crate) mod fuzz;
mod inner;
mod links;
mod machine;
mod members;
mod messages;
mod network;
mod service;
mod settings;
mod status;
mod store;
mod tenure;
mod types;
mod upkeep;
mod writer;

#[cfg(test)]
mod tests;

pub use client::EmbeddedClient;
pub use config::{ADDRESS_BYTES_MAX, EPOCHS_AFTER_MAX, EmbeddedConfig, VOTER_COUNTS, VoterAddress};
pub use connect::{Connect, TcpConnect};
pub use settings::{ELECTION_MAX, EmbeddedSettings};
pub use status::{EmbeddedStatus, Membership};

use super::{Candidate, Consensus, ConsensusError, ConsensusInfo, Epoch, Record, Version};
use crate::wire::proto::voter_server::VoterServer;
use async_trait::async_trait;
use bytes::Bytes;
use calls::Answers;
use inner::{Inner, Parts};
use messages::{Call, CallAnswer};
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use taskd_runtime::job::NodeId;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

/// A voter of the job, and the consensus engine of its process. Clones share one voter, which stops when the last is
/// dropped.
#[derive(Clone)]
pub struct Embedded {
    inner: Arc<Inner>,
    life: Arc<Life>,
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// Stops the voter when it is dropped.
struct Life {
    inner: Arc<Inner>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let inner = Arc::clone(&self.inner);
            runtime.spawn(async move { inner.close().await });
        }
    }
}

impl Inner {
    async fn close(&self) {
        // The engine's task has ended already, by a panic or by its runtime.
        let _ = self.raft.shutdown().await;
        self.store.close().await;
    }
}

impl Embedded {
    /// Starts a voter. It answers other voters only when the caller has mounted its [`service`](Embedded::service).
    ///
    /// # Errors
    /// Returns [`ConsensusError::Refused`] if the list of voters is not possible, if another process uses the
    /// directory, or if the directory cannot be used. A damaged store is no error: it is discarded (see
    /// [`EmbeddedStatus::discarded`]).
    pub async fn start(config: EmbeddedConfig) -> Result<Embedded, ConsensusError> {
        config.check()?;
        let (dir, job, boot) = (config.dir.clone(), config.job.to_string(), config.boot.clone());
        let simulated = config.simulated();
        let open = move || {
            let boot = boot.map_or_else(disk::boot_id, Ok)?;
            store::open(&dir, &job, &boot, &simulated)
        };
        let opened = tokio::task::spawn_blocking(open).await;
        let opened = opened.map_err(|error| ConsensusError::Refused(format!("the store cannot be opened: {error}")))?;
        let store::Opened { store, voter, rejoins, snapshot, discarded } =
            opened.map_err(|error| ConsensusError::Refused(error.to_string()))?;
        if let Some(reason) = &discarded {
            let host = &config.own.host;
            tracing::warn!(%host, "the voter's store was discarded, and the voter needs admission: {reason}");
        }
        let unreadable = |error| ConsensusError::Refused(format!("the voter's snapshot cannot be read: {error}"));
        let machine = machine::Machine::new(store.clone(), snapshot).map_err(unreadable)?;
        let links = links::Links::new(config.job.clone(), config.settings, Arc::clone(&config.connect));
        let stored = (store.clone(), machine.clone());
        let raft = formation::start_engine(&config, voter, links.clone(), stored).await?;
        let inner = Arc::new(Inner::new(Parts { config, voter, raft, store, machine, links, discarded, rejoins }));
        let [standing, asking, order, forming] = std::array::from_fn(|_| Arc::clone(&inner));
        let tasks = vec![
            tokio::spawn(async move { standing.keep_standing().await }).abort_handle(),
            tokio::spawn(async move { asking.keep_asking().await }).abort_handle(),
            tokio::spawn(async move { order.keep_in_order().await }).abort_handle(),
            tokio::spawn(async move { forming.form().await }).abort_handle(),
        ];
        let life = Arc::new(Life { inner: Arc::clone(&inner), tasks });
        Ok(Embedded { inner, life })
    }

    /// Returns the service that answers other voters and clients, for a tonic server.
    pub fn service(
        &self,
    ) -> impl Service<
        http::Request<tonic::body::Body>,
        Response = http::Response<tonic::body::Body>,
        Error = Infallible,
        Future: Send + 'static,
    > + NamedService
    + Clone
    + Send
    + Sync
    + 'static {
        VoterServer::new(service::Handler(Arc::clone(&self.inner)))
            .max_decoding_message_size(messages::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(messages::MESSAGE_BYTES_MAX)
    }

    /// Returns the state of this voter.
    #[must_use]
    pub fn status(&self) -> EmbeddedStatus {
        self.inner.status()
    }

    /// Requests from the leader that this voter is admitted, after a reboot in the place of the lost voter of the same
    /// host, or of the one on the host `replaces`. Returns when it votes. To call it again does no harm.
    ///
    /// # Errors
    /// Returns [`ConsensusError::Unavailable`] if no leader answers, and [`ConsensusError::Refused`] if no voter can be
    /// replaced by this one.
    pub async fn request_admission(&self, replaces: Option<&NodeId>) -> Result<(), ConsensusError> {
        self.inner.request_admission(replaces).await
    }

    /// Admits the rebooted voter of a host, as the leader.
    ///
    /// # Errors
    /// As [`Embedded::replace_voter`].
    pub async fn admit(&self, new: &VoterAddress) -> Result<(), ConsensusError> {
        self.inner.admit_at(new, None).await
    }

    /// Replaces the voter of a lost host by a running one on another host, as the leader. A voter that is replaced
    /// cannot return under its identifier.
    ///
    /// # Errors
    /// Returns [`ConsensusError::Unavailable`] if this voter does not lead, or if the new voter or a majority does not
    /// answer: the caller calls again. Returns [`ConsensusError::Refused`] if the host has no voter, or if the new host
    /// has one.
    pub async fn replace_voter(&self, lost: &NodeId, new: &VoterAddress) -> Result<(), ConsensusError> {
        self.inner.admit_at(new, Some(lost)).await
    }

    /// Stops the voter and waits until its store is closed. It does not resign: other voters notice after the leader's
    /// lease.
    pub async fn shutdown(&self) {
        self.life.tasks.iter().for_each(AbortHandle::abort);
        self.inner.close().await;
    }
}

/// What the job survives.
fn statement(voters: usize) -> String {
    match voters.saturating_sub(1) / 2 {
        0 => "one voter: when its host is lost, the job has no manager until it is started again".into(),
        lost => format!(
            "{voters} voters: the job survives the loss of {lost} of their hosts at once, and of more if lost voters \
             are replaced in between; without {} voters no manager is elected, and no state of the job changes",
            voters / 2 + 1
        ),
    }
}

#[async_trait]
impl Consensus for Embedded {
    fn info(&self) -> ConsensusInfo {
        let voters = match self.inner.voter_ids().len() {
            0 => self.inner.config.listed.len(),
            voters => voters,
        };
        let info = ConsensusInfo::new("embedded", statement(voters));
        let info = info.with_voters(u32::try_from(voters).unwrap_or(u32::MAX));
        let settings = &self.inner.config.settings;
        let witness = self.inner.config.listed.iter().chain(self.inner.members().values()).any(|place| place.witness);
        match (voters, witness) {
            (..=1, _) => info,
            (_, false) => info.with_failover(settings.failover()),
            (_, true) => info.with_failover(settings.failover_with_witness()),
        }
    }

    async fn campaign(&self, candidate: &Candidate) -> Result<Epoch, ConsensusError> {
        self.inner.campaign(candidate).await
    }

    async fn confirm(&self, epoch: Epoch) -> Result<(), ConsensusError> {
        calls::confirm(&*self.inner, epoch).await
    }

    async fn compare_and_set(&self, epoch: Epoch, expected: Version, value: Bytes) -> Result<Version, ConsensusError> {
        calls::compare_and_set(&*self.inner, epoch, expected, value).await
    }

    async fn read(&self) -> Result<Record, ConsensusError> {
        calls::read(&*self.inner).await
    }

    async fn watch(&self, after: Version) -> Result<Record, ConsensusError> {
        self.inner.watch(after).await
    }

    async fn resign(&self, epoch: Epoch) -> Result<(), ConsensusError> {
        self.inner.resign(epoch).await
    }
}

impl Inner {
    /// Addresses of all other voters that this one knows.
    pub(super) fn others(&self) -> Vec<String> {
        let members = self.members();
        let voters = self.voter_ids();
        let known = members.iter().filter(|(id, _)| voters.contains(id) && **id != self.voter);
        let known: Vec<String> = known.map(|(_, place)| place.address.clone()).collect();
        if !known.is_empty() {
            return known;
        }
        let listed = self.config.listed.iter().filter(|place| place.host != self.config.own.host);
        listed.map(|place| place.address.clone()).collect()
    }

    async fn watch(&self, after: Version) -> Result<Record, ConsensusError> {
        loop {
            if let Some(reason) = self.stopped() {
                return Err(ConsensusError::Unavailable(reason));
            }
            // A voter that was replaced while it was cut off still believes that it votes.
            if !self.is_member() || self.leaderless() > self.config.settings.silence() {
                return calls::watch(&self.links, &self.others(), after).await;
            }
            // Looks again from time to time: a voter that stops, or is replaced, has no more changes.
            if let Some(record) = self.news(after).await {
                return Ok(record);
            }
        }
    }

    /// Waits for a record of this voter that is newer than `after`, for the time of a long poll.
    pub(super) async fn news(&self, after: Version) -> Option<Record> {
        if self.machine.office().record.version > after {
            // Another host may have written since this voter's record, so the leader's is returned if it answers.
            if let CallAnswer::Record(record) = self.attempt(&Call::Read).await
                && record.version > after
            {
                return Some(record);
            }
        }
        let mut changes = self.machine.subscribe();
        let newer = changes.wait_for(|record| record.version > after);
        let newer = timeout(self.config.settings.long_poll(), newer).await;
        newer.ok().and_then(Result::ok).map(|record| record.clone())
    }
}
