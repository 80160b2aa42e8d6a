//! One training under supervision, with faults from outside, and what is seen of it.

use super::cut::cut;
use super::faults::{Fault, Strike};
use super::lines::{self, Line, now};
use super::told::Recovery;
use crate::hosts::{Hosts, kill_host_of};
use crate::program::{self, Failure};
use clap::ValueEnum;
use rustix::process::{Pid, kill_process};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::{DetectorExt, RestartStormDetector, ShrunkDetector, SilenceDetector, StallDetector, defaults};
use taskd_core::job::{JobSpec, Name, Permission, Rank, Role, WorkerSpec};
use taskd_core::kernel::{Event, JobReport};
use taskd_core::launch::{Launcher, LocalLauncherBuilder, OnOwnerLoss};
use taskd_core::recover::{self, SHRINK};
use taskd_core::runtime::{Announcement, Runtime, RuntimeBuilder, RuntimeHandle};
use taskd_pytorch::store::StoreProgram;
use taskd_pytorch::{STORE, with_store};
use tokio::sync::broadcast;

/// A rank that does not beat for so long is frozen.
const SILENT_AFTER: Duration = Duration::from_secs(5);
/// A collective operation that takes so long has failed.
const TIMEOUT: Duration = Duration::from_secs(8);
/// How often the script's lines are read.
const READ_EVERY: Duration = Duration::from_millis(10);
/// How long a recovery may take before it counts as a stall.
const STALL: Duration = Duration::from_secs(60);

/// How the job is to be mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// The same processes do the step again.
    Retry,
    /// The lost rank is started again where it was, the others stay.
    RecoverInPlace,
    /// The lost rank is started again on another host, the others stay. There are two hosts, each with a guard of its own, which
    /// dies with the victim while ranks run on the other one.
    Recover,
    /// The others go on without the lost rank, which comes back a little later.
    Shrink,
    /// Everybody starts again.
    Restart,
    /// Whatever is cheapest.
    Auto,
}

/// One training.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// An interpreter with torch.
    pub python: PathBuf,
    /// Where everything is kept.
    pub dir: PathBuf,
    /// How many ranks.
    pub ranks: u32,
    /// Training steps.
    pub steps: u64,
    /// Size of the training state.
    pub state_mib: u32,
    /// Pause in every step.
    pub pace_ms: u64,
    /// How it is to be mended.
    pub strategy: Strategy,
}

/// How long the job trains with fewer ranks before who is lost comes back.
const GROW_AFTER: Duration = Duration::from_secs(4);

/// What a rank has ended with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The last loss.
    pub loss: f64,
    /// SHA-256 of model, optimizer and random numbers.
    pub sha256: String,
    /// SHA-256 of the model's parameters, which all ranks have the same.
    pub weights: String,
}

/// What came of a training.
#[derive(Debug)]
pub struct Run {
    /// The runtime's own report.
    pub report: JobReport,
    /// What each rank has ended with.
    pub outcomes: Vec<Outcome>,
    /// The steps that each rank has completed.
    pub(crate) lines: BTreeMap<u32, Vec<Line>>,
    /// What each fault took.
    pub recoveries: Vec<Recovery>,
}

/// A training that is ready to be run.
pub(crate) struct Supervised {
    pub(crate) hosts: Hosts,
    launcher: Arc<dyn Launcher>,
    pub(crate) runtime: RuntimeBuilder,
}

impl Job {
    /// Trains to the end under these faults.
    ///
    /// # Errors
    /// The job did not complete, or left no result; the text says why.
    pub async fn run(&self, strikes: &[Strike]) -> Result<Run, Failure> {
        let Supervised { hosts, launcher, runtime } = self.supervise(OnOwnerLoss::default(), None).await?;
        let runtime = runtime.build()?;
        let striker = Striker { job: self.clone(), launcher, handle: runtime.handle() };
        let striking = tokio::spawn(striker.carry_out(strikes.to_vec()));
        let report = runtime.run_with_signals(program::LEAVE).await?;
        let recoveries = if striking.is_finished() || strikes.is_empty() {
            striking.await?
        } else {
            striking.abort();
            return Err(format!("the job ended before all faults had struck: {}", report.reason).into());
        };
        hosts.shutdown().await?;
        program::completed(&report)?;
        let outcome = |rank: u32| -> Result<Outcome, Failure> {
            Ok(serde_json::from_slice(&fs::read(self.dir.join(format!("result.{rank}.json")))?)?)
        };
        let outcomes = (0..self.ranks).map(outcome).collect::<Result<_, _>>()?;
        Ok(Run { report, outcomes, lines: lines::read(&self.dir), recoveries })
    }

    /// Attaches to the training that goes on in its directory, or prepares its start. The detectors' bounds of a stall and of a
    /// storm of restarts are `at_worst`, if that is given: else those of a job that is hit a few times.
    pub(crate) async fn supervise(
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
        let runtime = Runtime::builder()
            .job(spec)
            .detectors(detectors)
            .strategies(recover::defaults())
            .launcher(hosts.torch(Arc::clone(&launcher), &self.dir));
        Ok(Supervised { runtime: hosts.sources(runtime, SILENT_AFTER / 10), launcher, hosts })
    }

    fn spec(&self) -> Result<JobSpec, Failure> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/train_recover.py");
        let (python, dir) = (self.python.to_string_lossy(), self.dir.to_string_lossy());
        let (steps, mib, pace) = (self.steps.to_string(), self.state_mib.to_string(), self.pace_ms.to_string());
        let timeout = TIMEOUT.as_secs().to_string();
        let argv = [&python, "-u", script, "--dir", &dir, "--steps", &steps, "--state-mib", &mib, "--pace-ms", &pace];
        let argv = argv.into_iter().chain(["--timeout-s", &timeout]);
        let worker = WorkerSpec::new(argv).with_env("OMP_NUM_THREADS", "1");
        let mut spec = with_store(JobSpec::new("pytorch-recover", self.ranks, worker), &StoreProgram::ReexecSelf)?;
        spec.policy.stop_grace = Duration::ZERO; // the script saves nothing when it is stopped
        spec.policy.budget.recoveries_max = 1_000_000;
        for name in ["retry", "recover-in-place", "recover"] {
            let wanted = match self.strategy {
                Strategy::Auto => true,
                Strategy::Restart | Strategy::Shrink => false,
                Strategy::Retry => name == "retry",
                Strategy::RecoverInPlace => name != "recover",
                Strategy::Recover => name != "recover-in-place",
            };
            let permission = if wanted { Permission::Auto } else { Permission::Never };
            spec.policy.strategies.insert(Name::new(name), permission);
        }
        if self.strategy != Strategy::Shrink {
            spec.policy.ranks_min = self.ranks;
        }
        Ok(spec)
    }
}

/// Strikes as planned, and watches what comes of it.
struct Striker {
    job: Job,
    launcher: Arc<dyn Launcher>,
    handle: RuntimeHandle,
}

impl Striker {
    async fn carry_out(self, strikes: Vec<Strike>) -> Vec<Recovery> {
        let mut recoveries = Vec::new();
        let mut from = 0;
        for strike in strikes {
            let target = from + strike.after_steps;
            self.until(|steps| self.last_common(steps) >= Some(target)).await;
            tokio::time::sleep(Duration::from_millis(strike.after_ms)).await;
            let mut events = self.handle.events();
            let before = self.last_common(&lines::read(&self.job.dir)).unwrap_or(0);
            let role = strike.rank.map_or(Role::Service(STORE), |rank| Role::Rank(Rank(rank)));
            let at = match self.strike(&strike, &role).await {
                Ok(at) => at,
                Err(why) => {
                    println!("          >>> {:?} of {role} did not come to pass: {why}", strike.fault);
                    continue;
                }
            };
            println!("          >>> from outside: {:?} of {role} after step {before}", strike.fault);
            let seen = watch(&mut events).await;
            let has_left = strike.rank.filter(|_| seen.is_by(&SHRINK));
            let resumed = self.resumed(at, &seen, has_left).await;
            recoveries.push(Recovery::of(role.to_string(), before, at, &seen, resumed));
            if has_left.is_some() {
                let seen = watch(&mut events).await;
                let at = seen.found.unwrap_or(resumed);
                let resumed = self.resumed(at, &seen, None).await;
                recoveries.push(Recovery::of(format!("{role} again"), before, at, &seen, resumed));
            }
            from = self.last_common(&lines::read(&self.job.dir)).unwrap_or(before);
        }
        recoveries
    }

    /// Waits for the first step of all ranks, but for one that has left, after a recovery; when that was completed.
    async fn resumed(&self, at: f64, seen: &Seen, has_left: Option<u32>) -> f64 {
        let common = |steps: &BTreeMap<u32, Vec<Line>>| self.first_common_after(steps, at, seen, has_left);
        self.until(|steps| common(steps).is_some()).await;
        common(&lines::read(&self.job.dir)).unwrap_or(f64::NAN)
    }

    /// Does it; when.
    async fn strike(&self, strike: &Strike, role: &Role) -> Result<f64, Failure> {
        let gone = || format!("{role} does not run");
        if let Some(name) = strike.fault.in_script() {
            let rank = strike.rank.ok_or_else(gone)?;
            return self.ask_script(rank, name).await;
        }
        let pid = self.pid_of(role).await.ok_or_else(gone)?;
        let with_host = strike.fault == Fault::Kill && self.others_are_elsewhere(role).await;
        let at = now();
        if with_host {
            kill_host_of(pid)?;
            return Ok(at);
        }
        if let Some(signal) = strike.fault.signal() {
            kill_process(pid, signal)?;
            return Ok(at);
        }
        let next = Role::Rank(Rank(strike.rank.map_or(0, |rank| (rank + 1) % self.job.ranks)));
        let next = self.pid_of(&next).await.ok_or_else(gone)?;
        if cut(pid, next)? == 0 {
            return Err("there is no connection to the next rank".into());
        }
        Ok(at)
    }

    /// Has the script do it to itself, in a step to come.
    async fn ask_script(&self, rank: u32, name: &str) -> Result<f64, Failure> {
        let (asked, struck) = (format!("fault.{rank}"), self.job.dir.join(format!("struck.{rank}")));
        let new = self.job.dir.join(asked.clone() + ".new");
        fs::write(&new, name)?;
        fs::rename(&new, self.job.dir.join(asked))?;
        loop {
            if let Ok(at) = fs::read_to_string(&struck) {
                fs::remove_file(&struck)?;
                return Ok(at.trim().parse()?);
            }
            tokio::time::sleep(READ_EVERY).await;
        }
    }

    async fn pid_of(&self, role: &Role) -> Option<Pid> {
        let procs = self.launcher.list().await.ok()?.procs;
        let victim = procs.iter().find(|p| p.proc.role == *role && !p.phase.is_over())?;
        Pid::from_raw(i32::try_from(victim.pid?).ok()?)
    }

    /// Whether other ranks would live if the rank's host died.
    async fn others_are_elsewhere(&self, role: &Role) -> bool {
        let procs = self.launcher.list().await.map(|listing| listing.procs).unwrap_or_default();
        let ranks = || procs.iter().filter(|p| p.proc.role.rank().is_some() && !p.phase.is_over());
        let own = ranks().find(|p| p.proc.role == *role).map(|p| &p.node);
        ranks().any(|p| Some(&p.node) != own)
    }

    async fn until(&self, is_so: impl Fn(&BTreeMap<u32, Vec<Line>>) -> bool) {
        while !is_so(&lines::read(&self.job.dir)) {
            tokio::time::sleep(READ_EVERY).await;
        }
    }

    /// The newest step that all ranks have completed.
    fn last_common(&self, steps: &BTreeMap<u32, Vec<Line>>) -> Option<u64> {
        let all = steps.len() == self.job.ranks as usize;
        all.then(|| steps.values().filter_map(|lines| lines.iter().map(|l| l.step).max()).min()).flatten()
    }

    /// When all ranks had completed a step of the world after the fault: the first after everybody was told to go on.
    fn first_common_after(
        &self,
        steps: &BTreeMap<u32, Vec<Line>>,
        at: f64,
        seen: &Seen,
        has_left: Option<u32>,
    ) -> Option<f64> {
        let since = seen.stages.iter().find(|(name, _)| name == "repair" || name == "start").map_or(at, |(_, t)| *t);
        let first = |lines: &Vec<Line>| lines.iter().map(|line| line.t).find(|t| *t > since);
        let there = steps.iter().filter(|(rank, _)| Some(**rank) != has_left);
        let firsts: Option<Vec<f64>> = there.map(|(_, lines)| first(lines)).collect();
        let ranks = self.job.ranks as usize - usize::from(has_left.is_some());
        let firsts = firsts.filter(|firsts| firsts.len() == ranks)?;
        firsts.into_iter().reduce(f64::max)
    }
}

/// What the runtime has told of a recovery, and when.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) found: Option<f64>,
    pub(super) decided: Option<f64>,
    pub(super) stages: Vec<(String, f64)>,
    pub(super) closed: Option<(String, f64)>,
}

impl Seen {
    /// Whether it was mended by this strategy.
    fn is_by(&self, strategy: &Name) -> bool {
        self.closed.as_ref().is_some_and(|(how, _)| *how == format!("recovered by {strategy}"))
    }
}

async fn watch(events: &mut broadcast::Receiver<Arc<Announcement>>) -> Seen {
    let mut seen = Seen::default();
    while seen.closed.is_none() {
        let Ok(event) = events.recv().await else { break };
        match &event.event {
            Event::Found { .. } => _ = seen.found.get_or_insert_with(now),
            Event::Decided(_) => _ = seen.decided.get_or_insert_with(now),
            Event::StageDone { stage, .. } => seen.stages.push((stage.to_string(), now())),
            Event::Closed { how, .. } => seen.closed = Some((how.clone(), now())),
            Event::Failed { strategy, reason, .. } => println!("              {strategy} failed: {reason}"),
            _ => {}
        }
    }
    seen
}
