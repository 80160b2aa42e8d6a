//! The run as a whole: the reference, then job after job until all kills are done, then the final checks.
//!
//! It does not know how processes are killed.

use super::Options;
use super::account::{Account, Books, Pause};
use super::job::Job;
use super::plan::{self, Injection, Kind, is_to_keep};
use crate::outside::census::Census;
use crate::outside::job::{Stalled, Watched};
use crate::outside::leaks::Listing;
use rustix::process::Signal;
use std::path::Path;
use std::time::{Duration, Instant};
use taskd_examples::digits::{DigitsJob, Outcome};
use taskd_examples::program::Failure;
use taskd_pytorch::venv;

/// Milliseconds of pause in a step: the work of a larger model.
const PACE_MS: u64 = 20;
/// Steps between two checkpoints.
const CHECKPOINT_EVERY: u64 = 10;
/// Kills after which a job is left to train to its end.
const KILLS_PER_JOB: u32 = 25;
/// A job with less than this many milliseconds of training left is not hit any more.
const LEFT_ALONE_MS: u64 = 3000;
/// How long to look for blame after the supervisor was continued: longer than the bound of the silence detector.
const AFTER_PAUSE: Duration = Duration::from_secs(7);

/// Runs the soak.
pub(crate) async fn run(options: &Options) -> Result<Account, Failure> {
    let located = tokio::task::spawn_blocking(|| venv::locate(&mut |line| println!("python        {line}")));
    let python = located.await??;
    let before = Listing::take();
    let mut dir = tempfile::Builder::new().prefix("taskd-chaos-").tempdir()?;
    let mark = dir.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut soak = Soak {
        options,
        digits: DigitsJob {
            python,
            out: dir.path().to_owned(),
            steps: options.steps,
            checkpoint_every: CHECKPOINT_EVERY,
            pace_ms: PACE_MS,
            restarts_max: options.kills.saturating_mul(4).max(100),
        },
        bound: Duration::from_secs(options.bound_s),
        census: Census::new(mark.clone()),
        books: Books::default(),
    };
    let began = Instant::now();
    let done = soak.all_jobs(dir.path()).await;
    if done.is_err() || soak.books.stalls > 0 {
        dir.disable_cleanup(true);
        println!("everything is kept in {}; to run it again: {}", dir.path().display(), options.command());
    }
    soak.end_all().await;
    done?;
    drop(dir);
    let leaked = Listing::take().new_since(&before, &mark, soak.census.pids());
    let kept = |path: &String| soak.books.stalls > 0 && path.ends_with(&mark);
    soak.books.findings.leaked_files = leaked.into_iter().filter(|path| !kept(path)).collect();
    Ok(soak.books.account(options.seed, began.elapsed().as_secs_f64()))
}

impl Options {
    fn command(&self) -> String {
        let Options { kills, seed, steps, pause_s, bound_s, .. } = self;
        format!(
            "cargo run --release -p taskd-soak --example chaos_pytorch -- --kills {kills} --seed {seed} --steps {steps} \
             --pause-s {pause_s} --bound-s {bound_s}"
        )
    }
}

struct Soak<'a> {
    options: &'a Options,
    digits: DigitsJob,
    bound: Duration,
    census: Census,
    books: Books,
}

impl Soak<'_> {
    async fn all_jobs(&mut self, dir: &Path) -> Result<(), Failure> {
        println!("reference     {} steps, undisturbed", self.options.steps);
        let reference = self.reference(&dir.join("reference")).await?;
        println!("              loss {:.6}, state {:.16}", reference.loss, reference.sha256);
        println!("soak          {} kills, seed {}", self.options.kills, self.options.seed);
        let kinds: &[Kind] = if self.options.kinds.is_empty() { &Kind::ALL } else { &self.options.kinds };
        // More injections than are needed, since some may find no process to kill.
        let plan = plan::plan(kinds, 2 * self.options.kills as usize, self.options.seed);
        let mut next = 0;
        while self.books.findings.jobs == 0 || self.is_short_of_kills() && next < plan.len() {
            let dir = dir.join(format!("job-{}", self.books.findings.jobs + 1));
            self.job(&dir, &plan, &mut next, &reference).await?;
        }
        Ok(())
    }

    fn is_short_of_kills(&self) -> bool {
        self.books.signals() < self.options.kills
    }

    /// Runs the undisturbed job that all others are compared with.
    async fn reference(&mut self, dir: &Path) -> Result<Outcome, Failure> {
        let digits = DigitsJob { out: dir.join("out"), pace_ms: 0, ..self.digits.clone() };
        let all = (&mut self.census, &mut self.books);
        let mut job = Job::start(dir.to_owned(), digits, false, self.bound, all)?;
        job.finish().await?;
        job.supervised.leftovers().await;
        let outcome = job.digits.outcome()?;
        if outcome.ranks_equal { Ok(outcome) } else { Err("the ranks ended with different parameters".into()) }
    }

    /// Runs one job, which is hit until it is near its end or all kills are done.
    async fn job(
        &mut self,
        dir: &Path,
        plan: &[Injection],
        next: &mut usize,
        reference: &Outcome,
    ) -> Result<(), Failure> {
        let pause = Duration::from_secs(if self.books.findings.jobs == 0 { self.options.pause_s } else { 0 });
        let pace_ms = if pause.is_zero() { PACE_MS } else { pace_ms(self.digits.steps, pause) };
        let digits = DigitsJob { out: dir.join("out"), pace_ms, ..self.digits.clone() };
        let kills = self.options.kills;
        let all = (&mut self.census, &mut self.books);
        let mut job = Job::start(dir.to_owned(), digits, is_to_keep(&plan[*next..]), self.bound, all)?;
        if !pause.is_zero() {
            pause_supervisor(&mut job, pause).await?;
        }
        let kills = kills.min(job.books.signals() + KILLS_PER_JOB);
        while job.books.signals() < kills && job.step() + LEFT_ALONE_MS / pace_ms < job.digits.steps {
            let Some(injection) = plan.get(*next) else { break };
            *next += 1;
            if let Err(error) = job.inject(*injection, &plan[*next..]).await {
                recover(&mut job, error, is_to_keep(&plan[*next..])).await?;
            }
        }
        if let Err(error) = job.finish().await {
            recover(&mut job, error, false).await?;
            job.finish().await?;
        }
        for left in job.supervised.leftovers().await {
            println!("  leftover process: {left:?}");
            let findings = &mut job.books.findings;
            *(if left.state == 'Z' { &mut findings.zombies } else { &mut findings.orphans }) += 1;
        }
        let outcome = job.digits.outcome()?;
        let same_loss = outcome.loss.to_bits() == reference.loss.to_bits();
        let same_state = outcome.sha256 == reference.sha256 && outcome.ranks_equal;
        job.say(&format!("the job has ended; loss equal: {same_loss}, state equal: {same_state}"));
        job.books.job_ended(same_loss, same_state);
        Ok(())
    }

    /// Ends all processes that this run has started, whatever happened.
    async fn end_all(&mut self) {
        for process in self.census.take() {
            let _ = process.signal(Signal::KILL); // an error means that it has ended by itself
        }
    }
}

/// Returns a pace at which half of a job is enough for the supervisor's stop and the checks after it.
fn pace_ms(steps: u64, pause: Duration) -> u64 {
    let watched_ms = u64::try_from((pause + AFTER_PAUSE).as_millis()).unwrap_or(u64::MAX);
    PACE_MS.max(watched_ms.saturating_mul(2) / steps)
}

/// Restarts the job from its checkpoint after a stall; every other error ends the run.
async fn recover(job: &mut Job<'_>, error: Failure, keeps: bool) -> Result<(), Failure> {
    let stalled = error.downcast::<Stalled>()?;
    let dump = job.start_over(&stalled, keeps).await?;
    job.say(&format!("STALL: {stalled}; its state is in {}", dump.display()));
    job.trains().await
}

/// Stops the supervisor for a while and continues it: no process must be blamed, and none restarted.
async fn pause_supervisor(job: &mut Job<'_>, pause: Duration) -> Result<(), Failure> {
    job.trains().await?;
    let supervisor = job.supervised.supervisor()?;
    let (found, entered, step) = (job.found, job.entered, job.step());
    let began = Instant::now();
    supervisor.signal(Signal::STOP)?;
    job.pass(pause).await;
    let (seconds, steps_meanwhile) = (began.elapsed().as_secs_f64(), job.step().saturating_sub(step));
    supervisor.signal(Signal::CONT)?;
    job.pass(AFTER_PAUSE).await;
    let (blamed, restarts) = (job.found - found, job.entered - entered);
    job.say(&format!("the supervisor was stopped for {seconds:.0} s: blamed {blamed}, restarts {restarts}"));
    job.books.findings.pause = Some(Pause { seconds, blamed, restarts, steps_meanwhile });
    Ok(())
}
