//! A launcher of PyTorch ranks: any launcher, plus torchrun's contract with a worker.
//!
//! What every framework needs is taskd-core's ([`PythonLauncher`]); here is what only PyTorch has.

mod environ;
mod files;
mod meeting;
#[cfg(test)]
mod words;

use taskd_core::launch::python::PythonLauncher;

pub use environ::Torch;
pub use files::PYTHON_FILES;
pub use meeting::{STORE, with_store};

/// Makes the ranks of `L` PyTorch workers, as torchrun would start them.
///
/// - Every rank gets torchrun's whole worker environment; what the order itself sets wins. `${local_rank}` in its
///   arguments is replaced. Services pass through unchanged.
/// - What glibc's `malloc` gets is in huge pages (`GLIBC_TUNABLES=glibc.malloc.hugetlb=1`), unless the variable is set: the memory
///   of a rank that dies is given back in a fraction of the time, and its successor waits for that. `glibc.malloc.hugetlb=0` turns it off.
/// - Each generation has a `MASTER_PORT` of its own, and rank 0's worker hosts the store there
///   (`TORCHELASTIC_USE_AGENT_STORE=False`), so that no generation ever meets the leftovers of another. The port is kept
///   from other programs for as long as the generation lasts: the launcher listens there until rank 0's torch takes the listener over
///   (`master_listen_fd`). A program that makes its store by another name of the host, or by a torch that takes none, has the launcher's
///   listener closed right before. Ranks that are no Python's need `TASKD_HOOKS=0`: then the port is only bound, and where the race for it is
///   lost, the exit's error is `retry_free`.
/// - The helper stands on the ranks' `PYTHONPATH`: lifeline, heartbeat, progress and records of what the program does,
///   without a change to it. `TASKD_HOOKS=0` in the order's environment turns it off.
/// - A failed rank's exit carries its error: the record that it wrote to `TORCHELASTIC_ERROR_FILE` (`TASKD_ERROR_FILE` is the same), else the exception
///   that its stderr ends with. So that no decision is taken without it, the death of a rank that ended with an exit code
///   is told once, by its exit; that of a killed rank is told early, as always.
/// - Ranks have warm [standbys](taskd_core::launch::python::Standbys) from a template, where this host has no accelerator: a restart does
///   not wait for Python and torch. `.standbys(Standbys::none())` turns them off.
///
/// The ranks of a world are numbered from 0 without gaps in their order (`RANK`), whatever a shrunk world calls them. A
/// rank without a host counts as being on one host with all others like it. With several hosts `MASTER_ADDR` is the name
/// of the first rank's host, and the port is only likely to be free there.
///
/// # Files
/// They are below the directory that is given to [`new`](PythonLauncher::new); one launcher at a time uses it.
///
/// | path | what |
/// |---|---|
/// | `python/sitecustomize.py` | the helper |
/// | `python/taskd/` | the package that records, and that a program may import to mark what it does |
/// | `errors/rank-3.2.json` | what incarnation 2 of rank 3 recorded about its failure |
/// | `port.sock` | where rank 0 asks for the listener of that port |
/// | `port` | the newest generation and its port, for a later owner |
///
/// What cannot be written the job does without; [`info`](taskd_core::launch::Launcher::info) says what.
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
