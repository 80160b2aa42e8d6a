//! The PyTorch job whose ranks are traced: `python/train_traced.py`, an ordinary DDP script that does not use taskd.
//!
//! It starts the job and returns its launchers; faults and verdicts are in the programs that use it.

use crate::program::Failure;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use taskd_core::job::{JobSpec, WorkerSpec};
use taskd_core::launch::LocalLauncher;
use taskd_pytorch::TorchLauncher;

/// How long the interpreters may take to import torch on a busy machine.
const START_WITHIN: Duration = Duration::from_secs(300);
const READ_EVERY: Duration = Duration::from_millis(20);

/// One training of the script.
#[derive(Clone, Debug)]
pub struct TracedJob {
    /// An interpreter with torch.
    pub python: PathBuf,
    /// The directory of all its files, those that are written for it included.
    pub dir: PathBuf,
    /// Number of ranks.
    pub ranks: u32,
    /// Time of a step on the simulated accelerator, in milliseconds.
    pub device_ms: u32,
    /// Steps between two checkpoints; 0 for none.
    pub checkpoint_every: u32,
    /// True if all ranks write checkpoints, not rank 0 alone.
    pub shards: bool,
}

/// The launchers of its processes.
#[derive(Clone, Debug)]
pub struct Launchers {
    /// The launcher of this machine.
    pub local: Arc<LocalLauncher>,
    /// The same launcher for PyTorch ranks.
    pub torch: Arc<TorchLauncher<Arc<LocalLauncher>>>,
}

impl TracedJob {
    /// Returns launchers for it.
    ///
    /// # Errors
    /// The guard cannot be started.
    pub async fn launchers(&self) -> Result<Launchers, Failure> {
        fs::create_dir_all(self.out())?;
        let local = LocalLauncher::builder(self.dir.join("run")).job_name("traced").build().await?;
        let local = Arc::new(local);
        let torch = Arc::new(TorchLauncher::new(Arc::clone(&local), self.dir.join("torch")));
        Ok(Launchers { local, torch })
    }

    /// Returns the job's specification.
    #[must_use]
    pub fn spec(&self) -> JobSpec {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/train_traced.py");
        let (python, out) = (self.python.to_string_lossy(), self.out());
        let (device_ms, every) = (self.device_ms.to_string(), self.checkpoint_every.to_string());
        let argv = [&*python, "-u", script, "--dir", &out.to_string_lossy(), "--device-ms", &device_ms]
            .map(str::to_owned)
            .into_iter()
            .chain(["--checkpoint-every".to_owned(), every])
            .chain(self.shards.then(|| "--shards".to_owned()));
        let mut spec = JobSpec::new("traced", self.ranks, WorkerSpec::new(argv).with_env("TASKD_NUMERICAL", "on"));
        spec.policy.start_timeout = START_WITHIN;
        spec.policy.termination_grace_period = Duration::from_millis(500);
        spec
    }

    /// Sends the script an order, as an empty file named `what`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn send(&self, what: &str) -> Result<(), Failure> {
        Ok(File::create(self.out().join(what)).map(drop)?)
    }

    /// Orders the script to end at its next step.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn stop(&self) -> Result<(), Failure> {
        self.send("stop")
    }

    fn out(&self) -> PathBuf {
        self.dir.join("out")
    }
}

/// Waits for a step; returns the newest one.
///
/// # Errors
/// The training does not reach it.
pub async fn reach(job: &TracedJob, wanted: u64) -> Result<u64, Failure> {
    let begun = Instant::now();
    loop {
        match step_of(job) {
            Some(step) if step >= wanted => return Ok(step),
            _ if begun.elapsed() > START_WITHIN => {
                return Err(format!("the training did not reach step {wanted} within {START_WITHIN:?}").into());
            }
            _ => tokio::time::sleep(READ_EVERY).await,
        }
    }
}

/// Returns the last step that rank 0 has printed.
#[must_use]
pub fn step_of(job: &TracedJob) -> Option<u64> {
    let text = fs::read_to_string(job.dir.join("run/procs/rank-0.1/stdout.log")).ok()?;
    text.lines().rev().find_map(|line| line.strip_prefix("step ")?.split(' ').next()?.parse().ok())
}
