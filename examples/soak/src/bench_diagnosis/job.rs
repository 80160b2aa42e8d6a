//! The training, and the steps that its rank 0 has printed.

use super::kind::Ranks;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use taskd_core::job::{JobSpec, WorkerSpec};
use taskd_core::launch::LocalLauncher;
use taskd_examples::program::Failure;
use taskd_pytorch::TorchLauncher;

/// The launcher of PyTorch ranks on this machine.
pub(super) type Torch = TorchLauncher<Arc<LocalLauncher>>;

/// How long the interpreters may take to import torch on a busy machine.
const START_WITHIN: Duration = Duration::from_secs(300);
/// The end of rank 0's output in which the latest step is searched.
const TAIL_BYTES: u64 = 400;

/// One training.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) python: PathBuf,
    /// The directory of all its files.
    pub(super) dir: PathBuf,
    pub(super) ranks: Ranks,
}

impl Job {
    /// Returns the directory of data, checkpoints and orders.
    pub(super) fn files(&self) -> PathBuf {
        self.dir.join("files")
    }

    pub(super) async fn launchers(&self) -> Result<(Arc<LocalLauncher>, Arc<Torch>), Failure> {
        fs::create_dir_all(self.files())?;
        let local = Arc::new(LocalLauncher::builder(self.dir.join("run")).job_name("diagnosis").build().await?);
        let torch = Arc::new(TorchLauncher::new(Arc::clone(&local), self.dir.join("torch")));
        Ok((local, torch))
    }

    pub(super) fn spec(&self) -> JobSpec {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/bench_diagnosis/train.py");
        let (python, files) = (self.python.to_string_lossy(), self.files());
        let device_ms = self.ranks.device_ms().to_string();
        let words = [&*python, "-u", script, "--dir", &files.to_string_lossy(), "--device-ms", &device_ms];
        let words = words.map(str::to_owned).into_iter();
        let pipeline = self.ranks.is_pipeline().then(|| "--pipeline".to_owned());
        let worker = WorkerSpec::new(words.chain(pipeline)).with_env("GLOO_SOCKET_IFNAME", "lo");
        let mut spec = JobSpec::new("diagnosis", self.ranks.count(), worker);
        spec.groups = self.ranks.groups();
        spec.policy.start_timeout = START_WITHIN;
        spec.policy.termination_grace_period = Duration::from_millis(500);
        spec
    }

    /// Gives the script an order.
    pub(super) fn order(&self, what: &str) -> Result<(), Failure> {
        Ok(File::create(self.files().join(what)).map(drop)?)
    }

    fn output(&self) -> PathBuf {
        self.dir.join("run/procs/rank-0.1/stdout.log")
    }

    /// Returns the last step that rank 0 has printed; 0 before the first.
    pub(super) fn step(&self) -> u64 {
        let text = tail(&self.output()).unwrap_or_default();
        text.lines().rev().find_map(parse).map_or(0, |(step, _)| step)
    }

    /// Waits until rank 0 has printed a step; returns the latest one.
    pub(super) async fn reach(&self, wanted: u64) -> Result<u64, Failure> {
        let until = tokio::time::Instant::now() + START_WITHIN;
        loop {
            match self.step() {
                step if step >= wanted => return Ok(step),
                step if tokio::time::Instant::now() > until => {
                    return Err(format!("the training did not get from step {step} to {wanted}").into());
                }
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Returns the median time between two of the steps, in milliseconds; `None` if there are too few.
    pub(super) fn median_ms(&self, steps: std::ops::Range<u64>) -> Option<f64> {
        let text = fs::read_to_string(self.output()).unwrap_or_default();
        let printed: Vec<(u64, f64)> = text.lines().filter_map(parse).filter(|(at, _)| steps.contains(at)).collect();
        let mut times: Vec<f64> = printed.windows(2).map(|pair| (pair[1].1 - pair[0].1) * 1e3).collect();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    }
}

/// Reads `step NUMBER at SECONDS`.
fn parse(line: &str) -> Option<(u64, f64)> {
    let (step, at) = line.strip_prefix("step ")?.split_once(" at ")?;
    Some((step.parse().ok()?, at.parse().ok()?))
}

fn tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text.rsplit_once('\n').map_or(String::new(), |(whole, _)| whole.to_owned()))
}
