//! Stored records as a source: what detectors would have been told while the job ran.
//!
//! It reads no file: who has one hands in its batches.

use super::reduce::{Observer, TimedFact};
use super::{Ask, COLLECTIVES, Exhibit, Fact, Origin, RecordBatch, SourceError, SourceInfo, TraceBatch, TraceSource};
use crate::job::{Domain, Name, Role};
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

const NAME: Name = Name::new("stored-records");
/// How often a source that lingers looks for calls that are under way for too long.
const LINGER: Duration = Duration::from_millis(100);

/// How fast stored records are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// One round after the other, without a pause.
    #[default]
    AtOnce,
    /// Each when it would have been told while the job ran.
    RealTime,
}

/// Tells the facts of recorded batches, such as a store's reader gives, in the order of their times.
///
/// It goes by rounds, as a source over running processes does: batches until one is of a process that has one already. Ages
/// are those at the end of the round. A step is told when the process's next batch is read, as some of its records may
/// stand there.
///
/// It answers [`COLLECTIVES`] as of what was read so far. The iterator is called within `next`, which must not block: read a
/// slow medium on a thread of its own.
pub struct StoredSource<I> {
    info: SourceInfo,
    batches: I,
    pace: Pace,
    lingers: bool,
    observer: Observer,
    /// The newest record of each process that was read.
    read_until: BTreeMap<Origin, u64>,
    round: Vec<RecordBatch>,
    upcoming: Option<RecordBatch>,
    has_ended: bool,
    /// The newest record of all.
    now: u64,
    /// When this source began, and the first record's time.
    began: Option<(Instant, u64)>,
}

impl<I: Iterator<Item = RecordBatch> + Send> StoredSource<I> {
    /// Tells what stands in these batches.
    #[must_use]
    pub fn new(batches: I) -> StoredSource<I> {
        StoredSource {
            info: SourceInfo::new(NAME).with_answer(COLLECTIVES),
            batches,
            pace: Pace::default(),
            lingers: false,
            observer: Observer::new(Duration::from_secs(1)),
            read_until: BTreeMap::new(),
            round: Vec::new(),
            upcoming: None,
            has_ended: false,
            now: 0,
            began: None,
        }
    }

    /// Gives it another name than `stored-records`.
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

    /// How fast it tells; at once unless told.
    #[must_use]
    pub fn pace(mut self, pace: Pace) -> StoredSource<I> {
        self.pace = pace;
        self
    }

    /// From when on a communication is pending; a second unless told.
    #[must_use]
    pub fn pending_after(mut self, pending_after: Duration) -> StoredSource<I> {
        self.observer = Observer::new(pending_after);
        self
    }

    /// Goes on after the last batch as if its processes were still there and recorded nothing: communications become
    /// pending, questions are answered, and it never ends.
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

    /// The time of the round's newest record, or of what was read before.
    fn end_of_round(&self) -> u64 {
        self.round.iter().filter_map(newest).fold(self.now, u64::max)
    }

    /// When the model's time reaches a moment.
    fn due(&mut self, unix_nanos: u64) -> Instant {
        let first = self.round.iter().flat_map(|batch| &batch.records).map(|record| record.unix_nanos).min();
        let (began, from) = *self.began.get_or_insert_with(|| (Instant::now(), first.unwrap_or(unix_nanos)));
        began + Duration::from_nanos(unix_nanos.saturating_sub(from))
    }

    /// What the round says.
    fn tell(&mut self) -> Vec<Fact> {
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
        self.told(facts)
    }

    /// The facts as of now, oldest first.
    fn told(&self, mut facts: Vec<TimedFact>) -> Vec<Fact> {
        facts.sort_by_key(|told| told.unix_nanos);
        facts.into_iter().map(|told| told.told_at(self.now)).collect()
    }

    fn pending(&mut self) -> Vec<TimedFact> {
        let ranks: Vec<_> = self.observer.ranks().collect();
        ranks.into_iter().flat_map(|rank| self.observer.pending(rank, self.now)).collect()
    }

    /// Nothing is left to read.
    const fn is_read(&self) -> bool {
        self.has_ended && self.upcoming.is_none() && self.round.is_empty()
    }

    /// The time goes on, and nothing else.
    async fn linger(&mut self) -> Vec<Fact> {
        sleep(LINGER).await;
        self.now = self.now.saturating_add(u64::try_from(LINGER.as_nanos()).unwrap_or(u64::MAX));
        let pending = self.pending();
        self.told(pending)
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
                        Pace::AtOnce => tokio::task::yield_now().await, // a round is kept where a dropped call finds it
                        Pace::RealTime => {
                            let end = self.end_of_round();
                            sleep_until(self.due(end)).await;
                        }
                    }
                    self.tell()
                }
            };
            if !facts.is_empty() {
                return Some(Ok(TraceBatch::of(facts)));
            }
        }
    }

    async fn collect(&mut self, ask: &Ask, about: &Domain) -> Result<Exhibit, SourceError> {
        let Domain::Process(Role::Rank(rank)) = about else { return Err(SourceError::Unsupported) };
        if ask.what != COLLECTIVES {
            return Err(SourceError::Unsupported);
        }
        let positions = self.observer.positions(*rank, self.now);
        let nothing = || SourceError::Unavailable(format!("nothing was read of {rank}"));
        positions.map(Exhibit::Groups).ok_or_else(nothing)
    }
}

impl<I> fmt::Debug for StoredSource<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredSource").field("name", &self.info.name).field("pace", &self.pace).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
