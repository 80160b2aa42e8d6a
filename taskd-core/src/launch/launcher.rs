//! The contract of a launcher.

use super::{Change, DirectBatch, Listing, Revision, StartBatch};
use crate::job::{CommandId, Name, NodeId, ProcId};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Start, stop and watch processes.
///
/// A launcher is level-triggered and can be attached to again: every call may be repeated, also by a new owner that
/// knows nothing but what `list` tells.
///
/// # Contract
/// - The key of a process is its [`ProcId`]. `start` MUST be idempotent by it: a process that runs, or has ended, is not
///   started a second time, not even by a later owner or after its exit was acknowledged. One incarnation never runs
///   twice.
/// - `start` returns when the orders are accepted; what becomes of them is told by `watch`. Every accepted process MUST
///   end in exactly one [`Phase::Exited`](super::Phase::Exited), also when the start itself fails later, and that MUST say
///   with which code or signal the process ended. An error means that no process of the batch was started.
/// - A process's phase MUST only move forward. [`Phase::Dead`](super::Phase::Dead) MAY come before `Exited`, at most once.
/// - `stop` only begins the stop: SIGTERM (or its like) to the whole tree, after `grace` by force, bounded whatever the
///   process does. Stopping the unknown or the dead MUST NOT be an error; asked again, the shorter grace counts.
/// - `list` MUST give every process that runs, every exit that was not acknowledged, and every host, and MUST be true at
///   the revision that it carries: `watch` from there misses nothing and repeats nothing.
/// - `watch` waits for changes after `from` and returns them in order, at least one, with the next cursor. It MUST be
///   cancel-safe; the caller holds the place. It MUST answer [`LaunchError::Stale`] for a cursor that it cannot serve:
///   then the caller lists again.
/// - An exit MUST be kept until it is acknowledged, also over a change of owner, and MUST NOT be told any more after that.
///   Acknowledging the unknown MUST NOT be an error.
/// - `direct` MUST tell each process at most once for one id, also when it is repeated, and MUST tell its answer once. A
///   process that ends without an answer says so by its end.
/// - A host out of sight says nothing about its processes: they MUST NOT be reported as ended until the host is known to
///   have left.
/// - `prepare` MUST NOT start any process of the batch, and tells nothing of any: it is no order, and nothing may depend on it.
/// - `detach` hands everything over: what runs MUST run on, and every exit MUST be kept, for a later owner who attaches within
///   the given time; after it the launcher MUST stop everything. A launcher that cannot MUST refuse and change nothing.
/// - `wind_down` MUST NOT block: it is called where nobody can wait any more.
/// - Dropping a call's future MUST NOT undo or break what it has begun: the same call again does what is left to do.
/// - All calls MAY come at once from several tasks, and MUST NOT wait for a `watch` to return.
///
/// # Errors
/// [`LaunchError::Refused`] is final: doing the same again would fail the same way. [`LaunchError::Unreachable`] may pass.
///
/// # Example
/// A launcher for dry runs, which accepts everything and starts nothing:
/// ```
/// use std::time::Duration;
/// use taskd_core::job::{Exit, Name, ProcId, Termination};
/// use taskd_core::launch::*;
///
/// struct DryRun(ChangeLog);
///
/// fn status(proc: &ProcId, phase: Phase) -> ProcStatus {
///     ProcStatus { proc: proc.clone(), node: None, instance: Name::new("dry"), pid: None, phase }
/// }
///
/// #[async_trait::async_trait]
/// impl Launcher for DryRun {
///     fn info(&self) -> LauncherInfo { LauncherInfo::new("acme.dry-run") }
///     async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
///         self.0.admit(batch.orders.iter().map(|o| status(&o.proc, Phase::Pending("dry run".into()))));
///         Ok(())
///     }
///     async fn stop(&self, procs: &[ProcId], _grace: Duration) -> Result<(), LaunchError> {
///         let known = self.0.listing().procs;
///         let over = || Phase::Exited(Box::new(Exit::new(Termination::Unknown)));
///         for p in known.iter().filter(|p| procs.contains(&p.proc)) { self.0.push(Change::Proc(status(&p.proc, over()))); }
///         Ok(())
///     }
///     async fn list(&self) -> Result<Listing, LaunchError> { Ok(self.0.listing()) }
///     async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> { self.0.after(from).await }
///     async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> { self.0.acknowledge(exits); Ok(()) }
/// }
/// # let _object_safe: Box<dyn Launcher> = Box::new(DryRun(ChangeLog::new(1)));
/// ```
///
/// # Testing your implementation
/// `taskd_core::testing::conformance::launcher` (feature `test-util`) checks this contract clause by clause, a change of
/// owner included. A launcher that keeps a history can build on `taskd_core::launch::ChangeLog`.
#[cfg_attr(any(test, feature = "test-util"), mockall::automock)]
#[async_trait]
pub trait Launcher: Send + Sync {
    /// Who this is and what it can do.
    fn info(&self) -> LauncherInfo;

    /// Accepts processes to be started.
    ///
    /// # Errors
    /// See the contract: none of the batch was started.
    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError>;

    /// Begins to stop processes with their whole trees.
    ///
    /// # Errors
    /// [`LaunchError::Unreachable`] when the order could not be given.
    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError>;

    /// Everything that is known.
    ///
    /// # Errors
    /// [`LaunchError::Unreachable`] when it cannot be known now.
    async fn list(&self) -> Result<Listing, LaunchError>;

    /// Waits for changes after `from`; at least one, in order, with the cursor behind the last.
    ///
    /// # Errors
    /// [`LaunchError::Stale`]: list again. [`LaunchError::Unreachable`]: wait a little, then list again.
    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError>;

    /// Says that these exits are in the owner's log and may be forgotten.
    ///
    /// # Errors
    /// [`LaunchError::Unreachable`] when the order could not be given; the exits are then told again by `list`.
    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError>;

    /// Tells processes that run what to do. It returns when the directives are accepted; each process's answer is told by
    /// `watch` as [`Saying::Answer`](super::Saying::Answer) with this id.
    ///
    /// By default it is refused: there is no link to the processes.
    ///
    /// # Errors
    /// [`LaunchError::Refused`] when there is none to one of them; then nobody was told.
    async fn direct(&self, id: CommandId, batch: &DirectBatch) -> Result<(), LaunchError> {
        let _ = (id, batch);
        let name = self.info().name;
        Err(LaunchError::Refused(format!(
            "the launcher {name} has no link to its processes: they can only be started anew"
        )))
    }

    /// Gets ready for processes like these, which may be ordered to start here: a host that is to take the place of another should
    /// not begin to import what it needs when the other is lost. `in_loop`: programs of this kind are known to have a
    /// [step loop](super::Point::Loop), up to which they may be run ahead of their rank.
    ///
    /// By default it does nothing.
    ///
    /// # Errors
    /// [`LaunchError::Unreachable`] when the order could not be given; [`LaunchError::Refused`] where such processes would be.
    async fn prepare(&self, batch: &StartBatch, in_loop: bool) -> Result<(), LaunchError> {
        let _ = (batch, in_loop);
        Ok(())
    }

    /// Leaves everything running for a later owner, who has so long to attach. It is the last call of an owner.
    ///
    /// By default it is refused; one that does not refuse says so in its [info](LauncherInfo::hands_over).
    ///
    /// # Errors
    /// [`LaunchError::Refused`]: this launcher cannot, and goes on as before. [`LaunchError::Unreachable`] when the order
    /// could not be given.
    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        let _ = keep;
        let name = self.info().name;
        Err(LaunchError::Refused(format!("the launcher {name} cannot leave its processes to a later owner: stop them")))
    }

    /// Begins to stop everything, as `stop` would, and withdraws what was not started yet. Whoever supervises this
    /// launcher was dropped: nobody waits for an answer, and nobody may be there to call `stop`. After a `detach` it has no
    /// effect.
    ///
    /// By default it does nothing: what runs is then the next owner's to stop.
    fn wind_down(&self, grace: Duration) {
        let _ = grace;
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)] // a method that `delegate` does not know yet
impl<T: Launcher + ?Sized> Launcher for Box<T> {
    crate::delegate!(Launcher to |this| (**this));
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<T: Launcher + ?Sized> Launcher for Arc<T> {
    crate::delegate!(Launcher to |this| (**this));
}

impl fmt::Debug for dyn Launcher + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Launcher({})", self.info().name)
    }
}

/// What a launcher says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LauncherInfo {
    /// Its name.
    pub name: Name,
    /// The implementation's version; a replay with another one is told apart.
    pub version: Name,
    /// Whether it can report [`Phase::Dead`](super::Phase::Dead) before an exit.
    pub lifeline: bool,
    /// Whether [`detach`](Launcher::detach) leaves its processes to a later owner.
    pub hands_over: bool,
    /// Guarantees that it goes without here, each in one sentence, shown once at the start of a job.
    pub goes_without: Vec<String>,
    /// The service of the job at which it has ranks meet anew that keep their processes. In a job without that service none can be
    /// kept, which is told at the start. `None`: it knows of none, or its ranks need none.
    #[serde(default)]
    pub meets_at: Option<Name>,
    /// Where the output of its processes is kept on each of its hosts. Each process has a directory of its own there, named
    /// `rank-3.2` for incarnation 2 of rank 3 and `service-NAME.1` for a service, with `stdout.log` and `stderr.log` in it. A host
    /// that is not named: its processes' output is elsewhere. What is said here stands in the log, in reports and in status.
    #[serde(default)]
    pub output_dirs: BTreeMap<NodeId, PathBuf>,
    /// Services that a program can be by itself, started again with such a first argument, of which this program's `main` has not
    /// called the function that makes it one: by the argument, what to call. A job with such a service is refused
    /// [before it starts](crate::runtime::RuntimeBuilder::build): the process would be this program once more.
    #[serde(default)]
    pub uninitialised: BTreeMap<String, String>,
}

impl LauncherInfo {
    /// A launcher of version 1 without lifelines.
    pub fn new(name: impl Into<Name>) -> LauncherInfo {
        let (name, version) = (name.into(), Name::new("1"));
        LauncherInfo {
            name,
            version,
            lifeline: false,
            hands_over: false,
            goes_without: Vec::new(),
            meets_at: None,
            output_dirs: BTreeMap::new(),
            uninitialised: BTreeMap::new(),
        }
    }

    /// Says that deaths are reported ahead of exits.
    #[must_use]
    pub fn with_lifeline(mut self) -> LauncherInfo {
        self.lifeline = true;
        self
    }

    /// Says that processes can be left to a later owner.
    #[must_use]
    pub fn handing_over(mut self) -> LauncherInfo {
        self.hands_over = true;
        self
    }

    /// Says at which service of the job its ranks meet anew, if it knows of one.
    #[must_use]
    pub fn meeting_at(mut self, service: Option<Name>) -> LauncherInfo {
        self.meets_at = service;
        self
    }

    /// Says where the output of its processes on this host is kept (see [`output_dirs`](Self::output_dirs)).
    #[must_use]
    pub fn with_output(mut self, node: NodeId, dir: impl Into<PathBuf>) -> LauncherInfo {
        self.output_dirs.insert(node, dir.into());
        self
    }

    /// Says in one sentence which guarantee this launcher goes without here.
    #[must_use]
    pub fn going_without(mut self, guarantee: impl Into<String>) -> LauncherInfo {
        self.goes_without.push(guarantee.into());
        self
    }
}

/// Why a launcher did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The cursor belongs to another history, or is too old: list again.
    #[error("the place in the launcher's history is gone: list again")]
    Stale,
    /// It cannot be done, and doing the same again would not help.
    #[error("{0}")]
    Refused(String),
    /// The launcher cannot be reached or cannot do it now.
    #[error("the launcher cannot be reached: {0}")]
    Unreachable(String),
    /// Another supervisor has taken the job over, for good: this one must not act on it any more. The text names the other one.
    #[error("{0}")]
    Superseded(String),
}

/// Conveniences over every [`Launcher`]. Implemented for all; you MUST NOT implement it yourself.
pub trait LauncherExt: Launcher + Sized {
    /// Answers [`LaunchError::Unreachable`] when `start`, `stop`, `list`, `acknowledge`, `direct`, `prepare` or
    /// `detach` take longer than `limit`.
    /// (`watch` waits for ever by contract.)
    fn with_timeout(self, limit: Duration) -> WithTimeout<Self> {
        WithTimeout { inner: self, limit }
    }

    /// Shared, as the runtime keeps it.
    fn shared(self) -> Arc<dyn Launcher>
    where
        Self: 'static,
    {
        Arc::new(self)
    }
}

impl<T: Launcher> LauncherExt for T {}

/// A launcher whose calls are bounded in time (see [`LauncherExt::with_timeout`]).
#[derive(Debug)]
pub struct WithTimeout<L> {
    inner: L,
    limit: Duration,
}

impl<L: Sync> WithTimeout<L> {
    async fn bounded<T: Send>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T, LaunchError>> + Send,
    ) -> Result<T, LaunchError> {
        let late = || Err(LaunchError::Unreachable(format!("{what} took longer than {:?}", self.limit)));
        tokio::time::timeout(self.limit, call).await.unwrap_or_else(|_| late())
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<L: Launcher> Launcher for WithTimeout<L> {
    crate::delegate!(Launcher to |this| this.inner, except start, stop, list, acknowledge, direct, prepare, detach);

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        self.bounded("start", self.inner.start(batch)).await
    }
    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError> {
        self.bounded("stop", self.inner.stop(procs, grace)).await
    }
    async fn list(&self) -> Result<Listing, LaunchError> {
        self.bounded("list", self.inner.list()).await
    }
    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        self.bounded("acknowledge", self.inner.acknowledge(exits)).await
    }
    async fn direct(&self, id: CommandId, batch: &DirectBatch) -> Result<(), LaunchError> {
        self.bounded("direct", self.inner.direct(id, batch)).await
    }
    async fn prepare(&self, batch: &StartBatch, in_loop: bool) -> Result<(), LaunchError> {
        self.bounded("prepare", self.inner.prepare(batch, in_loop)).await
    }
    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        self.bounded("detach", self.inner.detach(keep)).await
    }
}
