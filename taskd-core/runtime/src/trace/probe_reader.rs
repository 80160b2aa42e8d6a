//! Facts about the probes of a vendor's library, which write their own counters among the records of a process.
//!
//! The sink takes no records out of the recorder: [`RecorderSource`](crate::launch::RecorderSource) does. Hidden from the
//! documentation: the hardware crates give it names.

use super::recorder::{Event, Kind};
use super::{Fact, Origin, RecordBatch, Signal, SourceError, SourceInfo, TraceBatch, TraceSink, TraceSource};
use crate::job::{Domain, ErrorReport, Name, Role};
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;

/// Maximum number of facts that a [`ProbeSource`] holds until its `next` is called. Further facts are dropped and
/// counted.
pub const FACTS_MAX: usize = 4096;
/// Maximum number of processes whose counters are remembered.
const PROCESSES_MAX: usize = 4096;

/// Describes the trace records that a vendor's probe writes about itself: the names in them, and the facts that result
/// from them.
#[derive(Clone, Debug)]
pub struct ProbeFormat {
    /// Name of the trace source that delivers the facts about the probe.
    pub source: Name,
    /// Returns the name of the metric for a counter of the probe; `None` if the probe has no counter with this name.
    pub metric: fn(&str) -> Option<Name>,
    /// Names of those counters of the probe that count its missing records.
    pub losses: &'static [&'static str],
    /// Prefix in the name of the instant with which the probe reports that the vendor's library is unavailable; the
    /// reason follows the prefix.
    pub unavailable: &'static str,
    /// Family and code of the error that is reported if the vendor's library is unavailable.
    pub error: (Name, Name),
}

/// Returns a sink for the trace records of a node, and a source that delivers the facts about the vendor's probes
/// from these records.
#[must_use]
pub fn reader(format: ProbeFormat) -> (ProbeSink, ProbeSource) {
    let (sender, facts) = mpsc::channel(FACTS_MAX);
    let dropped = Arc::new(AtomicU64::new(0));
    let info = SourceInfo::new(format.source.clone());
    let sink = ProbeSink { format, sender, dropped: Arc::clone(&dropped), lost: BTreeMap::new() };
    (sink, ProbeSource { facts, dropped, info })
}

/// Sink that extracts facts about the probes from passing records.
#[derive(Debug)]
pub struct ProbeSink {
    format: ProbeFormat,
    sender: mpsc::Sender<Fact>,
    dropped: Arc<AtomicU64>,
    /// Per process, the last values of the counters of missing records.
    lost: BTreeMap<Origin, BTreeMap<&'static str, f64>>,
}

impl ProbeSink {
    fn counter(&mut self, origin: Origin, name: &str, value: f64) {
        let Some(metric) = (self.format.metric)(name) else { return };
        self.report(origin, Signal::Metric { name: metric, value });
        let Some(loss) = self.format.losses.iter().copied().find(|known| *known == name) else { return };
        if self.lost.len() >= PROCESSES_MAX && !self.lost.contains_key(&origin) {
            self.lost.pop_first();
        }
        let before = self.lost.entry(origin).or_default().entry(loss).or_default();
        let count = whole(value - *before);
        *before = before.max(value);
        if count > 0 {
            self.report(origin, Signal::Lost { count });
        }
    }

    fn report(&self, origin: Origin, signal: Signal) {
        let fact = Fact::new(Domain::Process(Role::Rank(origin.rank)), signal).with_incarnation(origin.incarnation);
        if self.sender.try_send(fact).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Converts the difference of two counters; 0 for a negative or invalid one.
#[allow(clippy::cast_possible_truncation)] // the cast saturates, and NaN becomes 0
fn whole(figure: f64) -> u64 {
    figure as u64
}

impl TraceSink for ProbeSink {
    fn batch(&mut self, batch: &Arc<RecordBatch>) {
        for record in batch.records.iter().filter(|record| record.kind == Kind::Marker) {
            let name = batch.names.get(record.name);
            match record.event {
                Event::Counter { value } => self.counter(batch.origin, name, value),
                Event::Instant => {
                    let Some(why) = name.strip_prefix(self.format.unavailable) else { continue };
                    let (family, code) = self.format.error.clone();
                    let error = ErrorReport::new(family, code, why.to_owned());
                    self.report(batch.origin, Signal::Error(Box::new(error)));
                }
                _ => {}
            }
        }
    }
}

/// Source of the facts about a node's probes. It ends when its sink is dropped.
#[derive(Debug)]
pub struct ProbeSource {
    facts: mpsc::Receiver<Fact>,
    dropped: Arc<AtomicU64>,
    info: SourceInfo,
}

impl ProbeSource {
    /// Declares that the ranks use a stand-in for the vendor's library.
    #[must_use]
    pub fn with_stand_in(mut self) -> ProbeSource {
        self.info = self.info.with_stand_in();
        self
    }
}

#[async_trait]
impl TraceSource for ProbeSource {
    fn info(&self) -> SourceInfo {
        self.info.clone()
    }

    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        let first = self.facts.recv().await?; // cancel-safe, and nothing is awaited after it
        let mut facts = vec![first];
        while let Ok(fact) = self.facts.try_recv() {
            facts.push(fact);
        }
        let count = self.dropped.swap(0, Ordering::Relaxed);
        if count > 0 {
            facts.push(Fact::new(Domain::Job, Signal::Lost { count }));
        }
        Some(Ok(TraceBatch::of(facts)))
    }
}
