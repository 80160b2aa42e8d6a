//! The world in force, as the consensus engine stores it.

use super::Inner;
use crate::consensus::{ConsensusError, Epoch, Version};
use crate::security::JobToken;
use crate::wire::{decode, encode};
use serde::{Deserialize, Serialize};
use taskd_runtime::job::{Generation, World};
use taskd_runtime::launch::LaunchError;

/// What the job's hosts agree on: which world is in force. A manager writes it before any host gets an order for that world.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WorldRecord {
    pub(super) generation: Generation,
    /// Number of ranks.
    pub(super) size: u64,
    /// Secret by which the job's ranks authenticate each other: the same under every manager.
    #[serde(default)]
    pub(super) rank_secret: Option<String>,
}

/// The record that was read or written last.
pub(super) struct Committed {
    pub(super) version: Version,
    pub(super) world: WorldRecord,
}

impl WorldRecord {
    pub(super) fn of(world: &World) -> WorldRecord {
        WorldRecord { generation: world.generation(), size: world.members().len() as u64, rank_secret: None }
    }

    /// Reads the value of the record; empty before the first world.
    pub(super) fn read(value: &[u8]) -> Result<WorldRecord, String> {
        match value {
            [] => Ok(WorldRecord::default()),
            value => decode(value).map_err(|error| format!("the record of the job's world cannot be read: {error}")),
        }
    }
}

impl Inner {
    /// Stores a world, unless it is in force already.
    ///
    /// # Errors
    /// Returns an error if a newer world is in force, this manager's epoch is over, or no majority answers.
    pub(super) async fn commit(&self, mut world: WorldRecord) -> Result<(), LaunchError> {
        let mut committed = self.committed.lock().await; // one decision after the other
        loop {
            world.rank_secret = match &committed.world.rank_secret {
                Some(secret) => Some(secret.clone()),
                None => JobToken::generate().ok().map(|secret| secret.secret().to_owned()),
            };
            let in_force = committed.world.generation;
            if world.generation == in_force {
                return Ok(());
            }
            if world.generation < in_force {
                let text = format!("world {} is over: world {in_force} is in force", world.generation);
                return Err(LaunchError::Refused(text));
            }
            let value = encode(&world).map_err(|error| LaunchError::Refused(format!("the world's record: {error}")))?;
            match self.consensus.compare_and_set(self.epoch, committed.version, value).await {
                Ok(version) => {
                    *committed = Committed { version, world };
                    return Ok(());
                }
                // A write without an answer may have been carried out, and so have changed the version.
                Err(ConsensusError::Conflict { .. }) => *committed = self.read().await?,
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    /// Returns the secret by which the job's ranks authenticate each other; `None` before the first world.
    pub(super) async fn rank_secret(&self) -> Option<String> {
        self.committed.lock().await.world.rank_secret.clone()
    }

    async fn read(&self) -> Result<Committed, LaunchError> {
        let record = self.consensus.read().await.map_err(|error| self.failed(error))?;
        if record.epoch != self.epoch || record.manager.is_none() {
            return Err(self.failed(superseded(self.epoch, record.manager.map(|manager| manager.to_string()))));
        }
        let world = WorldRecord::read(&record.value).map_err(LaunchError::Refused)?;
        Ok(Committed { version: record.version, world })
    }

    /// Returns the error of a launcher for one of the engine. An epoch that is over ends this manager.
    fn failed(&self, error: ConsensusError) -> LaunchError {
        match error {
            ConsensusError::Superseded { .. } => {
                self.end(&error.to_string());
                LaunchError::Superseded(error.to_string())
            }
            ConsensusError::Refused(text) => LaunchError::Refused(text),
            error => LaunchError::Unreachable(format!("no decision is made: {error}")),
        }
    }
}

fn superseded(epoch: Epoch, by: Option<String>) -> ConsensusError {
    ConsensusError::Superseded { epoch, by }
}
