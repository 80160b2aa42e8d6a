//! The operations of all soak runs on a job: start and reap its supervisors, wait for a condition, end all its
//! processes.
//!
//! It makes no choices: the soak run decides on the faults, their moments, and what counts as training again.

use super::census::{Census, Process};
use super::supervised;
use rustix::process::Signal;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use taskd_examples::program::Failure;
use tokio::process::Child;

/// The interval at which a job is observed.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A job's processes, of which one is its supervisor.
#[derive(Debug)]
pub(crate) struct SupervisedJob<'a> {
    dir: PathBuf,
    pub(crate) census: &'a mut Census,
    /// Time limit of each wait; longer is a stall.
    pub(crate) bound: Duration,
    /// How long all processes of the job may take to end after it, or after they were killed.
    gone_within: Duration,
    supervisor: Option<Child>,
    /// The result of the job and its reason, once a supervisor has reported them.
    pub(crate) over: Option<(bool, String)>,
}

impl<'a> SupervisedJob<'a> {
    /// Creates the job of `dir`, without a supervisor yet.
    pub(crate) fn new(
        dir: PathBuf,
        census: &'a mut Census,
        bound: Duration,
        gone_within: Duration,
    ) -> SupervisedJob<'a> {
        SupervisedJob { dir, census, bound, gone_within, supervisor: None, over: None }
    }

    /// Starts a supervisor, which attaches to the running job or starts it from its checkpoint.
    pub(crate) fn start_supervisor(&mut self, keeps: bool) -> Result<(), Failure> {
        self.supervisor = Some(supervised::start(&self.dir, self.census.mark(), keeps)?);
        Ok(())
    }

    pub(crate) fn supervisor_pid(&self) -> Option<i32> {
        self.supervisor.as_ref().and_then(Child::id).and_then(|pid| i32::try_from(pid).ok())
    }

    /// Returns the supervisor's process.
    pub(crate) fn supervisor(&mut self) -> Result<Process, Failure> {
        let pid = self.supervisor_pid();
        let mut processes = self.census.take().into_iter();
        processes.find(|p| Some(p.pid) == pid).ok_or_else(|| "the supervisor has ended unexpectedly".into())
    }

    /// Reaps a supervisor that was killed.
    pub(crate) async fn bury_supervisor(&mut self) -> Result<(), Failure> {
        if let Some(mut child) = self.supervisor.take() {
            child.wait().await?;
        }
        Ok(())
    }

    /// Waits until all processes have ended, and returns those that have not.
    pub(crate) async fn leftovers(&mut self) -> Vec<Process> {
        let until = Instant::now() + self.gone_within;
        loop {
            let left = self.census.take();
            if left.is_empty() || Instant::now() > until {
                return left;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Kills all processes of the job.
    pub(crate) async fn kill_all(&mut self) -> Result<(), Failure> {
        for process in self.census.take() {
            let _ = process.signal(Signal::KILL); // an error means that it has ended by itself
        }
        self.leftovers().await;
        self.bury_supervisor().await
    }
}

/// A soak run's view of its job.
pub(crate) trait Watched<'a> {
    fn supervised(&self) -> &SupervisedJob<'a>;

    /// Processes what has happened since the last call.
    fn look(&mut self);

    /// Observes the job until `is_so` returns a value. Fails if it does not within the bound ([`Stalled`]), or if the
    /// job ends.
    async fn until<T>(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> Option<T>) -> Result<T, Failure> {
        let began = Instant::now();
        loop {
            self.look();
            if let Some(so) = is_so(self) {
                return Ok(so);
            }
            let SupervisedJob { over, dir, bound, .. } = self.supervised();
            if let Some((_, reason)) = over {
                return Err(format!("the job ended before {what}: {reason}; see {}", dir.display()).into());
            }
            if began.elapsed() > *bound {
                return Err(Box::new(Stalled(what.to_owned())));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Observes the job for `time`.
    async fn pass(&mut self, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            self.look();
            tokio::time::sleep(LOOK_EVERY.min(time)).await;
        }
    }
}

/// The job did not reach the awaited condition within the bound.
#[derive(Debug, thiserror::Error)]
#[error("the time limit passed before {0}")]
pub(crate) struct Stalled(pub(crate) String);
