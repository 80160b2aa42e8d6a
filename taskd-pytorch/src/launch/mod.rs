//! A launcher of PyTorch ranks: any launcher, plus torchrun's contract with a worker.
//!
//! It starts nothing itself and decides nothing: it completes what passes through it, orders on their way in and exits
//! on their way out.

mod environ;
mod files;
mod port;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskd_core::job::{ErrorReport, Name, ProcId, Rank, Termination, World};
use taskd_core::launch::{
    Change, LaunchError, Launcher, LauncherInfo, Listing, Phase, ProcStatus, Revision, StartBatch, StartOrder,
};
use tokio::sync::Mutex;

use crate::error::{ErrorRecord, read_error_file, report};
use environ::{Contract, Inherited};
use files::Files;
use port::HeldPort;

/// How long one turn of work on files is waited for. A disk that takes longer costs what is in the files, such as a
/// failed rank's record, but no start and no news of an exit.
const FILES_WITHIN: Duration = Duration::from_secs(1);

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
/// - A failed rank's exit carries its error: the record that it wrote to `TORCHELASTIC_ERROR_FILE`, else the exception
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
pub struct TorchLauncher<L> {
    inner: L,
    contract: Contract,
    inherited: Inherited,
    files: Files,
    /// Why the helper is not on the ranks' path.
    no_helper: Option<String>,
    port: Mutex<Option<HeldPort>>,
}

impl<L: Launcher> TorchLauncher<L> {
    /// Completes what passes through `inner`, with files in `dir`.
    pub fn new(inner: L, dir: impl Into<PathBuf>) -> TorchLauncher<L> {
        let files = Files::new(dir.into());
        let no_helper = files.write_helper().err().map(|error| {
            format!(
                "no lifeline, heartbeat, progress and records of PyTorch ranks: {} cannot be written: {error}",
                files.helper_dir().display()
            )
        });
        TorchLauncher {
            inner,
            contract: Contract::default(),
            inherited: Inherited::of_this_process(),
            files,
            no_helper,
            port: Mutex::default(),
        }
    }

    /// What ranks see as `TORCHELASTIC_RUN_ID`. Default: `none`, as torchrun's.
    #[must_use]
    pub fn run_id(mut self, id: impl Into<String>) -> TorchLauncher<L> {
        self.contract.run_id = id.into();
        self
    }

    /// What ranks see as `TORCHELASTIC_MAX_RESTARTS`, for programs that look at it; nothing is decided by it. Default: 10.
    #[must_use]
    pub fn max_restarts(mut self, restarts: u32) -> TorchLauncher<L> {
        self.contract.max_restarts = restarts;
        self
    }

    /// What ranks see as `MASTER_ADDR`, in place of what follows from the world.
    #[must_use]
    pub fn master_addr(mut self, addr: impl Into<String>) -> TorchLauncher<L> {
        self.contract.master_addr = Some(addr.into());
        self
    }

    /// The launcher that does the work.
    pub const fn inner(&self) -> &L {
        &self.inner
    }

    /// The orders of a batch with what a PyTorch worker needs.
    fn completed(&self, batch: &StartBatch, port: u16) -> Result<StartBatch, LaunchError> {
        let seats = environ::seats(&batch.world);
        let complete = |order: &StartOrder| {
            let Some(rank) = order.proc.role.rank() else { return Ok(order.clone()) };
            let seat = seats.get(&rank).ok_or_else(|| {
                LaunchError::Refused(format!("{}: it is no member of the world that it is to start in", order.proc))
            })?;
            let mut spec = (*order.spec).clone();
            let mut env = self.contract.variables(&batch.world, seat, port);
            env.insert("TORCHELASTIC_ERROR_FILE".into(), self.files.error(rank, &order.proc).display().to_string());
            env.extend(self.inherited.defaults(&spec, seat));
            for (name, value) in env {
                spec.env.entry(name).or_insert(value);
            }
            if self.no_helper.is_none() {
                let path = self.inherited.python_path(&spec, &self.files.helper_dir().display());
                spec.env.insert("PYTHONPATH".into(), path);
            }
            for argument in &mut spec.argv {
                *argument = argument.replace("${local_rank}", &seat.local_rank.to_string());
            }
            Ok(StartOrder { spec: Arc::new(spec), ..order.clone() })
        };
        let orders = batch.orders.iter().map(complete).collect::<Result<_, _>>()?;
        Ok(StartBatch { world: Arc::clone(&batch.world), orders })
    }

    /// The port of the world's generation: the one that it has, else a new one.
    ///
    /// `attached` says that processes run, maybe of an earlier owner that had begun this very start: then the port that
    /// it chose is theirs, too.
    async fn port_of(&self, world: &World, attached: bool) -> Result<u16, LaunchError> {
        let generation = world.generation();
        let mut held = self.port.lock().await;
        if let Some(held) = held.as_ref().filter(|held| held.generation == generation) {
            return Ok(held.port);
        }
        let files = self.files.clone();
        let earlier = if attached { on_files(move || files.read_port(generation)).await.flatten() } else { None };
        let new = match earlier {
            Some(port) => HeldPort::already(generation, port),
            None => HeldPort::choose(generation)
                .map_err(|error| LaunchError::Unreachable(format!("no port for the store of {generation}: {error}")))?,
        };
        // The last generation's port was held until here, so that the new one is another.
        let port = held.insert(new).port;
        let files = self.files.clone();
        on_files(move || files.write_port(generation, port)).await;
        Ok(port)
    }

    /// Adds to failed exits what the ranks said about them.
    async fn explain<'a>(&self, statuses: impl Iterator<Item = &'a mut ProcStatus>) {
        let lacking = |status: &'a mut ProcStatus| lacks_error(status).map(|rank| (rank, status));
        let failed: Vec<_> = statuses.filter_map(lacking).collect();
        if failed.is_empty() {
            return;
        }
        let paths: Vec<PathBuf> = failed.iter().map(|(rank, status)| self.files.error(*rank, &status.proc)).collect();
        let records = on_files(move || paths.iter().map(|path| readable_record(path)).collect::<Vec<_>>()).await;
        let records = records.unwrap_or_default();
        for (index, (_, status)) in failed.into_iter().enumerate() {
            if let Phase::Exited(exit) = &mut status.phase {
                let record = records.get(index).and_then(Option::as_ref);
                let told = report(record, &exit.stderr_tail);
                exit.error = told.map(|told| Box::new(ErrorReport { step: told.step.or(exit.step), ..told }));
            }
        }
    }
}

/// Does work on files beside the runtime's threads; `None` where it did not end in time.
async fn on_files<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let done = tokio::time::timeout(FILES_WITHIN, tokio::task::spawn_blocking(work)).await;
    let done = done.ok().and_then(Result::ok);
    if done.is_none() {
        tracing::warn!("the disk with the torch launcher's files does not answer: going on without them");
    }
    done
}

fn readable_record(path: &Path) -> Option<ErrorRecord> {
    read_error_file(path).unwrap_or_else(|error| {
        tracing::warn!(%error, "a failed rank left no readable record");
        None
    })
}

/// Whether this is the early news that a rank has ended with an exit code.
///
/// It is withheld: what the rank says about its failure belongs to it and comes with the exit. A rank that was killed
/// says nothing, and its death is told as early as it is known.
fn is_withheld(status: &ProcStatus) -> bool {
    status.proc.role.rank().is_some() && matches!(status.phase, Phase::Dead(Termination::Code(_)))
}

/// The rank, where it has failed and nobody has said why yet.
fn lacks_error(status: &ProcStatus) -> Option<Rank> {
    let failed = matches!(&status.phase, Phase::Exited(exit) if !exit.how.is_success() && exit.error.is_none());
    status.proc.role.rank().filter(|_| failed)
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<L: Launcher> Launcher for TorchLauncher<L> {
    fn info(&self) -> LauncherInfo {
        let mut info = self.inner.info();
        info.name = Name::from(format!("torch over {}", info.name));
        info.goes_without.extend(self.no_helper.clone());
        info
    }

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        let listing = self.inner.list().await?;
        let attached = listing.procs.iter().any(|status| !status.phase.is_over());
        let port = self.port_of(&batch.world, attached).await?;
        let batch = self.completed(batch, port)?;
        let known: BTreeSet<&ProcId> = listing.procs.iter().map(|status| &status.proc).collect();
        let new = batch.orders.iter().map(|order| &order.proc).filter(|proc| !known.contains(proc));
        let errors: Vec<PathBuf> =
            new.filter_map(|proc| proc.role.rank().map(|rank| self.files.error(rank, proc))).collect();
        on_files(move || errors.iter().for_each(|path| files::make_room(path))).await;
        self.inner.start(&batch).await
    }

    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError> {
        self.inner.stop(procs, grace).await
    }

    async fn list(&self) -> Result<Listing, LaunchError> {
        let mut listing = self.inner.list().await?;
        for status in listing.procs.iter_mut().filter(|status| is_withheld(status)) {
            status.phase = Phase::Running;
        }
        self.explain(listing.procs.iter_mut()).await;
        Ok(listing)
    }

    async fn watch(&self, mut from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        loop {
            let (mut changes, next) = self.inner.watch(from).await?;
            changes.retain(|change| !matches!(change, Change::Proc(status) if is_withheld(status)));
            if changes.is_empty() {
                from = next;
                continue;
            }
            let statuses = changes.iter_mut().filter_map(|change| match change {
                Change::Proc(status) => Some(status),
                Change::Node(_) => None,
            });
            self.explain(statuses).await;
            return Ok((changes, next));
        }
    }

    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        self.inner.acknowledge(exits).await
    }

    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        self.inner.detach(keep).await
    }

    fn wind_down(&self, grace: Duration) {
        self.inner.wind_down(grace);
    }
}
