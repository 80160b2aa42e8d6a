//! One training from start to end, with faults from outside, and the account of each recovery.
//!
//! It injects and observes; taskd recovers the job.

use super::Outcome;
use super::faults::{Fault, Moment, Plan};
use super::job::{Job, Line, Supervised};
use super::phases::{Phases, Recovery};
use crate::account::{Injections, Listener, Row};
use crate::books;
use crate::program::{self, Failure};
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use taskd_core::kernel::JobReport;
use taskd_core::launch::LocalLauncher;

/// The interval at which the script's metrics are read.
const READ_EVERY: Duration = Duration::from_millis(20);
/// How long the job's processes may take to end after the job.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// The result of a training.
#[derive(Debug)]
pub struct Run {
    /// The runtime's own report.
    pub report: JobReport,
    /// The incidents and their injections.
    pub rows: Vec<Row>,
    /// The cost of each fault.
    pub recoveries: Vec<Recovery>,
    /// The time that the framework itself took at the job's first start.
    pub floor: Phases,
    /// The script's result.
    pub outcome: Outcome,
    /// Share of the time that went into steps whose results were kept.
    pub goodput: Option<f64>,
    /// Processes of the job that were left seconds after its end.
    pub left: Vec<i32>,
}

/// A fault that was injected.
#[derive(Clone, Debug)]
struct Struck {
    fault: Fault,
    /// When, in seconds since 1970.
    at: f64,
    /// The generation that was hit, and whether it had not completed a step yet.
    generation: u64,
    in_start: bool,
}

/// Trains to the end under the faults of `plan`. If `log` is true, prints what happens.
///
/// # Errors
/// The job did not complete, or has no result; the text has the reason.
pub async fn run(job: &Job, plan: Plan, log: bool) -> Result<Run, Failure> {
    let Supervised { local, runtime } = job.supervise().await?;
    let listener = Listener::start(&runtime.handle(), move |line| {
        if log {
            println!("{line}");
        }
    });
    let injections = Injections::default();
    let struck = Arc::new(Mutex::new(Vec::new()));
    let injector = Injector {
        job: job.clone(),
        launcher: Arc::clone(&local),
        injections: injections.clone(),
        struck: Arc::clone(&struck),
        log,
    };
    let injector = tokio::spawn(injector.carry_out(plan));
    let report = runtime.run_with_signals(program::LEAVE).await?;
    injector.abort();
    local.shutdown(Duration::ZERO).await?;
    drop(local);
    let left = left_of(job).await;
    program::completed(&report)?;

    let lines = job.lines();
    let steps: Vec<_> = lines.iter().map(|line| line.step).collect();
    let mut rows = listener.rows(&report, &injections).await;
    for (row, lost) in rows.iter_mut().filter(|r| r.resumed_ms.is_some()).zip(books::steps_lost(&steps)) {
        row.steps_lost = Some(lost);
    }
    let struck = struck.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let recoveries = struck.iter().filter_map(|struck| recovery(struck, &lines)).collect();
    let first =
        lines.first().and_then(|line| Some(Phases::between(line.start?.begun, &line.start?, line.step.at_ms / 1e3)));
    Ok(Run {
        rows,
        recoveries,
        floor: first.ok_or("the job has no first step")?,
        outcome: job.outcome()?,
        goodput: books::goodput(&steps),
        left,
        report,
    })
}

/// Returns the first step of a later generation than the fault's, as the end of a recovery.
fn recovery(struck: &Struck, lines: &[Line]) -> Option<Recovery> {
    let after = |line: &&Line| line.step.generation > struck.generation && line.step.at_ms / 1e3 > struck.at;
    let line = lines.iter().find(after)?;
    let phases = Phases::between(struck.at, &line.start?, line.step.at_ms / 1e3);
    let (fault, in_start) = (struck.fault.to_string(), struck.in_start);
    Some(Recovery { fault, in_start, phases, total_ms: (phases.total() * 10.0).round() / 10.0 })
}

/// Injects the planned faults.
struct Injector {
    job: Job,
    launcher: Arc<LocalLauncher>,
    injections: Injections,
    struck: Arc<Mutex<Vec<Struck>>>,
    log: bool,
}

impl Injector {
    async fn carry_out(self, plan: Plan) {
        for fault in plan.0 {
            match fault.moment {
                Moment::Step(step) => self.until(|line| line.step.step >= step).await,
                Moment::StepsAfter(steps) => {
                    let since = self.newest_generation();
                    self.until(|line| line.step.generation > since).await;
                    let from = self.job.last().map_or(0, |line| line.step);
                    self.until(|line| line.step.step >= from + steps).await;
                }
                Moment::InStart(after) => {
                    let since = self.newest_generation();
                    self.started_after(since).await;
                    tokio::time::sleep(after).await;
                }
            }
            self.strike(fault).await;
        }
        std::future::pending::<()>().await; // the job ends by itself
    }

    /// Returns the generation of the last fault, or 0. The next fault waits for a later generation.
    fn newest_generation(&self) -> u64 {
        self.struck.lock().unwrap_or_else(PoisonError::into_inner).last().map_or(0, |struck| struck.generation)
    }

    async fn until(&self, is_so: impl Fn(&Line) -> bool) {
        while !self.job.lines().last().is_some_and(&is_so) {
            tokio::time::sleep(READ_EVERY).await;
        }
    }

    /// Waits until processes of a later generation run.
    async fn started_after(&self, generation: u64) {
        while self.generation_of_processes() <= generation {
            tokio::time::sleep(READ_EVERY).await;
        }
    }

    /// Returns the newest generation of the running processes, from their environment.
    fn generation_of_processes(&self) -> u64 {
        let of = |pid: i32| {
            let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let value = environ.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"TASKD_GENERATION="))?;
            std::str::from_utf8(value).ok()?.parse().ok()
        };
        processes_of(&self.job).into_iter().filter_map(of).max().unwrap_or(0)
    }

    async fn strike(&self, fault: Fault) {
        let generation = self.generation_of_processes();
        let in_start = self.job.last().is_none_or(|line| line.generation < generation);
        let (at, now) = (unix_now(), Instant::now());
        if !fault.strike(&*self.launcher).await {
            return println!("          --- {fault}: the process does not exist, so nothing is hit");
        }
        if self.log {
            let step = self.job.last().map_or(0, |line| line.step);
            println!("          >>> from outside: {fault} in generation {generation}, after step {step}");
        }
        self.injections.push_to(fault.what(), vec![fault.role.clone()], now);
        let struck = Struck { fault, at, generation, in_start };
        self.struck.lock().unwrap_or_else(PoisonError::into_inner).push(struck);
    }
}

/// Returns the seconds since 1970, as in all times that the script prints.
pub(super) fn unix_now() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Returns all processes whose environment names the job's run directory.
fn processes_of(job: &Job) -> Vec<i32> {
    let mark = format!("TASKD_RUN_DIR={}", job.dir.join("run").display());
    let has_mark = |pid: &i32| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes())
    };
    let listed = fs::read_dir("/proc").into_iter().flatten();
    let pids = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(has_mark).collect()
}

/// Returns the processes that are left of the job [`GONE_WITHIN`] after its end.
async fn left_of(job: &Job) -> Vec<i32> {
    let until = Instant::now() + GONE_WITHIN;
    loop {
        let left = processes_of(job);
        if left.is_empty() || Instant::now() > until {
            return left;
        }
        tokio::time::sleep(READ_EVERY).await;
    }
}

impl Run {
    /// Returns true if this run ended with the state of `other`.
    #[must_use]
    pub fn has_state_of(&self, other: &Outcome) -> bool {
        self.outcome.sha256 == other.sha256 && self.outcome.ranks_equal && self.outcome.world == other.world
    }
}
