//! The log of a voter: in memory for reading, and on a disk through one thread that writes.
//!
//! A write of the engine waits for the disk on that thread, so that a slow `fsync` delays the voter and not the
//! process. The log has few entries, because a snapshot is one record: they all fit into memory.

use super::disk::{self, Contents, Disk, DiskError};
use super::machine::StoredSnapshot;
use super::types::{Entry, LogId, StorageError, StorageIoError, Types, Vote};
use super::writer::{self, Done, Job, Takes};
use crate::checks::{Check, Checks};
use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::{AnyError, EntryPayload, OptionalSend, RaftLogReader};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{oneshot, watch};

/// A snapshot is taken after this many entries.
pub(super) const ENTRIES_PER_SNAPSHOT: u64 = 64;
/// Entries that stay in the log after a snapshot, for voters that are a little behind.
pub(super) const ENTRIES_KEPT: u64 = 16;
/// Most entries in one message.
pub(super) const ENTRIES_PER_MESSAGE: u64 = 64;
/// One message of entries ends after this many bytes of values, so it has at most this and one value more.
const MESSAGE_BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
struct Memory {
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
    log: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Shared {
    memory: Mutex<Memory>,
    jobs: Mutex<Option<UnboundedSender<Job>>>,
    /// True when the file is closed.
    closed: watch::Receiver<bool>,
    /// True if a write is answered when it is on the disk.
    stores_first: bool,
}

/// The store of a voter. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct LogStore {
    shared: Arc<Shared>,
}

/// What was found in a store.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) store: LogStore,
    pub(super) voter: u64,
    pub(super) rejoins: bool,
    pub(super) snapshot: Option<StoredSnapshot>,
    pub(super) discarded: Option<String>,
}

/// How a store is opened in a simulation.
#[derive(Clone, Default)]
pub(super) struct Simulated {
    /// Identifier of a new store's voter, in place of a random one.
    pub(super) voter: Option<u64>,
    /// Time that each write takes.
    pub(super) takes: Option<Takes>,
    pub(super) checks: Checks,
}

/// Opens the store in `dir`, or creates one. It blocks.
pub(super) fn open(dir: &Path, job: &str, boot: &str, simulated: &Simulated) -> Result<Opened, DiskError> {
    let (Disk { database, identity, discarded }, contents) = disk::open(dir, job, boot, simulated.voter)?;
    let Contents { mut vote, committed, purged, log, snapshot } = contents;
    if let Some(vote) = &mut vote {
        // The engine would resume its former leadership at once. The manager was the former process: this one stands
        // again.
        vote.committed &= vote.leader_id.node_id != identity.voter;
    }
    let (jobs, closed) = writer::start(dir, database, simulated.takes.clone())?;
    let memory = Mutex::new(Memory { vote, committed, purged, log });
    let stores_first = simulated.checks.has(Check::StoredFirst);
    let shared = Arc::new(Shared { memory, jobs: Mutex::new(Some(jobs)), closed, stores_first });
    Ok(Opened { store: LogStore { shared }, voter: identity.voter, rejoins: identity.rejoins, snapshot, discarded })
}

impl LogStore {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.shared.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(&self, job: Job) -> Result<(), AnyError> {
        let jobs = self.shared.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        if sent { Ok(()) } else { Err(AnyError::error("the store is closed")) }
    }

    /// Submits a write and waits until it is on the disk.
    async fn written(&self, job: impl FnOnce(Done) -> Job) -> Result<(), AnyError> {
        let (done, result) = oneshot::channel();
        self.submit(job(done))?;
        if !self.shared.stores_first {
            return Ok(());
        }
        match result.await {
            Ok(result) => result.map_err(|error| AnyError::new(&error)),
            Err(_) => Err(AnyError::error("the thread of the store has ended")),
        }
    }

    /// Writes a snapshot in place of the last one.
    pub(super) async fn save_snapshot(&self, snapshot: &StoredSnapshot) -> Result<(), StorageError> {
        let signature = || Some(snapshot.meta.signature());
        let failed = |error| StorageError::from(StorageIoError::write_snapshot(signature(), error));
        let bytes = disk::encode(snapshot).map_err(|error| failed(AnyError::new(&error)))?;
        self.written(|done| Job::Snapshot(bytes, done)).await.map_err(failed)
    }

    /// Closes the file, and waits until it is closed. Later writes fail.
    pub(super) async fn close(&self) {
        self.shared.jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The sender is lost only with its thread, which closes the file too.
        let _ = self.shared.closed.clone().wait_for(|closed| *closed).await;
    }

    /// True if the log has an entry, or had one: this voter belongs to a job that was formed.
    pub(super) fn has_log(&self) -> bool {
        let memory = self.memory();
        memory.purged.is_some() || !memory.log.is_empty()
    }
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, StorageError> {
        Ok(self.memory().log.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, StorageError> {
        let (mut bytes, mut entries) = (0, Vec::new());
        for entry in self.memory().log.range(start..end).map(|(_, entry)| entry) {
            if bytes >= MESSAGE_BYTES {
                break;
            }
            bytes += value_bytes(entry);
            entries.push(entry.clone());
        }
        Ok(entries)
    }
}

fn value_bytes(entry: &Entry) -> usize {
    match &entry.payload {
        EntryPayload::Normal(super::types::Command::Write { value, .. }) => value.len(),
        _ => 0,
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError> {
        let memory = self.memory();
        let last = memory.log.last_key_value().map(|(_, entry)| entry.log_id);
        Ok(LogState { last_purged_log_id: memory.purged, last_log_id: last.or(memory.purged) })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        let bytes = disk::encode(vote).map_err(|error| StorageIoError::write_vote(AnyError::new(&error)))?;
        self.written(|done| Job::Vote(bytes, done)).await.map_err(StorageIoError::write_vote)?;
        self.memory().vote = Some(*vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        Ok(self.memory().vote)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), StorageError> {
        let bytes = disk::encode(&committed).map_err(|error| StorageIoError::write(AnyError::new(&error)))?;
        self.submit(Job::Committed(bytes)).map_err(StorageIoError::write)?;
        self.memory().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, StorageError> {
        Ok(self.memory().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        let encoded = entries.iter().map(|entry| Ok((entry.log_id.index, disk::encode(entry)?)));
        let encoded = encoded.collect::<Result<Vec<_>, redb::Error>>();
        let encoded = encoded.map_err(|error| StorageIoError::write_logs(AnyError::new(&error)))?;
        self.memory().log.extend(entries.into_iter().map(|entry| (entry.log_id.index, entry)));
        let callback = if self.shared.stores_first {
            Some(callback)
        } else {
            callback.log_io_completed(Ok(()));
            None
        };
        self.submit(Job::Append(encoded, callback)).map_err(StorageIoError::write_logs)?;
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError> {
        drop(self.memory().log.split_off(&log_id.index));
        self.written(|done| Job::Truncate(log_id.index, done)).await.map_err(StorageIoError::write_logs)?;
        Ok(())
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), StorageError> {
        {
            let mut memory = self.memory();
            memory.purged = Some(log_id);
            memory.log = memory.log.split_off(&(log_id.index + 1));
        }
        let bytes = disk::encode(&Some(log_id)).map_err(|error| StorageIoError::write_logs(AnyError::new(&error)))?;
        let purge = self.written(|done| Job::Purge(bytes, log_id.index, done));
        purge.await.map_err(StorageIoError::write_logs)?;
        Ok(())
    }
}
