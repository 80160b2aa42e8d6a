//! A wrapper for any plugin that counts its calls.

use crate::detect::{FaultDetector, Findings};
use crate::job::{CommandId, Domain, JobTime, Name, ProcId};
use crate::launch::{
    Change, DirectiveBatch, LaunchError, Launcher, LauncherInfo, Listing, PrepareOptions, Revision, StartBatch,
};
use crate::recover::{Advance, Incident, JobProfile, PlanExecution, Proposal, RecoveryStrategy, RefusalError};
use crate::state::View;
use crate::trace::{DecodeError, Observation, Probe, ProbeResult, SourceError, SourceInfo, TraceBatch, TraceSource};
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The methods of a launcher. The conformance suite must call all of them: a method that it never calls would fail
/// every launcher.
pub(crate) const LAUNCHER_METHODS: [&str; 10] =
    ["info", "start", "stop", "list", "watch", "acknowledge", "send_directives", "prepare", "detach", "begin_shutdown"];

/// Counters of the method calls that a plugin receives, one counter for each method. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub struct Calls(Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl Calls {
    /// Returns the number of calls of the method with this name, such as `start`.
    #[must_use]
    pub fn of(&self, method: &str) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(method).copied().unwrap_or(0)
    }

    /// Returns those of `methods` that were never called.
    pub(crate) fn missing<'a>(&'a self, methods: &'a [&'static str]) -> impl Iterator<Item = &'static str> + 'a {
        methods.iter().copied().filter(|method| self.of(method) == 0)
    }

    pub(crate) fn count(&self, method: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(method).or_default() += 1;
    }
}

/// A wrapper around a plugin of any kind that passes on every call unchanged, and counts it.
///
/// The [conformance](crate::testing::conformance) suites read the counts, to check that a plugin that wraps this
/// one passes its calls on.
///
/// ```
/// use taskd_core::launch::Launcher;
/// use taskd_core::testing::doubles::{Calls, Counted, FakeLauncher};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let calls = Calls::default();
/// let launcher = Counted::new(FakeLauncher::new(), &calls);
/// launcher.list().await.unwrap();
/// assert_eq!((calls.of("list"), calls.of("start")), (1, 0));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Counted<P> {
    inner: P,
    calls: Calls,
}

impl<P> Counted<P> {
    /// Wraps `inner`, and counts its calls in `calls`, which several wrappers may share.
    pub fn new(inner: P, calls: &Calls) -> Counted<P> {
        Counted { inner, calls: calls.clone() }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<L: Launcher> Launcher for Counted<L> {
    fn info(&self) -> LauncherInfo {
        self.calls.count("info");
        self.inner.info()
    }
    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        self.calls.count("start");
        self.inner.start(batch).await
    }
    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError> {
        self.calls.count("stop");
        self.inner.stop(procs, grace).await
    }
    async fn list(&self) -> Result<Listing, LaunchError> {
        self.calls.count("list");
        self.inner.list().await
    }
    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        self.calls.count("watch");
        self.inner.watch(from).await
    }
    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        self.calls.count("acknowledge");
        self.inner.acknowledge(exits).await
    }
    async fn send_directives(&self, id: CommandId, batch: &DirectiveBatch) -> Result<(), LaunchError> {
        self.calls.count("send_directives");
        self.inner.send_directives(id, batch).await
    }
    async fn prepare(&self, batch: &StartBatch, options: &PrepareOptions) -> Result<(), LaunchError> {
        self.calls.count("prepare");
        self.inner.prepare(batch, options).await
    }
    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        self.calls.count("detach");
        self.inner.detach(keep).await
    }
    fn begin_shutdown(&self, grace: Duration) {
        self.calls.count("begin_shutdown");
        self.inner.begin_shutdown(grace);
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: TraceSource> TraceSource for Counted<S> {
    fn info(&self) -> SourceInfo {
        self.calls.count("info");
        self.inner.info()
    }
    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        self.calls.count("next");
        self.inner.next().await
    }
    async fn collect(&mut self, ask: &Probe, about: &Domain) -> Result<ProbeResult, SourceError> {
        self.calls.count("collect");
        self.inner.collect(ask, about).await
    }
    async fn close(&mut self) {
        self.calls.count("close");
        self.inner.close().await;
    }
}

#[deny(clippy::missing_trait_methods)]
impl<D: FaultDetector> FaultDetector for Counted<D> {
    fn name(&self) -> Name {
        self.calls.count("name");
        self.inner.name()
    }
    fn version(&self) -> Name {
        self.calls.count("version");
        self.inner.version()
    }
    fn config(&self) -> String {
        self.calls.count("config");
        self.inner.config()
    }
    fn observe(&mut self, observation: &Observation, view: &View, out: &mut Findings) {
        self.calls.count("observe");
        self.inner.observe(observation, view, out);
    }
    fn deadline(&self) -> Option<JobTime> {
        self.calls.count("deadline");
        self.inner.deadline()
    }
    fn expire(&mut self, view: &View, out: &mut Findings) {
        self.calls.count("expire");
        self.inner.expire(view, out);
    }
    fn snapshot(&self) -> Option<Bytes> {
        self.calls.count("snapshot");
        self.inner.snapshot()
    }
    fn restore(&mut self, saved: &[u8]) -> Result<(), DecodeError> {
        self.calls.count("restore");
        self.inner.restore(saved)
    }
}

#[deny(clippy::missing_trait_methods)]
impl<S: RecoveryStrategy> RecoveryStrategy for Counted<S> {
    fn name(&self) -> Name {
        self.calls.count("name");
        self.inner.name()
    }
    fn version(&self) -> Name {
        self.calls.count("version");
        self.inner.version()
    }
    fn config(&self) -> String {
        self.calls.count("config");
        self.inner.config()
    }
    fn unsupported_reason(&self, job: &JobProfile) -> Option<String> {
        self.calls.count("unsupported_reason");
        self.inner.unsupported_reason(job)
    }
    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        self.calls.count("propose");
        self.inner.propose(incident, view)
    }
    fn advance(&self, run: &PlanExecution, view: &View) -> Advance {
        self.calls.count("advance");
        self.inner.advance(run, view)
    }
}
