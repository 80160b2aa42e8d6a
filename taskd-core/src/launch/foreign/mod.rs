//! Watching processes that taskd did not start: a [`Launcher`] that only lists and tells, and sources over the same
//! processes.
//!
//! It starts, stops and signals nothing: there is no code in this module that could.

mod book;
mod builder;
mod ending;
mod find;
mod follow;
mod states;
mod steps;
mod streams;
mod sys;
mod tail;

pub use builder::{ForeignBuilder, ForeignError};
pub use states::ForeignStates;
pub use steps::LogSteps;
pub(super) use sys::wait_status;
pub use tail::StepPattern;

use super::{Change, LaunchError, Launcher, LauncherInfo, Listing, Revision, StartBatch};
use crate::job::{ProcId, Rank};
use async_trait::async_trait;
use book::{Shared, Watching};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// The ranks of a job that somebody else runs, such as torchrun.
///
/// It is the launcher of a job that is only observed ([`Mode::Observe`](crate::job::Mode::Observe)): its ranks are found,
/// told with all their changes, and left alone. Orders to start or stop are refused.
///
/// # Which processes
/// [`below`](Self::below) a process (the torchrun agent), or [in a cgroup](Self::in_cgroup): those whose environment
/// carries a rank, looked for again and again. The topmost one in a tree is the rank; what it starts, such as a data
/// loader's workers, inherits the variable and is left out. [`of`](Self::of): exactly the given ones. For a job that
/// another taskd runs it is the guard below which they are, and `TASKD_RANK`
/// ([`rank_variable`](ForeignBuilder::rank_variable)).
///
/// Each process of a rank is an incarnation, counted from 1 in the order in which they are seen. One that appears while
/// another of its rank still runs waits for the end of that one, and is counted.
///
/// # How they end
/// The end is told by the kernel (pidfd), or found where it does not tell (before Linux 5.3). How a process ended is
/// known where Linux shows it: from its record of the exit once the parent has reaped it (Linux 6.15), else for as long
/// as the parent has not, if we may read it. Otherwise it is [`Termination::Unknown`](crate::job::Termination::Unknown).
///
/// A job's own launcher stops all ranks once one has failed. A rank that ends by SIGTERM or SIGKILL after another has
/// failed is told with an error that says so and is a consequence
/// ([`follow_up`](crate::job::ErrorReport::follow_up)).
///
/// The end of standard error comes with the exit where it is a file that no other rank writes to (`torchrun --redirects`).
///
/// # Example
/// ```no_run
/// use std::time::Duration;
/// use taskd_core::launch::{ForeignProcs, StepPattern};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let foreign = ForeignProcs::below(4711).attach().await?;
/// let states = foreign.states(Duration::from_millis(500));
/// let steps = foreign.steps(StepPattern::after("step "), Duration::from_millis(500));
/// foreign.ended().await;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct ForeignProcs {
    shared: Arc<Shared>,
    /// Ends with this.
    _follower: JoinSet<()>,
}

/// What was counted while foreign processes were watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForeignCounts {
    /// How often it was looked what there is.
    pub looks: u64,
    /// Processes that were passed over because there were more than [`processes_max`](ForeignBuilder::processes_max), in
    /// every look anew.
    pub passed_over: u64,
    /// Processes that carried a rank beyond [`ranks_max`](ForeignBuilder::ranks_max).
    pub ranks_out_of_bounds: u64,
    /// Processes that carried a rank which another one had that still ran.
    pub doubles: u64,
    /// Processes whose environment may not be read, in every look anew.
    pub unreadable: u64,
    /// Ranks of whose end the kernel does not tell, so that it is looked for.
    pub looked_for: u64,
    /// Ends of which it is not known how they came about.
    pub ends_unknown: u64,
}

impl ForeignProcs {
    /// The ranks below a process, such as the torchrun agent. The process itself is never one.
    #[must_use]
    pub fn below(root: u32) -> ForeignBuilder {
        ForeignBuilder::new(builder::Given::Below(root))
    }

    /// Exactly these processes. Later ones are not looked for.
    #[must_use]
    pub fn of(pids: impl IntoIterator<Item = (Rank, u32)>) -> ForeignBuilder {
        ForeignBuilder::new(builder::Given::Named(pids.into_iter().collect()))
    }

    /// The ranks in the cgroup with this directory, such as a container's (`/sys/fs/cgroup/...`), without the cgroups below
    /// it.
    #[must_use]
    pub fn in_cgroup(dir: impl Into<PathBuf>) -> ForeignBuilder {
        ForeignBuilder::new(builder::Given::Cgroup(dir.into()))
    }

    /// A source of heartbeats and processor time, which also answers what state a process is in.
    ///
    /// `every`: how often it is looked. At least four times within the silence detector's limit.
    #[must_use]
    pub fn states(&self, every: Duration) -> ForeignStates {
        ForeignStates::new(Arc::clone(&self.shared), every)
    }

    /// A source of completed steps, read from the files that the ranks' standard output and standard error are.
    ///
    /// `every`: how often they are read.
    #[must_use]
    pub fn steps(&self, pattern: StepPattern, every: Duration) -> LogSteps {
        LogSteps::new(Arc::clone(&self.shared), pattern, every)
    }

    /// Resolves when what was to be watched is gone: the process, all of the named ones, or everything in the cgroup. The
    /// ends of the ranks are told before, unless they are still there a second later.
    pub async fn ended(&self) {
        let mut watching = self.shared.watching.subscribe();
        let _ = watching.wait_for(|now| *now >= Watching::Nothing).await; // its sender lives as long as `self`
    }

    /// What was counted until now.
    #[must_use]
    pub fn counts(&self) -> ForeignCounts {
        self.shared.counts()
    }
}

impl Drop for ForeignProcs {
    fn drop(&mut self) {
        self.shared.watching.send_replace(Watching::Dropped);
    }
}

#[async_trait]
impl Launcher for ForeignProcs {
    fn info(&self) -> LauncherInfo {
        LauncherInfo::new("foreign")
            .handing_over() // others have them anyway
            .going_without("processes are only watched: they are neither started nor stopped")
            .going_without("how a process ended is known only where the kernel tells somebody who is not its parent")
            .going_without("a process that starts and ends between two looks is not seen")
    }

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        let first = batch.orders.first().map(|order| order.proc.to_string()).unwrap_or_default();
        Err(LaunchError::Refused(format!(
            "{first} is not started: this launcher only watches what others have started"
        )))
    }

    async fn stop(&self, procs: &[ProcId], _grace: Duration) -> Result<(), LaunchError> {
        let known = self.shared.log.listing().procs;
        match known.iter().find(|status| procs.contains(&status.proc) && !status.phase.is_over()) {
            None => Ok(()), // the unknown and the dead need no stop
            Some(running) => Err(LaunchError::Refused(format!(
                "{} is not stopped: this launcher only watches what others have started",
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

    /// The job does not need its watcher: leaving it is nothing to it.
    async fn detach(&self, _keep: Duration) -> Result<(), LaunchError> {
        Ok(())
    }

    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        self.shared.log.acknowledge(exits);
        Ok(())
    }
}
