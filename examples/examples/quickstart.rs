//! The first run: four ranks train, one is killed, another is frozen, and the job ends as if nothing had happened.
//!
//! `cargo run --release --example quickstart` needs nothing but cargo. It trains a small network on real images of
//! handwritten digits, twice: undisturbed, and under supervision while faults are injected from outside. Both end with
//! the same state, to the bit. `--seed N` chooses other victims and other moments, `--json` prints the account as JSON.

use clap::Parser;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use taskd_core::detect::{ExitDetector, SilenceDetector, StallDetector};
use taskd_core::job::{BudgetSpec, JobSpec, Rank, Ready, Role, WorkerSpec};
use taskd_core::launch::{Launcher, LocalLauncher, Phase, guard};
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::Runtime;
use taskd_core::worker::Lifeline;
use taskd_examples::account::{Account, Injections, Listener};
use taskd_examples::trainer::{self, MetricsLine, Place, TrainerConfig, TrainerOutcome, TrainerSettings};

const RANKS: u32 = 4;
/// A rank without a heartbeat for so long is looked at.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// Four ranks train under supervision; one is killed, one is frozen.
#[derive(Debug, Parser)]
struct Options {
    /// Chooses the victims and the moments.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Training steps.
    #[arg(long, default_value_t = 1600, value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    steps: u64,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

/// How this program starts itself again as one rank.
#[derive(Debug, Parser)]
struct RankOptions {
    #[command(flatten)]
    settings: TrainerSettings,
}

fn main() -> ExitCode {
    guard::init(); // a guard is this same program, started again: it never comes back from here
    if std::env::args_os().nth(1).is_some_and(|a| a == "rank") {
        return rank();
    }
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let done = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(run(&options)));
    match done {
        Ok(account) => {
            account.print(options.json);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("quickstart: {error}");
            ExitCode::FAILURE
        }
    }
}

/// One rank: the training program, and the two lines that give it a lifeline.
fn rank() -> ExitCode {
    let options = RankOptions::parse_from(std::env::args_os().skip(1));
    let lifeline = Lifeline::take_from_env();
    trainer::run_as_process(options.settings, |step| {
        if let Some(lifeline) = &lifeline {
            lifeline.step(step);
        }
    })
}

type Failure = Box<dyn std::error::Error>;

async fn run(options: &Options) -> Result<Account, Failure> {
    let dir = tempfile::Builder::new().prefix("taskd-quickstart-").tempdir()?;
    let reference = undisturbed(options, &dir.path().join("reference")).await?;
    println!(
        "undisturbed   {} steps, loss {:.6}, state {}",
        reference.step,
        reference.loss,
        &reference.state_sha256[..16]
    );

    let settings = TrainerSettings { steps: options.steps, ..TrainerSettings::in_dir(&dir.path().join("job")) };
    let program = std::env::current_exe()?.to_string_lossy().into_owned();
    let args = settings.to_args().into_iter().map(|a| a.to_string_lossy().into_owned());
    let worker = WorkerSpec::new([program, "rank".to_owned()].into_iter().chain(args));
    let mut spec = JobSpec::new("quickstart", RANKS, worker);
    spec.policy.ready = Ready::Stepping; // an incident stays open until the job trains again
    spec.policy.stop_grace = Duration::from_millis(500); // these ranks have nothing to save when they are stopped
    spec.policy.start_within = Duration::from_secs(60);
    spec.policy.budget = BudgetSpec { recoveries_max: 5, ..BudgetSpec::default() };

    let launcher = Arc::new(LocalLauncher::builder(dir.path().join("run")).job_name("quickstart").build().await?);
    let runtime = Runtime::builder()
        .job(spec)
        .source(launcher.heartbeats(SILENT_AFTER / 4))
        .detector(ExitDetector::new())
        .detector(SilenceDetector::after(SILENT_AFTER))
        .detector(StallDetector::after(Duration::from_secs(30)))
        .strategy(Restart::new())
        .strategy(ExitStrategy::new())
        .launcher(Arc::clone(&launcher))
        .build()?;

    println!("supervised    {RANKS} ranks, seed {}; logs in {}", options.seed, dir.path().join("run/procs").display());
    let listener = Listener::start(&runtime.handle(), |line| println!("{line}"));
    let injections = Injections::default();
    let injector = tokio::spawn(inject(Arc::clone(&launcher), settings.clone(), options.seed, injections.clone()));
    let began = Instant::now();
    let report = runtime.run().await;
    let took = began.elapsed();
    injector.abort();
    launcher.shutdown(Duration::ZERO).await?;

    let outcome = TrainerOutcome::read(&settings.result_path())?;
    let metrics = trainer::read_metrics(&settings.metrics_path())?;
    let mut rows = listener.rows(&report, &injections).await;
    for (row, lost) in rows.iter_mut().filter(|r| r.resumed_ms.is_some()).zip(steps_lost(&metrics)) {
        row.steps_lost = Some(lost);
    }
    let mut account = Account::of(&report, rows);
    account.steps = Some(outcome.step);
    account.final_loss = Some(outcome.loss);
    account.loss_equal = Some(outcome.loss.to_bits() == reference.loss.to_bits());
    account.state_equal = Some(outcome.state_sha256 == reference.state_sha256);
    account.goodput = Some(goodput(&metrics, outcome.step, took));
    Ok(account)
}

/// The same job with the same data, as threads of this process, with nothing in its way.
async fn undisturbed(options: &Options, dir: &Path) -> Result<TrainerOutcome, Failure> {
    let settings = TrainerSettings { steps: options.steps, step_time_us: 0, ..TrainerSettings::in_dir(dir) };
    let ranks = (0..RANKS).map(|rank| {
        let place = Place { job: "reference".into(), generation: 1, rank, world_size: RANKS };
        let config = TrainerConfig { place, settings: settings.clone() };
        tokio::task::spawn_blocking(move || trainer::run(&config, |_| ()))
    });
    let mut first = None;
    for rank in ranks.collect::<Vec<_>>() {
        let outcome = rank.await??;
        first = first.or(Some(outcome));
    }
    first.ok_or_else(|| "no rank ran".into())
}

/// Kills one rank at about a third of the way and freezes another at about two thirds, while reporting progress.
async fn inject(launcher: Arc<LocalLauncher>, settings: TrainerSettings, seed: u64, injections: Injections) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut moment = |from: u64, to: u64| settings.steps * rng.random_range(from..to) / 100;
    let plan = [("SIGKILL", Signal::KILL, moment(25, 40)), ("SIGSTOP", Signal::STOP, moment(60, 75))];
    let first = rng.random_range(0..RANKS);
    let victims = [first, (first + rng.random_range(1..RANKS)) % RANKS];
    for ((name, signal, step), victim) in plan.into_iter().zip(victims) {
        reach(&settings, step).await;
        let Some(pid) = pid_of(&launcher, victim).await else { continue };
        println!("          >>> from outside: {name} to rank {victim} (pid {pid}) at step {step}");
        let at = Instant::now();
        if Pid::from_raw(pid).is_some_and(|pid| kill_process(pid, signal).is_ok()) {
            injections.push(name, &[victim], at);
        }
    }
    reach(&settings, settings.steps).await;
}

/// Waits until training has reached a step, and says where it is once a second.
async fn reach(settings: &TrainerSettings, step: u64) {
    let mut told = Instant::now();
    loop {
        let line: Option<MetricsLine> = trainer::read_metrics(&settings.metrics_path()).ok().and_then(|mut m| m.pop());
        if let Some(line) = line {
            if told.elapsed() > Duration::from_secs(1) {
                told = Instant::now();
                println!("          step {:>5}/{}  loss {:.4}", line.step, settings.steps, line.loss);
            }
            if line.step >= step {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn pid_of(launcher: &LocalLauncher, rank: u32) -> Option<i32> {
    let listing = launcher.list().await.ok()?;
    let runs = |p: &&taskd_core::launch::ProcStatus| p.proc.role == Role::Rank(Rank(rank)) && p.phase == Phase::Running;
    listing.procs.iter().find(runs)?.pid?.try_into().ok()
}

/// For each restart: how many steps were done again.
fn steps_lost(metrics: &[MetricsLine]) -> Vec<u64> {
    let restarts = metrics.windows(2).filter(|w| w[0].generation != w[1].generation);
    restarts.map(|w| (w[0].step + 1).saturating_sub(w[1].step)).collect()
}

/// The share of the run that went into steps which were kept, at the pace of the median step.
fn goodput(metrics: &[MetricsLine], steps: u64, took: Duration) -> f64 {
    let mut paces: Vec<u64> = metrics.windows(2).filter_map(|w| w[1].t_ms.checked_sub(w[0].t_ms)).collect();
    paces.sort_unstable();
    let median_ms = paces.get(paces.len() / 2).copied().unwrap_or_default() as f64;
    (steps as f64 * median_ms / 1e3 / took.as_secs_f64()).min(1.0)
}
