//! The records of many processes, and what they say as facts.
//!
//! It has no clock and waits for nothing: sources, which have, tell it what they have read and how late it is.

use super::Reducer;
use crate::job::{Domain, Incarnation, Rank, Role};
use crate::trace::{Fact, GroupPosition, Origin, RecordBatch, Signal};
use std::collections::BTreeMap;
use std::time::Duration;

/// A fact, and when it was.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedFact {
    /// In nanoseconds since 1970, on the time line of the process that it is about.
    pub unix_nanos: u64,
    /// What; its age is not known yet.
    pub fact: Fact,
}

impl TimedFact {
    /// The fact as told at a moment.
    #[must_use]
    pub fn told_at(self, unix_nanos: u64) -> Fact {
        self.fact.aged(Duration::from_nanos(unix_nanos.saturating_sub(self.unix_nanos)))
    }
}

/// One [`Reducer`] for each rank, and its facts: [`Signal::Step`], [`Signal::CollectivePending`] and [`Signal::Lost`].
///
/// Of each rank the latest incarnation counts. What an earlier one says afterwards is told as lost.
#[derive(Debug)]
pub struct Observer {
    pending_after: Duration,
    ranks: BTreeMap<Rank, Followed>,
}

#[derive(Debug)]
struct Followed {
    incarnation: Incarnation,
    reducer: Reducer,
}

impl Observer {
    /// One that tells calls that are under way for longer than this.
    #[must_use]
    pub const fn new(pending_after: Duration) -> Observer {
        Observer { pending_after, ranks: BTreeMap::new() }
    }

    /// Takes what comes next of a process, and tells of losses. Steps come with [`settle`](Self::settle).
    pub fn take(&mut self, batch: &RecordBatch) -> Option<TimedFact> {
        let Origin { rank, incarnation, .. } = batch.origin;
        let followed = self
            .ranks
            .entry(rank)
            .and_modify(|known| {
                if known.incarnation < incarnation {
                    *known = Followed::new(incarnation);
                }
            })
            .or_insert_with(|| Followed::new(incarnation));
        let is_over = followed.incarnation > incarnation;
        let count = batch.lost + if is_over { batch.records.len() as u64 } else { 0 };
        if !is_over {
            followed.reducer.take(batch);
        }
        let unix_nanos = batch.records.iter().map(|record| record.unix_nanos).max().unwrap_or(0);
        (count > 0).then(|| timed(unix_nanos, rank, incarnation, Signal::Lost { count }))
    }

    /// Says that everything that a process recorded up to a moment was given, and tells its steps. See
    /// [`Reducer::settle`].
    pub fn settle(&mut self, of: Origin, until_unix_nanos: u64) -> Vec<TimedFact> {
        let Origin { rank, incarnation, .. } = of;
        let followed = self.ranks.get_mut(&rank).filter(|followed| followed.incarnation == incarnation);
        let steps = followed.map(|followed| followed.reducer.settle(until_unix_nanos)).unwrap_or_default();
        let fact =
            |step: super::EndedStep| timed(step.unix_nanos, rank, incarnation, Signal::Step(Box::new(step.times)));
        steps.into_iter().map(fact).collect()
    }

    /// Calls of a rank that are under way for too long, each once. They are told as of the moment when they became that.
    pub fn pending(&mut self, rank: Rank, now_unix_nanos: u64) -> Vec<TimedFact> {
        let Some(Followed { incarnation, reducer }) = self.ranks.get_mut(&rank) else { return Vec::new() };
        let after = u64::try_from(self.pending_after.as_nanos()).unwrap_or(u64::MAX);
        let pending = reducer.pending(now_unix_nanos, self.pending_after);
        let fact = |call: super::PendingCall| {
            let nanos = now_unix_nanos.saturating_sub(call.begun);
            let signal = Signal::CollectivePending { group: call.group, sequence: call.sequence, nanos };
            timed(call.begun.saturating_add(after), rank, *incarnation, signal)
        };
        pending.into_iter().map(fact).collect()
    }

    /// Where a rank stands in its groups, as far as it is settled; `None` for one of which nothing has come.
    #[must_use]
    pub fn positions(&self, rank: Rank, now_unix_nanos: u64) -> Option<Vec<GroupPosition>> {
        self.ranks.get(&rank).map(|followed| followed.reducer.positions(now_unix_nanos))
    }

    /// The ranks of which something has come.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> {
        self.ranks.keys().copied()
    }
}

impl Followed {
    fn new(incarnation: Incarnation) -> Followed {
        Followed { incarnation, reducer: Reducer::default() }
    }
}

fn timed(unix_nanos: u64, rank: Rank, incarnation: Incarnation, signal: Signal) -> TimedFact {
    let fact = Fact::new(Domain::Process(Role::Rank(rank)), signal).of(incarnation);
    TimedFact { unix_nanos, fact }
}
