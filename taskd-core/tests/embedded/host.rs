//! What all host programs have in common: ranks that train in the shell, and a runtime over them.

use crate::support::*;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use taskd_core::detect::ExitDetector;
use taskd_core::job::*;
use taskd_core::launch::*;
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::Runtime;

/// Trains until there is a file `finish`; saves when it is ordered to end.
pub(crate) const TRAIN: &str = "\
    trap 'echo $TASKD_INCARNATION > saved-$TASKD_RANK; exit 1' TERM; \
    echo $TASKD_INCARNATION $$ > pid-$TASKD_RANK.new; mv pid-$TASKD_RANK.new pid-$TASKD_RANK; \
    i=0; while [ ! -e finish ]; do i=$((i+1)); echo $i > step-$TASKD_RANK; sleep 0.01; done";

/// Reports that it was ordered to end, and continues.
pub(crate) const STUBBORN: &str = "\
    trap 'echo > ordered-$TASKD_RANK' TERM; \
    echo $TASKD_INCARNATION $$ > pid-$TASKD_RANK.new; mv pid-$TASKD_RANK.new pid-$TASKD_RANK; \
    while :; do sleep 0.01; done";

/// What the policy gives ranks that are stopped.
pub(crate) const STOP_GRACE: Duration = Duration::from_secs(2);

/// Where a job keeps its files.
pub(crate) fn run_dir(dir: &Path) -> PathBuf {
    dir.join("run")
}

pub(crate) async fn launcher(dir: &Path, on_loss: OnOwnerLoss) -> LocalLauncher {
    LocalLauncher::builder(run_dir(dir)).on_owner_loss(on_loss).build().await.unwrap()
}

pub(crate) fn runtime(dir: &Path, script: &str, ranks: u32, launcher: impl Launcher + 'static) -> Runtime {
    let mut spec = JobSpec::new("embedded", ranks, sh(script).with_cwd(dir));
    spec.policy.termination_grace_period = STOP_GRACE;
    spec.policy.budget = BudgetSpec { recoveries_max: 10_000, ..BudgetSpec::default() };
    let builder = Runtime::builder().job(spec).journal(dir.join("journal")).launcher(launcher);
    builder.detector(ExitDetector::new()).strategy(Restart::new()).strategy(ExitStrategy::new()).build().unwrap()
}

/// Incarnation and pid that a rank has written, if it has.
pub(crate) fn rank_of(dir: &Path, rank: u32) -> Option<(u32, u32)> {
    let text = std::fs::read_to_string(dir.join(format!("pid-{rank}"))).ok()?;
    let (incarnation, pid) = text.trim().split_once(' ')?;
    Some((incarnation.parse().ok()?, pid.parse().ok()?))
}

/// The pids of all ranks, when they train.
pub(crate) async fn all_train(dir: &Path, ranks: u32) -> Vec<u32> {
    let trains = |rank| rank_of(dir, rank).map(|(_, pid)| pid).filter(|pid| is_alive(*pid));
    eventually("all ranks train", || (0..ranks).map(trains).collect()).await
}

/// How far a rank has come.
pub(crate) fn step_of(dir: &Path, rank: u32) -> u64 {
    let text = std::fs::read_to_string(dir.join(format!("step-{rank}")));
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Waits until a rank has gone on.
pub(crate) async fn goes_on(dir: &Path, rank: u32) {
    let before = step_of(dir, rank);
    eventually("it trains on", || (step_of(dir, rank) > before + 3).then_some(())).await;
}

pub(crate) fn saved(dir: &Path, rank: u32) -> bool {
    dir.join(format!("saved-{rank}")).exists()
}

/// This program as a host program, in a process of its own, which ends with the test that started it.
pub(crate) struct Host(Child);

impl Host {
    pub(crate) fn start(words: &[&str]) -> Host {
        let mut command = Command::new(std::env::current_exe().unwrap());
        Host(command.args(words).stdin(Stdio::null()).spawn().unwrap())
    }

    pub(crate) fn send(&self, signal: Signal) {
        send(self.0.id(), signal);
    }

    /// Kills it and reaps it.
    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// The code that it ends with.
    pub(crate) async fn code(mut self, limit: Duration) -> Option<i32> {
        within(limit, "the host program ends", || self.0.try_wait().unwrap()).await.code()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}
