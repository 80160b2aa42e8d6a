//! One training under supervision, and its results: the ranks' hashes and the losses of its steps.

use super::kills::{Dice, Kill, Striker};
use super::loops::Loop;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use taskd_core::detect::{self, FaultDetectorExt, RestartStormDetector};
use taskd_core::job::{JobSpec, WorkerSpec};
use taskd_core::kernel::JobReport;
use taskd_core::launch::{Launcher, LocalLauncher};
use taskd_core::recover;
use taskd_core::runtime::Runtime;
use taskd_examples::program::{self, Failure};
use taskd_pytorch::store::StoreProgram;
use taskd_pytorch::{TorchLauncher, with_store};

/// The interval of the ranks' heartbeats.
const BEAT: Duration = Duration::from_millis(500);
/// Steps between two checkpoints.
const EVERY: u64 = 20;

/// One training.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) what: Loop,
    pub(super) with_steps: bool,
    pub(super) python: PathBuf,
    pub(super) dir: PathBuf,
    pub(super) steps: u64,
}

/// The result of a training.
#[derive(Debug)]
pub(super) struct Training {
    pub(super) report: JobReport,
    pub(super) kills: Vec<Kill>,
    /// The hash of each rank at the end.
    pub(super) results: BTreeMap<u32, String>,
    /// The losses of each rank's steps, in all its processes.
    pub(super) losses: Vec<(u32, StepLine)>,
}

/// A step that a rank has completed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct StepLine {
    pub(super) step: u64,
    pub(super) loss: Option<String>,
}

#[derive(Deserialize)]
struct RankResult {
    sha256: String,
}

impl Training {
    pub(super) fn completed(&self) -> Result<(), Failure> {
        program::completed(&self.report).map_err(Into::into)
    }
}

impl Job {
    /// Trains to the end, and kills at most `kills` ranks meanwhile.
    pub(super) async fn run(&self, kills: u32, dice: &mut Dice) -> Result<Training, Failure> {
        fs::create_dir_all(&self.dir)?;
        let local = Arc::new(LocalLauncher::builder(self.dir.join("run")).job_name("frameworks").build().await?);
        let launcher: Arc<dyn Launcher> = local.clone();
        let mut detectors = detect::defaults();
        detectors.retain(|detector| detector.name() != "restart-storm"); // repeated restarts are intended here
        detectors.push(RestartStormDetector::more_than(1_000, Duration::from_secs(60)).boxed());
        let runtime = Runtime::builder()
            .job(self.spec()?)
            .source(local.heartbeats(BEAT))
            .detectors(detectors)
            .strategies(recover::defaults())
            .launcher(TorchLauncher::new(Arc::clone(&launcher), self.dir.join("torch")))
            .journal(self.dir.join("journal"))
            .build()?;
        let striker = Striker { launcher, handle: runtime.handle(), begun: Instant::now() };
        let (report, kills) = tokio::join!(runtime.run_with_signals(program::LEAVE), striker.carry_out(kills, dice));
        let report = report?;
        local.shutdown(Duration::ZERO).await?;
        let (results, losses) = (self.results()?, losses(&self.dir)?);
        Ok(Training { report, kills, results, losses })
    }

    fn spec(&self) -> Result<JobSpec, Failure> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/frameworks/run.py");
        let (python, dir) = (self.python.to_string_lossy(), self.dir.to_string_lossy());
        let (what, steps, every) = (self.what.name(), self.steps.to_string(), EVERY.to_string());
        let argv =
            [&python, "-u", script, "--what", &what, "--dir", &dir, "--steps", &steps, "--every", &every].into_iter();
        let worker = WorkerSpec::new(argv.chain(self.with_steps.then_some("--taskd-steps")));
        let worker = worker.with_env("OMP_NUM_THREADS", "1").with_env("TORCH_CPP_LOG_LEVEL", "ERROR");
        let spec = JobSpec::new("frameworks", self.what.ranks(), worker);
        let mut spec = with_store(spec, &StoreProgram::ReexecSelf)?;
        spec.policy.termination_grace_period = Duration::from_secs(1); // a stopped rank saves nothing
        spec.policy.budget.recoveries_max = 1_000_000;
        Ok(spec)
    }

    fn results(&self) -> Result<BTreeMap<u32, String>, Failure> {
        let mut results = BTreeMap::new();
        for rank in 0..self.what.ranks() {
            if let Ok(text) = fs::read(self.dir.join(format!("result.{rank}.json"))) {
                results.insert(rank, serde_json::from_slice::<RankResult>(&text)?.sha256);
            }
        }
        Ok(results)
    }
}

/// Returns the lines of all processes of all ranks. The last line of a process may be cut.
fn losses(dir: &Path) -> Result<Vec<(u32, StepLine)>, Failure> {
    let mut losses = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(rank) = name.strip_prefix("steps.").and_then(|rest| rest.split('.').next()?.parse().ok()) else {
            continue;
        };
        let text = fs::read_to_string(&path)?;
        losses.extend(text.lines().filter_map(|line| Some((rank, serde_json::from_str(line).ok()?))));
    }
    Ok(losses)
}
