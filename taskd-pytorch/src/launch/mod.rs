//! The launcher of PyTorch ranks: any launcher, plus torchrun's contract with a worker.
//!
//! taskd-core provides what every framework needs ([`PythonLauncher`]); this module adds what is specific to PyTorch.

mod environ;
mod files;
mod meeting;
#[cfg(test)]
mod words;

use taskd_core::launch::python::PythonLauncher;

pub use environ::Torch;
pub use files::PYTHON_FILES;
pub use meeting::{STORE, with_store};

/// A launcher that runs the ranks that the launcher `L` starts as PyTorch workers, in the way of torchrun.
///
/// - Every rank gets torchrun's complete worker environment; variables that the start order sets take precedence.
///   `${local_rank}` in the rank's arguments is replaced. Services pass through unchanged.
/// - glibc's `malloc` allocates in huge pages: the launcher sets `GLIBC_TUNABLES=glibc.malloc.hugetlb=1`, unless
///   `GLIBC_TUNABLES` is set. With huge pages the memory of a rank that dies is freed in a fraction of the time, for
///   which the rank's replacement has to wait. `GLIBC_TUNABLES=glibc.malloc.hugetlb=0` turns huge pages off.
/// - Each generation has a `MASTER_PORT` of its own, and rank 0's worker hosts the store there
///   (`TORCHELASTIC_USE_AGENT_STORE=False`), so that no generation connects to the store of another. The port is
///   reserved for as long as the generation lasts: the launcher listens there until rank 0's torch takes the listener
///   over (`master_listen_fd`). If the program creates its store under another name of the host, or its torch accepts
///   no listener, the launcher closes its listener immediately before the store listens. Ranks that are not Python
///   programs need `TASKD_HOOKS=0`: then the launcher only binds the port, and if another process wins the race for the
///   port, the error report of the rank's exit is `retry_free`.
/// - taskd's Python helper is on the ranks' `PYTHONPATH`: it adds lifeline, heartbeat, progress and records to an
///   unmodified program. `TASKD_HOOKS=0` in the start order's environment turns the helper off.
/// - The exit of a failed rank is reported with the rank's error: the record that the rank wrote to
///   `TORCHELASTIC_ERROR_FILE` (`TASKD_ERROR_FILE` is the same), otherwise the exception at the end of the rank's
///   stderr. So that no decision is made without the error, the death of a rank that ended with an exit code is
///   reported once, by the exit. The death of a killed rank is reported early, as always.
/// - Ranks have warm [standbys](taskd_core::launch::python::Standbys) from a template process if this host has no
///   accelerator, so that a restart does not wait for Python and torch. `.standbys(Standbys::none())` turns them off.
///
/// `RANK` numbers the ranks of a world from 0 without gaps, also in a shrunk world, in which taskd's own rank numbers
/// have gaps. Ranks whose host is unknown count as being together on one host. With several hosts `MASTER_ADDR` is the
/// name of the first rank's host, and the port is reserved on the launcher's host only, so it may be in use there.
///
/// # Files
/// The launcher's files are below the directory that is passed to [`new`](PythonLauncher::new), which only one
/// launcher at a time may use.
///
/// | path | content |
/// |---|---|
/// | `python/sitecustomize.py` | the helper |
/// | `python/taskd/` | the package that records, and that a program may import to mark its own phases |
/// | `errors/rank-3.2.json` | the failure that incarnation 2 of rank 3 recorded |
/// | `port.sock` | socket on which rank 0 requests the listener of the generation's port |
/// | `port` | the newest generation and its port, for a later launcher on the same directory |
///
/// If a file cannot be written, the job runs without the function that needs the file, and
/// [`info`](taskd_core::launch::Launcher::info) lists that function as missing.
///
/// # Example
/// ```no_run
/// use taskd_core::launch::LocalLauncher;
/// use taskd_pytorch::{Torch, TorchLauncher};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let local = LocalLauncher::builder("run").build().await?;
/// let launcher = TorchLauncher::with_framework(local, "run/torch", Torch::default().run_id("digits"));
/// # Ok(()) }
/// ```
pub type TorchLauncher<L> = PythonLauncher<L, Torch>;
