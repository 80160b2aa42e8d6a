//! Counts the records of each kind with their times, and keeps the probe's figures.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use taskd_core::trace::recorder::{Event, Kind};
use taskd_core::trace::{RecordBatch, TraceSink};

/// Shared between the sink and its readers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen(Arc<Mutex<State>>);

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Spans of each kind.
    pub(crate) spans: BTreeMap<Kind, u64>,
    /// Kinds and start times of the first [`TIMES_MAX`] spans.
    times: Vec<(Kind, u64)>,
    /// The last value of each figure of the probe.
    pub(crate) figures: BTreeMap<String, f64>,
    /// Lost records, as the batches report them.
    pub(crate) lost: u64,
}

/// Spans whose times are kept.
const TIMES_MAX: usize = 1 << 20;

impl Seen {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the sink that receives the records.
    pub(crate) fn sink(&self) -> impl TraceSink + use<> {
        let seen = self.clone();
        move |batch: &Arc<RecordBatch>| seen.state().take(batch)
    }
}

impl State {
    fn take(&mut self, batch: &RecordBatch) {
        self.lost += batch.lost;
        for record in &batch.records {
            match record.event {
                Event::Span { .. } => {
                    *self.spans.entry(record.kind).or_default() += 1;
                    if self.times.len() < TIMES_MAX {
                        self.times.push((record.kind, record.unix_nanos));
                    }
                }
                Event::Counter { value } => {
                    self.figures.insert(batch.names.get(record.name).to_owned(), value);
                }
                _ => (),
            }
        }
    }

    /// Returns the number of spans of each kind that began at or after `from` and before `to`.
    pub(crate) fn between(&self, from: u64, to: u64) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for (kind, at) in &self.times {
            if (from..to).contains(at) {
                *counts.entry(format!("{kind:?}")).or_default() += 1;
            }
        }
        counts
    }

    /// Returns a figure of the probe; 0 until it is reported.
    pub(crate) fn figure(&self, name: &str) -> f64 {
        self.figures.get(name).copied().unwrap_or(0.0)
    }
}
