//! The state machine: the record, and the rules by which it changes.

use super::store::LogStore;
use super::types::{
    Command, Entry, Leader, LogId, Outcome, SnapshotMeta, StorageError, StorageIoError, StoredMembership, Types,
};
use crate::consensus::{Epoch, Record};
use bytes::Bytes;
use openraft::storage::RaftStateMachine;
use openraft::{AnyError, EntryPayload, OptionalSend, RaftSnapshotBuilder, Snapshot};
use serde::{Deserialize, Serialize};
use std::io::Cursor;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Longest snapshot, in bytes: a record, its manager and the voters.
pub(super) const SNAPSHOT_BYTES_MAX: usize = crate::consensus::RECORD_BYTES_MAX + (64 << 10);

/// A snapshot as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredSnapshot {
    pub(super) meta: SnapshotMeta,
    pub(super) data: Bytes,
}

/// What a snapshot contains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Office {
    pub(super) record: Record,
    /// The leader under which the manager in force was elected: a change of the leader ends the epoch.
    pub(super) elected_by: Option<Leader>,
}

#[derive(Debug, Default)]
struct State {
    applied: Option<LogId>,
    membership: StoredMembership,
    office: Office,
    snapshot: Option<StoredSnapshot>,
}

/// The state machine. Clones share one state.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    state: Arc<Mutex<State>>,
    record: Arc<watch::Sender<Record>>,
    store: LogStore,
}

impl Machine {
    /// Creates the state machine with the snapshot of the store.
    #[expect(clippy::result_large_err, reason = "the engine's own error")]
    pub(super) fn new(store: LogStore, snapshot: Option<StoredSnapshot>) -> Result<Machine, StorageError> {
        let mut state = State::default();
        if let Some(snapshot) = snapshot {
            state.restore(snapshot)?;
        }
        let record = Arc::new(watch::Sender::new(state.office.record.clone()));
        Ok(Machine { state: Arc::new(Mutex::new(state)), record, store })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the record, and the leader under which its manager was elected.
    pub(super) fn office(&self) -> Office {
        self.state().office.clone()
    }

    /// Returns the changes of the record.
    pub(super) fn subscribe(&self) -> watch::Receiver<Record> {
        self.record.subscribe()
    }

    /// Shows a changed record to those that wait for one.
    fn publish(&self) {
        let record = self.state().office.record.clone();
        self.record.send_if_modified(|shown| {
            let newer = *shown != record;
            *shown = record;
            newer
        });
    }
}

impl State {
    #[expect(clippy::result_large_err, reason = "the engine's own error")]
    fn restore(&mut self, snapshot: StoredSnapshot) -> Result<(), StorageError> {
        let damaged = |error| StorageIoError::read_snapshot(Some(snapshot.meta.signature()), AnyError::new(&error));
        self.office = crate::wire::decode(&snapshot.data).map_err(damaged)?;
        self.applied = snapshot.meta.last_log_id;
        self.membership = snapshot.meta.last_membership.clone();
        self.snapshot = Some(snapshot);
        Ok(())
    }

    fn apply(&mut self, entry: Entry) -> Outcome {
        self.applied = Some(entry.log_id);
        match entry.payload {
            EntryPayload::Blank => Outcome::None,
            EntryPayload::Normal(command) => self.office.apply(entry.log_id.leader_id, command),
            EntryPayload::Membership(membership) => {
                self.membership = StoredMembership::new(Some(entry.log_id), membership);
                Outcome::None
            }
        }
    }
}

impl Office {
    /// Applies a command that was proposed by `leader`.
    fn apply(&mut self, leader: Leader, command: Command) -> Outcome {
        match command {
            Command::Elect { candidate, after } => {
                // The configuration bounds `after` far below the greatest number.
                self.record.epoch.0 = self.record.epoch.0.max(after.0).saturating_add(1);
                self.record.manager = Some(candidate);
                self.elected_by = Some(leader);
                self.record.version.0 += 1;
                Outcome::Elected(self.record.epoch)
            }
            Command::Write { epoch, .. } if !self.is_in_force(epoch, leader) => {
                Outcome::Superseded { by: self.manager() }
            }
            Command::Write { expected, .. } if self.record.version != expected => {
                Outcome::Conflict { found: self.record.version }
            }
            Command::Write { value, .. } => {
                self.record.value = value;
                self.record.version.0 += 1;
                Outcome::Written(self.record.version)
            }
            Command::Vacate { epoch } if self.record.epoch == epoch && self.record.manager.is_some() => {
                self.record.manager = None;
                self.elected_by = None;
                self.record.version.0 += 1;
                Outcome::Vacated
            }
            Command::Vacate { .. } => Outcome::None,
        }
    }

    /// True if the epoch is in force under `leader`.
    pub(super) fn is_in_force(&self, epoch: Epoch, leader: Leader) -> bool {
        self.record.manager.is_some() && self.record.epoch == epoch && self.elected_by == Some(leader)
    }

    /// Name of the manager in force.
    pub(super) fn manager(&self) -> Option<String> {
        self.record.manager.as_ref().map(ToString::to_string)
    }
}

impl RaftSnapshotBuilder<Types> for Machine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError> {
        let stored = {
            let state = self.state();
            let failed = |error| StorageIoError::read_state_machine(AnyError::new(&error));
            let data = rmp_serde::to_vec_named(&state.office).map_err(failed)?;
            let snapshot_id = state.applied.map_or_else(|| "empty".into(), |last| last.to_string());
            let meta =
                SnapshotMeta { last_log_id: state.applied, last_membership: state.membership.clone(), snapshot_id };
            StoredSnapshot { meta, data: data.into() }
        };
        self.store.save_snapshot(&stored).await?;
        let snapshot = to_engine(&stored);
        let mut state = self.state();
        // A newer one can have been installed meanwhile.
        if state.snapshot.as_ref().and_then(|s| s.meta.last_log_id) <= stored.meta.last_log_id {
            state.snapshot = Some(stored);
        }
        Ok(snapshot)
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Machine;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), StorageError> {
        let state = self.state();
        Ok((state.applied, state.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Outcome>, StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let outcomes = {
            let mut state = self.state();
            entries.into_iter().map(|entry| state.apply(entry)).collect()
        };
        self.publish();
        Ok(outcomes)
    }

    async fn get_snapshot_builder(&mut self) -> Machine {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, StorageError> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), StorageError> {
        let stored = StoredSnapshot { meta: meta.clone(), data: snapshot.into_inner().into() };
        self.store.save_snapshot(&stored).await?;
        self.state().restore(stored)?;
        self.publish();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, StorageError> {
        Ok(self.state().snapshot.as_ref().map(to_engine))
    }
}

fn to_engine(stored: &StoredSnapshot) -> Snapshot<Types> {
    Snapshot { meta: stored.meta.clone(), snapshot: Box::new(Cursor::new(stored.data.to_vec())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consensus::{Candidate, Version};
    use taskd_runtime::job::NodeId;

    fn elect(office: &mut Office, leader: Leader) -> Outcome {
        let candidate = Candidate::new(NodeId("a".into()), "1", "a:1");
        office.apply(leader, Command::Elect { candidate, after: Epoch(0) })
    }

    #[test]
    fn epoch_is_greater_than_those_of_an_earlier_formation() {
        let mut office = Office::default();
        let candidate = Candidate::new(NodeId("a".into()), "1", "a:1");
        let command = Command::Elect { candidate, after: Epoch(41) };
        assert_eq!(office.apply(Leader::new(1, 7), command.clone()), Outcome::Elected(Epoch(42)));
        assert_eq!(office.apply(Leader::new(2, 7), command), Outcome::Elected(Epoch(43)));
    }

    #[test]
    fn writes_under_another_leader_epoch_or_version_change_nothing() {
        let (mut office, first, second) = (Office::default(), Leader::new(1, 7), Leader::new(2, 7));
        let write = |epoch, expected, text: &'static str| Command::Write {
            epoch: Epoch(epoch),
            expected: Version(expected),
            value: Bytes::from_static(text.as_bytes()),
        };
        let none = Outcome::Superseded { by: None };
        assert_eq!(office.apply(first, write(0, 0, "x")), none, "no manager is elected");
        assert_eq!(elect(&mut office, first), Outcome::Elected(Epoch(1)));
        assert_eq!(office.apply(first, write(1, 1, "x")), Outcome::Written(Version(2)));
        assert_eq!(office.apply(first, write(1, 1, "y")), Outcome::Conflict { found: Version(2) });
        let by = Some("node a (a:1)".to_owned());
        assert_eq!(
            office.apply(second, write(1, 2, "y")),
            Outcome::Superseded { by: by.clone() },
            "the leader changed"
        );
        assert_eq!(elect(&mut office, second), Outcome::Elected(Epoch(2)));
        assert_eq!(office.apply(second, write(1, 3, "y")), Outcome::Superseded { by });
        assert_eq!(office.apply(second, Command::Vacate { epoch: Epoch(1) }), Outcome::None);
        assert_eq!(office.apply(second, Command::Vacate { epoch: Epoch(2) }), Outcome::Vacated);
        assert_eq!(office.apply(second, write(2, 4, "y")), none);
        assert_eq!((office.record.version, &office.record.value[..]), (Version(4), &b"x"[..]));
    }
}
