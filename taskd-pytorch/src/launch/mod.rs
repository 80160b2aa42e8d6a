//! A launcher of PyTorch ranks: any launcher, plus torchrun's contract with a worker.
//!
//! What every framework needs is taskd-core's ([`PythonLauncher`]); here is what only PyTorch has.

mod environ;
mod files;

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use taskd_core::job::ProcId;
use taskd_core::launch::python::PythonLauncher;
use taskd_core::launch::{Change, LaunchError, Launcher, LauncherInfo, Listing, Revision, StartBatch};

use environ::Torch;
pub use files::PYTHON_FILES;

/// Makes the ranks of `L` PyTorch workers, as torchrun would start them.
///
/// - Every rank gets torchrun's whole worker environment; what the order itself sets wins. `${local_rank}` in its
///   arguments is replaced. Services pass through unchanged.
/// - Each generation has a `MASTER_PORT` of its own, and rank 0's worker hosts the store there
///   (`TORCHELASTIC_USE_AGENT_STORE=False`), so that no generation ever meets the leftovers of another. The port is kept
///   from other programs, by a bound socket, for as long as the generation lasts; where the race for it is lost all the
///   same, the exit's error is `retry_free`.
/// - The helper stands on the ranks' `PYTHONPATH`: lifeline, heartbeat, progress and records of what the program does,
///   without a change to it. `TASKD_HOOKS=0` in the order's environment turns it off.
/// - A failed rank's exit carries its error: the record that it wrote to `TORCHELASTIC_ERROR_FILE` (`TASKD_ERROR_FILE` is the same), else the exception
///   that its stderr ends with. So that no decision is taken without it, the death of a rank that ended with an exit code
///   is told once, by its exit; that of a killed rank is told early, as always.
///
/// The ranks of a world are numbered from 0 without gaps in their order (`RANK`), whatever a shrunk world calls them. A
/// rank without a host counts as being on one host with all others like it. With several hosts `MASTER_ADDR` is the name
/// of the first rank's host, and the port is only likely to be free there.
///
/// # Files
/// They are below the directory that is given to [`new`](TorchLauncher::new); one launcher at a time uses it.
///
/// | path | what |
/// |---|---|
/// | `python/sitecustomize.py` | the helper |
/// | `python/taskd/` | the package that records, and that a program may import to mark what it does |
/// | `errors/rank-3.2.json` | what incarnation 2 of rank 3 recorded about its failure |
/// | `port` | the newest generation and its port, for a later owner |
///
/// What cannot be written the job does without; [`info`](Launcher::info) says what.
///
/// # Example
/// ```no_run
/// use taskd_core::launch::LocalLauncher;
/// use taskd_pytorch::TorchLauncher;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let local = LocalLauncher::builder("run").build().await?;
/// let launcher = TorchLauncher::new(local, "run/torch").run_id("digits");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct TorchLauncher<L>(PythonLauncher<L, Torch>);

impl<L: Launcher> TorchLauncher<L> {
    /// Completes what passes through `inner`, with files in `dir`.
    pub fn new(inner: L, dir: impl Into<PathBuf>) -> TorchLauncher<L> {
        TorchLauncher(PythonLauncher::new(inner, dir, Torch::default()))
    }

    /// What ranks see as `TORCHELASTIC_RUN_ID`. Default: `none`, as torchrun's.
    #[must_use]
    pub fn run_id(mut self, id: impl Into<String>) -> TorchLauncher<L> {
        self.0.framework_mut().run_id = id.into();
        self
    }

    /// What ranks see as `TORCHELASTIC_MAX_RESTARTS`, for programs that look at it; nothing is decided by it. Default: 10.
    #[must_use]
    pub fn max_restarts(mut self, restarts: u32) -> TorchLauncher<L> {
        self.0.framework_mut().max_restarts = restarts;
        self
    }

    /// What ranks see as `MASTER_ADDR`, in place of what follows from the world.
    #[must_use]
    pub fn master_addr(mut self, addr: impl Into<String>) -> TorchLauncher<L> {
        self.0.framework_mut().master_addr = Some(addr.into());
        self
    }

    /// The launcher that does the work.
    pub const fn inner(&self) -> &L {
        self.0.inner()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<L: Launcher> Launcher for TorchLauncher<L> {
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
