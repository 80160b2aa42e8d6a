//! The engine for jobs that need one manager and no standby: a record in the memory of that manager's process.

use super::{Candidate, Consensus, ConsensusError, ConsensusInfo, Epoch, Record, Version, record};
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::watch;

/// One manager without a standby: when its process ends, no other host decides. For jobs of one or two hosts that need
/// nothing else. Clones share one record.
#[derive(Clone, Debug)]
pub struct Single {
    record: Arc<watch::Sender<Record>>,
}

impl Single {
    /// Creates the record of a job. `after` is an epoch that is greater than those of all earlier managers of the job:
    /// a process that may be started again passes its start time.
    #[must_use]
    pub fn new(after: Epoch) -> Single {
        Single { record: Arc::new(watch::Sender::new(Record::new().with_manager(after, None))) }
    }

    /// Changes the record in one step. `change` returns an error to leave it as it is.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Record) -> Result<T, ConsensusError>,
    ) -> Result<(T, Version), ConsensusError> {
        let mut result = None;
        self.record.send_if_modified(|record| {
            let changed = change(record);
            let modified = changed.is_ok();
            record.version.0 += u64::from(modified);
            result = Some(changed.map(|value| (value, record.version)));
            modified
        });
        result.unwrap_or_else(|| Err(ConsensusError::Unavailable("the record was not read".into())))
    }
}

impl Default for Single {
    fn default() -> Single {
        Single::new(Epoch(0))
    }
}

/// Returns an error if `epoch` is not in force.
fn in_force(record: &Record, epoch: Epoch) -> Result<(), ConsensusError> {
    match record.manager {
        Some(_) if record.epoch == epoch => Ok(()),
        ref other => Err(ConsensusError::Superseded { epoch, by: other.as_ref().map(ToString::to_string) }),
    }
}

#[async_trait]
impl Consensus for Single {
    fn info(&self) -> ConsensusInfo {
        let statement = "one manager, no standby: when its host is lost, no other host continues the job";
        ConsensusInfo::new("single", statement).with_voters(1)
    }

    async fn campaign(&self, candidate: &Candidate) -> Result<Epoch, ConsensusError> {
        let mut changes = self.record.subscribe();
        loop {
            let elected = self.change(|record| match &record.manager {
                Some(other) => Err(ConsensusError::Superseded { epoch: record.epoch, by: Some(other.to_string()) }),
                None => {
                    record.epoch.0 += 1;
                    record.manager = Some(candidate.clone());
                    Ok(record.epoch)
                }
            });
            if let Ok((epoch, _)) = elected {
                return Ok(epoch);
            }
            let closed = |_| ConsensusError::Unavailable("the record is closed".into());
            changes.wait_for(|record| record.manager.is_none()).await.map_err(closed)?;
        }
    }

    async fn confirm(&self, epoch: Epoch) -> Result<(), ConsensusError> {
        in_force(&self.record.borrow(), epoch)
    }

    async fn compare_and_set(&self, epoch: Epoch, expected: Version, value: Bytes) -> Result<Version, ConsensusError> {
        record::check_length(&value)?;
        let written = self.change(|record| {
            in_force(record, epoch)?;
            if record.version != expected {
                return Err(ConsensusError::Conflict { expected, found: record.version });
            }
            record.value = value;
            Ok(())
        });
        written.map(|((), version)| version)
    }

    async fn read(&self) -> Result<Record, ConsensusError> {
        Ok(self.record.borrow().clone())
    }

    async fn watch(&self, after: Version) -> Result<Record, ConsensusError> {
        let mut changes = self.record.subscribe();
        let newer = changes.wait_for(|record| record.version > after).await;
        newer.map(|record| record.clone()).map_err(|_| ConsensusError::Unavailable("the record is closed".into()))
    }

    async fn resign(&self, epoch: Epoch) -> Result<(), ConsensusError> {
        let resigned = self.change(|record| {
            in_force(record, epoch)?;
            record.manager = None;
            Ok(())
        });
        match resigned {
            Ok(_) | Err(ConsensusError::Superseded { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
