//! What a local launcher can be told, and what can be wrong with it.

use super::LocalLauncher;
use super::link::Link;
use super::orders::Ground;
use crate::job::{Name, NodeId, printable};
use crate::launch::guard::GUARD_NAME;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Which program is the guard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GuardProgram {
    /// This program itself, whose `main` first calls [`guard::init`](crate::launch::guard::init).
    #[default]
    ReexecSelf,
    /// The `taskd-guard` binary at this path.
    Path(PathBuf),
    /// None: processes are children of this one, and [`LauncherInfo`](crate::launch::LauncherInfo) says what is lost.
    None,
}

/// What the guard does when its owner is gone without a word. (One that was dropped, was shut down or has detached has said
/// one: see [`LocalLauncher`].)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnOwnerLoss {
    /// Everything is stopped, with everything that it started.
    KillTree {
        /// Time between SIGTERM and SIGKILL; zero is SIGKILL at once.
        grace: Duration,
    },
    /// Everything goes on, and a new owner can attach within this time; after it, everything is killed.
    Keep {
        /// For how long.
        at_most: Duration,
    },
}

impl Default for OnOwnerLoss {
    /// Everything is killed at once.
    fn default() -> OnOwnerLoss {
        OnOwnerLoss::KillTree { grace: Duration::ZERO }
    }
}

/// How a [`LocalLauncher`] is to be. Made by [`LocalLauncher::builder`].
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
    /// How long a guard may go without an answer, unless it is said otherwise: five minutes.
    pub const SILENT_GUARD_MAX: Duration = Duration::from_secs(300);

    /// Shortest bound of a log file in bytes.
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

    /// The job's name, for people: processes see it as `TASKD_JOB_NAME`. Default: `job`.
    #[must_use]
    pub fn job_name(mut self, name: impl Into<Name>) -> LocalLauncherBuilder {
        self.job_name = name.into();
        self
    }

    /// Which program is the guard. Default: this program itself.
    #[must_use]
    pub fn guard(mut self, program: GuardProgram) -> LocalLauncherBuilder {
        self.guard = program;
        self
    }

    /// What happens when this process is gone without a word: killed, or ended without dropping its launcher. Default:
    /// everything is killed at once. A launcher that attaches to a running guard sets it anew.
    #[must_use]
    pub fn on_owner_loss(mut self, what: OnOwnerLoss) -> LocalLauncherBuilder {
        self.on_owner_loss = what;
        self
    }

    /// Time between SIGTERM and SIGKILL when this launcher is dropped. Default: 10 s. Where a run over it was dropped before,
    /// its policy's grace time counts instead.
    #[must_use]
    pub fn drop_grace(mut self, grace: Duration) -> LocalLauncherBuilder {
        self.drop_grace = grace;
        self
    }

    /// Takes the job over from another owner that is alive; that one's calls answer `Unreachable` from then on.
    /// Default: no.
    #[must_use]
    pub fn takeover(mut self, takeover: bool) -> LocalLauncherBuilder {
        self.takeover = takeover;
        self
    }

    /// The name of this host. Default: its host name.
    #[must_use]
    pub fn node(mut self, node: NodeId) -> LocalLauncherBuilder {
        self.node = Some(node);
        self
    }

    /// How many ranks this host is said to hold. Default: 4,096, the most that one guard takes.
    #[must_use]
    pub fn slots(mut self, slots: u32) -> LocalLauncherBuilder {
        self.slots = slots;
        self
    }

    /// How often ranks are asked to write their heartbeat (`TASKD_BEAT_MS`). Default: 500 ms.
    #[must_use]
    pub fn beat_every(mut self, every: Duration) -> LocalLauncherBuilder {
        self.beat_every = every;
        self
    }

    /// Bound of each log file in bytes; one older file of that length is kept beside it. Default: 64 MiB; at least
    /// [`LOG_BYTES_MIN`](Self::LOG_BYTES_MIN).
    #[must_use]
    pub fn log_bytes_max(mut self, bytes: u64) -> LocalLauncherBuilder {
        self.log_bytes_max = bytes.max(LocalLauncherBuilder::LOG_BYTES_MIN);
        self
    }

    /// Also prints what processes print, each line with its rank in front (`[rank 3] `), to this program's stdout and
    /// stderr, as it is: colours are the processes' own, as in `kubectl logs`. A line without an end is shown as it comes, a progress bar
    /// as it moves: each of its states is a line. What is too much for them is passed over and counted; the files have all. Default: no.
    #[must_use]
    pub fn tee(mut self, tee: bool) -> LocalLauncherBuilder {
        self.tee = tee;
        self
    }

    /// How long a guard that does not answer is waited for although its process is not stopped: then it is killed, by its pid and start
    /// time, with all that it guards, and another one takes its place. One that is stopped (SIGSTOP, a debugger) is waited for
    /// without a bound. That it does not answer is told within two seconds in any case
    /// ([`GuardState::Silent`](crate::launch::GuardState::Silent)). Default: [`SILENT_GUARD_MAX`](Self::SILENT_GUARD_MAX).
    #[must_use]
    pub fn silent_guard_max(mut self, at_most: Duration) -> LocalLauncherBuilder {
        self.silent_guard_max = at_most;
        self
    }

    /// Attaches to the guard that runs in the run directory, or starts one. Leftovers of a job whose guard died there are
    /// removed first; a job that is being stopped there is waited for.
    ///
    /// # Errors
    /// [`LocalError`]; nothing is left running.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O enabled.
    pub async fn build(self) -> Result<LocalLauncher, LocalError> {
        let run_dir = std::path::absolute(&self.run_dir);
        let run_dir = run_dir.map_err(|source| LocalError::RunDir { path: self.run_dir.clone(), source })?;
        if run_dir.to_str().is_none() {
            let why = "its name is not UTF-8, and it is told to the guard and to all ranks: choose another";
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

/// Why there is no local launcher.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// The run directory cannot be used.
    #[error("cannot use the run directory {}: {source}", path.display())]
    RunDir {
        /// The directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// This program cannot be its own guard.
    #[error(
        "this program cannot start itself as a guard: call taskd_core::launch::guard::init() first in its main, \
         or choose GuardProgram::Path or GuardProgram::None"
    )]
    NotInitialised,
    /// The guard's program cannot be started.
    #[error("cannot start {GUARD_NAME} from {}: {source}", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The guard started, but gave up.
    #[error("the guard cannot run: {0}")]
    Guard(String),
    /// Another process owns the job in this directory.
    #[error("process {by_pid} runs a job in {}: choose another run directory, end that process, or take over", run_dir.display())]
    Owned {
        /// The owner.
        by_pid: u32,
        /// The directory.
        run_dir: PathBuf,
    },
    /// Another job runs there, or has left processes there that run.
    #[error("the run directory {} belongs to the job {name}, which runs: choose another directory, or end that job", run_dir.display())]
    OtherJob {
        /// The job's name.
        name: String,
        /// The directory.
        run_dir: PathBuf,
    },
    /// A guard runs there but does not answer.
    #[error(
        "{} in {} does not answer: it may be stopped; continue it (SIGCONT) or kill it, then try again",
        pid.map_or("a guard".to_owned(), |pid| format!("guard {pid}")), run_dir.display()
    )]
    Silent {
        /// The guard, where it is known.
        pid: Option<u32>,
        /// The directory.
        run_dir: PathBuf,
    },
    /// A guard of another version runs there.
    #[error("the guard in {} speaks version {theirs} of the protocol, this program {ours}: use the program that started it", run_dir.display())]
    Protocol {
        /// The guard's version.
        theirs: u32,
        /// This program's version.
        ours: u32,
        /// The directory.
        run_dir: PathBuf,
    },
    /// What processes print cannot be followed.
    #[error("cannot follow log files to print them: {0}; leave tee out, the files are written all the same")]
    Tee(io::Error),
    /// Something about this process cannot be found out.
    #[error("cannot read this process's working directory or processors: {0}")]
    Environment(io::Error),
}
