//! One job under fire, observed from outside: its supervisor's process, its steps, and its supervisors' reports.
//!
//! It starts and ends supervisors; [`inject`](super::inject) chooses the victims and the moments.

use super::account::{Books, Kill};
use crate::outside::census::{Census, Process};
use crate::outside::job::{LOOK_EVERY, Stalled, SupervisedJob, Watched};
use crate::outside::notes::{self, Line, Note, Tail, now_ns};
use crate::outside::supervised;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use taskd_examples::books::StepLine;
use taskd_examples::digits::{DigitsJob, step_line};
use taskd_examples::program::Failure;

/// How long all processes of a job may take to end after it, or after they were killed.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// The condition for the job to count as training again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaits {
    /// A step of a generation after this one.
    After(u64),
    /// A step after a new supervisor has attached.
    NextOwner,
    /// The next step.
    NextStep,
}

/// A job that is killed and restarted until it has completed.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) dir: PathBuf,
    pub(crate) digits: DigitsJob,
    pub(crate) supervised: SupervisedJob<'a>,
    pub(crate) books: &'a mut Books,
    steps: Tail,
    notes: Tail,
    /// The last step that was trained.
    pub(crate) last: Option<StepLine>,
    pub(crate) awaits: Option<Awaits>,
    /// Faults that were found and worlds that were entered in the whole job.
    pub(crate) found: usize,
    pub(crate) entered: usize,
    last_sign: Instant,
}

impl<'a> Watched<'a> for Job<'a> {
    fn supervised(&self) -> &SupervisedJob<'a> {
        &self.supervised
    }

    fn look(&mut self) {
        for line in self.notes.lines().iter().filter_map(|line| serde_json::from_str::<Line>(line).ok()) {
            match line.note {
                Note::Up => {
                    self.books.attached(line.at_ns);
                    if self.awaits == Some(Awaits::NextOwner) {
                        self.awaits = Some(Awaits::NextStep);
                    }
                }
                Note::Found(blamed) => {
                    self.found += 1;
                    self.books.found(&blamed, line.at_ns);
                }
                Note::Decided { blamed, .. } => self.books.decided(blamed),
                Note::Entered { .. } => self.entered += 1,
                Note::Over { ok, reason } => self.supervised.over = Some((ok, reason)),
                Note::Closed { .. } | Note::Told(_) => {}
            }
        }
        for line in self.steps.lines().iter().filter_map(|line| step_line(line)) {
            self.last = Some(line);
            self.last_sign = Instant::now();
            let through = match self.awaits {
                Some(Awaits::After(generation)) => line.generation > generation,
                Some(Awaits::NextStep) => true,
                Some(Awaits::NextOwner) | None => false,
            };
            if through {
                self.awaits = None;
                self.books.trains(now_ns());
                if let Some(kill) = self.books.kills.last().filter(|_| self.books.is_of_this_job()) {
                    self.say(&Books::line(kill));
                }
            }
        }
    }
}

impl<'a> Job<'a> {
    /// Starts a job in a new directory.
    pub(crate) fn start(
        dir: PathBuf,
        digits: DigitsJob,
        keeps: bool,
        bound: Duration,
        (census, books): (&'a mut Census, &'a mut Books),
    ) -> Result<Job<'a>, Failure> {
        std::fs::create_dir_all(&digits.out)?;
        std::fs::write(dir.join(supervised::ORDER), serde_json::to_vec(&digits)?)?;
        let (steps, notes) = (Tail::new(digits.metrics()), Tail::new(dir.join(notes::FILE)));
        let mut job = Job {
            supervised: SupervisedJob::new(dir.clone(), census, bound, GONE_WITHIN),
            dir,
            digits,
            books,
            steps,
            notes,
            last: None,
            awaits: Some(Awaits::After(0)),
            found: 0,
            entered: 0,
            last_sign: Instant::now(),
        };
        job.supervised.start_supervisor(keeps)?;
        Ok(job)
    }

    /// Returns the last step that was trained; 0 before the first.
    pub(crate) fn step(&self) -> u64 {
        self.last.map_or(0, |line| line.step)
    }

    /// Returns the ranks' processes of the newest generation, without zombies. A running rank of an older generation is
    /// counted as an overlap: two worlds at once would write the same files.
    pub(crate) fn ranks(&mut self) -> Vec<Process> {
        let processes = self.supervised.census.take();
        let newest = processes.iter().filter_map(|p| p.rank().map(|(_, generation)| generation)).max();
        let is_older =
            |p: &&Process| p.state != 'Z' && p.rank().is_some_and(|(_, generation)| Some(generation) < newest);
        self.books.findings.overlaps += processes.iter().filter(is_older).count();
        let of_newest = |p: &Process| p.state != 'Z' && p.rank().map(|(_, generation)| generation) == newest;
        let mut ranks: Vec<Process> = processes.into_iter().filter(of_newest).collect();
        ranks.sort_by_key(|p| p.rank().map(|(victim, _)| victim));
        ranks
    }

    /// Records a kill. If the job has not recovered from the previous one, that one's line is printed first.
    pub(crate) fn struck(&mut self, kill: Kill, awaits: Awaits) {
        if let Some(open) = self.books.open().filter(|_| self.awaits.is_some()) {
            self.say(&Books::line(open));
        }
        self.books.kills.push(kill);
        self.awaits = Some(awaits);
        self.last_sign = Instant::now();
    }

    pub(crate) fn say(&self, line: &str) {
        println!("  {:>4} kills  step {:>5}/{}  {line}", self.books.signals(), self.step(), self.digits.steps);
    }

    /// Waits until the job trains again after the last fault.
    pub(crate) async fn trains(&mut self) -> Result<(), Failure> {
        self.until("the job trained again", |job| job.awaits.is_none().then_some(())).await
    }

    /// Waits for the job's end, without a time limit as long as it makes progress.
    pub(crate) async fn finish(&mut self) -> Result<(), Failure> {
        self.last_sign = Instant::now();
        let (ok, reason) = loop {
            self.look();
            if let Some(over) = self.supervised.over.clone() {
                break over;
            }
            if self.last_sign.elapsed() > self.supervised.bound {
                return Err(Box::new(Stalled("the job ended".into())));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        };
        self.supervised.bury_supervisor().await?;
        if !ok {
            return Err(format!("the job ended with: {reason}; see {}", self.dir.display()).into());
        }
        Ok(())
    }

    /// Records all that may explain why the job hangs, then restarts it from its checkpoint.
    pub(crate) async fn start_over(&mut self, stalled: &Stalled, keeps: bool) -> Result<PathBuf, Failure> {
        self.books.stalls += 1;
        let dump = self.dir.join(format!("stall-{}.txt", self.books.stalls));
        std::fs::write(&dump, self.state(&stalled.to_string()))?;
        let generation = self.last.map_or(0, |line| line.generation);
        self.supervised.kill_all().await?;
        self.awaits = Some(Awaits::After(generation));
        self.supervised.start_supervisor(keeps)?;
        Ok(dump)
    }

    fn state(&mut self, headline: &str) -> String {
        let mut text = format!("{headline}\nlast step: {:?}\nawaited: {:?}\n", self.last, self.awaits);
        for process in self.supervised.census.take() {
            let read = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", process.pid));
            let wchan = read("wchan").unwrap_or_default();
            text += &format!("{process:?} waits in {wchan:?}\n");
        }
        let tail = |path: &Path, lines: usize| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let from = text.lines().count().saturating_sub(lines);
            text.lines().skip(from).collect::<Vec<_>>().join("\n")
        };
        for (file, lines) in [(notes::FILE, 60), (supervised::LOG, 60), ("run/guard.log", 30)] {
            text += &format!("\n--- {file}\n{}\n", tail(&self.dir.join(file), lines));
        }
        text
    }
}
