//! The experiment: jobs that torchrun runs, a supervisor for each, faults from outside, and the account.

use super::account::Account;
use super::inject::{Injection, Kind, inject};
use super::job::TorchrunJob;
use super::overhead;
use super::watch::{Seen, report_path};
use crate::program::Failure;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Steps of a job before a fault, and after its recovery.
const QUIET_STEPS: u64 = 40;
/// How long a frozen rank stays frozen.
const FREEZE: Duration = Duration::from_secs(12);
/// The pause in every step.
const PACE_MS: u32 = 20;

/// Settings of all experiments.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The Python interpreter with torch.
    pub python: PathBuf,
    /// Ranks of each job.
    pub ranks: u32,
    /// Chooses victims and moments.
    pub seed: u64,
}

/// The supervisor process of a job, killed when this is dropped.
#[derive(Debug)]
pub struct Observer {
    process: Child,
    dir: PathBuf,
}

impl Observer {
    /// Starts this same program as the supervisor of a job.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(job: &TorchrunJob, downtime_s: f64, dir: &Path) -> Result<Observer, Failure> {
        std::fs::create_dir_all(dir)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("watch").args(["--agent", &job.agent().to_string(), "--ranks", &job.ranks().to_string()]);
        command.args(["--downtime-s", &downtime_s.to_string()]).arg("--dir").arg(dir).stdin(Stdio::null());
        Ok(Observer { process: command.spawn()?, dir: dir.to_owned() })
    }

    /// Waits for its end and returns its report.
    ///
    /// # Errors
    /// It failed. If Linux ended it for trying to signal or to start a process, that is its report, and no error.
    pub async fn report(mut self) -> Result<Seen, Failure> {
        const PATIENCE: Duration = Duration::from_secs(30);
        let begun = Instant::now();
        let status = loop {
            match self.process.try_wait()? {
                Some(status) => break status,
                None if begun.elapsed() > PATIENCE => return Err("the supervisor did not end with its job".into()),
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        if status.signal() == Some(libc::SIGSYS) {
            let reason = "the supervisor tried to signal, to trace or to start a process".to_owned();
            return Ok(Seen { reason, signals_sent: 1, ..Seen::default() });
        }
        if !status.success() {
            return Err(format!("the supervisor failed ({status})").into());
        }
        Ok(serde_json::from_slice(&std::fs::read(report_path(&self.dir))?)?)
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it has ended already, or does now
        let _ = self.process.wait();
    }
}

/// Runs the jobs one after another, then measures the cost of observing if `pairs` is not 0.
///
/// # Errors
/// A job or a supervisor does not run.
pub async fn run(setting: &Setting, jobs: u32, pairs: u32) -> Result<Account, Failure> {
    let mut account = Account { ranks: setting.ranks, ..Account::default() };
    for number in 0..jobs {
        let mut rng = StdRng::seed_from_u64(setting.seed.wrapping_add(u64::from(number)));
        let lethal = match jobs {
            1 => Kind::Kill,
            _ => Kind::LETHAL[rng.random_range(0..Kind::LETHAL.len())],
        };
        println!("\njob {} of {jobs}: {} ranks under torchrun", number + 1, setting.ranks);
        let (injections, seen) = observed(setting, lethal, &mut rng).await?;
        account.add(&injections, &seen);
        println!("          {}", seen.reason);
    }
    if pairs > 0 {
        println!("\ncost of observing: {pairs} pairs of turns");
        account.overhead = Some(overhead::measure(setting, pairs).await?);
    }
    Ok(account)
}

/// Runs one job: a rank is frozen and continued, later another one is lost and torchrun restarts all ranks.
async fn observed(setting: &Setting, lethal: Kind, rng: &mut StdRng) -> Result<(Vec<Injection>, Seen), Failure> {
    let dir = tempfile::Builder::new().prefix("taskd-observe-").tempdir()?;
    let mut job = TorchrunJob::start(&setting.python, &dir.path().join("job"), setting.ranks, PACE_MS)?;
    job.have_ranks().await?;
    let begun = Instant::now();
    job.reach(0, 1).await?;
    let start_s = begun.elapsed().as_secs_f64();
    println!("          ranks take {start_s:.1} s to their first step; a supervisor attaches to the running job");
    let observer = Observer::start(&job, start_s, &dir.path().join("seen"))?;

    let first = rng.random_range(0..setting.ranks);
    let second = (first + rng.random_range(1..setting.ranks)) % setting.ranks;
    let mut injections = Vec::new();
    let quiet = |job: &TorchrunJob, rng: &mut StdRng| job.progress().1 + QUIET_STEPS + rng.random_range(0..QUIET_STEPS);
    let until = quiet(&job, rng);
    job.reach(0, until).await?;
    injections.push(inject(&job, Kind::Freeze, first, FREEZE).await?);
    let until = quiet(&job, rng) + 2 * QUIET_STEPS;
    job.reach(0, until).await?;
    injections.push(inject(&job, lethal, second, FREEZE).await?);
    job.reach(1, 2 * QUIET_STEPS).await?;
    let status = job.finish().await?;
    if !status.success() {
        return Err(format!("torchrun failed ({status})").into());
    }
    Ok((injections, observer.report().await?))
}
