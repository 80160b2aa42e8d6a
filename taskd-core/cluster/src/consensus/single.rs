//! The engine for jobs that need one manager and no standby: a record in the memory of that manager's process.

use super::{Candidate, Consensus, ConsensusError, ConsensusInfo, Epoch, Record, Version, record};
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::watch;

/// Error of a campaign after the greatest epoch.
const NO_EPOCH_LEFT: &str = "no epoch is left: the job's record was created with an epoch that is too great";

/// One manager without a standby: when its process ends, no other host decides. For jobs of one or two hosts that need
/// nothing else. Clones share one record.
#[derive(Clone, Debug)]
pub struct Single {
    record: Arc<watch::Sender<Record>>,
}

impl Single {
    /// Creates the record of a job. Every epoch will be greater than `after`. No earlier manager of the job may have had
    /// a greater one: a process that may be started again passes its start time.
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
        let statement =
            "one manager, no standby, its record in memory: when its process ends, no other host continues the job";
        ConsensusInfo::new("single", statement).with_voters(1)
    }

    async fn campaign(&self, candidate: &Candidate) -> Result<Epoch, ConsensusError> {
        let mut changes = self.record.subscribe();
        loop {
            let elected = self.change(|record| match &record.manager {
                Some(other) => Err(ConsensusError::Superseded { epoch: record.epoch, by: Some(other.to_string()) }),
                None => {
                    let next = record.epoch.0.checked_add(1).map(Epoch);
                    record.epoch = next.ok_or_else(|| ConsensusError::Refused(NO_EPOCH_LEFT.into()))?;
                    record.manager = Some(candidate.clone());
                    Ok(record.epoch)
                }
            });
            match elected {
                Ok((epoch, _)) => return Ok(epoch),
                Err(ConsensusError::Superseded { .. }) => {} // another candidate is the manager: wait
                Err(error) => return Err(error),
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

#[cfg(test)]
mod tests {
    use super::*;
    use taskd_runtime::job::{Name, NodeId};

    fn candidate(host: &'static str) -> Candidate {
        Candidate::new(NodeId(Name::new(host)), "first", "127.0.0.1:1")
    }

    #[tokio::test]
    async fn epochs_begin_after_those_of_earlier_managers() {
        let single = Single::new(Epoch(41));
        assert_eq!(single.read().await.unwrap(), Record::new().with_manager(Epoch(41), None));
        assert!(matches!(single.confirm(Epoch(41)).await, Err(ConsensusError::Superseded { by: None, .. })));
        assert_eq!(single.campaign(&candidate("a")).await.unwrap(), Epoch(42));
        single.resign(Epoch(42)).await.unwrap();
        let record = single.read().await.unwrap();
        assert_eq!((record.version, record.epoch, record.manager), (Version(2), Epoch(42), None));
    }

    #[tokio::test]
    async fn a_superseded_manager_learns_the_name_of_the_next() {
        let single = Single::default();
        let first = single.campaign(&candidate("a")).await.unwrap();
        let (other, next) = (single.clone(), candidate("b"));
        let campaign = tokio::spawn(async move { other.campaign(&next).await });
        single.resign(first).await.unwrap();
        let second = campaign.await.unwrap().unwrap();
        assert!(second > first);
        let error = single.compare_and_set(first, Version(3), Bytes::new()).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "epoch 1 is over, node b (127.0.0.1:1) is the manager: this manager decides nothing more"
        );
    }

    #[tokio::test]
    async fn the_greatest_epoch_is_refused_and_changes_nothing() {
        let single = Single::new(Epoch(u64::MAX));
        let refused = single.campaign(&candidate("a")).await.unwrap_err();
        assert_eq!(refused, ConsensusError::Refused(NO_EPOCH_LEFT.into()));
        assert_eq!(single.read().await.unwrap().version, Version(0));
    }

    #[tokio::test]
    async fn a_failed_write_leaves_the_record_as_it_is() {
        let single = Single::default();
        let epoch = single.campaign(&candidate("a")).await.unwrap();
        let version = single.compare_and_set(epoch, Version(1), "kept".into()).await.unwrap();
        let conflict = single.compare_and_set(epoch, Version(1), "lost".into()).await.unwrap_err();
        assert_eq!(conflict, ConsensusError::Conflict { expected: Version(1), found: version });
        let long = Bytes::from(vec![0; super::super::RECORD_BYTES_MAX + 1]);
        assert!(matches!(single.compare_and_set(epoch, version, long).await, Err(ConsensusError::Refused(_))));
        let record = single.read().await.unwrap();
        assert_eq!((record.version, &*record.value), (version, &b"kept"[..]));
    }
}
