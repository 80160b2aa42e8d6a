//! Formation of a job: the first listed voter starts it, when all listed voters have stated that they have no log.

use super::inner::Inner;
use super::links::Method;
use super::messages::HelloAnswer;
use super::types::Raft;
use super::{EmbeddedConfig, VoterAddress};
use futures::future::join_all;
use openraft::SnapshotPolicy;
use openraft::error::{InitializeError, RaftError};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::sleep;

use super::links::Links;
use super::machine::Machine;
use super::network::Network;
use super::settings::millis;
use super::store::{ENTRIES_KEPT, ENTRIES_PER_MESSAGE, ENTRIES_PER_SNAPSHOT, LogStore};
use crate::consensus::ConsensusError;

/// One chunk of a snapshot, in bytes.
const CHUNK_BYTES: u64 = 512 << 10;

/// Starts the engine of a voter.
pub(super) async fn start_engine(
    config: &EmbeddedConfig,
    voter: u64,
    links: Links,
    (store, machine): (LogStore, Machine),
) -> Result<Raft, ConsensusError> {
    let settings = &config.settings;
    let engine = openraft::Config {
        cluster_name: config.job.to_string(),
        heartbeat_interval: millis(settings.heartbeat()),
        election_timeout_min: millis(settings.election_min()),
        election_timeout_max: millis(settings.election_max()),
        install_snapshot_timeout: millis(settings.request_limit()),
        max_payload_entries: ENTRIES_PER_MESSAGE,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(ENTRIES_PER_SNAPSHOT),
        max_in_snapshot_log_to_keep: ENTRIES_KEPT,
        replication_lag_threshold: ENTRIES_PER_SNAPSHOT + ENTRIES_KEPT,
        snapshot_max_chunk_size: CHUNK_BYTES,
        // A voter stands only while it campaigns.
        enable_elect: false,
        ..openraft::Config::default()
    };
    let engine = engine.validate().map_err(|error| ConsensusError::Refused(error.to_string()))?;
    let started = Raft::new(voter, Arc::new(engine), Network(links), store, machine).await;
    started.map_err(|error| ConsensusError::Refused(format!("the voter cannot start from its store: {error}")))
}

/// What the other listed voters answer.
enum Answers {
    Pristine(BTreeMap<u64, VoterAddress>),
    Formed(VoterAddress),
    Missing(String),
}

impl Inner {
    /// Forms the job if this is its first voter. Returns when this voter has a log, or when it waits for admission.
    pub(super) async fn form(&self) {
        if !self.config.is_first() || self.store.has_log() {
            return;
        }
        if self.rejoins {
            let dir = self.config.dir.display();
            let text =
                format!("this voter had a log and waits for admission; for a new job, remove {dir} on all hosts");
            tracing::warn!(host = %self.config.own.host, "{text}");
            self.forming.send_replace(Some(text));
            return;
        }
        while !self.store.has_log() {
            let waits = match self.ask_listed().await {
                Answers::Formed(voter) => {
                    let text =
                        format!("{voter} has or had a log: the job was formed, and this voter waits for admission");
                    tracing::warn!(host = %self.config.own.host, "{text}");
                    self.forming.send_replace(Some(text));
                    return;
                }
                Answers::Missing(text) => text,
                Answers::Pristine(members) => match self.raft.initialize(members).await {
                    // The first leader's messages have arrived meanwhile.
                    Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) if self.store.has_log() => break,
                    Ok(()) => "the first entry is written".into(),
                    Err(error) => format!("the voters cannot be formed: {error}"),
                },
            };
            if self.forming.borrow().as_deref() != Some(waits.as_str()) {
                tracing::info!(host = %self.config.own.host, "the job is not formed yet: {waits}");
            }
            self.forming.send_replace(Some(waits));
            sleep(self.config.settings.election_min()).await;
        }
        self.forming.send_replace(None);
    }

    async fn ask_listed(&self) -> Answers {
        let mut members = BTreeMap::from([(self.voter, self.config.own.clone())]);
        let others = self.config.listed.iter().filter(|voter| voter.host != self.config.own.host);
        let limit = self.config.settings.rpc_limit();
        let asked = others.map(|place| async move {
            (place, self.links.call::<_, HelloAnswer>((&place.address, 0), Method::Hello, &(), limit).await)
        });
        let (mut missing, mut formed) = (Vec::new(), None);
        for (place, answer) in join_all(asked).await {
            match answer {
                Ok(hello) if hello.place != *place => {
                    missing.push(format!("{} answers at the address of {place}", hello.place));
                }
                Ok(hello) if hello.initialised => formed = Some(place.clone()),
                Ok(hello) => drop(members.insert(hello.voter, hello.place)),
                Err(status) => missing.push(format!("{place} does not answer ({})", status.message())),
            }
        }
        match formed {
            Some(place) => Answers::Formed(place),
            None if missing.is_empty() && members.len() == self.config.listed.len() => Answers::Pristine(members),
            None => Answers::Missing(missing.join("; ")),
        }
    }
}
