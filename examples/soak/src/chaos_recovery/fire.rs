//! One job under fire, observed from outside: its supervisor's process, its ranks' steps, and its supervisors' reports.
//!
//! It starts and ends supervisors and waits; [`inject`](super::inject) chooses the victims and the moments.

use super::account::JobAccount;
use super::children;
use super::growth::Growth;
use super::kind::Kind;
use super::progress::Progress;
use super::stalled;
use crate::outside::census::{Census, Process};
use crate::outside::job::{LOOK_EVERY, Stalled, SupervisedJob, Watched};
use crate::outside::notes::{self, Line, Note, Tail};
use crate::outside::supervised;
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use taskd_examples::program::Failure;
use taskd_examples::recover::Job;

/// How long all processes of a job may take to end after it, or after they were killed.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// Steps that all ranks must complete after a fault for the job to count as recovered.
const STEPS: usize = 3;
/// The same if no supervisor has reported that an incident is over.
const STEPS_UNREPORTED: usize = 40;

/// A job that is hit until all of its faults are injected.
#[derive(Debug)]
pub(crate) struct Fire<'a> {
    pub(crate) job: Job,
    pub(crate) supervised: SupervisedJob<'a>,
    pub(crate) account: &'a mut JobAccount,
    pub(crate) growth: Growth,
    pub(crate) progress: Progress,
    notes: Tail,
    /// When a supervisor last attached, and when one last reported that an incident is over.
    up: f64,
    closed: f64,
}

impl<'a> Watched<'a> for Fire<'a> {
    fn supervised(&self) -> &SupervisedJob<'a> {
        &self.supervised
    }

    fn look(&mut self) {
        for line in self.notes.lines().iter().filter_map(|line| serde_json::from_str::<Line>(line).ok()) {
            let at = line.at_ns as f64 / 1e9;
            match line.note {
                Note::Up => self.up = at,
                Note::Closed { how } => {
                    self.closed = at;
                    *self.account.how.entry(how).or_default() += 1;
                }
                Note::Over { ok, reason } => self.supervised.over = Some((ok, reason)),
                _ => {}
            }
        }
        self.progress.look(&self.job.dir);
    }
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
        let supervised = SupervisedJob::new(job.dir.clone(), census, bound, GONE_WITHIN);
        let mut fire = Fire { job, supervised, account, growth, progress, notes, up, closed };
        fire.supervised.start_supervisor(false)?;
        Ok(fire)
    }

    /// Kills the supervisor and starts another.
    pub(crate) async fn replace_supervisor(&mut self) -> Result<(), Failure> {
        self.supervised.supervisor()?.signal(Signal::KILL)?;
        self.supervised.bury_supervisor().await?;
        self.supervised.start_supervisor(false)
    }

    /// Returns the newest process of each rank.
    pub(crate) fn ranks(&mut self) -> BTreeMap<u32, Process> {
        let mut found: BTreeMap<u32, Process> = BTreeMap::new();
        for process in self.supervised.census.take().into_iter().filter(|process| process.state != 'Z') {
            let Some((victim, _)) = process.rank() else { continue };
            let known = found.get(&victim.rank).and_then(|known| Some(known.rank()?.0.incarnation));
            if known < Some(victim.incarnation) {
                found.insert(victim.rank, process);
            }
        }
        found
    }

    /// Returns the ranks that are expected to train: all, or the living ones if the world may be smaller. A host that
    /// fails soon after its return is readmitted later each time.
    fn expected(&mut self) -> BTreeSet<u32> {
        if self.job.strategy.keeps_world() { (0..self.job.ranks).collect() } else { self.ranks().into_keys().collect() }
    }

    pub(crate) fn say(&self, line: &str) {
        println!("  {:>4} faults  step {:>5}  {line}", self.account.faults, self.progress.most);
    }

    /// Waits until all ranks train again after the fault at `at`; returns the time until their first step in
    /// milliseconds.
    pub(crate) async fn goes_on(&mut self, kind: Kind, at: f64) -> Result<f64, Failure> {
        let is_so = |fire: &mut Fire<'a>| {
            let ranks = fire.expected();
            let is_reported = if kind.is_of_supervisor() { fire.up > at } else { fire.closed > at };
            let steps = fire.progress.since(at, &ranks);
            let enough =
                if is_reported { steps >= STEPS } else { !kind.is_of_supervisor() && steps >= STEPS_UNREPORTED };
            enough.then(|| fire.progress.first_after(at, &ranks)).flatten()
        };
        let first = self.until("all ranks trained again", is_so).await?;
        let (processes, supervisor) = (self.supervised.census.take(), self.supervised.supervisor_pid());
        self.growth.sample(&processes, supervisor);
        Ok((first - at) * 1e3)
    }

    /// Lets the job run to its end.
    pub(crate) async fn finish(&mut self) -> Result<u64, Failure> {
        let until = self.progress.most + 50;
        let new = self.job.dir.join("until.new");
        fs::write(&new, until.to_string())?;
        fs::rename(&new, self.job.dir.join("until"))?;
        // A rank that starts from the beginning has all of these steps before it.
        let bound = self.supervised.bound;
        self.supervised.bound += Duration::from_millis(60) * u32::try_from(until).unwrap_or(u32::MAX);
        let ended = self.until("the job ended", |fire| fire.supervised.over.clone()).await;
        self.supervised.bound = bound;
        let (ok, reason) = ended?;
        self.supervised.bury_supervisor().await?;
        if ok { Ok(until) } else { Err(format!("the job ended with: {reason}").into()) }
    }

    /// Waits until all children of ended ranks have ended, and records those that have not: after `kind`, or at the
    /// end.
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

    /// Records all that may explain why the job hangs, then restarts it.
    pub(crate) async fn start_over(&mut self, why: &Stalled) -> Result<(), Failure> {
        self.account.stalls += 1;
        let to = self.job.dir.join(format!("stall-{}.txt", self.account.stalls));
        let processes = self.supervised.census.take();
        stalled::dump(&to, &why.to_string(), &self.job.dir, &processes).await?;
        self.say(&format!("STALL: {why}; see {}", to.display()));
        self.supervised.kill_all().await?;
        self.supervised.start_supervisor(false)
    }
}

/// Returns true if a guard of the job has logged that no control group holds its processes.
fn lacks_a_control_group(dir: &Path) -> bool {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path().join("guard.log"))
        .any(|log| fs::read_to_string(log).is_ok_and(|text| text.contains("no control group holds")))
}
