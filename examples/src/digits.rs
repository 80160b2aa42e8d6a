//! The PyTorch job of the examples: `python/train_digits.py` on four ranks, its supervision, and its results.
//!
//! It injects nothing and compares nothing: the programs that use it do that.

use crate::books::StepLine;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::{ExitDetector, ProgramErrorDetector, RestartStormDetector, SilenceDetector, StallDetector};
use taskd_core::job::{BudgetSpec, JobSpec, Ready, WorkerSpec};
use taskd_core::launch::{LocalLauncher, OnOwnerLoss};
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::Runtime;
use taskd_pytorch::TorchLauncher;

/// Ranks of the job.
pub const RANKS: u32 = 4;
/// Bound of the silence detector: importing torch can delay a rank's heartbeat thread on a busy machine.
const SILENT_AFTER: Duration = Duration::from_secs(5);
/// Bound of the stall detector: longer than any step, checkpoint or start of this job takes.
const STALLED_AFTER: Duration = Duration::from_secs(120);
/// The window of the restart limit.
const RESTARTS_WITHIN: Duration = Duration::from_secs(600);

/// One training of the script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigitsJob {
    /// An interpreter with torch.
    pub python: PathBuf,
    /// Directory of checkpoints, metrics and the result.
    pub out: PathBuf,
    /// Training steps.
    pub steps: u64,
    /// Steps between two checkpoints.
    pub checkpoint_every: u64,
    /// Pause in every step, in milliseconds. It has no influence on the result.
    pub pace_ms: u64,
    /// Recoveries in the job's budget, and the most restarts without progress within ten minutes.
    pub restarts_max: u32,
}

/// A training under supervision, ready to run.
#[derive(Debug)]
pub struct Supervised {
    /// The launcher of its processes.
    pub local: Arc<LocalLauncher>,
    /// The same launcher for PyTorch ranks.
    pub torch: Arc<TorchLauncher<Arc<LocalLauncher>>>,
    /// The runtime that supervises it.
    pub runtime: Runtime,
}

/// What rank 0 of the script writes at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Steps that were trained.
    pub steps: u64,
    /// The loss over all samples.
    pub loss: f64,
    /// SHA-256 of parameters, optimizer and random state.
    pub sha256: String,
    /// True if all ranks ended with the same parameters, bit by bit.
    pub ranks_equal: bool,
}

/// One line of the script's `metrics.jsonl`.
#[derive(Debug, Deserialize)]
struct Metrics {
    generation: u64,
    step: u64,
    loss: f64,
    t: f64,
}

impl DigitsJob {
    /// Attaches to the training that runs in `dir`, or prepares its start: run directory, logs and the launcher's files
    /// are below it.
    ///
    /// # Errors
    /// The guard cannot be started, or the runtime cannot be built; the text has the reason.
    pub async fn supervise(
        &self,
        dir: &Path,
        on_owner_loss: OnOwnerLoss,
    ) -> Result<Supervised, Box<dyn std::error::Error>> {
        let local = LocalLauncher::builder(dir.join("run")).job_name("pytorch-ddp").on_owner_loss(on_owner_loss);
        let local = Arc::new(local.build().await?);
        let torch = Arc::new(TorchLauncher::new(Arc::clone(&local), dir.join("torch")));
        let runtime = Runtime::builder()
            .job(self.spec())
            .source(local.heartbeats(SILENT_AFTER / 10))
            .detector(ExitDetector::new())
            .detector(ProgramErrorDetector::new())
            .detector(SilenceDetector::after(SILENT_AFTER))
            .detector(StallDetector::after(STALLED_AFTER))
            .detector(RestartStormDetector::more_than(self.restarts_max, RESTARTS_WITHIN))
            .strategy(Restart::new())
            .strategy(ExitStrategy::new())
            .launcher(Arc::clone(&torch))
            .journal(dir.join("journal"))
            .build()?;
        Ok(Supervised { local, torch, runtime })
    }

    fn spec(&self) -> JobSpec {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/train_digits.py");
        let (python, out) = (self.python.to_string_lossy(), self.out.to_string_lossy());
        let (steps, every, pace) =
            (self.steps.to_string(), self.checkpoint_every.to_string(), self.pace_ms.to_string());
        let argv = [&python, "-u", script, "--dir", &out, "--steps", &steps, "--checkpoint-every", &every];
        let argv = argv.into_iter().chain(["--pace-ms", &pace]);
        // The script sets `find_unused_parameters` and has none, about which DDP would warn at every start.
        let worker = WorkerSpec::new(argv).with_env("TORCH_CPP_LOG_LEVEL", "ERROR");
        let mut spec = JobSpec::new("pytorch-ddp", RANKS, worker);
        spec.policy.ready = Ready::Stepping; // an incident stays open until the job trains again
        spec.policy.termination_grace_period = Duration::from_millis(500); // the script saves nothing when it is stopped
        spec.policy.start_timeout = Duration::from_secs(300);
        spec.policy.budget = BudgetSpec { recoveries_max: self.restarts_max, ..BudgetSpec::default() };
        spec
    }

    /// Returns the path of the file with one line for each step.
    #[must_use]
    pub fn metrics(&self) -> PathBuf {
        self.out.join("metrics.jsonl")
    }

    /// Returns the script's metrics, without a line that is being written.
    #[must_use]
    pub fn books(&self) -> Vec<StepLine> {
        fs::read_to_string(self.metrics()).unwrap_or_default().lines().filter_map(step_line).collect()
    }

    /// Returns the result.
    ///
    /// # Errors
    /// There is no result, or it cannot be read.
    pub fn outcome(&self) -> Result<Outcome, String> {
        let path = self.out.join("result.json");
        let text = fs::read_to_string(&path).map_err(|e| format!("the job wrote no {}: {e}", path.display()))?;
        serde_json::from_str(&text).map_err(|e| format!("{} cannot be read: {e}", path.display()))
    }
}

/// Parses one line of `metrics.jsonl`; returns `None` for a line that the death of its writer has cut.
#[must_use]
pub fn step_line(text: &str) -> Option<StepLine> {
    let m: Metrics = serde_json::from_str(text).ok()?;
    Some(StepLine { generation: m.generation, step: m.step, loss: m.loss, at_ms: m.t * 1e3 })
}
