//! The contract of a source of facts.

use super::{Ask, Exhibit, Fact};
use crate::job::{Domain, Name};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is every rank doing?
///
/// A source is owned by one task of the shell and polled for batches of facts.
///
/// # Contract
/// - `next` MUST be cancel-safe: it may be dropped at every await, and no fact may be lost by that.
/// - `next` MUST wait (not spin, not return empty batches in a loop) while there is nothing to tell. An empty batch now
///   and then is allowed. It MUST NOT block the thread that polls it: other sources wait on it too.
/// - The facts of a batch MUST be in order, oldest first, as far as their ages are known: detectors get them in this order.
/// - `None` is the end: `next` is not called again. A source that can recover returns `Some(Err(..))` instead, and MUST
///   NOT return errors without an await in between (an error is a fault against the source; a storm of them ends it).
/// - `info` MUST always return the same value, at once, with a name and room for at least one batch.
/// - A source that drops facts, at its own bound or because it was too late to read them, MUST report how many as
///   [`Signal::Lost`](super::Signal::Lost). The queue between source and kernel is the shell's: `info` names its bound
///   and what happens there, and the shell counts.
/// - `collect` MUST answer for the domain it is asked about and for no other, or return an error: `Unsupported` for a
///   question that `info` does not name, another one for a domain that it does not know. It MAY take its time:
///   the kernel's `within` counts, not the source's. `next` is not polled meanwhile, so a slow collector is best a
///   source of its own whose `next` waits for ever.
/// - `close` is the last call: nothing is asked any more, and facts are of no use. A source that hands things on to others,
///   such as records to a store, MUST hand on what it has. It is waited for two seconds at most.
/// - A panic is caught: it ends the source and becomes a fault against it.
///
/// # Units
/// Ages are durations before the return of `next`. Metric names carry their unit last (`temperature_c`).
///
/// # Example
/// ```
/// use taskd_core::job::{Domain, Name, NodeId};
/// use taskd_core::trace::{Fact, Signal, SourceError, SourceInfo, TraceBatch, TraceSource};
///
/// /// Counts page faults of the machine every few seconds.
/// struct Faults { tick: tokio::time::Interval }
///
/// #[async_trait::async_trait]
/// impl TraceSource for Faults {
///     fn info(&self) -> SourceInfo { SourceInfo::new("acme.page-faults") }
///     async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
///         self.tick.tick().await; // cancel-safe, and nothing is taken before it
///         let text = std::fs::read_to_string("/proc/vmstat").ok()?;
///         let value = text.lines().find_map(|l| l.strip_prefix("pgmajfault "))?.parse().ok()?;
///         let name = Name::new("host.major_faults_total");
///         let here = Domain::Node(NodeId(Name::new("localhost")));
///         Some(Ok(TraceBatch::of(vec![Fact::new(here, Signal::Metric { name, value })])))
///     }
/// }
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let mut source = Faults { tick: tokio::time::interval(std::time::Duration::from_secs(5)) };
/// assert_eq!(source.next().await.unwrap().unwrap().facts.len(), 1);
/// # }
/// ```
///
/// # Testing your implementation
/// `taskd_core::testing::conformance::trace_source` (feature `test-util`) checks this contract clause by clause.
#[cfg_attr(any(test, feature = "test-util"), mockall::automock)]
#[async_trait]
pub trait TraceSource: Send {
    /// Who this is, its bound, and which questions it answers.
    fn info(&self) -> SourceInfo;

    /// The next batch; `None` at the end.
    ///
    /// # Errors
    /// [`SourceError`] when this batch could not be had; the source goes on.
    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>>;

    /// Looks something up about one domain, for a detector that asked.
    ///
    /// # Errors
    /// [`SourceError::Unsupported`] (the default) for a question that `info().answers` does not name.
    async fn collect(&mut self, _ask: &Ask, _about: &Domain) -> Result<Exhibit, SourceError> {
        Err(SourceError::Unsupported)
    }

    /// The job is over, or handed to another supervisor: hands on what there is still to hand on. Nothing, by default.
    async fn close(&mut self) {}
}

#[async_trait]
#[deny(clippy::missing_trait_methods)] // a method that `delegate` does not know yet
impl<T: TraceSource + ?Sized> TraceSource for Box<T> {
    crate::delegate!(TraceSource to |this| (**this));
}

/// Conveniences over every [`TraceSource`]. Implemented for all; you MUST NOT implement it yourself.
pub trait TraceSourceExt: TraceSource + Sized {
    /// The same source under another name, for two of one kind in one runtime.
    fn named(self, name: impl Into<Name>) -> Tagged<Self> {
        Tagged { inner: self, name: name.into() }
    }

    /// Boxed, to keep sources of different types in one list.
    fn boxed(self) -> Box<dyn TraceSource>
    where
        Self: 'static,
    {
        Box::new(self)
    }
}

impl<T: TraceSource> TraceSourceExt for T {}

/// A source under another name (see [`TraceSourceExt::named`]).
#[derive(Debug)]
pub struct Tagged<S> {
    inner: S,
    name: Name,
}

#[async_trait]
impl<S: TraceSource> TraceSource for Tagged<S> {
    crate::delegate!(TraceSource to |this| this.inner, except info);

    fn info(&self) -> SourceInfo {
        SourceInfo { name: self.name.clone(), ..self.inner.info() }
    }
}

impl fmt::Debug for dyn TraceSource + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceSource({})", self.info().name)
    }
}

/// What a source says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SourceInfo {
    /// Unique among the runtime's plugins of this kind.
    pub name: Name,
    /// The implementation's version; a replay with another one is told apart.
    pub version: Name,
    /// True for a stand-in of hardware that is not there: shown wherever the source is shown.
    pub stand_in: bool,
    /// How many batches may wait between source and kernel, at least 1.
    pub queue_max: u32,
    /// What happens to a batch that finds the queue full.
    pub when_full: WhenFull,
    /// The questions that [`TraceSource::collect`] answers.
    pub answers: Vec<Name>,
}

impl SourceInfo {
    /// A source of version 1 with a queue of 64 batches that waits when it is full and answers no questions.
    pub fn new(name: impl Into<Name>) -> SourceInfo {
        SourceInfo {
            name: name.into(),
            version: Name::new("1"),
            stand_in: false,
            queue_max: 64,
            when_full: WhenFull::Wait,
            answers: Vec::new(),
        }
    }

    /// Sets the version.
    #[must_use]
    pub fn with_version(mut self, version: impl Into<Name>) -> SourceInfo {
        self.version = version.into();
        self
    }

    /// Marks a stand-in of hardware that is not there.
    #[must_use]
    pub fn with_stand_in(mut self) -> SourceInfo {
        self.stand_in = true;
        self
    }

    /// Sets the queue's bound in batches and what happens there.
    #[must_use]
    pub fn with_queue(mut self, queue_max: u32, when_full: WhenFull) -> SourceInfo {
        self.queue_max = queue_max.max(1);
        self.when_full = when_full;
        self
    }

    /// Names a question that `collect` answers.
    #[must_use]
    pub fn with_answer(mut self, what: impl Into<Name>) -> SourceInfo {
        self.answers.push(what.into());
        self
    }
}

/// What happens to a batch that finds the queue between a source and the kernel full. Drops are counted in facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WhenFull {
    /// The source waits: nothing is lost, and it must bear that.
    Wait,
    /// The new batch goes: for sources whose old facts explain the new ones.
    DropNewest,
    /// The oldest waiting batch goes: for sources of which only the latest counts.
    DropOldest,
}

/// Facts that a source delivers together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TraceBatch {
    /// The facts, oldest first.
    pub facts: Vec<Fact>,
}

impl TraceBatch {
    /// A batch of these facts.
    #[must_use]
    pub const fn of(facts: Vec<Fact>) -> TraceBatch {
        TraceBatch { facts }
    }
}

/// Why a source could not deliver or answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The source does not answer this question.
    #[error("not supported by this source")]
    Unsupported,
    /// It cannot be had now, and why.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// The source itself failed, and how.
    #[error("failed: {0}")]
    Failed(String),
}
