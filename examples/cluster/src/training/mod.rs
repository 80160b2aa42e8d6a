//! A training job on hosts in namespaces: its programs, its step files, and whether two worlds train.

mod observer;
mod steps;

pub use observer::{Life, Lives};
pub use steps::{Process, Steps, two_worlds};

use crate::hosts::{Host, Hosts, Program};
use observer::Observer;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;
use taskd_core::kernel::JobReport;
use taskd_examples::program::Failure;
use tokio::time::{Instant, sleep};

/// Port at which the manager listens on its host.
const PORT: u16 = 9601;
/// Time between two looks at the step files.
const POLL: Duration = Duration::from_millis(50);
/// More steps than any job trains: a job is ordered to end.
const STEPS_MAX: u64 = 10_000_000;
/// Steps that a job still trains after the order to end it.
const STEPS_TO_END: u64 = 15;
/// Time within which a job trains and makes progress. Four ranks that import torch on two loaded processors need a
/// minute.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// The training script.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../python/train_recover.py");

/// What a training consists of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The Python interpreter, with torch.
    pub python: PathBuf,
    /// Ranks.
    pub ranks: u32,
    /// Ranks that one host can hold.
    pub slots: u32,
    /// Hosts of the job, the first of which has the manager; the ranks begin on the first ones.
    pub hosts: usize,
    /// Lease of a host.
    pub lease: Duration,
    /// Pause in each step, in milliseconds.
    pub pace_ms: u64,
}

/// A training that runs. Its programs are killed on drop, and its hosts removed.
#[derive(Debug)]
pub struct Training {
    /// What it consists of.
    pub plan: Plan,
    /// The manager, which is also the agent of host `h1`.
    pub manager: Program,
    /// The agents of the other hosts, by host.
    pub agents: BTreeMap<String, Program>,
    observer: Observer,
    /// The hosts; dropped last.
    pub hosts: Hosts,
}

/// How a training ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit status of the manager.
    pub status: ExitStatus,
    /// Its report.
    pub report: JobReport,
    /// All steps.
    pub steps: Steps,
    /// When each rank's process was seen.
    pub lives: Lives,
}

impl Training {
    /// Starts the manager on the first host and agents on the next ones.
    ///
    /// # Errors
    /// A program cannot be started.
    pub fn start(plan: Plan, hosts: Hosts) -> Result<Training, Failure> {
        let dir = hosts.shared().join("job");
        fs::create_dir_all(&dir)?;
        let first = hosts.get("h1")?;
        let mut arguments = vec!["manager".to_owned()];
        arguments.extend(common("job", "h1", &plan, first));
        let numbers =
            [("--hosts", plan.hosts as u64), ("--ranks", plan.ranks.into()), ("--wait-s", PATIENCE.as_secs())];
        arguments.extend(numbers.iter().flat_map(|(name, value)| [(*name).to_owned(), value.to_string()]));
        arguments.extend(["--listen".into(), format!("{}:{PORT}", first.address()), "--json".into(), "--".into()]);
        arguments.extend(command(&plan, &dir));
        let manager = Program::start(first, "manager", &arguments, &hosts.logs())?;
        let observer = Observer::start(dir, &hosts);
        let mut training = Training { plan, manager, agents: BTreeMap::new(), observer, hosts };
        for number in 2..=training.plan.hosts {
            training.start_agent(&format!("h{number}"))?;
        }
        Ok(training)
    }

    /// Starts the agent of a host; an earlier one of the same host is killed.
    ///
    /// # Errors
    /// There is no such host, or the program cannot be started.
    pub fn start_agent(&mut self, host: &str) -> Result<(), Failure> {
        self.agents.remove(host);
        let agent = self.agent(host, "job", host)?;
        self.agents.insert(host.into(), agent);
        Ok(())
    }

    /// Starts an agent on host `at` that states this job and this host name.
    ///
    /// # Errors
    /// There is no such host, or the program cannot be started.
    pub fn agent(&self, at: &str, job: &str, host_name: &str) -> Result<Program, Failure> {
        let host = self.hosts.get(at)?;
        let mut arguments = vec!["agent".to_owned()];
        arguments.extend(common(job, host_name, &self.plan, host));
        let manager = format!("{}:{PORT}", self.hosts.get("h1")?.address());
        arguments.extend(["--manager".into(), manager]);
        Ok(Program::start(host, &format!("agent-{at}-{job}-{host_name}"), &arguments, &self.hosts.logs())?)
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
    /// The manager has ended, or the condition is not met within [`PATIENCE`].
    pub async fn until<T>(&mut self, what: &str, condition: impl Fn(&Steps) -> Option<T>) -> Result<T, Failure> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(value) = condition(&self.steps()) {
                return Ok(value);
            }
            if let Some(status) = self.manager.wait(Duration::ZERO).await? {
                return Err(
                    format!("waiting until {what}: the manager has ended ({status}): {}", self.excerpt()).into()
                );
            }
            if Instant::now() >= deadline {
                return Err(format!("it is not true within {PATIENCE:?} that {what}: {}", self.excerpt()).into());
            }
            sleep(POLL).await;
        }
    }

    /// Waits until every rank has completed this number of steps since `since`, in seconds of the monotonic clock.
    ///
    /// # Errors
    /// Those of [`until`](Training::until).
    pub async fn steps_since(&mut self, since: f64, number: usize) -> Result<(), Failure> {
        let ranks = self.plan.ranks;
        let what = format!("each rank has completed {number} more steps");
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
        let Some(status) = self.manager.wait(PATIENCE).await? else {
            return Err(format!("the job does not end within {PATIENCE:?}: {}", self.excerpt()).into());
        };
        let stdout = self.manager.stdout();
        let line = stdout.lines().rev().find(|line| line.starts_with('{'));
        let Some(line) = line else {
            return Err(format!("the manager ({status}) printed no report: {}", self.excerpt()).into());
        };
        let report = serde_json::from_str(line)?;
        for agent in self.agents.values() {
            agent.signal(rustix::process::Signal::INT);
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
        for (name, program) in [("manager", &self.manager)].into_iter().chain(self.agents()) {
            let (out, err) = (program.stdout(), program.stderr());
            for line in last_lines(&out).chain(last_lines(&err)) {
                text += &format!("\n  {name}: {line}");
            }
        }
        text
    }

    fn agents(&self) -> impl Iterator<Item = (&str, &Program)> {
        self.agents.iter().map(|(host, program)| (host.as_str(), program))
    }

    fn dir(&self) -> PathBuf {
        self.hosts.shared().join("job")
    }
}

/// Lines of a program's output in an error.
const EXCERPT_LINES: usize = 6;
/// Characters of such a line.
const EXCERPT_CHARS: usize = 400;

fn last_lines(text: &str) -> impl Iterator<Item = String> {
    let skipped = text.lines().count().saturating_sub(EXCERPT_LINES);
    text.lines().skip(skipped).map(|line| line.chars().take(EXCERPT_CHARS).collect())
}

/// Returns the options of both roles for a program on this host.
fn common(job: &str, host_name: &str, plan: &Plan, host: &Host) -> Vec<String> {
    let (dir, address) = (host.dir().display().to_string(), host.address().to_string());
    let (slots, lease) = (plan.slots.to_string(), plan.lease.as_millis().to_string());
    let options = [
        ("--job", job),
        ("--host", host_name),
        ("--dir", &dir),
        ("--address", &address),
        ("--slots", &slots),
        ("--lease-ms", &lease),
    ];
    options.iter().flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()]).collect()
}

/// Returns the command of a rank.
fn command(plan: &Plan, dir: &std::path::Path) -> Vec<String> {
    let (python, dir) = (plan.python.display().to_string(), dir.display().to_string());
    let (steps, pace, timeout) = (STEPS_MAX.to_string(), plan.pace_ms.to_string(), PATIENCE.as_secs().to_string());
    let words = [&python, "-u", SCRIPT, "--dir", &dir, "--steps", &steps, "--state-mib", "1", "--pace-ms", &pace];
    words.into_iter().chain(["--timeout-s", &timeout]).map(str::to_owned).collect()
}
