//! What every framework's Python ranks need: a launcher that completes what another one starts, and the helper that gives
//! an unmodified program its lifeline, heartbeat, progress and records.
//!
//! It starts nothing itself, decides nothing and knows no framework: what one alone knows it is told by a [`Framework`].
//!
//! # What a framework crate has to write
//! 1. A [`Framework`]: [`name`](Framework::name), [`files`](Framework::files), and the variables of a
//!    [`rank`](Framework::rank); where they depend on what is inherited, [`inherits`](Framework::inherits). Where services
//!    run the framework as well, [`owns`](Framework::owns) and [`service`](Framework::service). What its exceptions are a
//!    sign of, [`report`](Framework::report): whose fault, and whether to try again free.
//! 2. `_taskd_framework.py`, for progress. The helper imports it in the rank before the program starts, and calls
//!    `start(steps, after_import)`: `after_import(module, then)` calls `then(module)` when the program has imported it;
//!    `steps.completed_by(optimizer, remembered)` says that an optimizer has completed a step, of which it remembers so many;
//!    `steps.is_rank()` is false in a forked child. It must parse on Python 3.6.
//! 3. `_taskd_warm.py`, for [standbys](Standbys) from a template: `warm()` takes a first training step and returns what could not
//!    be done, `why_not_to_fork()` a reason where a child would not be as good as new, `set_threads(count)` sets how many threads the
//!    framework computes with and `threads()` tells it, `generators()` gives the states of its random numbers by name as what can be
//!    compared and `seed(name, state)` puts one back (a new one for None), `hold_device(slot)` makes a context on the device of that
//!    local rank. It must parse on Python 3.8.
//! 4. `taskd/_framework.py`, for records: `HOOKS`, with a line `(module, hook, kind)` for each module of the framework whose
//!    import puts the hook `taskd/<hook>.py` in place (`install(module, native)`), and `install(after_import, native)` for
//!    whatever else is to be done once. `taskd._hooks` has what hooks have in common, `taskd._steps` the steps, and
//!    `taskd._marks` stands around marks that a program makes with a vendor's functions.
//!
//! A launcher of the framework is then `PythonLauncher<L, ThatFramework>`, for which a crate has an alias.
//!
//! All of them are optional: a framework without 2 shows no progress, one without 4 records only what a program marks itself.
//! With the feature `venv`, `venv` makes the Python environment that examples and tests run.

mod command;
mod error;
mod files;
mod framework;
mod helper;
mod inherited;
mod lender;
mod meet;
mod meeting;
mod port;
mod records;
mod seats;
pub(in crate::launch) mod standbys;
#[cfg(feature = "venv")]
pub mod venv;

pub use error::{
    ErrorFileError, ErrorRecord, FAMILY, Failure, RECORD_BYTES_MAX, exception_in, read_error_file, report_of, type_name,
};
pub use framework::{Framework, Order, host_of};
pub use helper::{NEUTRAL_FILES, PythonFile, write_helper};
pub use inherited::Inherited;
pub use meeting::Meeting;
pub use seats::{Seat, seats};
pub use standbys::Standbys;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{
    CANNOT_VARIABLE, Change, DirectBatch, Endpoint, LaunchError, Launcher, LauncherInfo, Listing, Phase, ProcStatus,
    Revision, StartBatch, StartOrder,
};
use crate::job::{CommandId, ErrorReport, Name, ProcId, Rank, Role, Termination, World};
use files::{Files, Secret};
use lender::{Lender, Port};
use meet::located;
use records::Records;

/// Set in the environment of ranks that may come back on another host: what only they have is kept by another rank as well.
const AWAY_VARIABLE: &str = "TASKD_AWAY";

/// The secret by which the processes of a job authenticate each other. It is the same in all generations, so that processes that survive have it.
const SECRET_VARIABLE: &str = "TASKD_SECRET";

/// The socket at which a process asks for the listener of the generation's port.
const LENDER_VARIABLE: &str = "TASKD_PORT_SOCKET";

/// With `0` the helper does nothing.
const HOOKS_VARIABLE: &str = "TASKD_HOOKS";

/// How long one turn of work on files is waited for. A disk that takes longer costs what is in the files, such as a
/// failed rank's record, but no start and no news of an exit.
const FILES_WITHIN: Duration = Duration::from_secs(1);

/// Makes the processes of `L` workers of the framework `F`.
///
/// - Every rank, and every service that the framework [owns](Framework::owns), gets the framework's variables; what the
///   order itself sets wins. `${local_rank}` in a rank's arguments is replaced. Other services pass through unchanged.
/// - Each generation has a port of its own ([`Order::port`]), so that no generation ever meets the leftovers of another. It is
///   kept from other programs for as long as the generation lasts. Where the framework has its helper
///   [take the listener](Framework::host_variable), a socket of the launcher's listens there until then, and nobody else can; else one is
///   bound, which keeps away whoever does not ask for this very number. Whoever is to listen there itself sets SO_REUSEADDR.
/// - The helper stands on PYTHONPATH: lifeline, heartbeat, progress and records of what the program does, without a change
///   to it. `TASKD_HOOKS=0` in the order's environment turns it off.
/// - A failed exit carries its error: what the framework makes of the record in `TASKD_ERROR_FILE` and of the end of stderr.
///   So that no decision is taken without it, the death of a process that ended with an exit code is told once, by its
///   exit; that of a killed one is told early, as always. A process that records an exception which nobody caught, and does
///   not end, is [told of](crate::launch::Saying::Recorded) at once.
///
/// The ranks of a world are numbered from 0 without gaps in their order ([`Seat`]). With several hosts the port is only
/// likely to be free on the others.
///
/// # Files
/// They are below the directory that it is made with; one launcher at a time uses it.
///
/// | path | what |
/// |---|---|
/// | `python/sitecustomize.py` | the helper |
/// | `python/taskd/` | the package that records, and that a program may import to mark what it does |
/// | `errors/rank-3.2.json` | what incarnation 2 of rank 3 recorded about its failure |
/// | `secret` | by which the job's processes know each other (`TASKD_SECRET`), for a later owner |
/// | `port` | the newest generation and its port, for a later owner |
/// | `port.sock` | where a process asks for that port's listener |
/// | `meeting.sock` | where the service at which processes [meet](Meeting) is told of a generation |
///
/// What cannot be written the job does without; [`info`](Launcher::info) says what.
#[derive(Debug)]
pub struct PythonLauncher<L, F> {
    inner: L,
    framework: F,
    inherited: Inherited,
    files: Files,
    /// Why the helper is not on the path.
    no_helper: Option<String>,
    port: Port,
    lender: Lender,
    standbys: Standbys,
    records: Records,
    secret: Result<Secret, String>,
}

impl<L: Launcher, F: Framework + Default> PythonLauncher<L, F> {
    /// Completes what passes through `inner` as the framework does where nothing is set, with files in `dir`.
    pub fn new(inner: L, dir: impl Into<PathBuf>) -> PythonLauncher<L, F> {
        PythonLauncher::with_framework(inner, dir, F::default())
    }
}

impl<L: Launcher, F: Framework> PythonLauncher<L, F> {
    /// Completes what passes through `inner` as this framework says, with files in `dir`.
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
        let inherited = Inherited::of_this_process(framework.inherits());
        let standbys = framework.standbys();
        let (port, lender, records) = (Port::default(), Lender::default(), Records::default());
        let secret = files.secret().map_err(|error| format!("no secret for the job's processes can be made: {error}"));
        PythonLauncher { inner, framework, inherited, files, no_helper, port, lender, standbys, records, secret }
    }

    /// Which warm standbys ranks have, in place of what the framework has chosen ([`Framework::standbys`]);
    /// [`Standbys::none`] turns them off.
    #[must_use]
    pub fn standbys(mut self, standbys: Standbys) -> PythonLauncher<L, F> {
        self.standbys = standbys;
        self
    }

    /// The launcher that does the work.
    pub const fn inner(&self) -> &L {
        &self.inner
    }

    /// The framework.
    pub const fn framework(&self) -> &F {
        &self.framework
    }

    /// The orders of a batch with what the framework's processes need.
    fn completed(
        &self,
        batch: &StartBatch,
        world: &World,
        meet: &Endpoint,
        hosts: usize,
    ) -> Result<StartBatch, LaunchError> {
        let seats = seats(world);
        let orders = batch.orders.iter().map(|order| self.completed_order(order, world, &seats, meet, hosts));
        Ok(StartBatch { world: Arc::clone(&batch.world), orders: orders.collect::<Result<_, _>>()? })
    }

    fn completed_order(
        &self,
        order: &StartOrder,
        world: &World,
        seats: &BTreeMap<Rank, Seat>,
        meet: &Endpoint,
        hosts: usize,
    ) -> Result<StartOrder, LaunchError> {
        let mut spec = (*order.spec).clone();
        if self.is_meeting(&order.proc.role) {
            spec.listen.get_or_insert_with(|| self.files.meeting());
        }
        if !self.is_ours(&order.proc) {
            return Ok(StartOrder { spec: Arc::new(spec), ..order.clone() });
        }
        let error_file = self.files.error(&order.proc);
        let of = Order::new(&order.proc, &order.spec, world, meet.port, &error_file, &self.inherited);
        let of = of.served(meet.served);
        let mut env = match order.proc.role.rank() {
            None => self.framework.service(&of),
            Some(rank) => {
                let seat = seats.get(&rank).ok_or_else(|| {
                    LaunchError::Refused(format!("{}: it is no member of the world that it is to start in", order.proc))
                })?;
                for argument in &mut spec.argv {
                    *argument = argument.replace("${local_rank}", &seat.local_rank.to_string());
                }
                self.framework.rank(seat, &of)
            }
        };
        env.insert("TASKD_ERROR_FILE".into(), error_file.display().to_string());
        let secret = self.secret.as_ref().map_err(|why| LaunchError::Refused(why.clone()))?;
        env.insert(SECRET_VARIABLE.into(), secret.for_process());
        for (name, value) in env {
            spec.env.entry(name).or_insert(value);
        }
        let seat = order.proc.role.rank().and_then(|rank| seats.get(&rank));
        let may_join = seat.is_some() && self.framework.meeting().is_some();
        if may_join && !meet.served {
            spec.env.entry(CANNOT_VARIABLE.into()).or_insert_with(|| "join".into());
        } else if may_join && hosts > 1 {
            spec.env.entry(AWAY_VARIABLE.into()).or_insert_with(|| "1".into());
        }
        spec.log = spec.log.or_else(|| self.framework.log(&order.proc.role, seat));
        if self.framework.host_variable().is_some() && !meet.served && self.has_helper(&order.spec) {
            spec.env.insert(LENDER_VARIABLE.into(), self.files.lender().display().to_string());
        }
        if self.no_helper.is_none() {
            spec.env.extend([self.inherited.python_path(&spec, &self.files.helper_dir().display())]);
            let wants_hooks = spec.env.get(HOOKS_VARIABLE).is_none_or(|hooks| hooks != "0");
            let framework = &self.framework;
            let value = self.standbys.value(framework.imports(), framework.late(), framework.shared());
            if let Some(value) = value.filter(|_| wants_hooks && seat.is_some()) {
                spec.env.entry(standbys::VARIABLE.into()).or_insert(value);
            }
        }
        Ok(StartOrder { spec: Arc::new(spec), ..order.clone() })
    }

    /// Adds to failed exits what the processes said about them.
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
                    continue; // it had gone on behind what it has recorded, which stands at the end of its stderr as well
                }
                let failure = Failure::new(&status.proc, record, &exit.stderr_tail);
                let told = self.framework.report(&failure);
                let step = record.and_then(|record| record.step).or(exit.step);
                exit.error = told.map(|told| Box::new(ErrorReport { step: told.step.or(step), ..told }));
            }
        }
    }

    /// Whether it is a process of the framework.
    fn is_ours(&self, proc: &ProcId) -> bool {
        match &proc.role {
            Role::Rank(_) => true,
            Role::Service(name) => self.framework.owns(name),
        }
    }

    /// Whether this is the early news of an end of which the process has [said why](Framework::says_why).
    ///
    /// It is withheld: what the process says about its failure belongs to it and comes with the exit. One that was killed
    /// says nothing, and its death is told as early as it is known.
    fn is_withheld(&self, status: &ProcStatus) -> bool {
        matches!(status.phase, Phase::Dead(how) if self.framework.says_why(how)) && self.is_ours(&status.proc)
    }

    /// Whether it has failed and nobody has said why yet.
    fn lacks_error(&self, status: &ProcStatus) -> bool {
        let failed = matches!(&status.phase, Phase::Exited(exit) if !exit.how.is_success() && exit.error.is_none());
        failed && self.is_ours(&status.proc)
    }
}

/// Does work on files beside the runtime's threads; `None` where it did not end in time.
async fn on_files<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let done = tokio::time::timeout(FILES_WITHIN, tokio::task::spawn_blocking(work)).await;
    let done = done.ok().and_then(Result::ok);
    if done.is_none() {
        tracing::warn!("the disk with the files of the launcher of Python processes does not answer: going on without");
    }
    done
}

fn readable_record(path: &Path) -> Option<ErrorRecord> {
    read_error_file(path).unwrap_or_else(|error| {
        tracing::warn!(%error, "a failed process left no readable record");
        None
    })
}

#[async_trait]
impl<L: Launcher, F: Framework> Launcher for PythonLauncher<L, F> {
    crate::delegate!(Launcher to |this| this.inner, except info, start, list, watch, direct, prepare);

    fn info(&self) -> LauncherInfo {
        let mut info = self.inner.info();
        info.name = Name::from(format!("{} over {}", self.framework.name(), info.name));
        info.goes_without.extend(self.no_helper.clone());
        info.uninitialised.extend(self.framework.meeting().and_then(|meeting| meeting.uninitialised()));
        info.meeting_at(self.framework.meeting().map(|meeting| meeting.service()))
    }

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        let listing = self.inner.list().await?;
        let world = located(&batch.world, &listing);
        let meet = self.meet(&world, &listing, batch).await?;
        self.listen(&meet).await?;
        let batch = self.completed(batch, &world, &meet, listing.nodes.len())?;
        let known: BTreeSet<&ProcId> = listing.procs.iter().map(|status| &status.proc).collect();
        let new = batch.orders.iter().map(|order| &order.proc);
        let new = new.filter(|proc| !known.contains(proc) && self.is_ours(proc));
        let errors: Vec<PathBuf> = new.map(|proc| self.files.error(proc)).collect();
        let helper = self.no_helper.is_none().then(|| (self.files.helper_dir(), self.framework.files().to_vec()));
        let verified = on_files(move || {
            errors.iter().for_each(|path| files::make_room(path));
            helper.map_or(Ok(()), |(dir, files)| write_helper(&dir, &files))
        });
        let unsafe_helper =
            |error| LaunchError::Refused(format!("no process is started with a helper that is not taskd's: {error}"));
        verified.await.unwrap_or(Ok(())).map_err(unsafe_helper)?;
        self.inner.start(&batch).await?;
        // They run: who cannot meet says so itself, and that is a fault like another.
        let opened = self.open(&batch.world, &meet).await;
        opened.unwrap_or_else(|error| tracing::warn!(%error, "processes that start cannot meet"));
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
                Ok(said) = records.recv() => return Ok((said, from)), // it stands in no history
                never = self.follow_records() => match never {},
            };
            changes.retain(|change| !matches!(change, Change::Proc(status) if self.is_withheld(status)));
            if changes.is_empty() {
                from = next;
                continue;
            }
            let statuses = changes.iter_mut().filter_map(|change| match change {
                Change::Proc(status) => Some(status),
                Change::Node(_) | Change::Link(_) | Change::Said(_) | Change::Guard(_) => None,
            });
            self.explain(statuses).await;
            return Ok((changes, next));
        }
    }

    async fn direct(&self, id: CommandId, batch: &DirectBatch) -> Result<(), LaunchError> {
        self.inner.direct(id, &self.with_store(batch).await?).await
    }

    async fn prepare(&self, batch: &StartBatch, in_loop: bool) -> Result<(), LaunchError> {
        let listing = self.inner.list().await?;
        let world = located(&batch.world, &listing);
        let meet = self.meet(&world, &listing, batch).await?;
        self.inner.prepare(&self.completed(batch, &world, &meet, listing.nodes.len())?, in_loop).await
    }
}
