//! A launcher of MindSpore's processes: any launcher, plus msrun's contract with scheduler and workers.
//!
//! What every framework needs is taskd-core's ([`PythonLauncher`]); here is what only MindSpore has.

mod environ;
mod files;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskd_core::job::{Affinity, JobSpec, Name, ProcId};
use taskd_core::launch::python::PythonLauncher;
use taskd_core::launch::{Change, LaunchError, Launcher, LauncherInfo, Listing, Revision, StartBatch};

use environ::MindSpore;
pub use files::PYTHON_FILES;

/// The service that is MindSpore's scheduler.
pub const SCHEDULER: Name = Name::new("scheduler");

/// The job with MindSpore's scheduler as its service: the same program, as msrun has it, which stays in `init()` there.
#[must_use]
pub fn with_scheduler(mut spec: JobSpec) -> JobSpec {
    let program = (*spec.worker).clone().with_affinity(Affinity::Inherit);
    spec.services.insert(SCHEDULER, Arc::new(program));
    spec
}

/// Makes the processes of `L` MindSpore's scheduler and workers, as msrun would start them.
///
/// - Every rank, and the service [`SCHEDULER`], gets msrun's environment; what the order itself sets wins. Ranks are pinned
///   (`MS_NODE_ID`). `${local_rank}` in their arguments is replaced.
/// - Each generation has an `MS_SCHED_PORT` of its own, so that no generation ever meets the leftovers of another. The port
///   is kept from other programs, by a bound socket, for as long as the generation lasts.
/// - The helper stands on PYTHONPATH: lifeline, heartbeat, progress and records of what the program does, without a change to
///   it. The heartbeat comes from a thread that needs no interpreter's lock, which MindSpore keeps for seconds, and in its
///   scheduler for ever: it says that the process is not stopped. `TASKD_HOOKS=0` in the order's environment turns all of it off.
/// - A failed exit carries its error: the exception, or that the process has lost its peers. So that no decision is taken
///   without it, an end by exit code, or by SIGTERM, with which workers end themselves when their scheduler is gone, is told
///   once, by the exit; that of a killed process is told early, as always.
///
/// The ranks of a world are numbered from 0 without gaps in their order. With several hosts `MS_SCHED_HOST` is the name of the
/// first rank's host, where the service runs, unless [told otherwise](Self::sched_host), and the port is only likely to be free
/// there.
///
/// # Files
/// They are below the directory that is given to [`new`](MindSporeLauncher::new); one launcher at a time uses it.
///
/// | path | what |
/// |---|---|
/// | `python/sitecustomize.py`, `python/taskd/` | the helper |
/// | `errors/rank-3.2.json` | what incarnation 2 of rank 3 recorded about its failure |
/// | `port` | the newest generation and its port, for a later owner |
///
/// # Example
/// ```no_run
/// use taskd_core::job::{JobSpec, WorkerSpec};
/// use taskd_core::launch::LocalLauncher;
/// use taskd_core::runtime::Runtime;
/// use taskd_core::{detect, recover};
/// use taskd_mindspore::{MindSporeLauncher, with_scheduler};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let local = LocalLauncher::builder("run").build().await?;
/// let launcher = MindSporeLauncher::new(local, "run/mindspore").log_dir("msrun_log");
/// let spec = with_scheduler(JobSpec::new("digits", 3, WorkerSpec::new(["python", "train.py"])));
/// let runtime = Runtime::builder().job(spec).launcher(launcher);
/// runtime.detectors(detect::defaults()).strategies(recover::defaults()).build()?.run().await;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct MindSporeLauncher<L>(PythonLauncher<L, MindSpore>);

impl<L: Launcher> MindSporeLauncher<L> {
    /// Completes what passes through `inner`, with files in `dir`.
    pub fn new(inner: L, dir: impl Into<PathBuf>) -> MindSporeLauncher<L> {
        MindSporeLauncher(PythonLauncher::new(inner, dir, MindSpore::default()))
    }

    /// Puts what processes print into this directory, too, under msrun's names: `scheduler.log`, `worker_3.log`. Those of an
    /// earlier life are kept beside them as `.1`. Default: only the launcher below keeps it.
    #[must_use]
    pub fn log_dir(mut self, dir: impl Into<PathBuf>) -> MindSporeLauncher<L> {
        let dir = dir.into();
        let dir = std::path::absolute(&dir).unwrap_or(dir); // ranks may run in another directory
        self.0.framework_mut().log_dir = Some(dir);
        self
    }

    /// How the log of a worker is called, without `.log` (msrun's `--worker_log_name`): `${rank}` and `${local_rank}` are
    /// replaced. Default: `worker_${rank}`.
    #[must_use]
    pub fn worker_log_name(mut self, name: impl Into<String>) -> MindSporeLauncher<L> {
        self.0.framework_mut().worker_log_name = name.into();
        self
    }

    /// What processes see as `MS_SCHED_HOST`, in place of what follows from the world. MindSpore wants an address, not a name.
    #[must_use]
    pub fn sched_host(mut self, address: impl Into<String>) -> MindSporeLauncher<L> {
        self.0.framework_mut().sched_host = Some(address.into());
        self
    }

    /// For how long scheduler and workers wait for each other before they give up by themselves (`MS_TOPO_TIMEOUT`, msrun's
    /// `--cluster_time_out`). Default: 600 s.
    #[must_use]
    pub fn cluster_time_out(mut self, time: Duration) -> MindSporeLauncher<L> {
        self.0.framework_mut().cluster_time_out_s = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        self
    }

    /// The launcher that does the work.
    pub const fn inner(&self) -> &L {
        self.0.inner()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<L: Launcher> Launcher for MindSporeLauncher<L> {
    fn info(&self) -> LauncherInfo {
        self.0.info()
    }

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        self.0.start(batch).await
    }

    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError> {
        self.0.stop(procs, grace).await
    }

    async fn list(&self) -> Result<Listing, LaunchError> {
        self.0.list().await
    }

    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        self.0.watch(from).await
    }

    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        self.0.acknowledge(exits).await
    }

    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        self.0.detach(keep).await
    }

    fn wind_down(&self, grace: Duration) {
        self.0.wind_down(grace);
    }
}
