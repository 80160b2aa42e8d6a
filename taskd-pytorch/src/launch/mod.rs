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

/// A launcher that runs the ranks of `L` as PyTorch workers, in the way of torchrun.
///
/// - Every rank gets torchrun's complete worker environment; variables that the order itself sets take precedence.
///   `${local_rank}` in its arguments is replaced. Services pass through unchanged.
/// - glibc's `malloc` allocates in huge pages (`GLIBC_TUNABLES=glibc.malloc.hugetlb=1`), unless the variable is set:
///   the memory of a rank that dies is freed in a fraction of the time, and its replacement waits for that.
///   `glibc.malloc.hugetlb=0` turns it off.
/// - Each generation has a `MASTER_PORT` of its own, and rank 0's worker hosts the store there
///   (`TORCHELASTIC_USE_AGENT_STORE=False`), so that no generation ever sees the leftovers of another. The port is
///   reserved for as long as the generation lasts: the launcher listens there until rank 0's torch takes the listener
///   over (`master_listen_fd`). For a program that creates its store under another name of the host, or with a torch
///   that accepts no listener, the launcher's listener is closed immediately before. Ranks that are not Python programs
///   need `TASKD_HOOKS=0`: the port is then only bound, and if another process wins the race for it, the exit's error
///   is `retry_free`.
/// - The helper is on the ranks' `PYTHONPATH`: lifeline, heartbeat, progress and records of an unmodified program.
///   `TASKD_HOOKS=0` in the order's environment turns it off.
/// - A failed rank's exit carries its error: the record that it wrote to `TORCHELASTIC_ERROR_FILE` (`TASKD_ERROR_FILE`
///   is the same), else the exception at the end of its stderr. So that no decision is made without it, the death of a
///   rank that ended with an exit code is reported once, by its exit; the death of a killed rank is reported early, as
///   always.
/// - Ranks have warm [standbys](taskd_core::launch::python::Standbys) from a template if this host has no accelerator:
///   a restart does not wait for Python and torch. `.standbys(Standbys::none())` turns them off.
///
/// The ranks of a world are numbered from 0 without gaps in their order (`RANK`), whatever their numbers in a shrunk
/// world. Ranks without a host count as being together on one host. With several hosts `MASTER_ADDR` is the name of the
/// first rank's host, and the port is only likely to be free there.
///
/// # Files
/// They are below the directory that is passed to [`new`](PythonLauncher::new), which only one launcher at a time may
/// use.
///
/// | path | content |
/// |---|---|
/// | `python/sitecustomize.py` | the helper |
/// | `python/taskd/` | the package that records, and that a program may import to mark its own phases |
/// | `errors/rank-3.2.json` | the failure that incarnation 2 of rank 3 recorded |
/// | `port.sock` | socket on which rank 0 requests the listener of that port |
/// | `port` | the newest generation and its port, for a later owner |
///
/// The job runs without files that cannot be written; [`info`](taskd_core::launch::Launcher::info) lists what is
/// missing.
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
