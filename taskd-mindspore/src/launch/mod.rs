//! The launcher of MindSpore processes: any launcher, plus msrun's contract with scheduler and workers.
//!
//! taskd-core provides what every framework needs ([`PythonLauncher`]); this module adds what is specific to MindSpore.

mod environ;
mod files;

use std::sync::Arc;

use taskd_core::job::{Affinity, JobSpec, Name};
use taskd_core::launch::python::PythonLauncher;

pub use environ::MindSpore;
pub use files::PYTHON_FILES;

/// Name of the service in which MindSpore's scheduler runs.
pub const SCHEDULER: Name = Name::new("scheduler");

/// Returns the job with MindSpore's scheduler as a service. As in msrun, the scheduler's process runs the same program
/// as the workers, but stays in MindSpore's `init()`.
#[must_use]
pub fn with_scheduler(mut spec: JobSpec) -> JobSpec {
    let program = (*spec.worker).clone().with_affinity(Affinity::Inherit);
    spec.services.insert(SCHEDULER, Arc::new(program));
    spec
}

/// A launcher that runs the processes that the launcher `L` starts as MindSpore's scheduler and workers, in the way of
/// msrun.
///
/// - Every rank, and the service [`SCHEDULER`], gets msrun's environment variables; those of the start order take
///   precedence. The launcher assigns the rank numbers (`MS_NODE_ID`); MindSpore would number the workers in order of
///   arrival. `${local_rank}` in a process's arguments is replaced.
/// - Each generation has an `MS_SCHED_PORT` of its own, so that no generation connects to the scheduler of another. The
///   port is reserved for as long as the generation lasts: the launcher listens there until immediately before the
///   scheduler does, since the scheduler cannot take over a listener.
/// - taskd's Python helper is on PYTHONPATH: it adds lifeline, heartbeat, progress and records to an unmodified
///   program. The heartbeat comes from a thread that does not need Python's interpreter lock, which MindSpore holds for
///   seconds, and in the scheduler permanently. The heartbeat therefore shows only that the process is not stopped.
///   `TASKD_HOOKS=0` in the start order's environment turns the helper off.
/// - The exit of a failed process is reported with its error: the exception, or that the process has lost its
///   peers. So that no decision is made without the error, an end by exit code, or by the SIGTERM with which
///   workers end themselves when their scheduler is gone, is reported once, by the exit. The death of a killed
///   process is reported early, as always.
///
/// The variables number the ranks of a world from 0 without gaps, also in a shrunk world, in which taskd's own rank
/// numbers have gaps. With several hosts `MS_SCHED_HOST` is the name of the first rank's host, where the scheduler
/// runs, unless [set explicitly](MindSpore::sched_host). The port is reserved on the launcher's host only, so it may be
/// in use there.
///
/// # Files
/// The launcher's files are below the directory that is passed to [`new`](PythonLauncher::new), which only one
/// launcher at a time may use.
///
/// | path | content |
/// |---|---|
/// | `python/sitecustomize.py`, `python/taskd/` | the helper |
/// | `errors/rank-3.2.json` | the failure that incarnation 2 of rank 3 recorded |
/// | `port.sock` | socket on which the scheduler makes the launcher close its listener at the generation's port |
/// | `port` | the newest generation and its port, for a later launcher on the same directory |
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
