//! A launcher of MindSpore's processes: any launcher, plus msrun's contract with scheduler and workers.
//!
//! What every framework needs is taskd-core's ([`PythonLauncher`]); here is what only MindSpore has.

mod environ;
mod files;

use std::sync::Arc;

use taskd_core::job::{Affinity, JobSpec, Name};
use taskd_core::launch::python::PythonLauncher;

pub use environ::MindSpore;
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
///   is kept from other programs for as long as the generation lasts: the launcher listens there until right before the scheduler does, which
///   can take no listener of another's.
/// - The helper stands on PYTHONPATH: lifeline, heartbeat, progress and records of what the program does, without a change to
///   it. The heartbeat comes from a thread that needs no interpreter's lock, which MindSpore keeps for seconds, and in its
///   scheduler for ever: it says that the process is not stopped. `TASKD_HOOKS=0` in the order's environment turns all of it off.
/// - A failed exit carries its error: the exception, or that the process has lost its peers. So that no decision is taken
///   without it, an end by exit code, or by SIGTERM, with which workers end themselves when their scheduler is gone, is told
///   once, by the exit; that of a killed process is told early, as always.
///
/// The ranks of a world are numbered from 0 without gaps in their order. With several hosts `MS_SCHED_HOST` is the name of the
/// first rank's host, where the service runs, unless [told otherwise](MindSpore::sched_host), and the port is only likely to be free
/// there.
///
/// # Files
/// They are below the directory that is given to [`new`](PythonLauncher::new); one launcher at a time uses it.
///
/// | path | what |
/// |---|---|
/// | `python/sitecustomize.py`, `python/taskd/` | the helper |
/// | `errors/rank-3.2.json` | what incarnation 2 of rank 3 recorded about its failure |
/// | `port.sock` | where the scheduler has the launcher close its listener of that port |
/// | `port` | the newest generation and its port, for a later owner |
///
/// # Example
/// ```no_run
/// use taskd_core::job::{JobSpec, WorkerSpec};
/// use taskd_core::launch::LocalLauncher;
/// use taskd_core::runtime::Runtime;
/// use taskd_core::{detect, recover};
/// use taskd_mindspore::{MindSpore, MindSporeLauncher, with_scheduler};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let local = LocalLauncher::builder("run").build().await?;
/// let mindspore = MindSpore::default().log_dir("msrun_log");
/// let launcher = MindSporeLauncher::with_framework(local, "run/mindspore", mindspore);
/// let spec = with_scheduler(JobSpec::new("digits", 3, WorkerSpec::new(["python", "train.py"])));
/// let runtime = Runtime::builder().job(spec).launcher(launcher);
/// runtime.detectors(detect::defaults()).strategies(recover::defaults()).build()?.run().await;
/// # Ok(()) }
/// ```
pub type MindSporeLauncher<L> = PythonLauncher<L, MindSpore>;
