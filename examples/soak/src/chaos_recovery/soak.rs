//! The run as a whole: a job for each strategy, hit until its share of the faults is injected; then the undisturbed
//! run, and the comparison.

use super::Options;
use super::account::{Account, JobAccount};
use super::children;
use super::fire::Fire;
use super::kind::Kind;
use crate::outside::census::Census;
use crate::outside::decks::{decks, within_ms};
use crate::outside::job::{Stalled, Watched};
use crate::outside::leaks::Listing;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use taskd_core::journal;
use taskd_examples::program::Failure;
use taskd_examples::recover::{Compared, Job, Outcome, Strategy, read_lines};
use taskd_pytorch::venv;

/// The strategies of a run's jobs by default.
const STRATEGIES: [Strategy; 6] =
    [Strategy::Retry, Strategy::RecoverInPlace, Strategy::Recover, Strategy::Shrink, Strategy::Dump, Strategy::Restart];
/// Milliseconds of pause in a step: the work of a larger model.
const PACE_MS: u64 = 20;
/// Minimum and maximum time of training between two faults, in milliseconds.
const BETWEEN_MS: (u64, u64) = (100, 900);
/// More steps than any job trains: a job is ordered to end.
const STEPS_MAX: u64 = 10_000_000;
/// Planned injections for each requested fault, since some find no process to hit.
const PLANNED_PER_FAULT: usize = 2;

/// Runs the soak.
pub(crate) async fn run(options: &Options) -> Result<Account, Failure> {
    let located = tokio::task::spawn_blocking(|| venv::locate(&mut |line| println!("python        {line}")));
    let python = located.await??;
    let before = Listing::take();
    let mut dir = tempfile::Builder::new().prefix("taskd-chaos-recovery-").tempdir()?;
    let mark = dir.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut census = Census::new(mark.clone());
    let began = Instant::now();
    let job = Job {
        python,
        dir: dir.path().to_owned(),
        ranks: options.ranks,
        steps: STEPS_MAX,
        state_mib: 1,
        pace_ms: PACE_MS,
        strategy: Strategy::Auto,
        memory_every: options.memory_every,
        children: options.children.then(std::process::id),
    };
    let done = Box::pin(all_jobs(options, &job, &mut census)).await;
    for process in census.take() {
        let _ = process.signal(Signal::KILL); // in every case: no process is left running
    }
    job.children.into_iter().for_each(|number| children::kill(&children::living(number)));
    let keep = done.as_ref().map_or(true, |account| account.wants_a_look());
    if keep {
        dir.disable_cleanup(true);
        println!("everything is kept in {}; seed {}", dir.path().display(), options.seed);
    }
    let mut account = done?;
    drop(dir);
    let leaked = Listing::take().new_since(&before, &mark, census.pids());
    let leaked = leaked.into_iter().filter(|path| !(keep && path.ends_with(&mark)));
    (account.shm_left, account.leaked_files) = leaked.partition(|path| path.starts_with("/dev/shm"));
    account.seconds = began.elapsed().as_secs_f64();
    Ok(account)
}

async fn all_jobs(options: &Options, job: &Job, census: &mut Census) -> Result<Account, Failure> {
    let strategies = options.strategy.map_or(STRATEGIES.to_vec(), |only| vec![only]);
    let mut jobs = Vec::new();
    let count = u32::try_from(strategies.len()).unwrap_or(1);
    for (index, strategy) in (0..).zip(&strategies) {
        let share = options.faults / count + u32::from(index < options.faults % count);
        let dir = job.dir.join(format!("{strategy:?}").to_lowercase());
        let job = Job { dir, strategy: *strategy, ..job.clone() };
        println!("{strategy:?}: {share} faults, {} ranks, seed {}", job.ranks, options.seed);
        jobs.push(under_fire(options, job, share, census).await?);
    }
    jobs.iter_mut().filter(|account| !account.strategy.keeps_world()).for_each(compare_ends);
    let (mut resuming, mut others): (Vec<_>, Vec<_>) = jobs
        .iter_mut()
        .filter(|account| account.strategy.keeps_world())
        .partition(|account| Job { strategy: account.strategy, ..job.clone() }.resumes());
    compare_all(job, "reference", &mut others).await?;
    compare_all(job, "reference-resuming", &mut resuming).await?;
    Ok(Account::of(options.seed, jobs))
}

/// Compares jobs that train the same with an undisturbed one.
async fn compare_all(job: &Job, name: &str, accounts: &mut [&mut JobAccount]) -> Result<(), Failure> {
    let Some(strategy) = accounts.first().map(|account| account.strategy) else { return Ok(()) };
    let steps = accounts.iter().map(|account| account.steps).max().unwrap_or(0) + 1;
    println!("undisturbed   {steps} steps");
    let reference = Job { dir: job.dir.join(name), strategy, steps, pace_ms: 0, children: None, ..job.clone() };
    let reference = Box::pin(reference.run(&[])).await?;
    accounts.iter_mut().for_each(|account| compare(account, &reference.lines));
    Ok(())
}

/// Runs one job, which is hit until its share of the faults is injected.
async fn under_fire(options: &Options, job: Job, share: u32, census: &mut Census) -> Result<JobAccount, Failure> {
    let mut account = JobAccount::of(job.strategy, job.dir.clone(), share);
    let kinds = if options.kinds.is_empty() { Kind::deck(job.strategy) } else { options.kinds.clone() };
    let mut fire = Fire::start(job, Duration::from_secs(options.bound_s), census, &mut account)?;
    let plan = decks(&kinds, PLANNED_PER_FAULT * share as usize + 10, options.seed);
    let mut done = trains(&mut fire).await;
    for (kind, seed) in plan {
        if done.is_err() || fire.account.faults >= share {
            break;
        }
        done = one(&mut fire, kind, seed).await;
    }
    let done = match done {
        Ok(()) => finish(&mut fire).await,
        Err(error) => Err(error),
    };
    if let Err(error) = done {
        fire.say(&format!("FAILED: {error}"));
        fire.account.failed = Some(error.to_string());
        fire.supervised.kill_all().await?;
    }
    for left in fire.supervised.leftovers().await {
        fire.say(&format!("leftover process: {left:?}"));
        *(if left.state == 'Z' { &mut fire.account.zombies } else { &mut fire.account.orphans }) += 1;
    }
    fire.account_for_children(None).await;
    fire.account.steps = fire.progress.most;
    fire.account.grown = fire.growth.grown();
    account.abandoned_groups_max = abandoned(&account.dir)?;
    Ok(account)
}

/// Injects one fault and waits for the recovery. A stall is counted, and the job restarted.
async fn one(fire: &mut Fire<'_>, kind: Kind, seed: u64) -> Result<(), Failure> {
    let mut dice = StdRng::seed_from_u64(seed);
    fire.pass(within_ms(&mut dice, BETWEEN_MS.0, BETWEEN_MS.1)).await;
    let done = match fire.inject(kind, &mut dice).await {
        Ok(Some(at)) => fire.goes_on(kind, at).await.map(Some),
        Ok(None) => Ok(None),
        Err(error) => Err(error),
    };
    *fire.account.kinds.entry(kind).or_default() += 1;
    match done {
        Ok(Some(ms)) => {
            fire.account.ms.push(ms);
            fire.say(&format!("{kind:?}: trained again after {ms:.0} ms; {}", fire.growth.newest()));
            fire.account_for_children(Some(kind)).await;
            Ok(())
        }
        Ok(None) => {
            fire.say(&format!("{kind:?}: no process was hit"));
            Ok(())
        }
        Err(error) => {
            let stalled = error.downcast::<Stalled>()?;
            fire.say(&format!("{kind:?} was the last fault"));
            fire.start_over(&stalled).await?;
            trains(fire).await
        }
    }
}

async fn trains(fire: &mut Fire<'_>) -> Result<(), Failure> {
    let (at, ranks) = (taskd_examples::recover::now(), (0..fire.job.ranks).collect());
    fire.until("the job trained", |fire| (fire.progress.since(at, &ranks) > 0).then_some(())).await
}

/// Lets the job run to its end, and checks the result of every rank.
async fn finish(fire: &mut Fire<'_>) -> Result<(), Failure> {
    let steps = match fire.finish().await {
        Ok(steps) => steps,
        Err(error) => {
            let stalled = error.downcast::<Stalled>()?;
            fire.start_over(&stalled).await?;
            fire.finish().await?
        }
    };
    fire.account.ended_at = Some(steps);
    Ok(())
}

/// More ranks than any job has here.
const RANKS_MAX: u32 = 64;

/// Checks whether the ranks of a job whose world was smaller for a while have ended with the same parameters.
fn compare_ends(account: &mut JobAccount) {
    let outcomes: Vec<Outcome> = (0..RANKS_MAX).filter_map(|rank| outcome(&account.dir, rank)).collect();
    account.replicas_equal = !outcomes.is_empty() && outcomes.iter().all(|one| one.weights == outcomes[0].weights);
}

/// Returns the result of a rank.
fn outcome(dir: &Path, rank: u32) -> Option<Outcome> {
    serde_json::from_slice(&fs::read(dir.join(format!("result.{rank}.json"))).ok()?).ok()
}

/// Compares a job's steps, and the results of its ranks, with the undisturbed run's.
fn compare(
    account: &mut JobAccount,
    reference: &std::collections::BTreeMap<u32, Vec<taskd_examples::recover::StepLine>>,
) {
    let compared = Compared::of(reference, &read_lines(&account.dir));
    account.state_equal = compared.state_equal;
    account.loss_bit_equal = compared.loss_bit_equal;
    account.steps_compared = compared.steps;
    account.differences = compared.differences;
    for (rank, lines) in reference {
        let right = account.ended_at.and_then(|end| lines.iter().find(|line| line.step + 1 == end));
        let Some(right) = right else { continue };
        if outcome(&account.dir, *rank).map(|outcome| outcome.sha256) != right.sha256 {
            account.state_equal = false;
            account.differences.push(format!("rank {rank} did not end with the state of step {}", right.step));
        }
    }
}

/// Returns the maximum number of abandoned groups of older generations that a rank reported, from the journal.
fn abandoned(dir: &Path) -> Result<u64, Failure> {
    let mut text = Vec::new();
    journal::dump(&dir.join("journal"), &mut text)?;
    let text = String::from_utf8_lossy(&text);
    let counts =
        text.split(", abandoned ").skip(1).filter_map(|rest| rest.split(['.', ',', '\n']).next()?.parse().ok());
    Ok(counts.max().unwrap_or(0))
}
