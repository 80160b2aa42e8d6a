//! What the probes of a node say of themselves, read off the records that pass, as facts.
//!
//! It keeps no record and takes none out: [`Recordings`](taskd_core::launch::Recordings) does.

use super::probe::figures;
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use taskd_core::job::{Domain, ErrorReport, Name, Role};
use taskd_core::trace::recorder::{Event, Kind};
use taskd_core::trace::{
    Fact, Origin, RecordBatch, Signal, SourceError, SourceInfo, TraceBatch, TraceSink, TraceSource,
};
use tokio::sync::mpsc;

/// The family of what the probe says is wrong ([`ErrorReport::family`]).
pub const FAMILY: Name = Name::new("cuda.cupti");
/// There is nothing to be had from CUPTI in a process, and why.
pub const UNAVAILABLE: Name = Name::new("unavailable");

/// Most facts that wait for the source.
const FACTS_MAX: usize = 4096;
/// Most processes of which figures are remembered: one more forgets all.
const PROCESSES_MAX: usize = 4096;

/// A sink for the records of a node, and the source of what stands in them about the probes.
///
/// ```no_run
/// # async fn run(launcher: taskd_core::launch::LocalLauncher) {
/// use taskd_hw_cuda::cupti;
///
/// let (sink, source) = cupti::reader();
/// let recordings = launcher.recordings().sink(sink);
/// // Both go into the runtime: `.source(recordings).source(source)`.
/// # drop((recordings, source)); }
/// ```
#[must_use]
pub fn reader() -> (CuptiSink, CuptiSource) {
    let (sender, facts) = mpsc::channel(FACTS_MAX);
    let dropped = Arc::new(AtomicU64::new(0));
    let sink = CuptiSink { sender, dropped: Arc::clone(&dropped), lost: BTreeMap::new() };
    (sink, CuptiSource { facts, dropped, info: SourceInfo::new("cupti") })
}

/// Looks at records as they pass. Made by [`reader`].
#[derive(Debug)]
pub struct CuptiSink {
    sender: mpsc::Sender<Fact>,
    dropped: Arc<AtomicU64>,
    /// Of each process, how many records CUPTI has dropped, or the probe could make nothing of.
    lost: BTreeMap<Origin, [f64; 4]>,
}

impl CuptiSink {
    fn figure(&mut self, origin: Origin, name: &str, value: f64) {
        let Some(place) = figures::NAMES.iter().position(|known| *known == name) else { return };
        let told = METRICS[place].clone();
        self.tell(origin, Signal::Metric { name: told, value });
        let losses = ["cupti.dropped", "cupti.given_up", "cupti.untimed", "cupti.unjoined"];
        let Some(which) = losses.iter().position(|known| *known == name) else { return };
        if self.lost.len() >= PROCESSES_MAX && !self.lost.contains_key(&origin) {
            self.lost.clear();
        }
        let before = &mut self.lost.entry(origin).or_default()[which];
        let count = whole(value - *before);
        *before = before.max(value);
        if count > 0 {
            self.tell(origin, Signal::Lost { count });
        }
    }

    fn tell(&self, origin: Origin, signal: Signal) {
        let fact = Fact::new(Domain::Process(Role::Rank(origin.rank)), signal).of(origin.incarnation);
        if self.sender.try_send(fact).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A difference of two counters; 0 for what is none.
#[allow(clippy::cast_possible_truncation)] // a cast of a figure saturates, and of what is no number it is 0
fn whole(figure: f64) -> u64 {
    figure as u64
}

/// The figures' names as metrics, in their order.
const METRICS: [Name; figures::NAMES.len()] = [
    Name::new("cupti.records_total"),
    Name::new("cupti.brought_total"),
    Name::new("cupti.off_total"),
    Name::new("cupti.unknown_total"),
    Name::new("cupti.untimed_total"),
    Name::new("cupti.unjoined_total"),
    Name::new("cupti.dropped_total"),
    Name::new("cupti.given_up_total"),
    Name::new("cupti.refused_requests_total"),
    Name::new("cupti.stand_in_on"),
];

impl TraceSink for CuptiSink {
    fn batch(&mut self, batch: &Arc<RecordBatch>) {
        for record in batch.records.iter().filter(|record| record.kind == Kind::Marker) {
            let name = batch.names.get(record.name);
            match record.event {
                Event::Counter { value } if name.starts_with(figures::PREFIX) => self.figure(batch.origin, name, value),
                Event::Instant => {
                    let Some(why) = name.strip_prefix(figures::UNAVAILABLE) else { continue };
                    let error = ErrorReport {
                        family: FAMILY,
                        code: UNAVAILABLE,
                        text: why.to_owned(),
                        follow_up: false,
                        retry_free: false,
                        step: None,
                    };
                    self.tell(batch.origin, Signal::Error(Box::new(error)));
                }
                _ => {}
            }
        }
    }
}

/// What the probes of a node say of themselves. Made by [`reader`].
///
/// About each rank that uses CUDA: the probe's figures as metrics (`cupti.records_total`, ..., `cupti.stand_in_on`), when they
/// change; what is missing as [`Signal::Lost`]; and that there is nothing to be had, with the reason, as an error of the family
/// [`FAMILY`]. It ends when its sink is dropped.
#[derive(Debug)]
pub struct CuptiSource {
    facts: mpsc::Receiver<Fact>,
    dropped: Arc<AtomicU64>,
    info: SourceInfo,
}

impl CuptiSource {
    /// Says that the ranks' library stands in for CUPTI (see [`CuptiProfile::is_stand_in`](super::CuptiProfile::is_stand_in)).
    #[must_use]
    pub fn with_stand_in(mut self) -> CuptiSource {
        self.info = self.info.with_stand_in();
        self
    }
}

#[async_trait]
impl TraceSource for CuptiSource {
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
