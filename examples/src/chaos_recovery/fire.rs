//! One job under fire, seen from outside: its supervisor's process, its ranks' steps, and what its supervisors say.
//!
//! It starts and ends supervisors and waits; what is hit when is [`inject`](super::inject)'s.

use super::account::JobAccount;
use super::children;
use super::growth::Growth;
use super::kind::Kind;
use super::progress::Progress;
use super::stalled;
use crate::outside::census::{Census, Process};
use crate::outside::notes::{self, Line, Note, Tail};
use crate::outside::supervised;
use crate::program::Failure;
use crate::recover::Job;
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::process::Child;

/// How often the job is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long everything of a job may take to be gone after its end, or after we have killed it.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// Steps of all ranks after a fault with which the job goes on.
const STEPS: usize = 3;
/// The same where no supervisor has said that an incident is over.
const STEPS_UNSAID: usize = 40;

/// A job that is hit until all of its faults are done.
#[derive(Debug)]
pub(crate) struct Fire<'a> {
    pub(crate) job: Job,
    pub(crate) census: &'a mut Census,
    pub(crate) account: &'a mut JobAccount,
    pub(crate) growth: Growth,
    bound: Duration,
    supervisor: Option<Child>,
    pub(crate) progress: Progress,
    notes: Tail,
    /// When a supervisor took the job up last, and when it has said last that an incident is over.
    up: f64,
    closed: f64,
    over: Option<(bool, String)>,
}

impl<'a> Fire<'a> {
    /// Starts a job in a new directory.
    pub(crate) fn start(
        job: Job,
        bound: Duration,
        census: &'a mut Census,
        account: &'a mut JobAccount,
    ) -> Result<Fire<'a>, Failure> {
        fs::create_dir_all(&job.dir)?;
        fs::write(job.dir.join(supervised::ORDER), serde_json::to_vec(&job)?)?;
        let notes = Tail::new(job.dir.join(notes::FILE));
        let (growth, progress) = (Growth::default(), Progress::default());
        let (up, closed) = (0.0, 0.0);
        let mut fire =
            Fire { job, census, account, growth, bound, supervisor: None, progress, notes, up, closed, over: None };
        fire.start_supervisor()?;
        Ok(fire)
    }

    /// Starts a supervisor, which attaches to what runs.
    pub(crate) fn start_supervisor(&mut self) -> Result<(), Failure> {
        self.supervisor = Some(supervised::start(&self.job.dir, self.census.mark(), false)?);
        Ok(())
    }

    pub(crate) fn supervisor_pid(&self) -> Option<i32> {
        self.supervisor.as_ref().and_then(Child::id).and_then(|pid| i32::try_from(pid).ok())
    }

    /// Kills the supervisor and starts another one.
    pub(crate) async fn replace_supervisor(&mut self) -> Result<(), Failure> {
        let pid = self.supervisor_pid();
        let process = self.census.take().into_iter().find(|process| Some(process.pid) == pid);
        process.ok_or("the supervisor is gone, unasked")?.signal(Signal::KILL)?;
        self.bury_supervisor().await?;
        self.start_supervisor()
    }

    async fn bury_supervisor(&mut self) -> Result<(), Failure> {
        if let Some(mut child) = self.supervisor.take() {
            child.wait().await?;
        }
        Ok(())
    }

    /// The newest process of each rank.
    pub(crate) fn ranks(&mut self) -> BTreeMap<u32, Process> {
        let mut found: BTreeMap<u32, Process> = BTreeMap::new();
        for process in self.census.take().into_iter().filter(|process| process.state != 'Z') {
            let Some((victim, _)) = process.rank() else { continue };
            let known = found.get(&victim.rank).and_then(|known| Some(known.rank()?.0.incarnation));
            if known < Some(victim.incarnation) {
                found.insert(victim.rank, process);
            }
        }
        found
    }

    /// Who is to train: all, or where the world may be smaller those who live. Who has left comes back ever later when it soon leaves again.
    fn expected(&mut self) -> BTreeSet<u32> {
        if self.job.strategy.keeps_world() { (0..self.job.ranks).collect() } else { self.ranks().into_keys().collect() }
    }

    pub(crate) fn say(&self, line: &str) {
        println!("  {:>4} faults  step {:>5}  {line}", self.account.faults, self.progress.most);
    }

    /// Takes in what has happened since the last call.
    fn look(&mut self) {
        for line in self.notes.lines().iter().filter_map(|line| serde_json::from_str::<Line>(line).ok()) {
            let at = line.at_ns as f64 / 1e9;
            match line.note {
                Note::Up => self.up = at,
                Note::Closed { how } => {
                    self.closed = at;
                    *self.account.how.entry(how).or_default() += 1;
                }
                Note::Over { ok, reason } => self.over = Some((ok, reason)),
                _ => {}
            }
        }
        self.progress.look(&self.job.dir);
    }

    /// Looks at the job until something is so. An error: it was not so within the bound.
    pub(crate) async fn until<T>(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&mut Fire<'a>) -> Option<T>,
    ) -> Result<T, Failure> {
        let began = Instant::now();
        loop {
            self.look();
            if let Some(so) = is_so(self) {
                return Ok(so);
            }
            if let Some((_, reason)) = &self.over {
                return Err(format!("the job ended before {what}: {reason}").into());
            }
            if began.elapsed() > self.bound {
                return Err(Box::new(Stalled(what.to_owned())));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Lets some time go by.
    pub(crate) async fn pass(&mut self, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            self.look();
            tokio::time::sleep(LOOK_EVERY.min(time)).await;
        }
    }

    /// Waits until all ranks have gone on after this fault; how long that took, in milliseconds.
    pub(crate) async fn goes_on(&mut self, kind: Kind, at: f64) -> Result<f64, Failure> {
        let is_so = |fire: &mut Fire<'a>| {
            let ranks = fire.expected();
            let said = if kind.is_of_supervisor() { fire.up > at } else { fire.closed > at };
            let steps = fire.progress.since(at, &ranks);
            let enough = if said { steps >= STEPS } else { !kind.is_of_supervisor() && steps >= STEPS_UNSAID };
            enough.then(|| fire.progress.first_after(at, &ranks)).flatten()
        };
        let first = self.until("all ranks had gone on", is_so).await?;
        let (processes, supervisor) = (self.census.take(), self.supervisor_pid());
        self.growth.sample(&processes, supervisor);
        Ok((first - at) * 1e3)
    }

    /// Lets the job come to its end.
    pub(crate) async fn finish(&mut self) -> Result<u64, Failure> {
        let until = self.progress.most + 50;
        let new = self.job.dir.join("until.new");
        fs::write(&new, until.to_string())?;
        fs::rename(&new, self.job.dir.join("until"))?;
        // Who starts from nothing has all of these steps before it.
        let bound = self.bound;
        self.bound += Duration::from_millis(60) * u32::try_from(until).unwrap_or(u32::MAX);
        let ended = self.until("it had ended", |fire| fire.over.clone()).await;
        self.bound = bound;
        let (ok, reason) = ended?;
        self.bury_supervisor().await?;
        if ok { Ok(until) } else { Err(format!("the job ended with: {reason}").into()) }
    }

    /// Waits until everything is gone, and gives what is not.
    pub(crate) async fn leftovers(&mut self) -> Vec<Process> {
        let until = Instant::now() + GONE_WITHIN;
        loop {
            let left = self.census.take();
            if left.is_empty() || Instant::now() > until {
                return left;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until all children of ended ranks have ended, and accounts for those that have not: after `kind`, or at the end.
    pub(crate) async fn account_for_children(&mut self, kind: Option<Kind>) {
        let Some(number) = self.job.children else { return };
        let until = Instant::now() + GONE_WITHIN;
        let left = loop {
            let living = children::living(number);
            let ranks = self.ranks().values().map(|process| process.pid).collect();
            let left = children::left(living, &ranks);
            if left.is_empty() || Instant::now() > until {
                break left;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        };
        self.account.contained &= !lacks_a_control_group(&self.job.dir);
        if left.is_empty() {
            return;
        }
        let after = kind.map_or("the end".to_owned(), |kind| format!("{kind:?}"));
        self.say(&format!("children left after {after}: {left:?}"));
        *self.account.left_after.entry(after).or_default() += left.len();
        left.iter().for_each(|child| *self.account.left.entry(child.kind).or_default() += 1);
        children::kill(&left);
    }

    /// Writes down all that may explain why the job stands still, then starts it again.
    pub(crate) async fn start_over(&mut self, why: &Stalled) -> Result<(), Failure> {
        self.account.stalls += 1;
        let to = self.job.dir.join(format!("stall-{}.txt", self.account.stalls));
        let processes = self.census.take();
        stalled::dump(&to, &why.to_string(), &self.job.dir, &processes).await?;
        self.say(&format!("STALL: {why}; see {}", to.display()));
        self.kill_all().await?;
        self.start_supervisor()
    }

    /// Kills everything of the job.
    pub(crate) async fn kill_all(&mut self) -> Result<(), Failure> {
        for process in self.census.take() {
            let _ = process.signal(Signal::KILL); // gone by itself, then
        }
        self.leftovers().await;
        self.bury_supervisor().await
    }
}

/// Returns true if a guard of the job has logged that no control group holds its processes.
fn lacks_a_control_group(dir: &Path) -> bool {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path().join("guard.log"))
        .any(|log| fs::read_to_string(log).is_ok_and(|text| text.contains("no control group holds")))
}

/// The job did not get where it should have within the bound.
#[derive(Debug, thiserror::Error)]
#[error("the bound was over before {0}")]
pub(crate) struct Stalled(String);
