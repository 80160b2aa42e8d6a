//! One run of a scenario: a job that trains before its fault, and is observed after it.

use super::Scenario;
use super::expected::{Expected, Injected, Moment, host_named, rank_named};
use super::row::Row;
use crate::hosts::is_alive;
use crate::training::{Ended, PATIENCE, Training};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;
use taskd_core::detect::FaultClass;
use taskd_examples::program::Failure;
use taskd_examples::recover::now;
use tokio::time::sleep;

/// Steps of each rank before the fault.
const STEPS_BEFORE: usize = 10;
/// Steps of each rank after the recovery.
const STEPS_AFTER: usize = 10;
/// Elections until a host that a scenario needs is the manager. Each gives the office to one of the two other voters.
const ELECTIONS_MAX: usize = 8;
/// Time between two looks at the processes.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Name of the process that starts and reaps the ranks of a host.
const GUARD: &str = "taskd-guard";

/// A job to which a fault happens.
#[derive(Debug)]
pub struct Trial {
    /// The job.
    pub training: Training,
    /// Process of each rank before the fault.
    pub before: BTreeMap<u32, i32>,
    pub(super) random: StdRng,
}

impl Trial {
    /// Waits until the job trains, and `settle` longer.
    ///
    /// # Errors
    /// The job does not train in time.
    pub async fn begin(mut training: Training, seed: u64, settle: Duration) -> Result<Trial, Failure> {
        training.begun(STEPS_BEFORE).await?;
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

    /// Sends SIGKILL to the guard of a host.
    ///
    /// # Errors
    /// The host has no guard.
    pub fn kill_guard(&self, host: &str) -> Result<(), Failure> {
        let is_guard = |pid: &i32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == GUARD) && is_alive(*pid)
        };
        let guards: Vec<i32> = self.training.hosts.get(host)?.pids()?.into_iter().filter(is_guard).collect();
        let first = guards.first().copied().and_then(Pid::from_raw).ok_or_else(|| format!("{host} has no guard"))?;
        Ok(kill_process(first, Signal::KILL)?)
    }

    /// Takes a host away, as a power cut does: its link, then all its processes.
    ///
    /// # Errors
    /// There is no such host, or a process does not end.
    pub async fn lose(&mut self, host: &str) -> Result<Moment, Failure> {
        self.part_of_a_step().await;
        let at = Moment::now();
        let host = self.training.hosts.get(host)?;
        host.set_link(false)?;
        host.kill_all()?;
        Ok(at)
    }

    /// Brings a host back: its link, and its program if that has ended.
    ///
    /// # Errors
    /// There is no such host, or its program cannot be started.
    pub async fn bring_back(&mut self, host: &str) -> Result<Moment, Failure> {
        self.training.hosts.get(host)?.set_link(true)?;
        let at = Moment::now();
        let has_ended = match self.training.programs.get_mut(host) {
            Some(program) => program.wait(Duration::ZERO).await?.is_some(),
            None => true,
        };
        if has_ended {
            self.training.start_program(host)?;
        }
        Ok(at)
    }

    /// Kills the program of a host, which is its agent and possibly the manager, and starts it again at once, as a
    /// service manager does.
    ///
    /// # Errors
    /// It has no program, or that cannot be started.
    pub async fn restart_program(&mut self, host: &str) -> Result<(), Failure> {
        self.kill_program(host).await?;
        self.training.start_program(host)
    }

    async fn kill_program(&mut self, host: &str) -> Result<(), Failure> {
        let lease = self.training.plan.lease;
        if let Some(mut program) = self.training.programs.remove(host) {
            program.signal(Signal::KILL);
            program.wait(lease).await?;
        }
        Ok(())
    }

    /// Returns the host of the manager, and its epoch.
    ///
    /// # Errors
    /// No manager was elected yet.
    pub fn manager(&self) -> Result<(String, u64), Failure> {
        self.training.manager().ok_or_else(|| "no manager was elected".into())
    }

    /// Brings a manager into office on a host that is `wanted`: restarts the program of the present one until one of these
    /// hosts is elected. On a loaded machine the first manager may have lost its office before the fault. Returns the host
    /// and the epoch, once all ranks train under it.
    ///
    /// # Errors
    /// None is elected in eight elections, or the job does not train.
    pub async fn elect(&mut self, wanted: impl Fn(&Trial, &str) -> bool) -> Result<(String, u64), Failure> {
        let lease = self.training.plan.lease;
        for _ in 0..ELECTIONS_MAX {
            let (host, epoch) = self.manager()?;
            if wanted(self, &host) {
                return Ok((host, epoch));
            }
            eprintln!("note          {host} is the manager: another one is elected");
            // A voter that starts stands at once, and would be elected again.
            self.kill_program(&host).await?;
            self.next_manager(epoch, Moment::now()).await?;
            self.training.start_program(&host)?;
            sleep(lease * 2).await; // the restarted host takes part again
            self.training.steps_since(now(), STEPS_BEFORE).await?;
            self.before = self.training.steps().pids();
        }
        Err(format!("no host that the scenario needs was elected in {ELECTIONS_MAX} elections").into())
    }

    /// Has the host of rank 0, which also has the store, elected. Returns the host and the epoch.
    ///
    /// # Errors
    /// Those of [`elect`](Trial::elect).
    pub async fn elect_first(&mut self) -> Result<(String, u64), Failure> {
        self.elect(|trial, host| trial.host_of(0).as_deref() == Some(host)).await
    }

    /// Waits until a manager of a later epoch is in office. Returns its host, and the seconds since `at`.
    ///
    /// # Errors
    /// There is none in time.
    pub async fn next_manager(&mut self, epoch: u64, at: Moment) -> Result<(String, f64), Failure> {
        let later = |training: &Training| training.manager().filter(|(_, now)| *now > epoch).map(|(host, _)| host);
        let host = self.training.wait_until("another manager is elected", later).await?;
        Ok((host, at.elapsed()))
    }

    /// Waits until the ranks other than `lost` have computed a step since `at` without them.
    ///
    /// # Errors
    /// They do not in time.
    pub async fn trains_without(&mut self, lost: &BTreeSet<u32>, at: Moment) -> Result<f64, Failure> {
        let (ranks, old) = (self.left_without(lost), self.pids_of(lost));
        let what = format!("{ranks} ranks train without ranks {lost:?}");
        let common = |steps: &crate::training::Steps| steps.first_common(at.monotonic, ranks, &old);
        Ok(self.training.until(&what, common).await?.1)
    }

    /// Waits until all ranks have computed a step since `at`, those in `hit` in other processes than before.
    ///
    /// # Errors
    /// They do not in time.
    pub async fn trains_again(&mut self, hit: &BTreeSet<u32>, at: Moment) -> Result<(u64, f64), Failure> {
        let (ranks, old) = (self.training.plan.ranks, self.pids_of(hit));
        let what = format!("all {ranks} ranks train, ranks {hit:?} in new processes");
        self.training.until(&what, |steps| steps.first_common(at.monotonic, ranks, &old)).await
    }

    /// Returns the number of ranks without `lost`.
    pub(super) fn left_without(&self, lost: &BTreeSet<u32>) -> u32 {
        self.training.plan.ranks.saturating_sub(u32::try_from(lost.len()).unwrap_or(u32::MAX))
    }

    /// Proves that the manager in office decides: kills a rank that was not hit, and waits until it is replaced.
    ///
    /// # Errors
    /// It is not replaced in time.
    pub async fn prove_decisions(&mut self, injected: &mut Injected) -> Result<(), Failure> {
        injected.until.get_or_insert(now());
        let hit = injected.expected.ranks();
        let unhurt: Vec<u32> = self.before.keys().copied().filter(|rank| !hit.contains(rank)).collect();
        let number = self.random.random_range(0..unhurt.len().max(1));
        let rank = *unhurt.get(number).ok_or("every rank was hit")?;
        let at = Moment::now();
        self.kill(rank)?;
        let (_, time) = self.trains_again(&BTreeSet::from([rank]), at).await?;
        injected.also.push((FaultClass::Exit, rank_named(rank)));
        injected.replaced.insert(rank);
        injected.notes.push(format!(
            "the manager of that time replaced rank {rank}, which was killed, within {:.2} s",
            time - at.monotonic
        ));
        Ok(())
    }

    /// Waits until no process of a rank is left. Returns the seconds from `at` to the end of the last one.
    ///
    /// # Errors
    /// One does not end in time.
    pub async fn stopped(&mut self, at: Moment) -> Result<f64, Failure> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let lives = self.training.lives();
            if lives.values().all(|life| life.ended) {
                let ends = lives.values().map(|life| life.last_alive - at.monotonic);
                return Ok(ends.fold(0.0, f64::max));
            }
            if tokio::time::Instant::now() >= deadline {
                let left = lives.values().filter(|life| !life.ended).count();
                let excerpt = self.training.excerpt();
                return Err(format!("{left} ranks still run {PATIENCE:?} after the fault: {excerpt}").into());
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Records the line with these words that the program of a host has logged; its absence is a problem.
    ///
    /// # Errors
    /// The host has no program.
    pub fn expect_message(&self, injected: &mut Injected, host: &str, words: &str) -> Result<(), Failure> {
        let log = self.training.program(host)?.stderr();
        match log.lines().rev().find(|line| line.contains(words)) {
            Some(line) => injected.notes.push(format!("{host} logged: {}", line.trim())),
            None => injected.problems.push(format!("{host} has logged nothing about `{words}`")),
        }
        Ok(())
    }

    /// Returns the ranks on a host.
    #[must_use]
    pub fn ranks_on(&self, host: &str) -> BTreeSet<u32> {
        let lives = self.training.lives();
        let is_there = |pid: &i32| lives.get(pid).is_some_and(|life| life.host.as_deref() == Some(host));
        self.before.iter().filter(|(_, pid)| is_there(pid)).map(|(rank, _)| *rank).collect()
    }

    /// Returns the host of a rank's process.
    #[must_use]
    pub fn host_of(&self, rank: u32) -> Option<String> {
        self.training.lives().get(self.before.get(&rank)?)?.host.clone()
    }

    /// Returns the recovery that must follow the loss of a host.
    #[must_use]
    pub fn loss_of(&self, host: &str) -> Expected {
        Expected::Recovery { class: FaultClass::NodeLost, domain: host_named(host), ranks: self.ranks_on(host) }
    }

    /// Returns what must follow the loss of a host without a spare one.
    #[must_use]
    pub fn smaller_without(&self, host: &str) -> Expected {
        Expected::Smaller { host: host.into(), ranks: self.ranks_on(host) }
    }

    /// Returns the recovery that must follow the end of a rank's process.
    #[must_use]
    pub fn exit_of(&self, rank: u32) -> Expected {
        self.fault_of(rank, FaultClass::Exit)
    }

    /// Returns the recovery that must follow a fault of a rank's process.
    #[must_use]
    pub fn fault_of(&self, rank: u32, class: FaultClass) -> Expected {
        Expected::Recovery { class, domain: rank_named(rank), ranks: BTreeSet::from([rank]) }
    }

    /// Observes the job after the fault, ends it, and judges what followed.
    pub(super) async fn finish(&mut self, scenario: &Scenario, mut injected: Injected) -> Row {
        match self.followed(&mut injected).await {
            Ok(Some(ended)) => Row::of(scenario, self, &injected, &ended),
            Ok(None) => Row::stopped(scenario, self, &injected),
            Err(error) => {
                injected.problems.push(error.to_string());
                Row::broken(scenario, self, &injected)
            }
        }
    }

    /// Returns how the job ended; `None` if it was to stop.
    async fn followed(&mut self, injected: &mut Injected) -> Result<Option<Ended>, Failure> {
        let all: Vec<u32> = (0..self.training.plan.ranks).collect();
        let (since, ranks) = match &injected.expected {
            Expected::Recovery { ranks, .. } => (self.trains_again(ranks, injected.at).await?.1, all),
            Expected::Smaller { ranks, .. } => {
                let since = self.trains_without(ranks, injected.at).await?;
                let has_grown = injected.figures.grown_s.is_some();
                (since, all.into_iter().filter(|rank| has_grown || !ranks.contains(rank)).collect())
            }
            Expected::Undisturbed { observe, .. } => {
                sleep(*observe).await;
                (now(), all)
            }
            Expected::Stopped { then: None } => return Ok(None),
            Expected::Stopped { then: Some(back) } => {
                let every = all.iter().copied().collect();
                (self.trains_again(&every, *back).await?.1, all)
            }
        };
        self.training.steps_of(&ranks, since, STEPS_AFTER).await?;
        Ok(Some(self.training.end().await?))
    }

    /// Returns the processes that these ranks had before the fault.
    #[must_use]
    pub fn pids_of(&self, ranks: &BTreeSet<u32>) -> Vec<i32> {
        self.before.iter().filter(|(rank, _)| ranks.contains(rank)).map(|(_, pid)| *pid).collect()
    }
}
