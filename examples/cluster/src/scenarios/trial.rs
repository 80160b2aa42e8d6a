//! One run of a scenario: a job that trains before its fault, and is observed after it.

use super::Scenario;
use super::judge::Row;
use crate::training::Training;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use taskd_core::detect::FaultClass;
use taskd_core::job::{Domain, Name, NodeId, Rank, Role};
use taskd_examples::program::Failure;
use taskd_examples::recover::now;
use tokio::time::sleep;

/// Steps of each rank before the fault.
const STEPS_BEFORE: usize = 10;
/// Steps of each rank after the recovery.
const STEPS_AFTER: usize = 10;

/// A job to which a fault happens.
#[derive(Debug)]
pub struct Trial {
    /// The job.
    pub training: Training,
    /// Process of each rank before the fault.
    pub before: BTreeMap<u32, i32>,
    random: StdRng,
}

/// A moment by two clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Seconds of the monotonic clock.
    pub monotonic: f64,
    /// Seconds since 1970.
    pub unix: f64,
}

impl Moment {
    /// Returns the present moment.
    #[must_use]
    pub fn now() -> Moment {
        let unix = clock_gettime(ClockId::Realtime);
        Moment { monotonic: now(), unix: unix.tv_sec as f64 + unix.tv_nsec as f64 / 1e9 }
    }
}

/// A fault that was injected, and what must follow.
#[derive(Debug)]
pub struct Injected {
    /// What was injected, in words.
    pub what: String,
    /// When.
    pub at: Moment,
    /// What must follow.
    pub expected: Expected,
    /// Host that must have stopped its ranks within the lease and the time to stop.
    pub fenced: Option<String>,
    /// Deviations that the scenario itself has found, in sentences.
    pub problems: Vec<String>,
}

/// What must follow a fault.
#[derive(Debug)]
pub enum Expected {
    /// The job blames this, and these ranks continue in new processes.
    Recovery {
        /// Class of the only incident.
        class: FaultClass,
        /// What it blames.
        domain: Domain,
        /// The ranks that get a new process.
        ranks: BTreeSet<u32>,
    },
    /// Training continues in the same processes. An incident about this host is allowed, if one is named.
    Undisturbed {
        /// The host.
        host: Option<String>,
        /// Time for which the job is observed after the fault.
        observe: Duration,
    },
}

impl Injected {
    /// Returns a fault that happened at `at`, with what must follow.
    #[must_use]
    pub fn new(what: impl Into<String>, at: Moment, expected: Expected) -> Injected {
        Injected { what: what.into(), at, expected, fenced: None, problems: Vec::new() }
    }
}

impl Trial {
    /// Waits until the job trains, and `settle` longer.
    ///
    /// # Errors
    /// The job does not train in time.
    pub async fn begin(mut training: Training, seed: u64, settle: Duration) -> Result<Trial, Failure> {
        training.steps_since(0.0, STEPS_BEFORE).await?;
        sleep(settle).await;
        let before = training.steps().pids();
        Ok(Trial { training, before, random: StdRng::seed_from_u64(seed) })
    }

    /// Returns a random rank.
    pub fn any_rank(&mut self) -> u32 {
        self.random.random_range(0..self.training.plan.ranks)
    }

    /// Returns a random rank on a host.
    ///
    /// # Errors
    /// The host has no ranks.
    pub fn any_rank_on(&mut self, host: &str) -> Result<u32, Failure> {
        let ranks: Vec<u32> = self.ranks_on(host).into_iter().collect();
        if ranks.is_empty() {
            return Err(format!("no rank runs on {host}").into());
        }
        Ok(ranks[self.random.random_range(0..ranks.len())])
    }

    /// Waits for a random part of some steps, so that faults hit every phase of a step.
    pub async fn part_of_a_step(&mut self) {
        sleep(Duration::from_millis(self.random.random_range(0..100))).await;
    }

    /// Sends SIGKILL to the process of a rank.
    ///
    /// # Errors
    /// The rank has no process.
    pub fn kill(&self, rank: u32) -> Result<(), Failure> {
        self.signal(rank, Signal::KILL)
    }

    /// Sends a signal to the process of a rank.
    ///
    /// # Errors
    /// The rank has no process.
    pub fn signal(&self, rank: u32, signal: Signal) -> Result<(), Failure> {
        let pid = self.before.get(&rank).copied().and_then(Pid::from_raw);
        Ok(kill_process(pid.ok_or_else(|| format!("rank {rank} has no process"))?, signal)?)
    }

    /// Returns the ranks on a host.
    #[must_use]
    pub fn ranks_on(&self, host: &str) -> BTreeSet<u32> {
        let lives = self.training.lives();
        let is_there = |pid: &i32| lives.get(pid).is_some_and(|life| life.host.as_deref() == Some(host));
        self.before.iter().filter(|(_, pid)| is_there(pid)).map(|(rank, _)| *rank).collect()
    }

    /// Returns the recovery that must follow the loss of a host.
    #[must_use]
    pub fn loss_of(&self, host: &str) -> Expected {
        Expected::Recovery { class: FaultClass::NodeLost, domain: host_named(host), ranks: self.ranks_on(host) }
    }

    /// Returns the recovery that must follow the end of a rank's process.
    #[must_use]
    pub fn exit_of(&self, rank: u32) -> Expected {
        self.fault_of(rank, FaultClass::Exit)
    }

    /// Returns the recovery that must follow a fault of a rank's process.
    #[must_use]
    pub fn fault_of(&self, rank: u32, class: FaultClass) -> Expected {
        let domain = Domain::Process(Role::Rank(Rank(rank)));
        Expected::Recovery { class, domain, ranks: BTreeSet::from([rank]) }
    }

    /// Observes the job after the fault, ends it, and judges what followed.
    pub(super) async fn finish(&mut self, scenario: &Scenario, mut injected: Injected) -> Row {
        match self.followed(&mut injected).await {
            Ok(ended) => Row::of(scenario, self, &injected, &ended),
            Err(error) => {
                injected.problems.push(error.to_string());
                Row::broken(scenario, self, &injected)
            }
        }
    }

    async fn followed(&mut self, injected: &mut Injected) -> Result<crate::training::Ended, Failure> {
        let ranks = self.training.plan.ranks;
        let since = match &injected.expected {
            Expected::Recovery { ranks: replaced, .. } => {
                let old = self.pids_of(replaced);
                let what = "all ranks train again after the fault";
                let at = injected.at.monotonic;
                let common = self.training.until(what, |steps| steps.first_common(at, ranks, &old)).await?;
                common.1
            }
            Expected::Undisturbed { observe, .. } => {
                sleep(*observe).await;
                now()
            }
        };
        self.training.steps_since(since, STEPS_AFTER).await?;
        self.training.end().await
    }

    /// Returns the processes that these ranks had before the fault.
    #[must_use]
    pub fn pids_of(&self, ranks: &BTreeSet<u32>) -> Vec<i32> {
        self.before.iter().filter(|(rank, _)| ranks.contains(rank)).map(|(_, pid)| *pid).collect()
    }
}

/// Returns a host as incidents name it.
pub(super) fn host_named(host: &str) -> Domain {
    Domain::Node(NodeId(Name::from(host.to_owned())))
}
