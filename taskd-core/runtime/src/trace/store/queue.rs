//! The queue between the draining threads and the writing thread: waiting batches, and the results of earlier ones.
//!
//! Adding a batch never waits for a disk: the lock is held to move pointers and copy counts, not during I/O.

use super::status::StoreStatus;
use crate::job::Rank;
use crate::trace::RecordBatch;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// All waiting batches.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) batches: Vec<Arc<RecordBatch>>,
    /// Number of records dropped since the last write, per rank.
    pub(super) dropped: BTreeMap<Rank, u64>,
    records: usize,
}

#[derive(Debug, Default)]
struct State {
    waiting: Waiting,
    status: StoreStatus,
    /// Time since which a batch waits.
    since: Option<Instant>,
    /// True if a caller waits for the batches to be written.
    is_wanted: bool,
    /// True while the writer processes the batches that it has taken.
    is_writing: bool,
    is_closing: bool,
    has_ended: bool,
}

/// The queue.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
    records_max: usize,
    write_every: Duration,
}

impl Queue {
    pub(super) fn new(records_max: usize, write_every: Duration) -> Queue {
        Queue { state: Mutex::default(), work: Condvar::new(), done: Condvar::new(), records_max, write_every }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a batch. Returns false if there is no room; its records are then counted as dropped.
    pub(super) fn push(&self, batch: Arc<RecordBatch>) -> bool {
        let mut state = self.state();
        let records = batch.records.len();
        let waits = state.waiting.records;
        if waits > 0 && waits + records > self.records_max || state.has_ended {
            let dropped = state.waiting.dropped.entry(batch.origin.rank).or_default();
            *dropped = dropped.saturating_add(batch.lost).saturating_add(records as u64);
            state.status.dropped += records as u64;
            return false;
        }
        state.waiting.records += records;
        state.waiting.batches.push(batch);
        let is_much = state.waiting.records > self.records_max / 2;
        if state.since.is_none() {
            state.since = Some(Instant::now());
            self.work.notify_one();
        } else if is_much {
            self.work.notify_one();
        }
        true
    }

    /// Called by the writer: returns all waiting batches once they have waited long enough, fill half of the queue or
    /// are requested; `None` at the end.
    pub(super) fn take(&self) -> Option<Waiting> {
        let mut state = self.state();
        loop {
            let left = state.since.map(|since| (since + self.write_every).saturating_duration_since(Instant::now()));
            let is_much = state.waiting.records > self.records_max / 2;
            match left {
                Some(left) if left.is_zero() || is_much || state.is_wanted || state.is_closing => break,
                Some(left) => state = self.work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None if state.is_closing => return None,
                None => state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
        (state.since, state.is_wanted, state.is_writing) = (None, false, true);
        Some(std::mem::take(&mut state.waiting))
    }

    /// Called by the writer: the batches that were taken are written, or lost and counted.
    pub(super) fn settle(&self) {
        self.state().is_writing = false;
        self.done.notify_all();
    }

    /// Called by the writer: it has ended.
    pub(super) fn end(&self) {
        self.state().has_ended = true;
        self.done.notify_all();
    }

    /// Changes the status.
    pub(super) fn update(&self, change: impl FnOnce(&mut StoreStatus)) {
        change(&mut self.state().status);
    }

    pub(super) fn status(&self) -> StoreStatus {
        self.state().status.clone()
    }

    /// Blocks until all added batches are settled. Returns false if that takes longer than `limit`.
    pub(super) fn wait_settled(&self, limit: Duration) -> bool {
        self.state().is_wanted = true;
        self.work.notify_one();
        self.wait_until(limit, |state| state.since.is_none() && !state.is_writing)
    }

    /// Asks the writer to end once everything is written.
    pub(super) fn ask_to_end(&self) {
        self.state().is_closing = true;
        self.work.notify_one();
    }

    /// Blocks until the writer has ended. Returns false if that takes longer than `limit`.
    pub(super) fn wait_ended(&self, limit: Duration) -> bool {
        self.wait_until(limit, |state| state.has_ended)
    }

    fn wait_until(&self, limit: Duration, condition: impl Fn(&State) -> bool) -> bool {
        let waited = self.done.wait_timeout_while(self.state(), limit, |state| !condition(state));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::synthetic::SyntheticJob;

    fn batches(steps: u64) -> impl Iterator<Item = RecordBatch> {
        SyntheticJob::new(1).steps(steps).run()
    }

    #[test]
    fn a_full_queue_drops_the_newest_and_counts() {
        let batches: Vec<_> = batches(3).map(|batch| RecordBatch { lost: 7, ..batch }).collect();
        let records = batches[0].records.len();
        let queue = Queue::new(records + 1, Duration::from_secs(3600));
        let pushed = batches.into_iter().map(|batch| queue.push(Arc::new(batch)));
        assert_eq!(pushed.collect::<Vec<_>>(), [true, false, false]);
        assert_eq!(queue.status().dropped, 2 * records as u64);
        let waiting = queue.take().expect("more than half full: at once");
        assert_eq!(waiting.batches.len(), 1);
        assert_eq!(waiting.dropped[&Rank(0)], 2 * (records as u64 + 7), "also what the dropped ones were missing");
    }

    #[test]
    fn a_batch_longer_than_the_queue_is_taken_alone() {
        let queue = Queue::new(5, Duration::from_secs(3600));
        let pushed = batches(2).map(|batch| queue.push(Arc::new(batch)));
        assert_eq!(pushed.collect::<Vec<_>>(), [true, false]);
    }
}
