//! A correct source that delivers the given facts.

use crate::job::{Domain, Name};
use crate::trace::{Fact, Probe, ProbeResult, SourceError, SourceInfo, TraceBatch, TraceSource};
use async_trait::async_trait;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Trace source for tests that delivers the given batches of facts, one after another, and then ends.
///
/// ```
/// use std::time::Duration;
/// use taskd_core::job::{Domain, Rank, Role};
/// use taskd_core::testing::doubles::ScriptedSource;
/// use taskd_core::trace::{Fact, Signal, TraceSource};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let beat = Fact::new(Domain::Process(Role::Rank(Rank(0))), Signal::Heartbeat);
/// let mut source = ScriptedSource::new([vec![beat.clone()], vec![beat]]).every(Duration::from_secs(1));
/// assert_eq!(source.next().await.unwrap().unwrap().facts.len(), 1);
/// assert!(source.next().await.is_some());
/// assert!(source.next().await.is_none());
/// # }
/// ```
#[derive(Debug)]
pub struct ScriptedSource {
    info: SourceInfo,
    batches: VecDeque<Vec<Fact>>,
    answers: BTreeMap<(Name, Domain), ProbeResult>,
    every: Duration,
    due: Option<Instant>,
    ends: bool,
}

impl ScriptedSource {
    /// Creates a source of these batches, one per second.
    #[must_use]
    pub fn new(batches: impl IntoIterator<Item = Vec<Fact>>) -> ScriptedSource {
        ScriptedSource {
            info: SourceInfo::new("double.scripted"),
            batches: batches.into_iter().collect(),
            answers: BTreeMap::new(),
            every: Duration::from_secs(1),
            due: None,
            ends: true,
        }
    }

    /// Sets the time before each batch.
    #[must_use]
    pub fn every(mut self, every: Duration) -> ScriptedSource {
        self.every = every;
        self
    }

    /// Makes the source wait forever after the last batch, as a source without news does, instead of ending.
    #[must_use]
    pub fn then_waits(mut self) -> ScriptedSource {
        self.ends = false;
        self
    }

    /// Makes the source answer the probe with the name `what` about the domain `about` with the result `exhibit`.
    #[must_use]
    pub fn answering(mut self, what: impl Into<Name>, about: Domain, exhibit: ProbeResult) -> ScriptedSource {
        let what = what.into();
        if !self.info.probes.contains(&what) {
            self.info = self.info.with_probe(what.clone());
        }
        self.answers.insert((what, about), exhibit);
        self
    }
}

#[async_trait]
impl TraceSource for ScriptedSource {
    fn info(&self) -> SourceInfo {
        self.info.clone()
    }

    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        if self.batches.is_empty() {
            return if self.ends { None } else { std::future::pending().await };
        }
        let due = *self.due.get_or_insert_with(|| Instant::now() + self.every);
        sleep_until(due).await; // no batch is taken before the await, and a dropped call does not restart the interval
        self.due = None;
        self.batches.pop_front().map(|facts| Ok(TraceBatch::of(facts)))
    }

    async fn collect(&mut self, ask: &Probe, about: &Domain) -> Result<ProbeResult, SourceError> {
        if !self.info.probes.contains(&ask.what) {
            return Err(SourceError::Unsupported);
        }
        let known = self.answers.get(&(ask.what.clone(), about.clone())).cloned();
        known.ok_or_else(|| SourceError::Unavailable(format!("nothing is known about {about}")))
    }
}
