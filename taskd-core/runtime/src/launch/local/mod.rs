//! The local launcher: runs processes on this machine under a guard.
//!
//! The launcher builds environments and keeps the history; starting, stopping and reaping is the work of the
//! [`guard`](super::guard).

mod builder;
mod deadline;
mod guard_client;
mod guard_connect;
mod guard_watch;
mod heartbeats;
mod history;
mod orders;
mod orphan_exits;
mod recorder_source;
mod send_queue;
mod tee;
mod workers;

pub(super) use builder::this_host;
pub use builder::{GuardProgram, LocalError, LocalLauncherBuilder, OnOwnerLoss};
pub use heartbeats::Heartbeats;
pub use recorder_source::RecorderSource;
pub use workers::LinkCounts;

use super::guard::GuardCounters;
use super::guard::wire::{Answer, Call};
use super::{
    Change, ChangeLogCounts, DirectiveBatch, Fence, LaunchError, Launcher, LauncherInfo, Listing, PrepareOptions,
    Revision, StartBatch,
};
use crate::job::{CommandId, ProcId};
use async_trait::async_trait;
use guard_client::Link;
use orders::Ground;
use std::path::PathBuf;
use std::time::Duration;

/// Launcher that starts, stops and watches processes on this machine, through a guard (a separate process that
/// starts and reaps them).
///
/// # How it ends
/// The launcher's processes belong to the guard, so they can outlive the launcher. Their fate depends on how the
/// launcher ends:
///
/// | event | effect on the processes |
/// |---|---|
/// | [`shutdown`](Self::shutdown) | SIGTERM, the given grace time, SIGKILL; it returns when all are gone |
/// | [`detach`](Launcher::detach) | they continue; a later program attaches within the given time |
/// | the launcher is dropped | SIGTERM, the [grace time](LocalLauncherBuilder::drop_grace), SIGKILL, all by the guard |
/// | the [run](crate::runtime::Runtime::run) on it is dropped | as above with the policy's grace time; the launcher stays usable |
/// | this process is killed, or ends without dropping the launcher | as set by [`OnOwnerLoss`] |
///
/// A launcher that has attached to a running job, and through which nothing was started or stopped yet, is not in
/// charge: dropping it has the effect of the table's last row (a runtime may have failed to build, or may only have
/// watched).
///
/// # Reports of its processes
/// [`heartbeats`](Self::heartbeats) reports which ranks are alive and their progress;
/// [`recordings`](Self::recordings) reports where the time of each step went and which collectives are in progress.
/// Both are sources for a [runtime](crate::runtime::RuntimeBuilder::source).
///
/// The guard is not a child of this process, and no thread or descriptor is left when the launcher is dropped. (A
/// process that adopts orphans, process 1 or a subreaper, gets the guard as a child and reaps it.)
#[derive(Debug)]
pub struct LocalLauncher {
    /// True if the guard is a separate process.
    guarded: bool,
    ground: Ground,
    link: Link,
}

impl LocalLauncher {
    /// Creates the builder of a launcher that keeps its files in `run_dir`: the guard's record and socket, and the
    /// output of processes (`procs/rank-3.2/stdout.log` and `stderr.log` for incarnation 2 of rank 3; the
    /// guide's quick start lists all of them). Only one job at a time can run in a
    /// directory.
    pub fn builder(run_dir: impl Into<PathBuf>) -> LocalLauncherBuilder {
        LocalLauncherBuilder::new(run_dir.into())
    }

    fn new(guarded: bool, ground: Ground, link: Link) -> LocalLauncher {
        LocalLauncher { guarded, ground, link }
    }

    /// Returns a trace source of the heartbeats and completed steps of all ranks, read at the interval `every`. A good
    /// interval is half the time after which a rank counts as silent.
    #[must_use]
    pub fn heartbeats(&self, every: Duration) -> Heartbeats {
        Heartbeats::new(std::sync::Arc::clone(&self.link.history), every)
    }

    /// Returns a trace source of the trace records of all ranks, which reads the records every 100 ms by default. Only
    /// one such source at a time may read the ranks' records. Stores and exports receive the records as
    /// [sinks](RecorderSource::sink) of this source.
    #[must_use]
    pub fn recordings(&self) -> RecorderSource {
        RecorderSource::new(std::sync::Arc::clone(&self.link.history))
    }

    /// Returns the counters of this launcher and its guard: work that was done, and data that was dropped or skipped.
    ///
    /// # Errors
    /// Returns [`LaunchError::Unreachable`] if the guard cannot be reached.
    pub async fn counters(&self) -> Result<LocalCounters, LaunchError> {
        match self.link.call(Call::Counters).await? {
            Answer::Counters(guard) => Ok(LocalCounters {
                guard,
                history: self.link.history.log.counts(),
                links: self.link.workers.counts(),
                deadlines_late: self.link.deadline.late(),
                tee_bytes_dropped: self.link.tee.as_ref().map_or(0, |tee| tee.dropped_bytes()),
            }),
            Answer::Done | Answer::Started(_) => Err(misunderstood()),
        }
    }

    /// Stops all processes with their whole process trees (SIGTERM, SIGKILL after `grace`), and ends the guard. Returns
    /// when the processes are gone, at the latest about 10 seconds after the grace period; the guard then ends at once.
    ///
    /// # Errors
    /// Returns [`LaunchError::Unreachable`] if the guard cannot be reached.
    pub async fn shutdown(&self, grace: Duration) -> Result<(), LaunchError> {
        self.link.call(Call::Shutdown { grace }).await?;
        if let Some(tee) = &self.link.tee {
            tee.finish().await;
        }
        Ok(())
    }
}

/// Counters of a [`LocalLauncher`] since it was built, and of its guard since the guard's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalCounters {
    /// Counters of the guard, the process that starts and reaps the ranks.
    pub guard: GuardCounters,
    /// Counters of the changes that this launcher's history rejected or no longer keeps.
    pub history: ChangeLogCounts,
    /// Counters of the control links to the training processes.
    pub links: LinkCounts,
    /// Number of times that the guard did not take a deadline of its processes (see [`Fence`]) within half a second.
    pub deadlines_late: u64,
    /// Number of bytes of processes' output that were not printed, because this program's own output did not accept
    /// them in time.
    pub tee_bytes_dropped: u64,
}

/// The guard kills the processes at the deadline, also if this program is stopped or dead by then, and keeps their exits
/// for the next owner. Standbys stay: they belong to no world. If the program runs without a guard process, the deadline
/// ends nothing while the program is stopped.
impl Fence for LocalLauncher {
    fn set_deadline(&self, deadline: Option<Duration>) {
        self.link.deadline.set_deadline(deadline);
    }
}

fn misunderstood() -> LaunchError {
    LaunchError::Unreachable("the guard's answer does not match the call".into())
}

#[async_trait]
impl Launcher for LocalLauncher {
    fn info(&self) -> LauncherInfo {
        let mut info = LauncherInfo::new("local").with_lifeline();
        info = info.with_output(self.ground.node.clone(), self.ground.output_dir());
        info.supports_detach = self.guarded;
        if !self.guarded {
            info = info
                .with_limitation(
                    "there is no guard: when this process is killed, ranks die, but not their child processes",
                )
                .with_limitation("there is no guard: no later supervisor can attach to the ranks")
                .with_limitation("there is no guard: ranks start as new processes, not from warm standbys")
                .with_limitation(
                    "there is no guard: how a rank ended is unknown if this program reaps all its children",
                );
        }
        match self.ground.env_not_utf8 {
            0 => info,
            n => info.with_limitation(format!("{n} environment variables are not UTF-8 and are not passed on")),
        }
    }

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        let batch = self.ground.batch(&self.link.history.job, batch)?;
        self.link.call(Call::Start(batch)).await.map(drop)
    }

    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError> {
        self.link.call(Call::Stop { procs: procs.to_vec(), grace }).await.map(drop)
    }

    async fn list(&self) -> Result<Listing, LaunchError> {
        self.link.history.why_over().map_or_else(|| Ok(self.link.history.log.listing()), Err)
    }

    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        let history = &self.link.history;
        tokio::select! {
            biased;
            found = history.log.after(from) => found,
            why = history.ended() => Err(why),
        }
    }

    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        self.link.call(Call::Acknowledge { procs: exits.to_vec() }).await?;
        self.link.history.acknowledge(exits);
        Ok(())
    }

    async fn send_directives(&self, id: CommandId, batch: &DirectiveBatch) -> Result<(), LaunchError> {
        self.link.workers.direct(id, batch)
    }

    async fn prepare(&self, batch: &StartBatch, options: &PrepareOptions) -> Result<(), LaunchError> {
        let (batch, in_loop) = (self.ground.batch(&self.link.history.job, batch)?, options.in_loop);
        if in_loop {
            self.link.workers.come_to_loop(); // a later guard receives this, too
        }
        self.link.call(Call::Prepare { batch, in_loop }).await.map(drop)
    }

    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        self.link.call(Call::Detach { keep }).await.map(drop)
    }

    fn begin_shutdown(&self, grace: Duration) {
        self.link.wind_down(grace);
    }
}
