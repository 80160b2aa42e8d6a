//! Faults from outside: signals to ranks' processes, with victims and steps that a seed chooses.
//!
//! It takes a rank's process id from the launcher's listing and uses nothing else of the runtime.

use crate::account::Injections;
use crate::books::StepLine;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};
use taskd_core::job::{Rank, Role};
use taskd_core::launch::{Launcher, Phase, ProcStatus};

/// The interval at which the program's metrics are read.
const READ_EVERY: Duration = Duration::from_millis(50);

/// A job that faults are injected into.
#[derive(Debug)]
pub struct Target<L, R> {
    /// The launcher that lists its ranks.
    pub launcher: L,
    /// The function that reads its metrics.
    pub read: R,
    /// Number of its steps.
    pub steps: u64,
    /// Number of its ranks.
    pub ranks: u32,
}

impl<L: Launcher, R: Fn() -> Vec<StepLine>> Target<L, R> {
    /// Kills one rank at about a third of the steps and freezes another at about two thirds, then waits for the end.
    /// Prints each fault and the job's progress.
    pub async fn kill_one_freeze_one(&self, seed: u64, injections: &Injections) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut moment = |from: u64, to: u64| self.steps * rng.random_range(from..to) / 100;
        let plan = [("SIGKILL", Signal::KILL, moment(25, 40)), ("SIGSTOP", Signal::STOP, moment(60, 75))];
        let first = rng.random_range(0..self.ranks);
        let victims = [first, (first + rng.random_range(1..self.ranks)) % self.ranks];
        for ((name, signal, step), victim) in plan.into_iter().zip(victims) {
            self.reach(step).await;
            let Some(pid) = pid_of(&self.launcher, victim).await else { continue };
            println!("          >>> from outside: {name} to rank {victim} (pid {pid}) at step {step}");
            let at = Instant::now();
            if Pid::from_raw(pid).is_some_and(|pid| kill_process(pid, signal).is_ok()) {
                injections.push(name, &[victim], at);
            }
        }
        self.reach(self.steps).await;
    }

    /// Waits until training has reached a step, and prints the progress once a second.
    pub async fn reach(&self, step: u64) {
        let mut logged_at = Instant::now();
        loop {
            if let Some(line) = (self.read)().last() {
                if logged_at.elapsed() > Duration::from_secs(1) {
                    logged_at = Instant::now();
                    println!("          step {:>5}/{}  loss {:.4}", line.step, self.steps, line.loss);
                }
                if line.step >= step {
                    return;
                }
            }
            tokio::time::sleep(READ_EVERY).await;
        }
    }
}

/// Returns the process id of a running rank.
pub async fn pid_of(launcher: &impl Launcher, rank: u32) -> Option<i32> {
    let listing = launcher.list().await.ok()?;
    let runs = |p: &&ProcStatus| p.proc.role == Role::Rank(Rank(rank)) && p.phase == Phase::Running;
    listing.procs.iter().find(runs)?.pid?.try_into().ok()
}
