//! Configuration of the observation of external processes, and its errors.

use super::ExternalProcs;
use super::discovery::{Finder, Selection};
use super::exit::Key;
use super::poll_task::Follower;
use super::registry::Shared;
use crate::job::{NodeId, Rank};
use crate::launch::local::this_host;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// The processes that the user gave.
#[derive(Clone, Debug)]
pub(super) enum Given {
    Named(BTreeMap<Rank, u32>),
    Below(u32),
    Cgroup(PathBuf),
}

/// Configuration of [`ExternalProcs`].
#[derive(Clone, Debug)]
pub struct ExternalProcsBuilder {
    given: Given,
    variable: String,
    every: Duration,
    ranks_max: u32,
    processes_max: usize,
    node: Option<NodeId>,
}

impl ExternalProcsBuilder {
    pub(super) fn new(given: Given) -> ExternalProcsBuilder {
        let (variable, every) = ("RANK".to_owned(), Duration::from_millis(200));
        ExternalProcsBuilder { given, variable, every, ranks_max: 4096, processes_max: 16_384, node: None }
    }

    /// Sets the environment variable that contains the global rank of a process. Default: `RANK`, as torchrun sets it.
    #[must_use]
    pub fn rank_variable(mut self, name: impl Into<String>) -> ExternalProcsBuilder {
        self.variable = name.into();
        self
    }

    /// Sets the interval between two scans for new processes. Each process whose end Linux does not report is checked
    /// at the same interval. Default: 200 ms; at least 10 ms.
    #[must_use]
    pub fn look_every(mut self, every: Duration) -> ExternalProcsBuilder {
        self.every = every.max(Duration::from_millis(10));
        self
    }

    /// Sets the upper bound of rank numbers: a process whose rank number is this bound or higher is not observed, and
    /// is counted in [`ranks_out_of_bounds`](super::ExternalCounts::ranks_out_of_bounds). Default: 4096.
    #[must_use]
    pub const fn ranks_max(mut self, ranks: u32) -> ExternalProcsBuilder {
        self.ranks_max = ranks;
        self
    }

    /// Sets the maximum number of processes that one scan examines; further processes are not examined, and counted in
    /// [`passed_over`](super::ExternalCounts::passed_over). Default: 16,384.
    #[must_use]
    pub const fn processes_max(mut self, processes: usize) -> ExternalProcsBuilder {
        self.processes_max = processes;
        self
    }

    /// Sets the node name of this host. Default: its host name.
    #[must_use]
    pub fn node(mut self, node: NodeId) -> ExternalProcsBuilder {
        self.node = Some(node);
        self
    }

    /// Makes the first scan for ranks and starts watching them. It is no error if there are no ranks yet.
    ///
    /// # Errors
    /// Returns [`ExternalError`] if the processes cannot be watched. In that case, no process is watched.
    ///
    /// # Panics
    /// Panics if called outside a tokio runtime with I/O enabled.
    pub async fn attach(self) -> Result<ExternalProcs, ExternalError> {
        if self.variable.is_empty() || self.variable.contains(['=', '\0']) {
            return Err(ExternalError::Variable(self.variable));
        }
        let selection = self.given.selection()?;
        let mut finder = Finder::new(selection, self.variable, self.processes_max);
        let looked = tokio::task::spawn_blocking(move || (finder.look(), finder)).await;
        let (look, finder) = looked.map_err(|error| ExternalError::Listing(io::Error::other(error)))?;
        let shared = Arc::new(Shared::new(self.node.unwrap_or_else(this_host), self.ranks_max));
        let mut follower = Follower::new(Arc::clone(&shared), self.every);
        follower.take(look.map_err(ExternalError::Listing)?);
        let mut running = JoinSet::new();
        running.spawn(follower.follow(finder));
        Ok(ExternalProcs { shared, _follower: running })
    }
}

impl Given {
    /// Resolves the given pids to the processes that have them now, so that a process that gets one of these pids later
    /// is not mistaken for one of them.
    fn selection(self) -> Result<Selection, ExternalError> {
        let number = |pid: u32| i32::try_from(pid).ok().filter(|pid| *pid > 0).ok_or(ExternalError::NoProcess { pid });
        let running = |pid: u32| {
            let key = Key::of(number(pid)?).filter(|key| !key.is_over());
            key.ok_or(ExternalError::NoProcess { pid })
        };
        Ok(match self {
            Given::Below(pid) => Selection::Below(running(pid)?),
            Given::Cgroup(dir) => Selection::Cgroup(dir),
            Given::Named(pids) if pids.is_empty() => return Err(ExternalError::Nobody),
            Given::Named(pids) => {
                let find = |(rank, pid): (Rank, u32)| running(pid).map(|key| (rank, key));
                Selection::Named(pids.into_iter().map(find).collect::<Result<_, _>>()?)
            }
        })
    }
}

/// Reason why external processes cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExternalError {
    /// There is no process with the pid that was passed to [`below`](super::ExternalProcs::below) or
    /// [`of`](super::ExternalProcs::of).
    #[error("there is no process {pid} to watch: give the pid of a running process")]
    NoProcess {
        /// Pid of the process that does not exist.
        pid: u32,
    },
    /// The list of processes to watch is empty.
    #[error("no process was given: name at least one rank with its process")]
    Nobody,
    /// The name of the rank variable is not a valid name of an environment variable; contains the invalid name.
    #[error("{0:?} cannot be the name of an environment variable: name the variable with the rank, such as RANK")]
    Variable(String),
    /// The processes to watch cannot be listed.
    #[error("the processes to be watched cannot be listed: {0}")]
    Listing(#[source] io::Error),
}
