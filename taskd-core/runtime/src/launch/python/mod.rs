//! Framework-independent support for Python ranks: a launcher that completes the orders of another launcher, and the
//! helper that gives an unmodified program its lifeline, heartbeat, progress and records.
//!
//! This module starts no process, takes no decision and knows no framework; a [`Framework`] supplies what is specific
//! to one.
//!
//! # What a framework crate has to write
//! 1. A [`Framework`]: [`name`](Framework::name), [`files`](Framework::files), and the variables of a rank in
//!    [`rank_env`](Framework::rank_env); if they depend on inherited variables, also
//!    [`inherited_variables`](Framework::inherited_variables). If services run the framework as well,
//!    [`manages_service`](Framework::manages_service) and [`service_env`](Framework::service_env). To classify
//!    exceptions, [`report`](Framework::report): which component is at fault, and whether a restart costs no attempt.
//! 2. `_taskd_framework.py`, for progress. The helper imports it in the rank before the program starts, and calls
//!    `start(steps, after_import)`. `after_import(module, then)` calls `then(module)` once the program has imported the
//!    module; `steps.completed_by(optimizer, remembered)` reports that an optimizer has completed a step, where
//!    `remembered(optimizer)` returns the optimizer's own count of steps, this one included, or 0 if it has none;
//!    `steps.is_rank()` returns false in a forked child. The file must parse on Python 3.6.
//! 3. `_taskd_standby_framework.py`, for [standbys](Standbys) from a template. `warm()` takes a first training step and
//!    returns what could not be done; `why_not_to_fork()` returns a reason if a forked child would differ from a new
//!    process; `set_threads(count)` sets the number of compute threads of the framework and `threads()` returns it;
//!    `generators()` returns the states of its random number generators by name, in a form that can be compared, and
//!    `seed(name, state)` restores one (a new seed for None); `hold_device(slot)` creates a context on the device of
//!    that local rank. The file must parse on Python 3.8.
//! 4. The package `taskd.<module>`, for records and recovery, where `<module>` is the `MODULE` of item 2 (`taskd.torch`
//!    for `torch`). Its module `framework` has the functions that `taskd/_framework.py` describes: `HOOKS` has a line
//!    `(module, hook, kind)` for each module of the framework whose import installs the module `hook` (by calling its
//!    `install(module, native)`); `install(after_import, native)` does all other one-time set-up. `taskd._hooks` has
//!    the common code of hooks, `taskd._step_recorder` the steps, and `taskd._vendor_marks` wraps the marks that a
//!    program makes with a vendor's functions.
//!
//! A launcher for the framework is then `PythonLauncher<L, ThatFramework>`; a framework crate has an alias for it.
//!
//! Items 2 to 4 are optional: without 2 a framework shows no progress, and without 4 it records only what a program
//! marks itself. With the feature `venv`, `venv` builds the Python environment in which examples and tests run.

mod command;
mod copies;
mod error;
mod files;
mod framework;
mod helper;
mod inherited;
mod lender;
mod meet;
mod port;
mod records;
mod rendezvous;
pub(in crate::launch) mod standbys;
#[cfg(feature = "venv")]
pub mod venv;
mod worker_ranks;

pub use copies::{COPY_TO_VARIABLE, copy_holders};
pub use error::{
    ErrorFileError, ErrorRecord, FAMILY, Failure, RECORD_BYTES_MAX, exception_in, read_error_file, report_of, type_name,
};
pub use framework::{Framework, LaunchContext, host_of};
pub use helper::{NEUTRAL_FILES, PythonFile, write_helper};
pub use inherited::Inherited;
pub use rendezvous::{Rendezvous, RendezvousForwarder};
pub use standbys::Standbys;
pub use worker_ranks::{WorkerRanks, seats};

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{
    Change, DISABLED_DIRECTIVES_VARIABLE, DirectiveBatch, Endpoint, LaunchError, Launcher, LauncherInfo, Listing,
    Phase, PrepareOptions, ProcStatus, Revision, StartBatch, StartOrder,
};
use crate::job::{CommandId, Name, ProcId, Rank, Role, Termination, World};
use files::{Files, Secret};
use lender::{Lender, Port};
use meet::located;
use records::Records;

/// Set to `1` for ranks that may restart on another host: state that only one rank has is then also kept by another
/// rank.
const REPLICATE_VARIABLE: &str = "TASKD_REPLICATE";

/// Variable with the secret by which the processes of a job authenticate each other. It is the same in all generations, so that
/// surviving processes have it. The launcher makes one for its own directory; in a job in which each host has a launcher of
/// its own, start orders set it.
pub const SECRET_VARIABLE: &str = "TASKD_SECRET";

/// Path of the socket at which a process requests the listener of the generation's port.
const LENDER_VARIABLE: &str = "TASKD_PORT_SOCKET";

/// With `0`, the helper does nothing.
const HOOKS_VARIABLE: &str = "TASKD_HOOKS";

/// Time limit of one batch of file operations. If the disk takes longer, the contents of the files are missing (such as
/// a failed rank's record), but starts and exits are not delayed further.
const FILES_WITHIN: Duration = Duration::from_secs(1);

/// Completes the start orders of the framework `F` and passes them to the launcher `L`.
///
/// - Every rank, and every service that the framework [manages](Framework::manages_service), gets the framework's
///   variables; a variable that the order itself sets takes precedence. `${local_rank}` in a rank's arguments is
///   replaced. Other services pass through unchanged.
/// - Each generation has its own port ([`LaunchContext::port`]), so that no generation ever connects to the leftovers
///   of another. The port is reserved against other programs for as long as the generation lasts. If the framework's
///   helper [takes the listener](Framework::host_variable), a socket of the launcher listens there until then, and no
///   other process can. Otherwise a socket is only bound there, which keeps away programs that do not request this port
///   number explicitly; a process that listens there itself has to set SO_REUSEADDR.
/// - The helper is on PYTHONPATH: it provides lifeline, heartbeat, progress and records without a change to the
///   program. `TASKD_HOOKS=0` in the order's environment turns it off.
/// - A failed exit carries its error, which the framework derives from the record in `TASKD_ERROR_FILE` and from the
///   end of stderr. So that no decision is taken without the error, the death of a process that ended with an exit code
///   is reported once, with its exit; the death of a killed process is reported early, as usual. If a process records
///   an uncaught exception but does not end, that is [reported](crate::launch::WorkerMessage::ErrorRecorded) at once.
///
/// The ranks of a world are numbered consecutively from 0, in their order ([`WorkerRanks`]). With several hosts, the
/// port is not reserved on the other hosts; it is only likely to be free there.
///
/// # Files
/// The files are below the directory that is passed to the constructor; one launcher at a time uses it.
///
/// | path | content |
/// |---|---|
/// | `python/sitecustomize.py` | the helper |
/// | `python/taskd/` | the package that records and recovers, with the framework's part in a folder of its own |
/// | `errors/rank-3.2.json` | the failure record of incarnation 2 of rank 3 |
/// | `secret` | the secret by which the job's processes authenticate each other (`TASKD_SECRET`), for a later owner |
/// | `port` | the newest generation and its port, for a later owner |
/// | `port.sock` | the socket at which a process requests that port's listener |
/// | `meeting.sock` | the socket at which the [rendezvous service](Rendezvous) receives new generations |
///
/// If a file cannot be written, the job runs without it; [`info`](Launcher::info) lists what is missing.
#[derive(Debug)]
pub struct PythonLauncher<L, F> {
    inner: L,
    framework: F,
    inherited: Inherited,
    files: Files,
    /// Reason why the helper is not on PYTHONPATH; `None` if it is.
    no_helper: Option<String>,
    port: Port,
    lender: Lender,
    standbys: Standbys,
    records: Records,
    secret: Result<Secret, String>,
    /// Connects this host's processes to the rendezvous service of another host.
    forwarder: Option<Arc<dyn RendezvousForwarder>>,
}

impl<L: Launcher, F: Framework + Default> PythonLauncher<L, F> {
    /// Creates a launcher that completes start orders with the default value of the framework and passes them to
    /// `inner`. It keeps its files in `dir`.
    pub fn new(inner: L, dir: impl Into<PathBuf>) -> PythonLauncher<L, F> {
        PythonLauncher::with_framework(inner, dir, F::default())
    }
}

impl<L: Launcher, F: Framework> PythonLauncher<L, F> {
    /// Creates a launcher that completes start orders with `framework` and passes them to `inner`. It keeps its files
    /// in `dir`.
    pub fn with_framework(inner: L, dir: impl Into<PathBuf>, framework: F) -> PythonLauncher<L, F> {
        let files = Files::new(dir.into());
        let helper_dir = files.helper_dir();
        let no_helper = write_helper(&helper_dir, framework.files()).err().map(|error| {
            format!(
                "no lifeline, heartbeat, progress and records of processes with {}: {} cannot be written: {error}",
                framework.name(),
                helper_dir.display()
            )
        });
        let inherited = Inherited::of_this_process(framework.inherited_variables());
        let standbys = framework.standbys();
        let (port, lender, records) = (Port::default(), Lender::default(), Records::default());
        let secret = files.secret().map_err(|error| format!("no secret for the job's processes can be made: {error}"));
        let forwarder = None;
        PythonLauncher {
            inner,
            framework,
            inherited,
            files,
            no_helper,
            port,
            lender,
            standbys,
            records,
            secret,
            forwarder,
        }
    }

    /// Sets what connects this host's processes to the rendezvous service of another host, in a job in which each host has a
    /// launcher of its own.
    #[must_use]
    pub fn forwarder(mut self, forwarder: Arc<dyn RendezvousForwarder>) -> PythonLauncher<L, F> {
        self.forwarder = Some(forwarder);
        self
    }

    /// Sets the warm standbys of the ranks, in place of the framework's choice ([`Framework::standbys`]);
    /// [`Standbys::none`] turns them off.
    #[must_use]
    pub fn standbys(mut self, standbys: Standbys) -> PythonLauncher<L, F> {
        self.standbys = standbys;
        self
    }

    /// Returns the inner launcher, to which this launcher passes the completed start orders.
    pub const fn inner(&self) -> &L {
        &self.inner
    }

    /// Returns the framework whose start orders this launcher completes.
    pub const fn framework(&self) -> &F {
        &self.framework
    }

    /// Returns a copy of the batch whose start orders have the variables and files that the framework's processes need.
    fn completed(
        &self,
        batch: &StartBatch,
        world: &World,
        meet: &Endpoint,
        hosts: usize,
    ) -> Result<StartBatch, LaunchError> {
        let world = &*batch.layout(world);
        let seats = seats(world);
        let holders = copy_holders(world, &BTreeMap::new());
        let orders = batch.starts.iter().map(|order| {
            let order = self.completed_order(order, world, &seats, meet, hosts)?;
            Ok(copies::with_holder(order, &holders))
        });
        Ok(StartBatch::new(Arc::clone(&batch.world), orders.collect::<Result<_, _>>()?))
    }

    fn completed_order(
        &self,
        order: &StartOrder,
        world: &World,
        seats: &BTreeMap<Rank, WorkerRanks>,
        meet: &Endpoint,
        hosts: usize,
    ) -> Result<StartOrder, LaunchError> {
        let mut spec = (*order.spec).clone();
        if self.is_meeting(&order.proc.role) {
            spec.listen.get_or_insert_with(|| self.files.meeting());
        }
        if !self.is_ours(&order.proc) {
            return Ok(order.clone().with_spec(Arc::new(spec)));
        }
        let error_file = self.files.error(&order.proc);
        let of = LaunchContext::new(&order.proc, &order.spec, world, meet.port, &error_file, &self.inherited);
        let of = of.served(meet.served);
        let mut env = match order.proc.role.rank() {
            None => self.framework.service_env(&of),
            Some(rank) => {
                let seat = seats
                    .get(&rank)
                    .ok_or_else(|| LaunchError::Refused(format!("{}: it is no member of its world", order.proc)))?;
                for argument in &mut spec.argv {
                    *argument = argument.replace("${local_rank}", &seat.local_rank.to_string());
                }
                self.framework.rank_env(seat, &of)
            }
        };
        env.insert("TASKD_ERROR_FILE".into(), error_file.display().to_string());
        let secret = self.secret.as_ref().map_err(|why| LaunchError::Refused(why.clone()))?;
        env.insert(SECRET_VARIABLE.into(), secret.for_process());
        for (name, value) in env {
            spec.env.entry(name).or_insert(value);
        }
        let seat = order.proc.role.rank().and_then(|rank| seats.get(&rank));
        let may_join = seat.is_some() && self.framework.rendezvous().is_some();
        if may_join && !meet.served {
            spec.env.entry(DISABLED_DIRECTIVES_VARIABLE.into()).or_insert_with(|| "join".into());
        } else if may_join && hosts > 1 {
            spec.env.entry(REPLICATE_VARIABLE.into()).or_insert_with(|| "1".into());
        }
        spec.log = spec.log.or_else(|| self.framework.log_path(&order.proc.role, seat));
        if self.framework.host_variable().is_some() && !meet.served && self.has_helper(&order.spec) {
            spec.env.insert(LENDER_VARIABLE.into(), self.files.lender().display().to_string());
        }
        if self.no_helper.is_none() {
            spec.env.extend([self.inherited.python_path(&spec, &self.files.helper_dir().display())]);
            let wants_hooks = spec.env.get(HOOKS_VARIABLE).is_none_or(|hooks| hooks != "0");
            let framework = &self.framework;
            let value = self.standbys.value(framework.imports(), framework.per_rank_env(), framework.per_world_env());
            if let Some(value) = value.filter(|_| wants_hooks && seat.is_some()) {
                spec.env.entry(standbys::VARIABLE.into()).or_insert(value);
            }
        }
        Ok(order.clone().with_spec(Arc::new(spec)))
    }

    /// Adds the error to each failed exit, from the error file and the stderr of the process.
    async fn explain<'a>(&self, statuses: impl Iterator<Item = &'a mut ProcStatus>) {
        let failed: Vec<_> = statuses.filter(|status| self.lacks_error(status)).collect();
        if failed.is_empty() {
            return;
        }
        let paths: Vec<PathBuf> = failed.iter().map(|status| self.files.error(&status.proc)).collect();
        let records = on_files(move || paths.iter().map(|path| readable_record(path)).collect::<Vec<_>>()).await;
        let records = records.unwrap_or_default();
        for (index, status) in failed.into_iter().enumerate() {
            if let Phase::Exited(exit) = &mut status.phase {
                let record = records.get(index).and_then(Option::as_ref);
                if record.is_some_and(|record| record.printed) && matches!(exit.how, Termination::Signal { .. }) {
                    continue; // it went on after the recorded exception, which is at the end of its stderr as well
                }
                let failure = Failure::new(&status.proc, record, &exit.stderr_tail);
                let report = self.framework.report(&failure);
                let step = record.and_then(|record| record.step).or(exit.step);
                exit.error = report.map(|mut report| {
                    report.step = report.step.or(step);
                    Box::new(report)
                });
            }
        }
    }

    /// Returns true for a rank, and for a service that the framework manages.
    fn is_ours(&self, proc: &ProcId) -> bool {
        match &proc.role {
            Role::Rank(_) => true,
            Role::Service(name) => self.framework.manages_service(name),
        }
    }

    /// Returns true if this status is an early death report of a process that has
    /// [recorded the reason](Framework::is_explained).
    ///
    /// Such a report is withheld, since the recorded failure comes with the exit. A killed process records nothing, so
    /// its death is reported as early as it is known.
    fn is_withheld(&self, status: &ProcStatus) -> bool {
        matches!(status.phase, Phase::Dead(how) if self.framework.is_explained(how)) && self.is_ours(&status.proc)
    }

    /// Returns true if the process has failed and its exit has no error yet.
    fn lacks_error(&self, status: &ProcStatus) -> bool {
        let failed = matches!(&status.phase, Phase::Exited(exit) if !exit.how.is_success() && exit.error.is_none());
        failed && self.is_ours(&status.proc)
    }
}

/// Runs file operations outside the async runtime's threads; returns `None` if they did not finish in time.
async fn on_files<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let done = tokio::time::timeout(FILES_WITHIN, tokio::task::spawn_blocking(work)).await;
    let done = done.ok().and_then(Result::ok);
    if done.is_none() {
        tracing::warn!("the disk with the files of the Python launcher does not answer: continuing without them");
    }
    done
}

/// Returns the number of hosts that a world may use: those of the launcher, or those of its members if these are more.
fn hosts_of(world: &World, listing: &Listing) -> usize {
    let of_members: BTreeSet<_> = world.members().values().filter_map(|member| member.node.as_ref()).collect();
    listing.nodes.len().max(of_members.len())
}

fn readable_record(path: &Path) -> Option<ErrorRecord> {
    read_error_file(path).unwrap_or_else(|error| {
        tracing::warn!(%error, "a failed process left no readable record");
        None
    })
}

#[async_trait]
impl<L: Launcher, F: Framework> Launcher for PythonLauncher<L, F> {
    crate::delegate!(Launcher to |this| this.inner, except info, start, list, watch, send_directives, prepare);

    fn info(&self) -> LauncherInfo {
        let mut info = self.inner.info();
        info.name = Name::from(format!("{} over {}", self.framework.name(), info.name));
        info.limitations.extend(self.no_helper.clone());
        info.uninitialised.extend(self.framework.rendezvous().and_then(|meeting| meeting.uninitialised()));
        info.with_rendezvous_service(self.framework.rendezvous().map(|meeting| meeting.service()))
    }

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        let listing = self.inner.list().await?;
        let world = located(&batch.world, &listing);
        let meet = self.meet(&world, &listing, batch).await?;
        self.listen(&meet).await?;
        let batch = self.completed(batch, &world, &meet, hosts_of(&world, &listing))?;
        let known: BTreeSet<&ProcId> = listing.procs.iter().map(|status| &status.proc).collect();
        let new = batch.starts.iter().map(|order| &order.proc);
        let new = new.filter(|proc| !known.contains(proc) && self.is_ours(proc));
        let errors: Vec<PathBuf> = new.map(|proc| self.files.error(proc)).collect();
        let helper = self.no_helper.is_none().then(|| (self.files.helper_dir(), self.framework.files().to_vec()));
        let verified = on_files(move || {
            errors.iter().for_each(|path| files::make_room(path));
            helper.map_or(Ok(()), |(dir, files)| write_helper(&dir, &files))
        });
        let unsafe_helper =
            |error| LaunchError::Refused(format!("no process is started without a verified helper: {error}"));
        verified.await.unwrap_or(Ok(())).map_err(unsafe_helper)?;
        self.inner.start(&batch).await?;
        // The processes run. One that cannot complete the rendezvous fails by itself, and that is an ordinary fault.
        let opened = self.open(&batch.world, &meet).await;
        opened.unwrap_or_else(|error| tracing::warn!(%error, "started processes have no rendezvous"));
        Ok(())
    }

    async fn list(&self) -> Result<Listing, LaunchError> {
        let mut listing = self.inner.list().await?;
        for status in listing.procs.iter_mut().filter(|status| self.is_withheld(status)) {
            status.phase = Phase::Running;
        }
        self.explain(listing.procs.iter_mut()).await;
        Ok(listing)
    }

    async fn watch(&self, mut from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        let mut records = self.records.subscribe();
        loop {
            let (mut changes, next) = tokio::select! {
                biased;
                watched = self.inner.watch(from) => watched?,
                Ok(changes) = records.recv() => return Ok((changes, from)), // not part of the inner history
                never = self.follow_records() => match never {},
            };
            changes.retain(|change| !matches!(change, Change::Proc(status) if self.is_withheld(status)));
            if changes.is_empty() {
                from = next;
                continue;
            }
            let statuses = changes.iter_mut().filter_map(|change| match change {
                Change::Proc(status) => Some(status),
                Change::Node(_) | Change::Link(_) | Change::Worker(_) | Change::Guard(_) => None,
            });
            self.explain(statuses).await;
            return Ok((changes, next));
        }
    }

    async fn send_directives(&self, id: CommandId, batch: &DirectiveBatch) -> Result<(), LaunchError> {
        self.inner.send_directives(id, &self.with_store(batch).await?).await
    }

    async fn prepare(&self, batch: &StartBatch, options: &PrepareOptions) -> Result<(), LaunchError> {
        let listing = self.inner.list().await?;
        let world = located(&batch.world, &listing);
        let meet = self.meet(&world, &listing, batch).await?;
        self.inner.prepare(&self.completed(batch, &world, &meet, hosts_of(&world, &listing))?, options).await
    }
}
