//! Queue between the shell and the journal's threads: encoded records on their way to disk, and their results.
//!
//! Adding records never waits for a disk: the lock is held to copy bytes and to swap queues, never during I/O.

use super::status::{Health, JournalCounts, LogHealth};
use super::{Log, Written};
use crate::job::Seq;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Size up to which waiting records are combined, in bytes, so that a busy log needs one system call for many records.
const CHUNK_BYTES: usize = 1 << 20;

/// Records of one log that are written together.
#[derive(Debug)]
pub(super) struct Chunk<B> {
    /// True if the records begin a new file.
    pub(super) fresh: bool,
    pub(super) first: Seq,
    pub(super) last: Seq,
    pub(super) records: u64,
    pub(super) bytes: B,
}

/// All waiting records, by log.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) chunks: [Vec<Chunk<Vec<u8>>>; 3],
    /// The last input that was appended. Inputs up to this one that are not in the chunks were lost before the queue.
    pub(super) upto: Seq,
}

/// Stage at which a record can be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The record does not fit into the queue.
    Queue,
    /// The record cannot be written to disk.
    Disk,
}

/// Threads of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worker {
    Writer,
    Syncer,
}

#[derive(Debug, Default)]
struct State {
    waiting: Batch,
    queued_bytes: [usize; 3],
    counts: JournalCounts,
    /// Reason why a log is degraded, for each log and each [`Place`]; `None` if it is not.
    trouble: [[Option<String>; 2]; 3],
    /// True after a loss has ended: a restart needs a new snapshot to continue from.
    owes_snapshot: bool,
    /// True if a caller's wait for the writer has timed out, and the writer has not finished a batch since.
    stuck: bool,
    /// True while the writer works on a batch.
    writing: bool,
    closing: bool,
    ended: [bool; 2],
}

/// Queue of records, with counters and health.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
    bytes_max: usize,
    settled: watch::Sender<Seq>,
    health: watch::Sender<Health>,
}

impl Queue {
    pub(super) fn new(bytes_max: usize) -> Queue {
        Queue {
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            bytes_max,
            settled: watch::Sender::new(Seq(0)),
            health: watch::Sender::new(Health::default()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds records. Returns false, and adds nothing, if there is no room.
    pub(super) fn push(&self, log: Log, chunk: &Chunk<&[u8]>) -> bool {
        let mut state = self.state();
        let size = chunk.bytes.len();
        let queued = &mut state.queued_bytes[log as usize];
        if *queued > 0 && *queued + size > self.bytes_max {
            return false;
        }
        *queued += size;
        state.waiting.upto = state.waiting.upto.max(chunk.last);
        let chunks = &mut state.waiting.chunks[log as usize];
        match chunks.last_mut().filter(|open| !chunk.fresh && open.bytes.len() + size <= CHUNK_BYTES) {
            Some(open) => {
                open.last = chunk.last;
                open.records += chunk.records;
                open.bytes.extend_from_slice(chunk.bytes);
            }
            None => {
                let &Chunk { fresh, first, last, records, bytes } = chunk;
                chunks.push(Chunk { fresh, first, last, records, bytes: bytes.to_vec() });
            }
        }
        self.work.notify_one();
        true
    }

    /// Marks an input's record as lost before the queue, so that nothing waits for it.
    pub(super) fn skip(&self, seq: Seq) {
        let mut state = self.state();
        state.waiting.upto = state.waiting.upto.max(seq);
        self.work.notify_one();
    }

    /// Waits for records and takes all of them; called by the writer. Returns `None` at the end.
    pub(super) fn take(&self) -> Option<Batch> {
        let mut state = self.state();
        while state.waiting.upto <= *self.settled.borrow() && state.waiting.chunks.iter().all(Vec::is_empty) {
            if state.closing {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.queued_bytes = [0; 3];
        state.writing = true;
        let upto = state.waiting.upto;
        Some(std::mem::replace(&mut state.waiting, Batch { upto, ..Batch::default() }))
    }

    /// Marks everything up to `seq` as written, or as lost and counted; called by the writer.
    pub(super) fn settle(&self, seq: Seq) {
        let mut state = self.state();
        (state.stuck, state.writing) = (false, false);
        self.settled.send_if_modified(|settled| std::mem::replace(settled, seq.max(*settled)) < seq);
        self.done.notify_all();
    }

    /// Updates the counters.
    pub(super) fn count(&self, change: impl FnOnce(&mut JournalCounts)) {
        change(&mut self.state().counts);
    }

    /// Sets or clears a log's problem at a stage. Subscribers of the health are notified of each change once.
    pub(super) fn report(&self, log: Log, place: Place, reason: Option<String>) {
        let mut state = self.state();
        let trouble = &mut state.trouble[log as usize];
        if trouble[place as usize].is_some() == reason.is_some() {
            return;
        }
        trouble[place as usize] = reason;
        let health = match trouble.iter().flatten().next() {
            Some(reason) => LogHealth::Degraded { reason: reason.clone() },
            None => LogHealth::Fine,
        };
        state.owes_snapshot |= health == LogHealth::Fine && log != Log::Snapshots;
        drop(state);
        self.health.send_modify(|all| all.logs[log as usize] = health);
    }

    /// Returns true if a snapshot has become necessary since the last call.
    pub(super) fn take_owed_snapshot(&self) -> bool {
        std::mem::take(&mut self.state().owes_snapshot)
    }

    pub(super) fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    pub(super) fn counts(&self) -> JournalCounts {
        self.state().counts
    }

    /// Waits until everything up to `seq` is settled, for at most `limit`.
    pub(super) async fn written(&self, seq: Seq, limit: Duration) -> Written {
        let mut settled = self.settled.subscribe();
        let limit = if self.state().stuck { Duration::ZERO } else { limit };
        let in_time = tokio::time::timeout(limit, settled.wait_for(|settled| *settled >= seq)).await.is_ok();
        if !in_time {
            let mut state = self.state();
            state.stuck = true;
            state.counts.late += 1;
            return Written::Late;
        }
        if self.health.borrow().trouble().is_some() { Written::Degraded } else { Written::Yes }
    }

    /// Blocks until everything appended is settled. Returns false if `limit` elapses first.
    pub(super) fn wait_settled(&self, limit: Duration) -> bool {
        self.wait_until(limit, |state| {
            let taken = *self.settled.borrow() >= state.waiting.upto && state.waiting.chunks.iter().all(Vec::is_empty);
            taken && !state.writing
        })
    }

    /// Asks the threads to end after writing and syncing everything, and waits for them. Returns false after `limit`.
    pub(super) fn close(&self, limit: Duration) -> bool {
        self.ask_to_end();
        self.wait_until(limit, |state| state.ended == [true; 2])
    }

    pub(super) fn ask_to_end(&self) {
        self.state().closing = true;
        self.work.notify_all();
    }

    pub(super) fn ended(&self, worker: Worker) {
        self.state().ended[worker as usize] = true;
        self.done.notify_all();
    }

    fn wait_until(&self, limit: Duration, condition: impl Fn(&State) -> bool) -> bool {
        let waited = self.done.wait_timeout_while(self.state(), limit, |state| !condition(state));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}
