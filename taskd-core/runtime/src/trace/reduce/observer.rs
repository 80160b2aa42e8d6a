//! Conversion of the records of many processes to facts.
//!
//! The observer has no clock and does not wait: sources pass it the records that they have read, and the time.

use super::Reducer;
use crate::job::{Domain, Incarnation, Name, Rank, Role};
use crate::trace::recorder::{Event, Kind};
use crate::trace::{
    Fact, GRAD_NORM, GroupPosition, LOSS, METRIC_STEP, Origin, RecordBatch, SKIPPED_STEPS, Signal, is_replica_checksum,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Names of the figures of a training program (`taskd.counter(name, value)` in Python) that are reported to detectors as
/// [`Signal::Metric`], besides the [checksums of replicas](crate::trace::ReplicaChecksum). Other figures stay in the
/// records.
pub const TRAINING_METRICS: [Name; 4] = [LOSS, GRAD_NORM, METRIC_STEP, SKIPPED_STEPS];

/// Maximum number of figures of a process between two calls of [`Observer::settle`]. Further ones are reported as
/// [lost](Signal::Lost).
pub const METRICS_MAX: usize = 4096;

/// Time after which sources report a collective that is still in progress, by default: so short that a hang is blamed
/// within two seconds, with the stacks of its suspects.
pub const PENDING_AFTER: Duration = Duration::from_millis(750);

/// A fact derived from trace records, with its time.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedFact {
    /// Time of the fact in nanoseconds since 1970, by the calendar of the trace records from which the fact is derived.
    pub unix_nanos: u64,
    /// The fact, whose age is not set yet; [`TimedFact::told_at`] sets the age.
    pub fact: Fact,
}

impl TimedFact {
    /// Returns the fact with the age that it has at the time `unix_nanos`, in nanoseconds since 1970.
    #[must_use]
    pub fn told_at(self, unix_nanos: u64) -> Fact {
        self.fact.with_age(Duration::from_nanos(unix_nanos.saturating_sub(self.unix_nanos)))
    }
}

/// Converts the trace records of all ranks, with one [`Reducer`] per rank, to the facts [`Signal::DeviceStep`],
/// [`Signal::StepTransfers`], [`Signal::Step`], [`Signal::CollectivePending`] and [`Signal::Lost`]. The figures of a training program that are named in
/// [`TRAINING_METRICS`] become facts [`Signal::Metric`].
///
/// Only the latest incarnation of a rank counts. Later records of an earlier incarnation are reported as lost.
#[derive(Debug)]
pub struct Observer {
    pending_after: Duration,
    ranks: BTreeMap<Rank, Followed>,
}

#[derive(Debug)]
struct Followed {
    incarnation: Incarnation,
    reducer: Reducer,
    /// Figures since the last call of `settle`, each with its time.
    metrics: Vec<(u64, Signal)>,
}

impl Observer {
    /// Creates an observer that reports the collectives that are pending for longer than `pending_after`.
    #[must_use]
    pub const fn new(pending_after: Duration) -> Observer {
        Observer { pending_after, ranks: BTreeMap::new() }
    }

    /// Adds the next trace records of a process. Returns a fact with the number of its lost records, if it lost any.
    /// [`settle`](Self::settle) returns the completed steps.
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
        let mut count = batch.lost + if is_over { batch.records.len() as u64 } else { 0 };
        if !is_over {
            followed.reducer.take(batch);
            count += followed.take_metrics(batch);
        }
        let unix_nanos = batch.records.iter().map(|record| record.unix_nanos).max().unwrap_or(0);
        (count > 0).then(|| timed(unix_nanos, rank, incarnation, Signal::Lost { count }))
    }

    /// Declares that all records of the process `of` up to a time, in nanoseconds since 1970, were passed in, and
    /// returns the steps that the process has completed (see [`Reducer::settle`]) and its figures.
    pub fn settle(&mut self, of: Origin, until_unix_nanos: u64) -> Vec<TimedFact> {
        let Origin { rank, incarnation, .. } = of;
        let followed = self.ranks.get_mut(&rank).filter(|followed| followed.incarnation == incarnation);
        let Some(followed) = followed else { return Vec::new() };
        let metrics = std::mem::take(&mut followed.metrics).into_iter();
        let steps = followed.reducer.settle(until_unix_nanos).into_iter();
        let steps = steps.flat_map(|step| {
            let device = step.device.map(|times| Signal::DeviceStep(Box::new(times)));
            let transfers = step.transfers.map(|transfers| Signal::StepTransfers(Box::new(transfers)));
            let signals = device.into_iter().chain(transfers).chain([Signal::Step(Box::new(step.times))]);
            signals.map(move |signal| (step.unix_nanos, signal))
        });
        metrics.chain(steps).map(|(at, signal)| timed(at, rank, incarnation, signal)).collect()
    }

    /// Returns the rank's collectives that have been pending for longer than the observer's bound; each collective is
    /// returned once. The time of each fact is the moment at which the collective exceeded the bound.
    pub fn pending(&mut self, rank: Rank, now_unix_nanos: u64) -> Vec<TimedFact> {
        let Some(Followed { incarnation, reducer, .. }) = self.ranks.get_mut(&rank) else { return Vec::new() };
        let after = u64::try_from(self.pending_after.as_nanos()).unwrap_or(u64::MAX);
        let pending = reducer.pending(now_unix_nanos, self.pending_after);
        let fact = |call: super::PendingCall| {
            let nanos = now_unix_nanos.saturating_sub(call.begun);
            let signal = Signal::CollectivePending { group: call.group, sequence: call.sequence, nanos };
            timed(call.begun.saturating_add(after), rank, *incarnation, signal)
        };
        pending.into_iter().map(fact).collect()
    }

    /// Returns the rank's latest collective calls in each of its process groups, according to the settled records (see
    /// [`settle`](Self::settle)); `None` for a rank without records.
    #[must_use]
    pub fn positions(&self, rank: Rank, now_unix_nanos: u64) -> Option<Vec<GroupPosition>> {
        self.ranks.get(&rank).map(|followed| followed.reducer.positions(now_unix_nanos))
    }

    /// Returns the ranks that have records.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> {
        self.ranks.keys().copied()
    }
}

impl Followed {
    fn new(incarnation: Incarnation) -> Followed {
        Followed { incarnation, reducer: Reducer::default(), metrics: Vec::new() }
    }

    /// Takes the figures for detectors; returns the number of those for which there is no room.
    fn take_metrics(&mut self, batch: &RecordBatch) -> u64 {
        let mut lost = 0;
        for record in batch.records.iter().filter(|record| matches!(record.kind, Kind::User(_))) {
            let Event::Counter { value } = record.event else { continue };
            let text = batch.names.get(record.name);
            let Some(name) = metric(text) else { continue };
            if self.metrics.len() < METRICS_MAX {
                self.metrics.push((record.unix_nanos, Signal::Metric { name, value }));
            } else {
                lost += 1;
            }
        }
        lost
    }
}

/// Returns the name of a figure for detectors; `None` for any other figure.
fn metric(text: &str) -> Option<Name> {
    let checksum = || is_replica_checksum(text).then(|| text.to_owned().into());
    TRAINING_METRICS.into_iter().find(|name| *name == *text).or_else(checksum)
}

fn timed(unix_nanos: u64, rank: Rank, incarnation: Incarnation, signal: Signal) -> TimedFact {
    let fact = Fact::new(Domain::Process(Role::Rank(rank)), signal).with_incarnation(incarnation);
    TimedFact { unix_nanos, fact }
}
