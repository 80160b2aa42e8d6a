//! What watching foreign processes can be told, and what can be wrong with it.

use super::ForeignProcs;
use super::book::Shared;
use super::ending::Key;
use super::find::{Finder, Whose};
use super::follow::Follower;
use crate::job::{NodeId, Rank};
use crate::launch::local::this_host;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Whom the user gave.
#[derive(Clone, Debug)]
pub(super) enum Given {
    Named(BTreeMap<Rank, u32>),
    Below(u32),
    Cgroup(PathBuf),
}

/// How [`ForeignProcs`] are to be watched.
#[derive(Clone, Debug)]
pub struct ForeignBuilder {
    given: Given,
    variable: String,
    every: Duration,
    ranks_max: u32,
    processes_max: usize,
    node: Option<NodeId>,
}

impl ForeignBuilder {
    pub(super) fn new(given: Given) -> ForeignBuilder {
        let (variable, every) = ("RANK".to_owned(), Duration::from_millis(200));
        ForeignBuilder { given, variable, every, ranks_max: 4096, processes_max: 16_384, node: None }
    }

    /// The environment variable that carries the global rank. Default: `RANK`, as torchrun sets it.
    #[must_use]
    pub fn rank_variable(mut self, name: impl Into<String>) -> ForeignBuilder {
        self.variable = name.into();
        self
    }

    /// How often it is looked for new processes, and for ends where the kernel does not tell them. Default: 200 ms; at least
    /// 10 ms.
    #[must_use]
    pub fn look_every(mut self, every: Duration) -> ForeignBuilder {
        self.every = every.max(Duration::from_millis(10));
        self
    }

    /// How many ranks there can be: those with this number and above are counted and left out. Default: 4096.
    #[must_use]
    pub const fn ranks_max(mut self, ranks: u32) -> ForeignBuilder {
        self.ranks_max = ranks;
        self
    }

    /// How many processes are looked at in one look; the others are counted. Default: 16,384.
    #[must_use]
    pub const fn processes_max(mut self, processes: usize) -> ForeignBuilder {
        self.processes_max = processes;
        self
    }

    /// The name of this host. Default: its host name.
    #[must_use]
    pub fn node(mut self, node: NodeId) -> ForeignBuilder {
        self.node = Some(node);
        self
    }

    /// Looks for the first time and goes on from there. That there are no ranks yet is no error.
    ///
    /// # Errors
    /// [`ForeignError`]; nothing is watched.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O enabled.
    pub async fn attach(self) -> Result<ForeignProcs, ForeignError> {
        if self.variable.is_empty() || self.variable.contains(['=', '\0']) {
            return Err(ForeignError::Variable(self.variable));
        }
        let whose = self.given.whose()?;
        let mut finder = Finder::new(whose, self.variable, self.processes_max);
        let looked = tokio::task::spawn_blocking(move || (finder.look(), finder)).await;
        let (look, finder) = looked.map_err(|error| ForeignError::Listing(io::Error::other(error)))?;
        let shared = Arc::new(Shared::new(self.node.unwrap_or_else(this_host), self.ranks_max));
        let mut follower = Follower::new(Arc::clone(&shared), self.every);
        follower.take(look.map_err(ForeignError::Listing)?);
        let mut running = JoinSet::new();
        running.spawn(follower.follow(finder));
        Ok(ForeignProcs { shared, _follower: running })
    }
}

impl Given {
    /// The very processes that have these numbers now.
    fn whose(self) -> Result<Whose, ForeignError> {
        let number = |pid: u32| i32::try_from(pid).ok().filter(|pid| *pid > 0).ok_or(ForeignError::NoProcess { pid });
        let running = |pid: u32| {
            let key = Key::of(number(pid)?).filter(|key| !key.is_over());
            key.ok_or(ForeignError::NoProcess { pid })
        };
        Ok(match self {
            Given::Below(pid) => Whose::Below(running(pid)?),
            Given::Cgroup(dir) => Whose::Cgroup(dir),
            Given::Named(pids) if pids.is_empty() => return Err(ForeignError::Nobody),
            Given::Named(pids) => {
                let find = |(rank, pid): (Rank, u32)| running(pid).map(|key| (rank, key));
                Whose::Named(pids.into_iter().map(find).collect::<Result<_, _>>()?)
            }
        })
    }
}

/// Why foreign processes cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForeignError {
    /// A given process is not there.
    #[error("there is no process {pid} to watch: give the number of one that runs")]
    NoProcess {
        /// Its number.
        pid: u32,
    },
    /// No process was given.
    #[error("no process was given: name at least one rank with its process")]
    Nobody,
    /// The rank's variable cannot be one.
    #[error("{0:?} cannot be the name of an environment variable: name the one that carries the rank, such as RANK")]
    Variable(String),
    /// The processes cannot be listed.
    #[error("the processes to be watched cannot be listed: {0}")]
    Listing(#[source] io::Error),
}
