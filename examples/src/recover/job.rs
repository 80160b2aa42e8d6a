//! One training under supervision, with faults from outside, and its result.

use super::account::{Ending, Recovery, Started};
use super::copies::Copies;
use super::faults::Strike;
use super::figures::Figures;
use super::lines::{self, Line, now};
use super::strategy::Strategy;
use super::striker::Striker;
use crate::hosts::Hosts;
use crate::program::{self, Failure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::{
    FaultDetectorExt, RestartStormDetector, ShrunkDetector, SilenceDetector, StallDetector, defaults,
};
use taskd_core::job::{InMemoryCheckpoints, JobSpec, Name, Permission, WorkerSpec};
use taskd_core::kernel::JobReport;
use taskd_core::launch::{Launcher, LocalLauncherBuilder, OnOwnerLoss};
use taskd_core::recover::{self, RecoveryStrategyExt, Shrink};
use taskd_core::runtime::{Runtime, RuntimeBuilder};
use taskd_pytorch::store::StoreProgram;
use taskd_pytorch::with_store;

/// Bound of the silence detector.
const SILENT_AFTER: Duration = Duration::from_secs(5);
/// Time limit of a collective operation.
const TIMEOUT: Duration = Duration::from_secs(8);
/// Bound of the stall detector: longer than a recovery takes.
const STALL: Duration = Duration::from_secs(60);

/// One training.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// An interpreter with torch.
    pub python: PathBuf,
    /// The directory of all its files.
    pub dir: PathBuf,
    /// Number of ranks.
    pub ranks: u32,
    /// Training steps.
    pub steps: u64,
    /// Size of the training state in MiB.
    pub state_mib: u32,
    /// Pause in every step, in milliseconds.
    pub pace_ms: u64,
    /// The strategy that is to recover it.
    pub strategy: Strategy,
    /// Steps between two copies of the state in memory, from which the job continues when it has lost all ranks;
    /// `None`: what the strategy needs.
    pub memory_every: Option<NonZeroU64>,
    /// If set, every rank starts children of every kind, which have this number on their command line.
    pub children: Option<u32>,
}

/// How long the job trains with fewer ranks before the lost ranks join again.
const GROW_AFTER: Duration = Duration::from_secs(4);

/// The result of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The last loss.
    pub loss: f64,
    /// SHA-256 of model, optimizer and random numbers.
    pub sha256: String,
    /// SHA-256 of the model's parameters, which all ranks have the same.
    pub weights: String,
}

/// The result of a training.
#[derive(Debug)]
pub struct Run {
    /// The runtime's own report.
    pub report: JobReport,
    /// The result of each rank.
    pub outcomes: Vec<Outcome>,
    /// The steps that each rank has completed.
    pub lines: BTreeMap<u32, Vec<Line>>,
    /// The phases of each recovery.
    pub recoveries: Vec<Recovery>,
    /// Number of steps that it has trained.
    pub steps: u64,
    /// The copies of state between ranks.
    pub copies: Option<Copies>,
    /// The ways in which ranks were started; `None` if a host no longer reports them.
    pub started: Option<Started>,
}

/// A training that is ready to be run.
pub struct Supervised {
    /// The hosts of its ranks.
    pub hosts: Hosts,
    launcher: Arc<dyn Launcher>,
    /// The runtime, complete except for the journal.
    pub runtime: RuntimeBuilder,
}

impl fmt::Debug for Supervised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervised").field("hosts", &self.hosts).field("runtime", &self.runtime).finish_non_exhaustive()
    }
}

impl Job {
    /// Trains until a fault ends the job by its strategy.
    ///
    /// # Errors
    /// The job ended otherwise; the text has the reason.
    pub async fn run_until_ended(&self, strike: &Strike) -> Result<Ending, Failure> {
        let Supervised { hosts, launcher, runtime } = self.supervise(OnOwnerLoss::default(), None).await?;
        let runtime = runtime.build()?;
        let striker = Striker { job: self.clone(), launcher, handle: runtime.handle() };
        let strike = *strike;
        let striking = tokio::spawn(async move { striker.strike_in_time(&strike, 0).await });
        let report = runtime.run_with_signals(program::LEAVE).await?;
        let ended = now();
        striking.abort(); // the job may have ended before the fault
        let struck = striking.await.ok().flatten();
        hosts.shutdown().await?;
        let by = report.incidents.last().and_then(|incident| incident.strategy.as_ref());
        match (struck, by) {
            (Some(struck), Some(by)) if self.strategy.is(by) => Ok(Ending {
                who: struck.role.to_string(),
                step: struck.before,
                reason: report.reason,
                total_ms: ((ended - struck.at) * 1e4).round() / 10.0,
                again: None,
            }),
            _ => Err(format!("the job did not end because of the fault: {}", report.reason).into()),
        }
    }

    /// Trains to the end, which is some steps after the last recovery if there are faults.
    ///
    /// # Errors
    /// The job did not complete, or has no result; the text has the reason.
    pub async fn run(&self, strikes: &[Strike]) -> Result<Run, Failure> {
        let Supervised { hosts, launcher, runtime } = self.supervise(OnOwnerLoss::default(), None).await?;
        let journal = self.dir.join("journal");
        let runtime = runtime.journal(&journal).build()?;
        let striker = Striker { job: self.clone(), launcher, handle: runtime.handle() };
        let planned = strikes.to_vec();
        let striking = tokio::spawn(async move { striker.carry_out(planned).await });
        let report = runtime.run_with_signals(program::LEAVE).await?;
        let (mut recoveries, until) = if striking.is_finished() || strikes.is_empty() {
            striking.await??
        } else {
            striking.abort();
            return Err(format!("the job ended before all faults were injected: {}", report.reason).into());
        };
        let started = Started::of(&hosts).await;
        hosts.shutdown().await?;
        program::completed(&report)?;
        let outcome = |rank: u32| -> Result<Outcome, Failure> {
            Ok(serde_json::from_slice(&fs::read(self.dir.join(format!("result.{rank}.json")))?)?)
        };
        let outcomes = (0..self.ranks).map(outcome).collect::<Result<_, _>>()?;
        let python = self.python.clone();
        let looked = tokio::task::spawn_blocking(move || {
            let figures = Figures::all(&journal).map_err(|error| error.to_string())?;
            Copies::of(&figures, &python).map(|copies| (copies, figures)).map_err(|error| error.to_string())
        });
        let (copies, figures) = looked.await??;
        recoveries.iter_mut().for_each(|recovery| recovery.take_builds(&figures));
        let steps = until.unwrap_or(self.steps);
        Ok(Run { report, outcomes, lines: lines::read(&self.dir), recoveries, steps, copies, started })
    }

    /// Attaches to the training that runs in its directory, or prepares its start. `at_worst` sets the bounds of the
    /// stall and the restart-storm detector; by default they are those of a job with a few faults.
    ///
    /// # Errors
    /// The job's directory cannot be used, or a host's launcher cannot be started.
    pub async fn supervise(
        &self,
        on_owner_loss: OnOwnerLoss,
        at_worst: Option<(Duration, u32)>,
    ) -> Result<Supervised, Failure> {
        fs::create_dir_all(&self.dir)?;
        let mut spec = self.spec()?;
        let settings = |local: LocalLauncherBuilder| local.job_name("pytorch-recover").on_owner_loss(on_owner_loss);
        let hosts = if self.strategy == Strategy::Recover { 2 } else { 1 };
        let hosts = Hosts::of(&mut spec, hosts, &self.dir, settings).await?;
        let launcher = hosts.launcher().await?;
        let mut detectors = defaults();
        detectors.retain(|d| d.name() != "silence" && d.name() != "stall");
        detectors.push(SilenceDetector::after(SILENT_AFTER).boxed());
        detectors.push(StallDetector::after(at_worst.map_or(STALL, |(stall, _)| stall)).boxed());
        if self.strategy == Strategy::Shrink {
            detectors.retain(|d| d.name() != "shrunk");
            detectors.push(ShrunkDetector::after(GROW_AFTER).boxed());
        }
        if let Some((within, restarts)) = at_worst {
            detectors.retain(|d| d.name() != "restart-storm");
            detectors.push(RestartStormDetector::more_than(restarts, within).boxed());
        }
        let mut strategies = recover::defaults();
        if self.strategy == Strategy::Shrink {
            for one in strategies.iter_mut().filter(|one| one.name() == "shrink") {
                *one = Shrink::new().before_restart().boxed(); // otherwise the job would restart with all of its ranks
            }
        }
        let torch = hosts.torch(Arc::clone(&launcher), &self.dir, self.ranks);
        let runtime = Runtime::builder().job(spec).detectors(detectors).strategies(strategies).launcher(torch);
        Ok(Supervised { runtime: hosts.sources(runtime, SILENT_AFTER / 10), launcher, hosts })
    }

    /// Returns true if ranks that start resume from a checkpoint. They sum gradients in another order than ranks that
    /// do not resume, as the script explains: such a job has another result.
    pub fn resumes(&self) -> bool {
        self.strategy.saves() || self.memory_every.or(self.strategy.memory_every()).is_some()
    }

    fn spec(&self) -> Result<JobSpec, Failure> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/train_recover.py");
        let (python, dir) = (self.python.to_string_lossy(), self.dir.to_string_lossy());
        let (steps, mib, pace) = (self.steps.to_string(), self.state_mib.to_string(), self.pace_ms.to_string());
        let timeout = TIMEOUT.as_secs().to_string();
        let argv = [&python, "-u", script, "--dir", &dir, "--steps", &steps, "--state-mib", &mib, "--pace-ms", &pace];
        let argv = argv.into_iter().chain(["--timeout-s", &timeout]).chain(self.resumes().then_some("--resumes"));
        let children = self.children.map(|number| number.to_string());
        let argv = argv.chain(children.iter().flat_map(|number| ["--children", number.as_str()]));
        let worker = WorkerSpec::new(argv).with_env("OMP_NUM_THREADS", "1");
        let mut spec = with_store(JobSpec::new("pytorch-recover", self.ranks, worker), &StoreProgram::ReexecSelf)?;
        spec.policy.termination_grace_period = Duration::ZERO; // the script saves nothing when it is stopped
        spec.policy.budget.recoveries_max = 1_000_000;
        let without = self.strategy.without().iter();
        spec.policy.strategies.extend(without.map(|name| (Name::new(name), Permission::Never)));
        spec.policy.in_memory_checkpoints =
            self.memory_every.or(self.strategy.memory_every()).map(InMemoryCheckpoints::every);
        spec.policy.checkpoint_dir = self.strategy.saves().then(|| self.dir.join("dumps"));
        if self.strategy == Strategy::Shrink {
            spec.policy.min_ranks = 1;
        }
        Ok(spec)
    }
}
