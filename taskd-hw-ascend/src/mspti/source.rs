//! What the probes count and miss, as facts.
//!
//! Records of ranks are taken out by whoever has their memory, once: so this source takes none out, but is handed what was, as any
//! sink. It interprets no record but the probes' own figures.

use async_trait::async_trait;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use taskd_core::job::{Domain, Name, Role};
use taskd_core::trace::recorder::{Event, Kind};
use taskd_core::trace::{
    Fact, Origin, RecordBatch, Signal, SourceError, SourceInfo, TraceBatch, TraceSink, TraceSource,
};
use tokio::sync::Notify;

const NAME: Name = Name::new("mspti");
/// So many facts wait at most to be told; beyond them the oldest goes, and is counted.
pub const FACTS_MAX: usize = 4096;
/// Ranks of which figures are known at one time.
const RANKS_MAX: usize = 1 << 16;

/// How the probe's figures begin, and how it says that it has given up.
const PREFIX: &str = "mspti.";
const UNAVAILABLE: &str = "mspti is unavailable: ";
/// Figures that count what is missing; each of these is a record at least.
const MISSING: [&str; 3] = ["mspti.unjoined", "mspti.cut_buffers", "mspti.refused_requests"];

/// Both ends: the one that is handed records, to be given to `Recordings::sink`, and the one that tells.
///
/// The source tells every figure of a probe as a [`Signal::Metric`] when it changes; that records are missing as
/// [`Signal::Lost`]; and that there is no mspti for a rank as an error of its own, once for each. `stand_in` is what the profile
/// says of the library ([`MsptiProfile::is_stand_in`](super::MsptiProfile::is_stand_in)); what the probes themselves find is
/// told besides, as `mspti.stand_in`.
#[must_use]
pub fn watch(stand_in: bool) -> (MsptiSink, MsptiSource) {
    let shared = Arc::<Shared>::default();
    let info = if stand_in { SourceInfo::new(NAME).with_stand_in() } else { SourceInfo::new(NAME) };
    let info = info.with_queue(64, taskd_core::trace::WhenFull::Wait);
    (MsptiSink { shared: Arc::clone(&shared), known: BTreeMap::new() }, MsptiSource { info, shared })
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    told: VecDeque<Result<Fact, String>>,
    /// Facts that had to give way.
    lost: u64,
    is_over: bool,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, fact: Result<Fact, String>) {
        let mut waiting = self.waiting();
        if waiting.told.len() >= FACTS_MAX {
            waiting.told.pop_front();
            waiting.lost += 1;
        }
        waiting.told.push_back(fact);
        drop(waiting);
        self.wake.notify_one();
    }
}

/// Finds the probes' figures among the records.
#[derive(Debug)]
pub struct MsptiSink {
    shared: Arc<Shared>,
    /// The last value of each figure that counts what is missing.
    known: BTreeMap<Origin, [f64; MISSING.len()]>,
}

impl TraceSink for MsptiSink {
    fn batch(&mut self, batch: &Arc<RecordBatch>) {
        let own = batch.records.iter().filter(|record| record.kind == Kind::Marker);
        for record in own {
            match record.event {
                Event::Counter { value } => self.figure(batch, batch.names.get(record.name), value),
                Event::Instant => {
                    if let Some(why) = batch.names.get(record.name).strip_prefix(UNAVAILABLE) {
                        let why = format!("mspti for {}: {why}", batch.origin.rank);
                        self.shared.tell(Err(why));
                    }
                }
                _ => (),
            }
        }
    }
}

impl MsptiSink {
    fn figure(&mut self, batch: &RecordBatch, name: &str, value: f64) {
        if !name.starts_with(PREFIX) {
            return;
        }
        let Origin { rank, incarnation, .. } = batch.origin;
        let fact = |signal| Ok(Fact::new(Domain::Process(Role::Rank(rank)), signal).of(incarnation));
        if let Some(at) = MISSING.iter().position(|known| *known == name) {
            if self.known.len() >= RANKS_MAX && !self.known.contains_key(&batch.origin) {
                self.known.pop_first();
            }
            let before = &mut self.known.entry(batch.origin).or_default()[at];
            let more = (value - std::mem::replace(before, value)).max(0.0);
            if more >= 1.0 {
                #[allow(clippy::cast_possible_truncation)] // a count, which is whole
                self.shared.tell(fact(Signal::Lost { count: more as u64 }));
            }
        }
        self.shared.tell(fact(Signal::Metric { name: Name::from(name.to_owned()), value }));
    }
}

impl Drop for MsptiSink {
    fn drop(&mut self) {
        self.shared.waiting().is_over = true;
        self.shared.wake.notify_one();
    }
}

/// Tells what the sink found. It ends when the sink is dropped and everything was told.
#[derive(Debug)]
pub struct MsptiSource {
    info: SourceInfo,
    shared: Arc<Shared>,
}

impl MsptiSource {
    fn take(&self) -> Option<Option<Result<TraceBatch, SourceError>>> {
        let mut waiting = self.shared.waiting();
        let lost = std::mem::take(&mut waiting.lost);
        if lost > 0 {
            let fact = Fact::new(Domain::Plugin(self.info.name.clone()), Signal::Lost { count: lost });
            return Some(Some(Ok(TraceBatch::of(vec![fact]))));
        }
        let mut facts = Vec::new();
        while waiting.told.front().is_some_and(|told| told.is_ok() || facts.is_empty()) {
            match waiting.told.pop_front() {
                Some(Ok(fact)) => facts.push(fact),
                Some(Err(why)) => return Some(Some(Err(SourceError::Unavailable(why)))),
                None => break,
            }
        }
        match facts.is_empty() {
            false => Some(Some(Ok(TraceBatch::of(facts)))),
            true => waiting.is_over.then_some(None),
        }
    }
}

#[async_trait]
impl TraceSource for MsptiSource {
    fn info(&self) -> SourceInfo {
        self.info.clone()
    }

    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        tokio::task::yield_now().await; // no storm of errors without an await between them, and nothing is taken before it
        loop {
            if let Some(told) = self.take() {
                return told;
            }
            self.shared.wake.notified().await;
        }
    }
}
