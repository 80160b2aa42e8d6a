//! One repetition: a fresh job of one candidate, one fault in its steady state, and the result.

use super::account::Came;
use super::candidates::{Candidate, Fault};
use super::lines::{Before, Lines, Recovery};
use super::ours;
use super::peers::{ENVIRONMENT, Script};
use super::processes::{Running, Start};
use super::{Failure, Options};
use rand::RngExt;
use rand::rngs::StdRng;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use taskd_examples::hosts::kill_host_of;
use taskd_examples::recover::now;
use tokio::time::sleep;

/// The interval at which the script's lines are read. It is long, because reading costs CPU time and the times are in
/// the lines.
const READ_EVERY: Duration = Duration::from_millis(100);
/// How long a job may take until all its ranks have completed a step.
const START_WITHIN: Duration = Duration::from_secs(120);
/// How long the script may take to raise a requested exception.
const STRIKE_WITHIN: Duration = Duration::from_secs(5);
/// How long a job continues after its recovery, so that its states can be compared.
const GO_ON: Duration = Duration::from_millis(500);
/// How long a supervisor that was ordered to end, and its guard, may take.
const LEAVE_WITHIN: Duration = Duration::from_secs(20);
/// Number of consecutive ports that a job may use: each round of a shell loop takes one.
const PORTS: u16 = 16;

/// The inputs of every repetition.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) options: &'a Options,
    pub(crate) dir: &'a Path,
    pub(crate) pythons: &'a BTreeMap<Candidate, PathBuf>,
    /// The state after each step of the undisturbed run.
    pub(crate) reference: BTreeMap<u64, String>,
}

/// The report of one repetition.
#[derive(Debug)]
pub(crate) struct Repetition {
    pub(crate) came: Came,
    /// How it recovered, if the system reports that, and other remarks: each after a semicolon.
    pub(crate) remark: String,
}

impl Bench<'_> {
    /// Carries out one repetition.
    ///
    /// # Errors
    /// The job failed before the fault, and nothing of it runs any more; or one of its processes does not end. The text
    /// names which.
    pub(crate) async fn repeat(
        &self,
        candidate: Candidate,
        number: u32,
        dice: &mut StdRng,
    ) -> Result<Repetition, Failure> {
        let dir = self.dir.join(format!("r{number}"));
        fs::create_dir_all(&dir)?;
        let mut job = self.start(candidate, &dir, number, dice)?;
        let (after, victim) = (dice.random_range(0..1000), dice.random_range(1..self.options.ranks));
        job.until_it_trains(self.options.ranks).await?;
        sleep(Duration::from_secs(self.options.settle_s) + Duration::from_millis(after)).await;
        let at = job.strike(candidate.fault(), victim, &dir).await?;
        job.lines.look();
        let before = job.lines.before(at);
        let recovery = job.recovery(candidate, &before, self.options).await;
        sleep(if recovery.is_some() { GO_ON } else { Duration::ZERO }).await;
        let mut remark = String::new();
        if candidate.is_ours() {
            let left = job.running.leave(LEAVE_WITHIN).await;
            remark = ours::how(&dir);
            if left > 0 {
                remark += &format!("; {left} PROCESSES WERE LEFT");
            }
        }
        job.running.end()?;
        job.lines.look();
        let Some(recovery) = recovery else {
            let remark = format!("{remark}; its logs are in {}", dir.display());
            return Ok(Repetition { came: Came::NotBack, remark });
        };
        fs::remove_dir_all(&dir)?;
        let states = candidate.can_have_same_state().then(|| job.lines.has_states_of(&self.reference, at));
        let Recovery { at: end, steps_lost, .. } = recovery;
        let came = Came::Back { seconds: end - at, steps_lost, state_equal: states.flatten() };
        Ok(Repetition { came, remark })
    }

    fn start(&self, candidate: Candidate, dir: &Path, number: u32, dice: &mut StdRng) -> Result<Job, Failure> {
        let python = self.pythons.get(&candidate).ok_or("there is no Python for this system")?;
        let (ranks, state_mib) = (self.options.ranks, self.options.state_mib);
        let script = Script { python, dir, ranks, state_mib, pace_ms: self.options.pace_ms };
        let mark = format!("bench-{}-{number}", std::process::id());
        let starts = if candidate.is_ours() {
            vec![ours::start(candidate, &script, &mark)?]
        } else {
            with_environment(script.starts(candidate, free_ports(dice)?))
        };
        Ok(Job { running: Running::start(&starts, dir, &mark)?, lines: Lines::of(dir) })
    }
}

/// Returns the states after the steps of an undisturbed run at full speed.
///
/// # Errors
/// It does not run; the text has the reason.
pub(crate) async fn undisturbed(
    script: &Script<'_>,
    steps: u64,
    dice: &mut StdRng,
) -> Result<BTreeMap<u64, String>, Failure> {
    fs::create_dir_all(script.dir)?;
    let starts = with_environment(vec![script.floor(free_ports(dice)?, Some(steps))]);
    let mark = format!("bench-{}-reference", std::process::id());
    let mut job = Job { running: Running::start(&starts, script.dir, &mark)?, lines: Lines::of(script.dir) };
    job.until("the undisturbed run has not ended", START_WITHIN, |lines| {
        lines.all.iter().any(|line| line.step + 1 == steps).then_some(())
    })
    .await?;
    job.running.end()?;
    Ok(job.lines.states())
}

fn with_environment(starts: Vec<Start>) -> Vec<Start> {
    let add = |start| ENVIRONMENT.into_iter().fold(start, |start: Start, (name, value)| start.env(name, value));
    starts.into_iter().map(add).collect()
}

/// Returns the first of [`PORTS`] consecutive free ports. If another process takes one meanwhile, the job does not
/// start, which is reported.
fn free_ports(dice: &mut StdRng) -> Result<u16, Failure> {
    for _ in 0..100 {
        let first = dice.random_range(20_000..30_000);
        if (first..first + PORTS).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return Ok(first);
        }
    }
    Err("no free ports were found between 20000 and 30000".into())
}

/// A running job.
struct Job {
    running: Running,
    lines: Lines,
}

impl Job {
    async fn until_it_trains(&mut self, ranks: u32) -> Result<(), Failure> {
        self.until("the job has not begun to train", START_WITHIN, |lines| lines.has_world(ranks).then_some(())).await
    }

    /// Injects the fault into a rank; returns its time.
    async fn strike(&mut self, fault: Fault, victim: u32, dir: &Path) -> Result<f64, Failure> {
        self.lines.look();
        if fault != Fault::Exception {
            let pid = self.lines.process_of(victim).and_then(Pid::from_raw).ok_or("the victim has no process")?;
            let at = now();
            match fault {
                Fault::KillHost => kill_host_of(pid)?,
                _ => kill_process(pid, Signal::KILL)?,
            }
            return Ok(at);
        }
        let struck = dir.join(format!("struck.{victim}"));
        fs::write(dir.join(format!("fault.{victim}")), "")?;
        let read = |_: &Lines| fs::read_to_string(&struck).ok()?.trim().parse().ok();
        self.until("the requested exception was not raised", STRIKE_WITHIN, read).await
    }

    /// Waits for the recovery; returns `None` if there is none within the bound.
    async fn recovery(&mut self, candidate: Candidate, before: &Before, options: &Options) -> Option<Recovery> {
        let wanted = candidate.recovered(options.ranks);
        let bound = Duration::from_secs(options.stall_s);
        let until = Instant::now() + bound;
        loop {
            self.lines.look();
            let recovery = self.lines.recovery(before, wanted);
            if let Some(recovery) = recovery {
                return Some(recovery).filter(|recovery| recovery.at - before.at <= bound.as_secs_f64());
            }
            if Instant::now() > until {
                return None;
            }
            sleep(READ_EVERY).await;
        }
    }

    async fn until<T>(
        &mut self,
        otherwise: &str,
        within: Duration,
        mut look: impl FnMut(&Lines) -> Option<T>,
    ) -> Result<T, Failure> {
        let until = Instant::now() + within;
        loop {
            self.lines.look();
            if let Some(found) = look(&self.lines) {
                return Ok(found);
            }
            if self.running.has_ended() {
                return Err(format!("{otherwise}, and its processes have ended").into());
            }
            if Instant::now() > until {
                return Err(format!("{otherwise} within {within:?}").into());
            }
            sleep(READ_EVERY).await;
        }
    }
}
