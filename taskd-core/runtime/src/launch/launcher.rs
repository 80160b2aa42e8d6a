//! The `Launcher` trait: the contract of every launcher, its self-description and its errors.

use super::{Change, DirectiveBatch, Listing, Revision, StartBatch};
use crate::job::{CommandId, Name, NodeId, ProcId};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Plugin of the runtime that starts, stops and watches the processes of a job.
///
/// A launcher is level-triggered, and a new owner (supervisor) can attach to it: every call may be repeated, also
/// by a new owner that knows only what `list` returned.
///
/// # Contract
/// - The key of a process is its [`ProcId`]. `start` MUST be idempotent by that key: a process that runs, or has
///   ended, is not started a second time, not even by a later owner or after its exit was acknowledged. One
///   incarnation never runs twice.
/// - `start` returns when the orders are accepted; `watch` reports their outcome. Every accepted process MUST end
///   in exactly one [`Phase::Exited`](super::Phase::Exited), also when the start itself fails later, and this
///   `Exited` phase MUST carry the exit code or signal of the process. An error means that no process of the batch
///   was started.
/// - A process's phase MUST only move forward. [`Phase::Dead`](super::Phase::Dead) MAY come before `Exited`, at
///   most once.
/// - `stop` only begins the stop: SIGTERM (or its equivalent) to the whole process tree, then force after `grace`;
///   the time is bounded whatever the process does. Stopping an unknown or dead process MUST NOT be an error; if
///   `stop` is repeated, the shorter grace counts.
/// - `list` MUST return every running process, every exit that was not acknowledged, and every host, and MUST be
///   consistent with the revision that it carries: a `watch` from that revision misses nothing and repeats nothing.
/// - `watch` waits for changes after `from` and returns them in order, at least one, with the next cursor. It MUST
///   be cancel-safe; the caller holds the cursor. It MUST return [`LaunchError::Stale`] for a cursor that it cannot
///   serve: the caller then lists again.
/// - An exit MUST be kept until it is acknowledged, also across a change of owner, and MUST NOT be reported after
///   that. Acknowledging an unknown exit MUST NOT be an error.
/// - `send_directives` MUST deliver to each process at most once per id, also when the call is repeated, and MUST
///   report the process's reply once. A process that ends without a reply is reported by its exit only.
/// - An unreachable host gives no information about its processes: they MUST NOT be reported as ended until the host is
///   known to have left.
/// - `prepare` MUST NOT start any process of the batch and reports nothing about them: it is a hint, and nothing
///   may depend on it.
/// - `detach` hands everything over: running processes MUST continue, and every exit MUST be kept, for a later
///   owner that attaches within the given time; after that time the launcher MUST stop everything. A launcher
///   without support for this MUST refuse and change nothing.
/// - `begin_shutdown` MUST NOT block: it is called where waiting is no longer possible.
/// - Dropping a call's future MUST NOT undo or break what the call has begun: repeating the call completes the
///   rest.
/// - All calls MAY be made concurrently from several tasks, and MUST NOT wait for a `watch` to return.
///
/// # Errors
/// [`LaunchError::Refused`] is final: a retry would fail in the same way. [`LaunchError::Unreachable`] may be
/// temporary.
///
/// # Example
/// A launcher for dry runs, which accepts everything and starts nothing:
/// ```
/// use std::time::Duration;
/// use taskd_core::job::{Exit, ProcId, Termination};
/// use taskd_core::launch::*;
///
/// struct DryRun(ChangeLog);
///
/// fn status(proc: &ProcId, phase: Phase) -> ProcStatus {
///     ProcStatus::new(proc.clone(), "dry", phase)
/// }
///
/// #[async_trait::async_trait]
/// impl Launcher for DryRun {
///     fn info(&self) -> LauncherInfo { LauncherInfo::new("acme.dry-run") }
///     async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
///         self.0.admit(batch.starts.iter().map(|o| status(&o.proc, Phase::Pending("dry run".into()))));
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
/// `taskd_core::testing::conformance::launcher` (feature `test-util`) checks this contract clause by clause, a
/// change of owner included. A launcher that keeps a history can build on `taskd_core::launch::ChangeLog`.
#[cfg_attr(any(test, feature = "test-util"), mockall::automock)]
#[async_trait]
pub trait Launcher: Send + Sync {
    /// Returns the launcher's description: name, version and abilities.
    fn info(&self) -> LauncherInfo;

    /// Accepts orders to start the processes of `batch`.
    ///
    /// # Errors
    /// Returns [`LaunchError`] if the launcher did not accept the orders. In that case, no process of the batch was
    /// started.
    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError>;

    /// Begins to stop the processes in `procs` together with their whole process trees: SIGTERM, then SIGKILL after
    /// `grace`.
    ///
    /// # Errors
    /// Returns [`LaunchError::Unreachable`] if the order could not be delivered.
    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError>;

    /// Returns the states of all processes and hosts that the launcher knows, and the revision (cursor) of these
    /// states.
    ///
    /// # Errors
    /// Returns [`LaunchError::Unreachable`] if the state cannot be read now.
    async fn list(&self) -> Result<Listing, LaunchError>;

    /// Waits for changes of processes and hosts after the cursor `from`. Returns at least one change, in order, and the
    /// cursor for the next call.
    ///
    /// # Errors
    /// Returns [`LaunchError::Stale`] if the launcher cannot serve the cursor: the caller then has to list again.
    /// Returns [`LaunchError::Unreachable`] if the launcher cannot be reached: the caller then has to wait a little and
    /// list again.
    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError>;

    /// Acknowledges the exits of these processes: they are in the supervisor's log, so the launcher may forget them.
    ///
    /// # Errors
    /// Returns [`LaunchError::Unreachable`] if the order could not be delivered; `list` then reports the exits again.
    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError>;

    /// Sends directives to running processes. The call returns when the directives are accepted; `watch` reports each
    /// process's answer as [`WorkerMessage::Reply`](super::WorkerMessage::Reply) with this `id`.
    ///
    /// The default implementation refuses the call: it is for a launcher without a link to its processes.
    ///
    /// # Errors
    /// Returns [`LaunchError::Refused`] if one of the processes has no control link. In that case, no directive was
    /// sent to any process.
    async fn send_directives(&self, id: CommandId, batch: &DirectiveBatch) -> Result<(), LaunchError> {
        let _ = (id, batch);
        let name = self.info().name;
        Err(LaunchError::Refused(format!(
            "the launcher {name} has no link to its processes: they can only be restarted"
        )))
    }

    /// Prepares this launcher's hosts for start orders like those in `batch`, which may follow. A replacement host can
    /// then run the imports of the training program before another host is lost. `options` states how far the processes
    /// may be pre-warmed.
    ///
    /// The default implementation does nothing.
    ///
    /// # Errors
    /// Returns [`LaunchError::Unreachable`] if the request could not be delivered, and [`LaunchError::Refused`] if the
    /// launcher would refuse to start such processes.
    async fn prepare(&self, batch: &StartBatch, options: &PrepareOptions) -> Result<(), LaunchError> {
        let _ = (batch, options);
        Ok(())
    }

    /// Leaves all processes running for a later supervisor, which must attach within the time `keep`. It is the last
    /// call of the current supervisor.
    ///
    /// The default implementation refuses the call. A launcher that supports `detach` reports this in its
    /// [info](LauncherInfo::supports_detach).
    ///
    /// # Errors
    /// Returns [`LaunchError::Refused`] if this launcher does not support `detach`; the launcher then continues as
    /// before. Returns [`LaunchError::Unreachable`] if the request could not be delivered.
    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        let _ = keep;
        let name = self.info().name;
        Err(LaunchError::Refused(format!("the launcher {name} cannot leave its processes to a later owner: stop them")))
    }

    /// Begins to stop all processes, as `stop` does, and withdraws starts that were not carried out yet. It is called
    /// when the supervising runtime was dropped: no caller waits for the result, and there may be no caller left for
    /// `stop`. After a `detach`, the call has no effect.
    ///
    /// The default implementation does nothing: running processes are left for the next owner to stop.
    fn begin_shutdown(&self, grace: Duration) {
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

/// Options of [`Launcher::prepare`]. The default options assume only what is certain for every training program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrepareOptions {
    /// True if the training program is known to have a step loop ([`InLoop`](super::LoopPosition::InLoop)): its
    /// processes may be pre-warmed up to this loop before they are assigned a rank.
    pub in_loop: bool,
}

impl PrepareOptions {
    /// Creates the default options.
    #[must_use]
    pub const fn new() -> PrepareOptions {
        PrepareOptions { in_loop: false }
    }

    /// Sets whether the training program is known to have a step loop.
    #[must_use]
    pub const fn with_in_loop(mut self, in_loop: bool) -> PrepareOptions {
        self.in_loop = in_loop;
        self
    }
}

/// Description of a launcher (name, version, abilities and limitations), as the launcher itself states it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LauncherInfo {
    /// The launcher's name.
    pub name: Name,
    /// Version of the launcher's implementation. The log contains it, so that a replay can detect that the launcher has
    /// changed.
    pub version: Name,
    /// True if the launcher can report [`Phase::Dead`](super::Phase::Dead) before the exit of a process.
    pub lifeline: bool,
    /// True if [`detach`](Launcher::detach) leaves the launcher's processes running for a later supervisor.
    #[serde(alias = "hands_over")]
    pub supports_detach: bool,
    /// Guarantees of the [contract](Launcher#contract) that the launcher cannot give in this environment, one sentence
    /// each. They are logged once, at the start of a job.
    #[serde(alias = "goes_without")]
    pub limitations: Vec<String>,
    /// Name of the rendezvous service at which surviving ranks rejoin. If the job has no service of this name, no rank
    /// can be kept in-process, which is reported at the start of the job. `None`: the launcher knows of no service, or
    /// its ranks need none.
    #[serde(default)]
    #[serde(alias = "meets_at")]
    pub rendezvous_service: Option<Name>,
    /// Output directory of the launcher's processes on each of its hosts. Each process has a directory of its own
    /// there, named `rank-3.2` for incarnation 2 of rank 3 and `service-NAME.1` for a service, which contains
    /// `stdout.log` and `stderr.log`. The output of processes on a host that is missing here is elsewhere. These paths
    /// appear in the log, in reports and in status.
    #[serde(default)]
    pub output_dirs: BTreeMap<NodeId, PathBuf>,
    /// Built-in services that cannot start, because this program's `main` has not called their init function. A
    /// built-in service is this program itself, started again with a special first argument. The map's key is this
    /// argument, its value is the function to call. A job with one of these services is refused
    /// [before it starts](crate::runtime::RuntimeBuilder::build): the process would be a second copy of this program.
    #[serde(default)]
    pub uninitialised: BTreeMap<String, String>,
}

impl LauncherInfo {
    /// Creates a description with this name, version 1, and no abilities and limitations.
    pub fn new(name: impl Into<Name>) -> LauncherInfo {
        let (name, version) = (name.into(), Name::new("1"));
        LauncherInfo {
            name,
            version,
            lifeline: false,
            supports_detach: false,
            limitations: Vec::new(),
            rendezvous_service: None,
            output_dirs: BTreeMap::new(),
            uninitialised: BTreeMap::new(),
        }
    }

    /// Declares that the launcher reports deaths of processes before their exits.
    #[must_use]
    pub fn with_lifeline(mut self) -> LauncherInfo {
        self.lifeline = true;
        self
    }

    /// Declares that the launcher supports [`detach`](Launcher::detach): it can leave its processes running for a later
    /// supervisor.
    #[must_use]
    pub fn with_detach(mut self) -> LauncherInfo {
        self.supports_detach = true;
        self
    }

    /// Sets the name of the job's rendezvous service, at which surviving ranks rejoin; `None` if the launcher knows of
    /// no service.
    #[must_use]
    pub fn with_rendezvous_service(mut self, service: Option<Name>) -> LauncherInfo {
        self.rendezvous_service = service;
        self
    }

    /// Sets the output directory of the launcher's processes on this host (see [`output_dirs`](Self::output_dirs)).
    #[must_use]
    pub fn with_output(mut self, node: NodeId, dir: impl Into<PathBuf>) -> LauncherInfo {
        self.output_dirs.insert(node, dir.into());
        self
    }

    /// Adds a sentence to [`limitations`](Self::limitations): a guarantee that the launcher cannot give in this
    /// environment.
    #[must_use]
    pub fn with_limitation(mut self, guarantee: impl Into<String>) -> LauncherInfo {
        self.limitations.push(guarantee.into());
        self
    }
}

/// Error of a [`Launcher`] call that was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The cursor that was passed to `watch` belongs to another history, or is too old: the caller has to list again.
    #[error("the launcher's history does not have this revision: list again")]
    Stale,
    /// The launcher refuses the call, and a retry would not help; contains the reason.
    #[error("{0}")]
    Refused(String),
    /// The launcher cannot be reached, or cannot carry out the call now; contains the reason.
    #[error("the launcher cannot be reached: {0}")]
    Unreachable(String),
    /// Another supervisor has taken the job over permanently: the calling supervisor must not act on the job any more.
    /// Contains a text that names the other supervisor.
    #[error("{0}")]
    Superseded(String),
}

/// Convenience methods of every [`Launcher`]. The trait is implemented for all launchers; you MUST NOT implement it
/// yourself.
pub trait LauncherExt: Launcher + Sized {
    /// Returns a launcher whose calls have a time limit: `start`, `stop`, `list`, `acknowledge`, `send_directives`,
    /// `prepare` and `detach` return [`LaunchError::Unreachable`] if they take longer than `limit`. (`watch` waits
    /// without limit by contract.)
    fn timeout(self, limit: Duration) -> Timeout<Self> {
        Timeout { inner: self, limit }
    }

    /// Wraps the launcher in an `Arc`, as the runtime keeps it.
    fn shared(self) -> Arc<dyn Launcher>
    where
        Self: 'static,
    {
        Arc::new(self)
    }
}

impl<T: Launcher> LauncherExt for T {}

/// A launcher whose calls are bounded in time (see [`LauncherExt::timeout`]).
#[derive(Debug)]
pub struct Timeout<L> {
    inner: L,
    limit: Duration,
}

impl<L: Sync> Timeout<L> {
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
impl<L: Launcher> Launcher for Timeout<L> {
    crate::delegate!(Launcher to |this| this.inner, except start, stop, list, acknowledge, send_directives, prepare, detach);

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
    async fn send_directives(&self, id: CommandId, batch: &DirectiveBatch) -> Result<(), LaunchError> {
        self.bounded("send_directives", self.inner.send_directives(id, batch)).await
    }
    async fn prepare(&self, batch: &StartBatch, options: &PrepareOptions) -> Result<(), LaunchError> {
        self.bounded("prepare", self.inner.prepare(batch, options)).await
    }
    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        self.bounded("detach", self.inner.detach(keep)).await
    }
}
