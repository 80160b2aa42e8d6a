//! Observation of processes that taskd did not start: a [`Launcher`] that only lists and reports them, and trace
//! sources over the same processes.
//!
//! This module contains no code that could start, stop or signal a process.

mod builder;
mod discovery;
mod exit;
mod poll_task;
mod registry;
mod states;
mod steps;
mod streams;
mod sys;
mod tail;

pub use builder::{ExternalError, ExternalProcsBuilder};
pub use states::ExternalStates;
pub use steps::LogSteps;
pub(super) use sys::wait_status;
pub use tail::StepPattern;

use super::{Change, LaunchError, Launcher, LauncherInfo, Listing, Revision, StartBatch};
use crate::job::{ProcId, Rank};
use async_trait::async_trait;
use registry::{Shared, Watching};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// The ranks of a job that another launcher runs, such as torchrun.
///
/// It is a launcher for a job that is only observed ([`Mode::DryRun`](crate::job::Mode::DryRun)): it finds the
/// ranks, reports them with all their changes, and does not act on them. It refuses orders to start or stop ranks.
///
/// # Which processes are ranks
/// [`below`](Self::below) watches the descendants of a process (the torchrun agent), and
/// [`in_cgroup`](Self::in_cgroup) the processes of a cgroup: each process whose environment contains the rank
/// variable is a rank. The scan is repeated. If a child also has this variable, only the topmost process is the
/// rank, since children such as a data loader's workers inherit the variable. [`of`](Self::of) watches exactly the
/// given processes. For a job that another taskd runs, watch the processes below the other taskd's guard and use
/// the variable `TASKD_RANK` ([`rank_variable`](ExternalProcsBuilder::rank_variable)).
///
/// Each process of a rank is an incarnation, numbered from 1 in the order in which they are seen. A process that
/// appears while another process of its rank still runs is counted, and becomes the next incarnation when the other
/// process ends.
///
/// # How they end
/// Linux reports the end of a rank (pidfd); before Linux 5.3 the scan finds it. The exit status is known if Linux
/// shows it: after the parent has reaped the process, from the Linux kernel's record of the exit (Linux 6.15);
/// before that, from procfs if its permissions allow. Otherwise it is
/// [`Termination::Unknown`](crate::job::Termination::Unknown).
///
/// A job's own launcher stops all ranks once one has failed. A rank that ends by SIGTERM or SIGKILL after another
/// has failed is therefore reported with an error that states this and that is marked as a consequence
/// ([`follow_up`](crate::job::ErrorReport::follow_up)).
///
/// The exit includes the end of standard error if that is a file to which no other rank writes
/// (`torchrun --redirects`).
///
/// # Example
/// ```no_run
/// use std::time::Duration;
/// use taskd_core::launch::{ExternalProcs, StepPattern};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let foreign = ExternalProcs::below(4711).attach().await?;
/// let states = foreign.states(Duration::from_millis(500));
/// let steps = foreign.steps(StepPattern::after("step "), Duration::from_millis(500));
/// foreign.ended().await;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct ExternalProcs {
    shared: Arc<Shared>,
    /// The task that scans for processes; it ends when this value is dropped.
    _follower: JoinSet<()>,
}

/// Counters of the observation of external processes, since [`attach`](ExternalProcsBuilder::attach).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExternalCounts {
    /// Number of completed scans for the ranks of the job.
    pub looks: u64,
    /// Number of processes that a scan did not examine, because it had already examined
    /// [`processes_max`](ExternalProcsBuilder::processes_max) processes. A process is counted again in every scan that
    /// does not examine it.
    pub passed_over: u64,
    /// Number of found processes that are not observed, because their rank number is
    /// [`ranks_max`](ExternalProcsBuilder::ranks_max) or higher. Each such process is counted once.
    pub ranks_out_of_bounds: u64,
    /// Number of processes that a scan found while another process of the same rank was still running. Such a process
    /// is observed once the other process has ended.
    pub doubles: u64,
    /// Number of processes whose environment this process has no permission to read, so that their rank is unknown;
    /// counted again in every scan.
    pub unreadable: u64,
    /// Number of observed processes whose end Linux does not report (for example before Linux 5.3), so that repeated
    /// checks have to find it.
    pub looked_for: u64,
    /// Number of observed processes that have ended and whose exit status is unknown.
    pub ends_unknown: u64,
}

impl ExternalProcs {
    /// Watches the ranks among the descendants of the process `root`, such as the torchrun agent. The process `root`
    /// itself is never a rank.
    #[must_use]
    pub fn below(root: u32) -> ExternalProcsBuilder {
        ExternalProcsBuilder::new(builder::Given::Below(root))
    }

    /// Watches exactly the processes in `pids`, a list of pairs of a rank and its process id. Processes that start
    /// later are not searched for.
    #[must_use]
    pub fn of(pids: impl IntoIterator<Item = (Rank, u32)>) -> ExternalProcsBuilder {
        ExternalProcsBuilder::new(builder::Given::Named(pids.into_iter().collect()))
    }

    /// Watches the ranks among the processes of the cgroup whose directory is `dir`, such as a container's
    /// (`/sys/fs/cgroup/...`). Processes in child cgroups are not included.
    #[must_use]
    pub fn in_cgroup(dir: impl Into<PathBuf>) -> ExternalProcsBuilder {
        ExternalProcsBuilder::new(builder::Given::Cgroup(dir.into()))
    }

    /// Creates a trace source that reports the heartbeats and the processor time of the watched processes, and answers
    /// probes for the state of a process.
    ///
    /// `every`: the sampling interval, at most a quarter of the silence detector's limit.
    #[must_use]
    pub fn states(&self, every: Duration) -> ExternalStates {
        ExternalStates::new(Arc::clone(&self.shared), every)
    }

    /// Creates a trace source that reports the training steps which the ranks have completed. It reads the step numbers
    /// from the files that are the ranks' standard output and standard error.
    ///
    /// `every`: the interval between reads.
    #[must_use]
    pub fn steps(&self, pattern: StepPattern, every: Duration) -> LogSteps {
        LogSteps::new(Arc::clone(&self.shared), pattern, every)
    }

    /// Waits until the watched processes are gone: the root process, all given processes, or all processes in the
    /// cgroup. The ends of the ranks are reported before this call returns, except for ranks that still exist one
    /// second later.
    pub async fn ended(&self) {
        let mut watching = self.shared.watching.subscribe();
        let _ = watching.wait_for(|now| *now >= Watching::Nothing).await; // its sender lives as long as `self`
    }

    /// Returns the counters of the observation so far.
    #[must_use]
    pub fn counts(&self) -> ExternalCounts {
        self.shared.counts()
    }
}

impl Drop for ExternalProcs {
    fn drop(&mut self) {
        self.shared.watching.send_replace(Watching::Dropped);
    }
}

#[async_trait]
impl Launcher for ExternalProcs {
    fn info(&self) -> LauncherInfo {
        LauncherInfo::new("foreign")
            .with_detach() // the processes have another parent anyway
            .with_limitation("processes are only watched: they are neither started nor stopped")
            .with_limitation("how a process ended is known only where the kernel reports it to non-parents")
            .with_limitation("a process that starts and ends between two polls is not seen")
    }

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        let first = batch.starts.first().map(|order| order.proc.to_string()).unwrap_or_default();
        Err(LaunchError::Refused(format!("{first} is not started: this launcher only watches existing processes")))
    }

    async fn stop(&self, procs: &[ProcId], _grace: Duration) -> Result<(), LaunchError> {
        let known = self.shared.log.listing().procs;
        match known.iter().find(|status| procs.contains(&status.proc) && !status.phase.is_over()) {
            None => Ok(()), // unknown and dead processes need no stop
            Some(running) => Err(LaunchError::Refused(format!(
                "{} is not stopped: this launcher only watches existing processes",
                running.proc
            ))),
        }
    }

    async fn list(&self) -> Result<Listing, LaunchError> {
        Ok(self.shared.log.listing())
    }

    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        self.shared.log.after(from).await
    }

    /// Does nothing and succeeds: the job does not depend on this process.
    async fn detach(&self, _keep: Duration) -> Result<(), LaunchError> {
        Ok(())
    }

    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        self.shared.log.acknowledge(exits);
        Ok(())
    }
}
