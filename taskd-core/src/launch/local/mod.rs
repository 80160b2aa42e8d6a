//! Processes on this machine: a launcher whose processes belong to a guard.
//!
//! It builds environments and keeps the history; what is started, stopped and reaped is the guard's work
//! ([`guard`](super::guard)).

mod builder;
mod deaths;
mod guard_watch;
mod guards;
mod heartbeats;
mod history;
mod link;
mod orders;
mod outgoing;
mod recordings;
mod tee;
mod workers;

pub(super) use builder::this_host;
pub use builder::{GuardProgram, LocalError, LocalLauncherBuilder, OnOwnerLoss};
pub use heartbeats::Heartbeats;
pub use recordings::Recordings;
pub use workers::LinkCounts;

use super::guard::GuardCounters;
use super::guard::wire::{Answer, Call};
use super::{Change, ChangeLogCounts, DirectBatch, LaunchError, Launcher, LauncherInfo, Listing, Revision, StartBatch};
use crate::job::{CommandId, ProcId};
use async_trait::async_trait;
use link::Link;
use orders::Ground;
use std::path::PathBuf;
use std::time::Duration;

/// Starts, stops and watches processes on this machine, through a guard.
///
/// # How it ends
/// Its processes belong to the guard, so they can outlive it. What becomes of them depends on how it goes:
///
/// | what happens | what becomes of the processes |
/// |---|---|
/// | [`shutdown`](Self::shutdown) | SIGTERM, the given grace time, SIGKILL; it returns when all is gone |
/// | [`detach`](Launcher::detach) | they run on; a later program attaches within the given time |
/// | it is dropped | SIGTERM, the [grace time](LocalLauncherBuilder::drop_grace), SIGKILL, by the guard: nobody waits for it |
/// | the [run](crate::runtime::Runtime::run) over it is dropped | the same with the policy's grace time; the launcher can still be used |
/// | this process is killed, or ends without dropping it | what [`OnOwnerLoss`] says |
///
/// A launcher that has attached to a running job, and through which nothing was started or stopped yet, is not in charge:
/// dropping it (a runtime may not have come about, or may only have watched) counts as the last of these.
///
/// # What its processes say
/// [`heartbeats`](Self::heartbeats) tells who lives and how far it is, [`recordings`](Self::recordings) where the time of each
/// step went and which collectives are under way. Both are sources for a
/// [runtime](crate::runtime::RuntimeBuilder::source).
///
/// The guard is no child of this process, and no thread or descriptor is left behind when this is dropped. (A process
/// that takes in orphans, process 1 or a subreaper, gets the guard as one and reaps it.)
#[derive(Debug)]
pub struct LocalLauncher {
    /// Whether the guard is a process of its own.
    guarded: bool,
    ground: Ground,
    link: Link,
}

impl LocalLauncher {
    /// A launcher that keeps its files in `run_dir`: the guard's record and socket, and what processes print
    /// (`procs/rank-3.2/stdout.log` and `stderr.log` are those of incarnation 2 of rank 3; the
    /// [guide](crate::guide::quick_start#what-they-print) has all of them). One job at a time can run there.
    pub fn builder(run_dir: impl Into<PathBuf>) -> LocalLauncherBuilder {
        LocalLauncherBuilder::new(run_dir.into())
    }

    fn new(guarded: bool, ground: Ground, link: Link) -> LocalLauncher {
        LocalLauncher { guarded, ground, link }
    }

    /// The heartbeats and completed steps of all ranks, read every so often; half the time after which a rank counts as
    /// silent is a good value.
    #[must_use]
    pub fn heartbeats(&self, every: Duration) -> Heartbeats {
        Heartbeats::new(std::sync::Arc::clone(&self.link.history), every)
    }

    /// What all ranks record of their training, every 100 ms unless told otherwise. One of these at a time takes records
    /// out; stores and exports are its [sinks](Recordings::sink).
    #[must_use]
    pub fn recordings(&self) -> Recordings {
        Recordings::new(std::sync::Arc::clone(&self.link.history))
    }

    /// What was done, and everything that had to be left undone.
    ///
    /// # Errors
    /// [`LaunchError::Unreachable`] when there is no guard to ask.
    pub async fn counters(&self) -> Result<LocalCounters, LaunchError> {
        match self.link.call(Call::Counters).await? {
            Answer::Counters(guard) => Ok(LocalCounters {
                guard,
                history: self.link.history.log.counts(),
                links: self.link.workers.counts(),
                tee_bytes_dropped: self.link.tee.as_ref().map_or(0, |tee| tee.dropped_bytes()),
            }),
            Answer::Done | Answer::Started(_) => Err(misunderstood()),
        }
    }

    /// Stops everything (SIGTERM, after `grace` SIGKILL, whole trees) and ends the guard. Returns when all is gone.
    ///
    /// # Errors
    /// [`LaunchError::Unreachable`] when the guard cannot be told.
    pub async fn shutdown(&self, grace: Duration) -> Result<(), LaunchError> {
        self.link.call(Call::Shutdown { grace }).await?;
        if let Some(tee) = &self.link.tee {
            tee.finish().await;
        }
        Ok(())
    }
}

/// What a [`LocalLauncher`] and its guard count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalCounters {
    /// What the guard counts.
    pub guard: GuardCounters,
    /// What the history of this launcher did not take, or no longer keeps.
    pub history: ChangeLogCounts,
    /// What is counted of the control links.
    pub links: LinkCounts,
    /// Bytes of processes' output that were not printed: this program's own output did not take them in time.
    pub tee_bytes_dropped: u64,
}

fn misunderstood() -> LaunchError {
    LaunchError::Unreachable("the guard's answer does not belong to the question".into())
}

#[async_trait]
impl Launcher for LocalLauncher {
    fn info(&self) -> LauncherInfo {
        let mut info = LauncherInfo::new("local").with_lifeline();
        info = info.with_output(self.ground.node.clone(), self.ground.output_dir());
        info.hands_over = self.guarded;
        if !self.guarded {
            info = info
                .going_without(
                    "there is no guard: when this process is killed, ranks die, but not what they have started",
                )
                .going_without("there is no guard: no later process can attach to what runs")
                .going_without(
                    "there is no guard: no rank is seated in a warm standby, each is started when it is needed",
                )
                .going_without(
                    "there is no guard: how a rank ended is unknown where this program reaps all its children",
                );
        }
        match self.ground.env_not_utf8 {
            0 => info,
            n => info.going_without(format!("{n} environment variables are not UTF-8 and are not passed on")),
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

    async fn direct(&self, id: CommandId, batch: &DirectBatch) -> Result<(), LaunchError> {
        self.link.workers.direct(id, batch)
    }

    async fn prepare(&self, batch: &StartBatch, in_loop: bool) -> Result<(), LaunchError> {
        let batch = self.ground.batch(&self.link.history.job, batch)?;
        if in_loop {
            self.link.workers.come_to_loop(); // a new guard is told, too
        }
        self.link.call(Call::Prepare { batch, in_loop }).await.map(drop)
    }

    async fn detach(&self, keep: Duration) -> Result<(), LaunchError> {
        self.link.call(Call::Detach { keep }).await.map(drop)
    }

    fn wind_down(&self, grace: Duration) {
        self.link.wind_down(grace);
    }
}
