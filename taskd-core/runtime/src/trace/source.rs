//! The trait of sources of facts, its contract, and its types.

use super::{Fact, Probe, ProbeResult};
use crate::job::{Domain, Name};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A source of facts about ranks, nodes and devices.
///
/// The shell (the asynchronous part of the runtime) owns each source in one task and polls it for batches.
///
/// # Contract
/// - `next` MUST be cancel-safe: the caller may drop it at every await, and no fact may be lost by that.
/// - `next` MUST wait (not spin, not return empty batches in a loop) while there is nothing to report. An occasional
///   empty batch is allowed. It MUST NOT block the thread that polls it: other sources share that thread.
/// - The facts of a batch MUST be in order, oldest first as far as their ages are known: detectors receive them in this
///   order.
/// - `None` is the end: `next` is not called again. A source that can recover returns `Some(Err(..))` instead, and MUST
///   NOT return errors without an await in between (an error is a fault against the source; a storm of them ends it).
/// - `info` MUST always return the same value, without blocking, with a name and room for at least one batch.
/// - A source that drops facts, at its own bound or because it was too late to read them, MUST report their number
///   as [`Signal::Lost`](super::Signal::Lost). The queue between source and decision kernel belongs to the shell:
///   `info` sets its bound and its overflow behaviour, and the shell counts the drops.
/// - `collect` MUST reply for exactly the domain that it is given, or return an error: `Unsupported` for a probe that
///   `info` does not name, another error for a domain that it does not know. It MAY take its time: the kernel enforces
///   the probe's `timeout`, the source need not. `next` is not polled meanwhile, so a slow collector is best a separate
///   source whose `next` never returns.
/// - `close` is the last call: no probe follows, and facts are no longer used. A source that forwards data, such as
///   records to a store, MUST forward what it still holds. The runtime waits for it for at most two seconds.
/// - A panic is caught: it ends the source and becomes a fault against it.
///
/// # Units
/// Ages are durations before the return of `next`. Metric names end with their unit (`temperature_c`).
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
    /// Returns the source's name, its queue bound and the probes that it answers.
    fn info(&self) -> SourceInfo;

    /// Returns the next batch of facts; `None` at the end.
    ///
    /// # Errors
    /// Returns [`SourceError`] if the source could not obtain this batch. The source continues: `next` can be called
    /// again.
    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>>;

    /// Answers a detector's probe (a request for evidence) about one domain.
    ///
    /// # Errors
    /// Returns [`SourceError::Unsupported`] if `info().probes` does not name the probe. The default implementation
    /// returns this error for every probe.
    async fn collect(&mut self, _ask: &Probe, _about: &Domain) -> Result<ProbeResult, SourceError> {
        Err(SourceError::Unsupported)
    }

    /// Forwards remaining data when the job has ended or was handed to another supervisor. Does nothing by default.
    async fn close(&mut self) {}
}

#[async_trait]
#[deny(clippy::missing_trait_methods)] // a method that `delegate` does not know yet
impl<T: TraceSource + ?Sized> TraceSource for Box<T> {
    crate::delegate!(TraceSource to |this| (**this));
}

/// Convenience methods for every [`TraceSource`]. Implemented for all sources; you MUST NOT implement it yourself.
pub trait TraceSourceExt: TraceSource + Sized {
    /// Renames the source, so that one runtime can have two sources of one type.
    fn named(self, name: impl Into<Name>) -> Named<Self> {
        Named { inner: self, name: name.into() }
    }

    /// Boxes the source, so that sources of different types fit in one list.
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
pub struct Named<S> {
    inner: S,
    name: Name,
}

#[async_trait]
impl<S: TraceSource> TraceSource for Named<S> {
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

/// Description of a trace source (name, queue and probes), as the source itself states it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SourceInfo {
    /// Name of the source, unique among the runtime's sources.
    pub name: Name,
    /// Version of the source's implementation. The log contains it, so that a replay can detect that the source has
    /// changed.
    pub version: Name,
    /// True if the source is a stand-in for absent hardware, such as a simulation. Shown wherever the source is shown.
    pub stand_in: bool,
    /// Maximum number of the source's batches that may wait for the decision kernel, at least 1.
    pub queue_max: u32,
    /// What happens to a new batch when the queue is full.
    pub when_full: WhenFull,
    /// Names of the probes that [`TraceSource::collect`] answers.
    #[serde(alias = "answers")]
    pub probes: Vec<Name>,
}

impl SourceInfo {
    /// Creates a description with version 1, a queue of 64 batches, [`WhenFull::Wait`] and no probes.
    pub fn new(name: impl Into<Name>) -> SourceInfo {
        SourceInfo {
            name: name.into(),
            version: Name::new("1"),
            stand_in: false,
            queue_max: 64,
            when_full: WhenFull::Wait,
            probes: Vec::new(),
        }
    }

    /// Sets the version.
    #[must_use]
    pub fn with_version(mut self, version: impl Into<Name>) -> SourceInfo {
        self.version = version.into();
        self
    }

    /// Marks the source as a stand-in for absent hardware.
    #[must_use]
    pub fn with_stand_in(mut self) -> SourceInfo {
        self.stand_in = true;
        self
    }

    /// Sets the queue's bound in batches (at least 1) and its overflow behaviour.
    #[must_use]
    pub fn with_queue(mut self, queue_max: u32, when_full: WhenFull) -> SourceInfo {
        self.queue_max = queue_max.max(1);
        self.when_full = when_full;
        self
    }

    /// Adds the name of a probe that `collect` answers.
    #[must_use]
    pub fn with_probe(mut self, what: impl Into<Name>) -> SourceInfo {
        self.probes.push(what.into());
        self
    }
}

/// What happens to a batch of facts when the queue between a source and the decision kernel is full. Drops are
/// counted in facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WhenFull {
    /// The source waits and nothing is lost; the source must tolerate the delay.
    Wait,
    /// The new batch is dropped: for sources whose old facts explain the new ones.
    DropNewest,
    /// The oldest waiting batch is dropped: for sources of which only the latest fact counts.
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
    /// Creates a batch of these facts.
    #[must_use]
    pub const fn of(facts: Vec<Fact>) -> TraceBatch {
        TraceBatch { facts }
    }
}

/// Error of a trace source that could not deliver facts or answer a probe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The source does not answer this probe.
    #[error("not supported by this source")]
    Unsupported,
    /// The data is not available now; contains the reason.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// The source itself failed; contains the cause.
    #[error("failed: {0}")]
    Failed(String),
}
