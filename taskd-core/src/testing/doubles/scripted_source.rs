//! A good source, which tells what it was given.

use crate::job::{Domain, Name};
use crate::trace::{Ask, Exhibit, Fact, SourceError, SourceInfo, TraceBatch, TraceSource};
use async_trait::async_trait;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Delivers the batches that it was given, one after another, and then ends.
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
    answers: BTreeMap<(Name, Domain), Exhibit>,
    every: Duration,
    due: Option<Instant>,
    ends: bool,
}

impl ScriptedSource {
    /// These batches, one a second.
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

    /// Waits for ever after the last batch, as a source does that has nothing to tell, instead of ending.
    #[must_use]
    pub fn then_waits(mut self) -> ScriptedSource {
        self.ends = false;
        self
    }

    /// Answers this question about this domain.
    #[must_use]
    pub fn answering(mut self, what: impl Into<Name>, about: Domain, exhibit: Exhibit) -> ScriptedSource {
        let what = what.into();
        if !self.info.answers.contains(&what) {
            self.info = self.info.with_answer(what.clone());
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
        sleep_until(due).await; // nothing is taken before it, and a dropped call does not start the time anew
        self.due = None;
        self.batches.pop_front().map(|facts| Ok(TraceBatch::of(facts)))
    }

    async fn collect(&mut self, ask: &Ask, about: &Domain) -> Result<Exhibit, SourceError> {
        if !self.info.answers.contains(&ask.what) {
            return Err(SourceError::Unsupported);
        }
        let known = self.answers.get(&(ask.what.clone(), about.clone())).cloned();
        known.ok_or_else(|| SourceError::Unavailable(format!("nothing is known about {about}")))
    }
}
