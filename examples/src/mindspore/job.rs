//! `python/train_mindspore.py` on three workers and a scheduler: its supervision and its results.
//!
//! It injects nothing and compares nothing.

use super::phases::Start;
use crate::books::StepLine;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::{ExitDetector, ProgramErrorDetector, RestartStormDetector, SilenceDetector, StallDetector};
use taskd_core::job::{BudgetSpec, JobSpec, Ready, WorkerSpec};
use taskd_core::launch::LocalLauncher;
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::Runtime;
use taskd_mindspore::{MindSpore, MindSporeLauncher, with_scheduler};

/// Workers of the job.
pub const RANKS: u32 = 3;
/// Bound of the silence detector. The heartbeat does not need the interpreter's lock, so that only a stopped process
/// misses it.
const SILENT_AFTER: Duration = Duration::from_secs(2);
const BEAT_EVERY: Duration = Duration::from_millis(200);
/// Bound of the stall detector: longer than any step, checkpoint or start of this job takes.
const STALLED_AFTER: Duration = Duration::from_secs(120);
/// Time limit of a start, which detects a process that freezes before its first heartbeat.
const START_WITHIN: Duration = Duration::from_secs(60);
const RESTARTS_WITHIN: Duration = Duration::from_secs(600);

/// One training of the script.
#[derive(Clone, Debug)]
pub struct Job {
    /// An interpreter with MindSpore.
    pub python: PathBuf,
    /// The directory of the job: checkpoints, metrics, result, logs.
    pub dir: PathBuf,
    /// Number of workers.
    pub ranks: u32,
    /// Training steps.
    pub steps: u64,
    /// Steps between two checkpoints.
    pub checkpoint_every: u64,
    /// Pause in every step, in milliseconds. It has no influence on the result.
    pub pace_ms: u64,
    /// Recoveries that are allowed.
    pub restarts_max: u32,
}

/// A training under supervision, ready to run.
#[derive(Debug)]
pub struct Supervised {
    /// The launcher of its processes.
    pub local: Arc<LocalLauncher>,
    /// The runtime that supervises it.
    pub runtime: Runtime,
}

/// What rank 0 of the script writes at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Steps that were trained.
    pub steps: u64,
    /// Number of workers at the end.
    pub world: u32,
    /// The loss over all samples.
    pub loss: f64,
    /// SHA-256 of parameters and optimizer.
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
    #[serde(flatten)]
    start: Option<Start>,
}

/// A completed step; for the first step of a process, with the times of its start.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// The step.
    pub step: StepLine,
    /// The times of the process's start, if this is its first step.
    pub start: Option<Start>,
}

impl Job {
    /// Returns the arguments of the interpreter: the script and its options.
    pub(super) fn words(&self) -> Vec<String> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/train_mindspore.py");
        let data = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits.bin");
        let (steps, every, pace) =
            (self.steps.to_string(), self.checkpoint_every.to_string(), self.pace_ms.to_string());
        let out = self.dir.to_string_lossy();
        let words = [script, "--data", data, "--dir", &out, "--steps", &steps, "--checkpoint-every", &every];
        words.into_iter().chain(["--pace-ms", &pace]).map(str::to_owned).collect()
    }

    fn spec(&self) -> JobSpec {
        let python = self.python.to_string_lossy().into_owned();
        let worker = WorkerSpec::new([python, "-u".to_owned()].into_iter().chain(self.words()));
        let mut spec = with_scheduler(JobSpec::new("mindspore-train", self.ranks, worker));
        spec.policy.ready = Ready::Stepping; // an incident stays open until the job trains again
        spec.policy.termination_grace_period = Duration::from_millis(200); // the script saves nothing when it is stopped
        spec.policy.start_timeout = START_WITHIN;
        spec.policy.max_attempts = 5; // a fault may hit every start once more
        spec.policy.budget = BudgetSpec { recoveries_max: self.restarts_max, ..BudgetSpec::default() };
        spec
    }

    /// Prepares the start: run directory, logs and the launcher's files are below the job's directory.
    ///
    /// # Errors
    /// The guard cannot be started, or the runtime cannot be built; the text has the reason.
    pub async fn supervise(&self) -> Result<Supervised, Box<dyn std::error::Error>> {
        let local = LocalLauncher::builder(self.dir.join("run")).job_name("mindspore-train").beat_every(BEAT_EVERY);
        let local = Arc::new(local.build().await?);
        let mindspore = MindSpore::default().log_dir(self.dir.join("msrun_log"));
        let launcher = MindSporeLauncher::with_framework(Arc::clone(&local), self.dir.join("mindspore"), mindspore);
        let runtime = Runtime::builder()
            .job(self.spec())
            .source(local.heartbeats(BEAT_EVERY))
            .detector(ExitDetector::new())
            .detector(ProgramErrorDetector::new())
            .detector(SilenceDetector::after(SILENT_AFTER))
            .detector(StallDetector::after(STALLED_AFTER))
            .detector(RestartStormDetector::more_than(self.restarts_max, RESTARTS_WITHIN))
            .strategy(Restart::new())
            .strategy(ExitStrategy::new())
            .launcher(launcher)
            .journal(self.dir.join("journal"))
            .build()?;
        Ok(Supervised { local, runtime })
    }

    /// Returns the script's metrics, without a line that is being written.
    #[must_use]
    pub fn lines(&self) -> Vec<Line> {
        let text = fs::read_to_string(self.dir.join("metrics.jsonl")).unwrap_or_default();
        let line = |text: &str| {
            let m: Metrics = serde_json::from_str(text).ok()?;
            let step = StepLine { generation: m.generation, step: m.step, loss: m.loss, at_ms: m.t * 1e3 };
            Some(Line { step, start: m.start })
        };
        text.lines().filter_map(line).collect()
    }

    /// Returns the newest line of the metrics.
    #[must_use]
    pub fn last(&self) -> Option<StepLine> {
        self.lines().last().map(|line| line.step)
    }

    /// Returns the result.
    ///
    /// # Errors
    /// There is no result, or it cannot be read.
    pub fn outcome(&self) -> Result<Outcome, String> {
        let path = self.dir.join("result.json");
        let text = fs::read_to_string(&path).map_err(|e| format!("the job wrote no {}: {e}", path.display()))?;
        serde_json::from_str(&text).map_err(|e| format!("{} cannot be read: {e}", path.display()))
    }

    /// Returns the same job in another directory.
    #[must_use]
    pub fn in_dir(&self, dir: &Path) -> Job {
        Job { dir: dir.to_owned(), ..self.clone() }
    }
}
