//! Stored records as a source: the facts that detectors would have received while the job ran.
//!
//! This module reads no files: the caller passes the batches.

use super::reduce::{Observer, PENDING_AFTER, TimedFact};
use super::{
    COLLECTIVES, Fact, Origin, Probe, ProbeResult, RecordBatch, SourceError, SourceInfo, TraceBatch, TraceSource,
};
use crate::job::{Domain, Name, Role};
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

const NAME: Name = Name::new("stored-records");
/// Interval at which a lingering source checks for collectives that are pending for too long.
const LINGER: Duration = Duration::from_millis(100);

/// Speed at which stored records are replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// The source replays one round of batches after the other, without a pause.
    #[default]
    AtOnce,
    /// The source replays each round of batches at the time at which the round would have been reported while the job
    /// ran.
    RealTime,
}

/// Source that derives facts from recorded batches, such as those that a trace store's reader returns, and delivers
/// the facts in the order of their times.
///
/// It works in rounds, like a source over running processes: a round has at most one batch of each process, and
/// ends before the second batch of any process. Ages of facts are relative to the end of the round. A step is
/// reported when the process's next batch is read, since the next batch may contain some of the step's records.
///
/// It answers the probe [`COLLECTIVES`] from the records read so far. The iterator over the batches is called
/// within `next`, which must not block: read a slow medium in a thread of its own.
pub struct StoredSource<I> {
    info: SourceInfo,
    batches: I,
    pace: Pace,
    lingers: bool,
    observer: Observer,
    /// Time of the newest record read, per process.
    read_until: BTreeMap<Origin, u64>,
    round: Vec<RecordBatch>,
    upcoming: Option<RecordBatch>,
    has_ended: bool,
    /// Time of the newest record of all processes.
    now: u64,
    /// Start of this source, and the time of the first record.
    began: Option<(Instant, u64)>,
}

impl<I: Iterator<Item = RecordBatch> + Send> StoredSource<I> {
    /// Creates a source of the facts in these batches.
    #[must_use]
    pub fn new(batches: I) -> StoredSource<I> {
        StoredSource {
            info: SourceInfo::new(NAME).with_probe(COLLECTIVES),
            batches,
            pace: Pace::default(),
            lingers: false,
            observer: Observer::new(PENDING_AFTER),
            read_until: BTreeMap::new(),
            round: Vec::new(),
            upcoming: None,
            has_ended: false,
            now: 0,
            began: None,
        }
    }

    /// Sets the source's name; default: `stored-records`.
    #[must_use]
    pub fn named(mut self, name: impl Into<Name>) -> StoredSource<I> {
        self.info.name = name.into();
        self
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn stand_in(mut self) -> StoredSource<I> {
        self.info = self.info.with_stand_in();
        self
    }

    /// Sets the speed of the replay; default: [`Pace::AtOnce`].
    #[must_use]
    pub fn pace(mut self, pace: Pace) -> StoredSource<I> {
        self.pace = pace;
        self
    }

    /// Sets the time after which a collective is reported as pending; default: [`PENDING_AFTER`].
    #[must_use]
    pub fn pending_after(mut self, pending_after: Duration) -> StoredSource<I> {
        self.observer = Observer::new(pending_after);
        self
    }

    /// Makes the source continue after the last batch as if the processes were alive without recording: collectives
    /// become pending, probes are answered, and the source never ends.
    #[must_use]
    pub fn lingering(mut self) -> StoredSource<I> {
        self.lingers = true;
        self
    }

    /// Reads batches until the round is complete.
    fn gather(&mut self) {
        self.round.extend(self.upcoming.take());
        while !self.has_ended {
            let Some(batch) = self.batches.next() else {
                self.has_ended = true;
                return;
            };
            if self.round.iter().any(|known| known.origin == batch.origin) {
                self.upcoming = Some(batch);
                return;
            }
            self.round.push(batch);
        }
    }

    /// Returns the time of the newest record in this round and those before.
    fn end_of_round(&self) -> u64 {
        self.round.iter().filter_map(newest).fold(self.now, u64::max)
    }

    /// Returns the instant at which the replay reaches a recorded time.
    fn due(&mut self, unix_nanos: u64) -> Instant {
        let first = self.round.iter().flat_map(|batch| &batch.records).map(|record| record.unix_nanos).min();
        let (began, from) = *self.began.get_or_insert_with(|| (Instant::now(), first.unwrap_or(unix_nanos)));
        began + Duration::from_nanos(unix_nanos.saturating_sub(from))
    }

    /// Returns the facts of the round.
    fn take_facts(&mut self) -> Vec<Fact> {
        self.now = self.end_of_round();
        let mut facts = Vec::new();
        for batch in std::mem::take(&mut self.round) {
            facts.extend(self.observer.take(&batch));
            let until = self.read_until.entry(batch.origin).or_default();
            facts.extend(self.observer.settle(batch.origin, *until));
            *until = newest(&batch).map_or(*until, |newest| newest.max(*until));
        }
        if self.has_ended {
            for (origin, _) in std::mem::take(&mut self.read_until) {
                facts.extend(self.observer.settle(origin, u64::MAX));
            }
        }
        facts.extend(self.pending());
        self.dated(facts)
    }

    /// Converts facts relative to the current replay time, oldest first.
    fn dated(&self, mut facts: Vec<TimedFact>) -> Vec<Fact> {
        facts.sort_by_key(|fact| fact.unix_nanos);
        facts.into_iter().map(|fact| fact.told_at(self.now)).collect()
    }

    fn pending(&mut self) -> Vec<TimedFact> {
        let ranks: Vec<_> = self.observer.ranks().collect();
        ranks.into_iter().flat_map(|rank| self.observer.pending(rank, self.now)).collect()
    }

    /// Returns true if no batch is left.
    const fn is_read(&self) -> bool {
        self.has_ended && self.upcoming.is_none() && self.round.is_empty()
    }

    /// Advances the time without new records.
    async fn linger(&mut self) -> Vec<Fact> {
        sleep(LINGER).await;
        self.now = self.now.saturating_add(u64::try_from(LINGER.as_nanos()).unwrap_or(u64::MAX));
        let pending = self.pending();
        self.dated(pending)
    }
}

fn newest(batch: &RecordBatch) -> Option<u64> {
    batch.records.iter().map(|record| record.unix_nanos).max()
}

#[async_trait]
impl<I: Iterator<Item = RecordBatch> + Send> TraceSource for StoredSource<I> {
    fn info(&self) -> SourceInfo {
        self.info.clone()
    }

    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        loop {
            let facts = match self.is_read() {
                true if !self.lingers => return None,
                true => self.linger().await,
                false => {
                    if self.round.is_empty() {
                        self.gather();
                    }
                    match self.pace {
                        Pace::AtOnce => tokio::task::yield_now().await, // a cancelled call keeps the round in `self`
                        Pace::RealTime => {
                            let end = self.end_of_round();
                            sleep_until(self.due(end)).await;
                        }
                    }
                    self.take_facts()
                }
            };
            if !facts.is_empty() {
                return Some(Ok(TraceBatch::of(facts)));
            }
        }
    }

    async fn collect(&mut self, ask: &Probe, about: &Domain) -> Result<ProbeResult, SourceError> {
        let Domain::Process(Role::Rank(rank)) = about else { return Err(SourceError::Unsupported) };
        if ask.what != COLLECTIVES {
            return Err(SourceError::Unsupported);
        }
        let positions = self.observer.positions(*rank, self.now);
        let nothing = || SourceError::Unavailable(format!("no record of {rank} was read"));
        positions.map(ProbeResult::Groups).ok_or_else(nothing)
    }
}

impl<I> fmt::Debug for StoredSource<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredSource").field("name", &self.info.name).field("pace", &self.pace).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
