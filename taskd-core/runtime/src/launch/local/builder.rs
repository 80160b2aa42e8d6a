//! Configuration of the local launcher, and its errors.

use super::LocalLauncher;
use super::guard_client::Link;
use super::orders::Ground;
use crate::job::{Name, NodeId, printable};
use crate::launch::guard::GUARD_NAME;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Selects the program that runs as the guard, the process that starts and reaps the ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GuardProgram {
    /// This program itself, whose `main` first calls [`guard::init`](crate::launch::guard::init).
    #[default]
    ReexecSelf,
    /// The `taskd-guard` binary at this path.
    Path(PathBuf),
    /// No guard process: the job's processes are children of this process, and
    /// [`LauncherInfo`](crate::launch::LauncherInfo) lists the guarantees that are lost.
    None,
}

/// Action of the guard when its owner (the supervisor's process) disappears without notice. (A launcher that is
/// dropped, shut down or detached gives notice: see [`LocalLauncher`].)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnOwnerLoss {
    /// The guard stops everything: all processes with their whole process trees.
    KillTree {
        /// Time between SIGTERM and SIGKILL; zero is SIGKILL at once.
        grace: Duration,
    },
    /// The guard keeps all processes running for the time `at_most`, so that a new owner can attach. After this time,
    /// it kills all processes.
    Keep {
        /// Maximum time for which the processes run without an owner (a supervisor); after it the guard kills them.
        at_most: Duration,
    },
}

impl Default for OnOwnerLoss {
    /// Returns `KillTree` with zero grace: everything is killed at once.
    fn default() -> OnOwnerLoss {
        OnOwnerLoss::KillTree { grace: Duration::ZERO }
    }
}

/// Configures a [`LocalLauncher`]. Created by [`LocalLauncher::builder`].
#[derive(Clone, Debug)]
pub struct LocalLauncherBuilder {
    pub(super) run_dir: PathBuf,
    pub(super) job_name: Name,
    pub(super) guard: GuardProgram,
    pub(super) on_owner_loss: OnOwnerLoss,
    pub(super) drop_grace: Duration,
    pub(super) takeover: bool,
    pub(super) node: Option<NodeId>,
    pub(super) slots: u32,
    pub(super) beat_every: Duration,
    pub(super) log_bytes_max: u64,
    pub(super) tee: bool,
    pub(super) silent_guard_max: Duration,
}

impl LocalLauncherBuilder {
    /// Default of [`silent_guard_max`](Self::silent_guard_max): five minutes.
    pub const SILENT_GUARD_MAX: Duration = Duration::from_secs(300);

    /// Minimum size limit of a log file, in bytes.
    pub const LOG_BYTES_MIN: u64 = 4096;

    pub(super) fn new(run_dir: PathBuf) -> LocalLauncherBuilder {
        LocalLauncherBuilder {
            run_dir,
            job_name: Name::new("job"),
            guard: GuardProgram::default(),
            on_owner_loss: OnOwnerLoss::default(),
            drop_grace: Duration::from_secs(10),
            takeover: false,
            node: None,
            slots: 4096,
            beat_every: Duration::from_millis(500),
            log_bytes_max: 64 << 20,
            tee: false,
            silent_guard_max: LocalLauncherBuilder::SILENT_GUARD_MAX,
        }
    }

    /// Sets the job's name, for people to read: processes see it as `TASKD_JOB_NAME`. Default: `job`.
    #[must_use]
    pub fn job_name(mut self, name: impl Into<Name>) -> LocalLauncherBuilder {
        self.job_name = name.into();
        self
    }

    /// Selects the program that runs as the guard. Default: this program itself.
    #[must_use]
    pub fn guard(mut self, program: GuardProgram) -> LocalLauncherBuilder {
        self.guard = program;
        self
    }

    /// Sets the guard's action for the case that this process disappears without notice: it is killed, or it ends
    /// without dropping its launcher. Default: the guard kills all processes at once. A launcher that attaches to a
    /// running guard replaces the guard's earlier setting.
    #[must_use]
    pub fn on_owner_loss(mut self, what: OnOwnerLoss) -> LocalLauncherBuilder {
        self.on_owner_loss = what;
        self
    }

    /// Sets the time between SIGTERM and SIGKILL when this launcher is dropped. Default: 10 s. If a runtime's run on
    /// this launcher was dropped before, the grace time of the run's policy applies instead.
    #[must_use]
    pub fn drop_grace(mut self, grace: Duration) -> LocalLauncherBuilder {
        self.drop_grace = grace;
        self
    }

    /// Enables this launcher to take the job over from another supervisor that still runs. The launcher of that
    /// supervisor returns [`LaunchError::Unreachable`](crate::launch::LaunchError::Unreachable) for all calls from then
    /// on. Default: no; `build` then fails with [`LocalError::Owned`].
    #[must_use]
    pub fn takeover(mut self, takeover: bool) -> LocalLauncherBuilder {
        self.takeover = takeover;
        self
    }

    /// Sets the name of this host. Default: its host name.
    #[must_use]
    pub fn node(mut self, node: NodeId) -> LocalLauncherBuilder {
        self.node = Some(node);
        self
    }

    /// Sets the number of ranks that the launcher reports as the capacity of this host. Default: 4,096, the maximum of
    /// one guard.
    #[must_use]
    pub fn slots(mut self, slots: u32) -> LocalLauncherBuilder {
        self.slots = slots;
        self
    }

    /// Sets the interval at which ranks write their heartbeat (`TASKD_HEARTBEAT_INTERVAL_MS`). Default: 500 ms.
    #[must_use]
    pub fn beat_every(mut self, every: Duration) -> LocalLauncherBuilder {
        self.beat_every = every;
        self
    }

    /// Sets the size limit of each log file of process output, in bytes. One older file of the same size is kept in
    /// addition. Default: 64 MiB; minimum [`LOG_BYTES_MIN`](Self::LOG_BYTES_MIN).
    #[must_use]
    pub fn log_bytes_max(mut self, bytes: u64) -> LocalLauncherBuilder {
        self.log_bytes_max = bytes.max(LocalLauncherBuilder::LOG_BYTES_MIN);
        self
    }

    /// Also prints the output of processes to this program's stdout and stderr, each line prefixed with its rank
    /// (`[rank 3] `) and otherwise unchanged: colours are the processes' own, as in `kubectl logs`. An unfinished line
    /// is shown as it grows, and a progress bar as it moves: each of its states is a line. Output beyond what stdout
    /// and stderr can take is skipped and counted; the log files are complete. Default: no.
    #[must_use]
    pub fn tee(mut self, tee: bool) -> LocalLauncherBuilder {
        self.tee = tee;
        self
    }

    /// Sets how long the launcher waits for a guard that does not answer although its process is not stopped. After
    /// this time, it kills the guard, by its pid and start time, with all its processes, and starts a new guard. It
    /// waits without limit for a stopped guard (SIGSTOP, a debugger). It reports the silence within two seconds in any
    /// case ([`GuardState::Silent`](crate::launch::GuardState::Silent)). Default:
    /// [`SILENT_GUARD_MAX`](Self::SILENT_GUARD_MAX).
    #[must_use]
    pub fn silent_guard_max(mut self, at_most: Duration) -> LocalLauncherBuilder {
        self.silent_guard_max = at_most;
        self
    }

    /// Attaches to the guard that runs in the run directory, or starts a guard there. Before that, it removes the
    /// leftovers of a job whose guard died in this directory, and waits for a job that is being stopped in it.
    ///
    /// # Errors
    /// Returns [`LocalError`] if the launcher cannot be built. In that case, this call leaves no process running.
    ///
    /// # Panics
    /// Panics if called outside a tokio runtime with I/O enabled.
    pub async fn build(self) -> Result<LocalLauncher, LocalError> {
        let run_dir = std::path::absolute(&self.run_dir);
        let run_dir = run_dir.map_err(|source| LocalError::RunDir { path: self.run_dir.clone(), source })?;
        if run_dir.to_str().is_none() {
            let why = "its name is not UTF-8, and it is sent to the guard and to all ranks: choose another";
            let source = io::Error::new(io::ErrorKind::InvalidInput, why);
            return Err(LocalError::RunDir { path: run_dir, source });
        }
        let node = self.node.clone().unwrap_or_else(this_host);
        let ground = Ground::of_this_process(&self, node, &run_dir).map_err(LocalError::Environment)?;
        let link = Link::open(LocalLauncherBuilder { run_dir, ..self.clone() }, &ground).await?;
        Ok(LocalLauncher::new(self.guard != GuardProgram::None, ground, link))
    }
}

pub(in crate::launch) fn this_host() -> NodeId {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = printable(name.trim());
    NodeId(if name.is_empty() { Name::new("localhost") } else { Name::from(name.into_owned()) })
}

/// Reasons why a local launcher could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// The run directory cannot be used.
    #[error("cannot use the run directory {}: {source}", path.display())]
    RunDir {
        /// Path of the run directory.
        path: PathBuf,
        /// Error that the operating system returned.
        source: io::Error,
    },
    /// This program cannot run as the guard, because its `main` has not called
    /// [`guard::init`](crate::launch::guard::init).
    #[error(
        "this program cannot start itself as a guard: call taskd_core::launch::guard::init() first in its main, \
         or choose GuardProgram::Path or GuardProgram::None"
    )]
    NotInitialised,
    /// The guard's program cannot be started.
    #[error("cannot start {GUARD_NAME} from {}: {source}", program.display())]
    Program {
        /// Path of the guard's program.
        program: PathBuf,
        /// Error that the operating system returned.
        source: io::Error,
    },
    /// The guard was started, but then ended with an error, which this variant contains.
    #[error("the guard cannot run: {0}")]
    Guard(String),
    /// Another process owns the job in this run directory.
    #[error("process {by_pid} runs a job in {}: choose another run directory, end that process, or take over", run_dir.display())]
    Owned {
        /// Process id of the owner.
        by_pid: u32,
        /// Path of the run directory.
        run_dir: PathBuf,
    },
    /// Another job runs in the run directory, or has left running processes there.
    #[error("the run directory {} belongs to the job {name}, which runs: choose another directory, or end that job", run_dir.display())]
    OtherJob {
        /// Name of the other job.
        name: String,
        /// Path of the run directory.
        run_dir: PathBuf,
    },
    /// A guard runs in the run directory but does not answer.
    #[error(
        "{} in {} does not answer: it may be stopped; continue it (SIGCONT) or kill it, then try again",
        pid.map_or("a guard".to_owned(), |pid| format!("guard {pid}")), run_dir.display()
    )]
    Silent {
        /// Process id of the guard that does not answer, if known.
        pid: Option<u32>,
        /// Path of the run directory.
        run_dir: PathBuf,
    },
    /// A guard with another version of the protocol runs in the run directory.
    #[error("the guard in {} speaks version {theirs} of the protocol, this program {ours}: use the program that started it", run_dir.display())]
    Protocol {
        /// Protocol version of the running guard.
        theirs: u32,
        /// Protocol version of this program.
        ours: u32,
        /// Path of the run directory.
        run_dir: PathBuf,
    },
    /// The log files of the processes cannot be followed, so that their output cannot be printed.
    #[error("cannot follow log files to print them: {0}; without tee, the files are still written")]
    Tee(io::Error),
    /// The working directory of this process, or the set of processors on which it may run, cannot be read.
    #[error("cannot read this process's working directory or processors: {0}")]
    Environment(io::Error),
}
