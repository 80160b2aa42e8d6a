//! A training job on hosts in namespaces: its programs, its step files, and whether two worlds train.

mod observer;
mod plan;
mod steps;

pub use observer::{Life, Lives};
pub use plan::Plan;
pub use steps::{Process, Steps, two_worlds};

use crate::hosts::{Hosts, Program};
use observer::Observer;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;
use taskd_core::kernel::JobReport;
use taskd_examples::program::Failure;
use tokio::time::{Instant, sleep};

/// Time between two looks at the step files.
const POLL: Duration = Duration::from_millis(50);
/// Steps that a job still trains after the order to end it.
const STEPS_TO_END: u64 = 15;
/// Time within which a job makes progress. Four ranks that import torch on two loaded processors need a minute.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// Time within which a job begins to train: a rank and a standby on each host import torch at the same time.
pub const START_PATIENCE: Duration = Duration::from_secs(900);

/// A training that runs. Its programs are killed on drop, and its hosts removed.
#[derive(Debug)]
pub struct Training {
    /// What it consists of.
    pub plan: Plan,
    /// The program of each host: the only manager, an agent, or an agent that is also a candidate.
    pub programs: BTreeMap<String, Program>,
    observer: Observer,
    /// The hosts; dropped last.
    pub hosts: Hosts,
}

/// How a training ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit status of the last manager.
    pub status: ExitStatus,
    /// Its report.
    pub report: JobReport,
    /// All steps.
    pub steps: Steps,
    /// When each rank's process was seen.
    pub lives: Lives,
}

impl Training {
    /// Starts the program of each host.
    ///
    /// # Errors
    /// A program cannot be started.
    pub fn start(plan: Plan, hosts: Hosts) -> Result<Training, Failure> {
        let dir = dir(&hosts);
        fs::create_dir_all(&dir)?;
        let observer = Observer::start(dir, &hosts);
        let mut training = Training { plan, programs: BTreeMap::new(), observer, hosts };
        for number in 1..=training.plan.hosts {
            training.start_program(&format!("h{number}"))?;
        }
        Ok(training)
    }

    /// Starts the program of a host; an earlier one of the same host is killed.
    ///
    /// # Errors
    /// There is no such host, or the program cannot be started.
    pub fn start_program(&mut self, host: &str) -> Result<(), Failure> {
        self.programs.remove(host);
        let arguments = self.plan.arguments(&self.hosts, host, "job", host)?;
        let program = Program::start(self.hosts.get(host)?, host, &arguments, &self.hosts.logs())?;
        self.programs.insert(host.into(), program);
        Ok(())
    }

    /// Starts an agent on host `at` that states this job and this host name.
    ///
    /// # Errors
    /// There is no such host, or the program cannot be started.
    pub fn agent(&self, at: &str, job: &str, host_name: &str) -> Result<Program, Failure> {
        let arguments = self.plan.arguments(&self.hosts, at, job, host_name)?;
        let name = format!("agent-{at}-{job}-{host_name}");
        Ok(Program::start(self.hosts.get(at)?, &name, &arguments, &self.hosts.logs())?)
    }

    /// Returns the program of a host.
    ///
    /// # Errors
    /// It was not started.
    pub fn program(&self, host: &str) -> Result<&Program, Failure> {
        self.programs.get(host).ok_or_else(|| format!("{host} has no program").into())
    }

    /// Returns the host of the manager that was elected last, with its epoch; `None` before the first election.
    #[must_use]
    pub fn manager(&self) -> Option<(String, u64)> {
        if !self.plan.has_voters() {
            return Some(("h1".into(), 0));
        }
        let elected = self.programs.iter().filter_map(|(host, program)| {
            let epochs = program.stdout();
            let epochs = epochs.lines().filter(|line| line.starts_with("manager "));
            let epochs = epochs.filter_map(|line| line.rsplit_once(" in epoch ")?.1.trim().parse().ok());
            Some((host.clone(), epochs.max()?))
        });
        elected.max_by_key(|(_, epoch)| *epoch)
    }

    /// Returns the steps so far.
    #[must_use]
    pub fn steps(&self) -> Steps {
        Steps::read(&self.dir())
    }

    /// Returns when each rank's process was seen, so far.
    #[must_use]
    pub fn lives(&self) -> Lives {
        self.observer.lives()
    }

    /// Waits until the steps meet a condition. `what` names it in the error.
    ///
    /// # Errors
    /// Those of [`wait_until`](Training::wait_until).
    pub async fn until<T>(&mut self, what: &str, condition: impl Fn(&Steps) -> Option<T>) -> Result<T, Failure> {
        self.wait_until(what, |training| condition(&training.steps())).await
    }

    /// Waits until the training meets a condition. `what` names it in the error.
    ///
    /// # Errors
    /// The job has ended, or the condition is not met within [`PATIENCE`].
    pub async fn wait_until<T>(
        &mut self,
        what: &str,
        condition: impl Fn(&Training) -> Option<T>,
    ) -> Result<T, Failure> {
        self.wait_within(PATIENCE, what, condition).await
    }

    async fn wait_within<T>(
        &mut self,
        within: Duration,
        what: &str,
        condition: impl Fn(&Training) -> Option<T>,
    ) -> Result<T, Failure> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(value) = condition(self) {
                return Ok(value);
            }
            if let Some(why) = self.is_over().await? {
                return Err(format!("waiting until {what}: {why}: {}", self.excerpt()).into());
            }
            if Instant::now() >= deadline {
                return Err(format!("it is not true within {within:?} that {what}: {}", self.excerpt()).into());
            }
            sleep(POLL).await;
        }
    }

    /// Returns why the job cannot continue, if its managers have ended.
    async fn is_over(&mut self) -> Result<Option<String>, Failure> {
        let managers = if self.plan.has_voters() { self.plan.voters.clone() } else { vec!["h1".to_owned()] };
        let mut last = None;
        for host in &managers {
            let Some(program) = self.programs.get_mut(host) else { continue };
            match program.wait(Duration::ZERO).await? {
                None => return Ok(None),
                Some(status) => last = Some(format!("all managers have ended, {host} with {status}")),
            }
        }
        Ok(last)
    }

    /// Waits until every rank has completed this number of steps, as long as the job makes progress.
    ///
    /// # Errors
    /// The job has ended, or has completed no step for [`PATIENCE`].
    pub async fn until_step(&mut self, number: usize) -> Result<(), Failure> {
        let mut last = None;
        while last.is_none_or(|last| last < number as u64) {
            let further = |steps: &Steps| steps.last().filter(|step| Some(*step) > last);
            last = Some(self.until("the job completes another step", further).await?);
        }
        Ok(())
    }

    /// Waits until every rank has completed this number of steps, at most for [`START_PATIENCE`].
    ///
    /// # Errors
    /// The job has ended, or does not train in time.
    pub async fn begun(&mut self, number: usize) -> Result<(), Failure> {
        let ranks: Vec<u32> = (0..self.plan.ranks).collect();
        let condition = |training: &Training| training.steps().all_have(&ranks, 0.0, number).then_some(());
        self.wait_within(START_PATIENCE, "all ranks train", condition).await
    }

    /// Waits until every rank has completed this number of steps since `since`, in seconds of the monotonic clock.
    ///
    /// # Errors
    /// Those of [`wait_until`](Training::wait_until).
    pub async fn steps_since(&mut self, since: f64, number: usize) -> Result<(), Failure> {
        let ranks: Vec<u32> = (0..self.plan.ranks).collect();
        self.steps_of(&ranks, since, number).await
    }

    /// Waits until each of these ranks has completed this number of steps since `since`.
    ///
    /// # Errors
    /// Those of [`wait_until`](Training::wait_until).
    pub async fn steps_of(&mut self, ranks: &[u32], since: f64, number: usize) -> Result<(), Failure> {
        let what = format!("ranks {ranks:?} have completed {number} more steps each");
        self.until(&what, |steps| steps.all_have(ranks, since, number).then_some(())).await
    }

    /// Orders the job to end a few steps later, and waits until it has. Then ends the agents.
    ///
    /// # Errors
    /// The job does not end, or the manager printed no report.
    pub async fn end(&mut self) -> Result<Ended, Failure> {
        let dir = self.dir();
        let until = self.steps().last().map_or(1, |step| step + STEPS_TO_END);
        fs::write(dir.join("until.new"), until.to_string())?;
        fs::rename(dir.join("until.new"), dir.join("until"))?;
        self.ended().await
    }

    /// Waits until the job has ended; then ends the agents.
    ///
    /// # Errors
    /// The job does not end, or the manager printed no report.
    pub async fn ended(&mut self) -> Result<Ended, Failure> {
        let reported = |training: &Training| {
            training.programs.iter().find_map(|(host, program)| {
                let line = program.stdout().lines().rev().find(|line| line.starts_with('{'))?.to_owned();
                Some((host.clone(), line))
            })
        };
        let (host, line) = self.wait_until("a manager has reported the end of the job", reported).await?;
        let report = serde_json::from_str(&line)?;
        let status = match self.programs.get_mut(&host) {
            Some(manager) => manager.wait(PATIENCE).await?,
            None => None,
        };
        let Some(status) = status else {
            return Err(format!("the last manager does not end within {PATIENCE:?}: {}", self.excerpt()).into());
        };
        for program in self.programs.values() {
            program.signal(rustix::process::Signal::INT);
        }
        Ok(Ended { status, report, steps: self.steps(), lives: self.lives() })
    }

    /// Returns the names of hosts on which processes still run after this time, with the command lines.
    pub async fn left_running(&self, after: Duration) -> BTreeMap<String, Vec<String>> {
        let deadline = Instant::now() + after;
        loop {
            let mut left: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for host in self.hosts.all() {
                for pid in host.pids().unwrap_or_default() {
                    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                    let line = String::from_utf8_lossy(&line).replace('\0', " ");
                    if !line.is_empty() {
                        left.entry(host.name().into()).or_default().push(format!("{pid} {line}"));
                    }
                }
            }
            if left.is_empty() || Instant::now() >= deadline {
                return left;
            }
            sleep(POLL).await;
        }
    }

    /// Returns the ends of the programs' outputs, for an error.
    #[must_use]
    pub fn excerpt(&self) -> String {
        let mut text = String::new();
        for (name, program) in &self.programs {
            let (out, err) = (program.stdout(), program.stderr());
            for line in last_lines(&out).chain(last_lines(&err)) {
                text += &format!("\n  {name}: {line}");
            }
        }
        text
    }

    /// Returns the directory of the job's files, which all hosts share.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        dir(&self.hosts)
    }
}

fn dir(hosts: &Hosts) -> PathBuf {
    hosts.shared().join("job")
}

/// Lines of a program's output in an error.
const EXCERPT_LINES: usize = 6;
/// Characters of such a line.
const EXCERPT_CHARS: usize = 400;

fn last_lines(text: &str) -> impl Iterator<Item = String> {
    let skipped = text.lines().count().saturating_sub(EXCERPT_LINES);
    text.lines().skip(skipped).map(|line| line.chars().take(EXCERPT_CHARS).collect())
}
