//! A job with sharded state on hosts in namespaces: each rank has a part that no other rank has, and copies it to the
//! memory of another host. A host is lost with all its ranks, and they resume from these copies.

use crate::hosts::{Host, Hosts, Program};
use crate::scenarios::{Moment, Row};
use crate::training::{Lives, PATIENCE, Steps, two_worlds};
use rustix::process::Signal;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use taskd_core::kernel::{JobReport, Outcome};
use taskd_examples::program::Failure;
use tokio::time::{Instant, sleep};

/// Name of the scenario.
pub const NAME: &str = "sharded-host-lost";
/// What happens in it, in one sentence.
pub const ABOUT: &str =
    "a host with two ranks is lost; only another host's memory has copies of their parts of the state";

/// Ranks of the job.
const RANKS: u32 = 4;
/// Their numbers.
const EVERY_RANK: [u32; RANKS as usize] = [0, 1, 2, 3];
/// Ranks that a host can hold: the last host is a spare one.
const SLOTS: u32 = 2;
/// Hosts of the job.
const HOSTS: usize = 3;
/// Host that is lost.
const LOST: &str = "h2";
/// Port at which a manager listens.
const PORT: u16 = 9601;
/// Steps of each rank after the job has resumed.
const STEPS_AFTER: usize = 10;
/// Time between two looks.
const POLL: Duration = Duration::from_millis(50);
/// The training script.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../python/train_recover.py");
/// Words of the message of a rank that has its state from another host.
const COPIED: &str = "has copied its state of step";

/// What is run.
#[derive(Clone, Debug)]
pub struct Shards {
    /// The Python interpreter, with torch.
    pub python: PathBuf,
    /// Lease of a host.
    pub lease: Duration,
    /// Steps between two copies.
    pub every: u64,
    /// Processors of a host.
    pub cpus: f64,
}

/// What has followed the loss of the host.
#[derive(Clone, Debug, Serialize)]
pub struct Resumed {
    /// The incidents, in words.
    pub blamed: String,
    /// The step with which all ranks have resumed.
    pub step: u64,
    /// Completed steps that were computed again.
    pub steps_lost: u64,
    /// Most steps that may be lost: two intervals, since a copy may be on its way, and one for each copy that was dropped
    /// because the last one had not arrived.
    pub steps_lost_max: u64,
    /// Seconds from the fault to its detection.
    pub detected_s: Option<f64>,
    /// Seconds from the fault until all ranks have completed a step again.
    pub resumed_s: f64,
    /// Which two processes trained one rank at the same time, in one sentence; `None` if none did.
    pub two_worlds: Option<String>,
    /// What the replaced ranks have logged about their copies.
    pub copied: Vec<String>,
    /// Lines of steps that were compared with an undisturbed job.
    pub compared: usize,
    /// What is not correct, in sentences.
    pub problems: Vec<String>,
}

impl Shards {
    /// Runs the job, takes the host away, and compares every step of the job with those of an undisturbed one.
    ///
    /// # Errors
    /// This machine cannot have hosts in namespaces, or the job does not train.
    pub async fn run(&self) -> Result<Resumed, Failure> {
        let hosts = Hosts::create(HOSTS, self.cpus)?;
        let dir = hosts.shared().join("job");
        let mut job = self.start(&hosts, "job", &dir, HOSTS, SLOTS, Some(self.every))?;
        let enough = usize::try_from(self.every * 2 + self.every / 2)?;
        job.until(&dir, "each rank has made copies", |steps| steps.all_have(&EVERY_RANK, 0.0, enough).then_some(()))
            .await?;
        let before: Vec<i32> = Steps::read(&dir).pids().into_values().collect();

        let Moment { monotonic: at, unix } = Moment::now();
        let lost = hosts.get(LOST)?;
        lost.set_link(false)?;
        lost.kill_all()?;
        let again = |steps: &Steps| steps.first_common(at, RANKS, &before);
        let (step, time) = job.until(&dir, "all ranks train again", again).await?;
        let enough = |steps: &Steps| steps.all_have(&EVERY_RANK, time, STEPS_AFTER).then_some(());
        job.until(&dir, "all ranks train on", enough).await?;
        let report = job.end(&dir, None).await?;

        let steps = Steps::read(&dir);
        let last = steps.last_before(at).ok_or("no step was completed before the fault")?;
        let mut resumed = Resumed {
            blamed: blamed(&report),
            step,
            steps_lost: (last + 1).saturating_sub(step),
            steps_lost_max: self.every * (2 + report.memory.map_or(0, |memory| memory.dropped)),
            detected_s: detected(&report).map(|time| time - unix),
            resumed_s: time - at,
            two_worlds: two_worlds(&steps, &Lives::new()),
            copied: messages(&hosts)?,
            compared: 0,
            problems: Vec::new(),
        };
        resumed.check(&report, self.every, &dir)?;
        drop(job);
        self.compare(&mut resumed, &hosts, &steps).await?;
        Ok(resumed)
    }

    /// Compares the steps with those of a job of the same ranks on one host, without a fault.
    async fn compare(&self, resumed: &mut Resumed, hosts: &Hosts, steps: &Steps) -> Result<(), Failure> {
        let dir = hosts.shared().join("undisturbed");
        let mut job = self.start(hosts, "undisturbed", &dir, 1, RANKS, None)?;
        let until = steps.last().ok_or("no step was completed")? + 1;
        job.end(&dir, Some(until)).await?;
        let of = |steps: &Steps| -> BTreeMap<(u32, u64), Vec<Option<String>>> {
            let mut found: BTreeMap<(u32, u64), Vec<Option<String>>> = BTreeMap::new();
            for process in &steps.0 {
                for line in &process.lines {
                    found.entry((process.rank, line.step)).or_default().push(line.sha256.clone());
                }
            }
            found
        };
        let expected = of(&Steps::read(&dir));
        for ((rank, step), states) in of(steps) {
            let right = expected.get(&(rank, step)).and_then(|states| states.first());
            resumed.compared += states.len();
            if right.is_none() || states.iter().any(|state| Some(state) != right) {
                let text = format!("the state of rank {rank} after step {step} is not that of an undisturbed job");
                resumed.problems.push(text);
            }
        }
        resumed.problems.truncate(10);
        Ok(())
    }

    /// Starts a manager on the first host, and agents on the next ones.
    fn start(
        &self,
        hosts: &Hosts,
        job: &str,
        dir: &Path,
        count: usize,
        slots: u32,
        every: Option<u64>,
    ) -> Result<Job, Failure> {
        fs::create_dir_all(dir)?;
        let first = hosts.get("h1")?;
        let manager = format!("{}:{PORT}", first.address());
        let mut programs = BTreeMap::new();
        for host in hosts.all().iter().take(count) {
            let is_manager = host.name() == "h1";
            let mut arguments = vec![if is_manager { "manager" } else { "agent" }.to_owned()];
            arguments.extend(self.common(job, host, slots));
            if is_manager {
                let (wait, hosts) = (PATIENCE.as_secs().to_string(), count.to_string());
                arguments.extend(words(&["--listen", &manager, "--wait-s", &wait, "--hosts", &hosts, "--json"]));
                arguments.extend(words(&["--ranks", &RANKS.to_string()]));
                arguments.extend(every.iter().flat_map(|every| words(&["--memory-every", &every.to_string()])));
                arguments.extend(self.command(dir, every.is_some()));
            } else {
                arguments.extend(words(&["--manager", &manager]));
            }
            let name = format!("{job}-{}", host.name());
            programs.insert(host.name().to_owned(), Program::start(host, &name, &arguments, &hosts.logs())?);
        }
        Ok(Job { programs })
    }

    fn common(&self, job: &str, host: &Host, slots: u32) -> Vec<String> {
        let dir = host.dir().join(job).display().to_string();
        let (address, lease) = (host.address().to_string(), self.lease.as_millis().to_string());
        let options = ["--job", job, "--host", host.name(), "--dir", &dir, "--address", &address, "--lease-ms", &lease];
        let mut all = words(&options);
        all.extend(words(&["--slots", &slots.to_string()]));
        all
    }

    /// Returns the command of a rank.
    fn command(&self, dir: &Path, disturbed: bool) -> Vec<String> {
        let (python, dir) = (self.python.display().to_string(), dir.display().to_string());
        let (pace, timeout) = (if disturbed { "20" } else { "0" }, PATIENCE.as_secs().to_string());
        let mut all = words(&["--", &python, "-u", SCRIPT, "--dir", &dir, "--steps", "10000000", "--sharded"]);
        all.extend(words(&["--resumes", "--state-mib", "1", "--pace-ms", pace, "--timeout-s", &timeout]));
        all
    }
}

impl Resumed {
    /// Returns the row of the run for `netns_chaos`. All ranks start again, because no other rank has the state of a lost
    /// one.
    #[must_use]
    pub fn row(&self, shards: &Shards) -> Row {
        let round = |seconds: f64| (seconds * 1e3).round() / 1e3;
        Row {
            scenario: NAME.into(),
            injected: format!("link of {LOST} down, SIGKILL to all its processes; copies every {} steps", shards.every),
            blamed: self.blamed.clone(),
            correct: self.problems.is_empty(),
            detected_s: self.detected_s.map(round),
            resumed_s: Some(round(self.resumed_s)),
            steps_lost: Some(self.steps_lost),
            two_worlds: self.two_worlds.is_some(),
            problems: self.problems.clone(),
            lease_s: shards.lease.as_secs_f64(),
            ..Row::default()
        }
    }

    /// Checks what the job reports, and that no rank can have read a checkpoint from a file.
    fn check(&mut self, report: &JobReport, every: u64, dir: &Path) -> Result<(), Failure> {
        let mut wrong = |is_wrong: bool, text: String| {
            if is_wrong {
                self.problems.push(text);
            }
        };
        wrong(report.outcome != Outcome::Completed, format!("the job ended otherwise: {}", report.reason));
        wrong(self.step == 0 || !self.step.is_multiple_of(every), format!("the ranks resumed at step {}", self.step));
        let (lost, most) = (self.steps_lost, self.steps_lost_max);
        wrong(lost > most, format!("{lost} completed steps were computed again, more than {most}"));
        wrong(self.two_worlds.is_some(), self.two_worlds.clone().unwrap_or_default());
        let own = format!("of step {} ", self.step);
        let copies = self.copied.iter().filter(|line| line.contains(&own)).count();
        wrong(copies != SLOTS as usize, format!("{copies} ranks have copied their state, not {SLOTS}"));
        for entry in fs::read_dir(dir)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let is_known = ["steps.", "result.", "until"].iter().any(|start| name.starts_with(start));
            wrong(!is_known, format!("{name} is in the only directory that the hosts share"));
        }
        Ok(())
    }
}

/// The programs of a job.
struct Job {
    programs: BTreeMap<String, Program>,
}

impl Job {
    /// Waits until the steps meet a condition.
    async fn until<T>(&mut self, dir: &Path, what: &str, is: impl Fn(&Steps) -> Option<T>) -> Result<T, Failure> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(value) = is(&Steps::read(dir)) {
                return Ok(value);
            }
            let ended = self.manager()?.wait(Duration::ZERO).await?;
            if ended.is_some() || Instant::now() >= deadline {
                return Err(format!("it is not true that {what} ({ended:?}): {}", self.excerpt()).into());
            }
            sleep(POLL).await;
        }
    }

    /// Orders the job to end before step `until`, or soon, and returns its report.
    async fn end(&mut self, dir: &Path, until: Option<u64>) -> Result<JobReport, Failure> {
        let until = until.unwrap_or_else(|| Steps::read(dir).last().map_or(1, |step| step + 15));
        fs::write(dir.join("until.new"), until.to_string())?;
        fs::rename(dir.join("until.new"), dir.join("until"))?;
        let ended = self.manager()?.wait(PATIENCE).await?;
        let stdout = self.manager()?.stdout();
        let line = stdout.lines().rev().find(|line| line.starts_with('{'));
        let line = line.ok_or_else(|| format!("no report ({ended:?}): {}", self.excerpt()))?;
        self.programs.values().for_each(|program| program.signal(Signal::INT));
        Ok(serde_json::from_str(line)?)
    }

    fn manager(&mut self) -> Result<&mut Program, Failure> {
        Ok(self.programs.get_mut("h1").ok_or("the job has no manager")?)
    }

    fn excerpt(&self) -> String {
        let ends = self.programs.iter().map(|(host, program)| {
            let text = program.stdout() + &program.stderr();
            let skipped = text.lines().count().saturating_sub(10);
            text.lines().skip(skipped).fold(String::new(), |all, line| format!("{all}\n  {host}: {line}"))
        });
        ends.collect()
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn blamed(report: &JobReport) -> String {
    let incidents = report.incidents.iter().map(|one| {
        let by = one.strategy.as_ref().map(ToString::to_string).unwrap_or_default();
        format!("{} in {} ({by})", one.class, one.domain)
    });
    incidents.collect::<Vec<_>>().join("; ")
}

/// Returns when the first incident was detected, in seconds since 1970.
fn detected(report: &JobReport) -> Option<f64> {
    let detected = report.incidents.first()?.wall.detected?;
    Some(detected.as_unix_ms() as f64 / 1e3)
}

/// Returns the lines of ranks about copies of their states, from the hosts' own files.
fn messages(hosts: &Hosts) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    for host in hosts.all() {
        let mut dirs = vec![host.from_outside(host.dir())];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                let (path, kind) = (entry.path(), entry.file_type()?);
                if kind.is_dir() {
                    dirs.push(path);
                } else if kind.is_file() && entry.file_name() == "stderr.log" {
                    let text = String::from_utf8_lossy(&fs::read(path)?).into_owned();
                    let lines = text.lines().filter(|line| {
                        line.contains(COPIED) || line.contains("own host alone") || line.contains("is not used")
                    });
                    found.extend(lines.map(|line| format!("{}: {line}", host.name())));
                }
            }
        }
    }
    Ok(found)
}
