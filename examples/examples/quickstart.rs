//! The first run: four ranks train, one is killed, another is frozen, and the job ends as if nothing had happened.
//!
//! `cargo run --example quickstart` needs only cargo. It trains a small network on real images of handwritten digits,
//! twice: undisturbed, and under supervision while faults are injected from outside. Both end with the same state, to
//! the bit. `--seed N` chooses other victims and other moments, `--json` prints the account as JSON.

use clap::Parser;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::{ExitDetector, SilenceDetector, StallDetector};
use taskd_core::job::{BudgetSpec, Ready};
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::{JobSpec, Lifeline, LocalLauncher, Runtime, WorkerSpec, guard};
use taskd_examples::account::{Account, Injections, Listener};
use taskd_examples::books::{self, StepLine};
use taskd_examples::faults::Target;
use taskd_examples::program::{self, Failure, number};
use taskd_examples::trainer::{self, MetricsLine, Place, TrainerConfig, TrainerOutcome, TrainerSettings};

const RANKS: u32 = 4;
/// A rank without a heartbeat for this long is suspected.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// The interval at which the ranks' steps are read. A recovery ends with the first step that is read after it.
const PROGRESS_EVERY: Duration = Duration::from_millis(10);

/// Four ranks train under supervision; one is killed, one is frozen.
#[derive(Debug, Parser)]
struct Options {
    /// Chooses the victims and the moments.
    #[arg(long, allow_negative_numbers = true, default_value_t = 7, value_parser = number::<u64>(0, u64::MAX))]
    seed: u64,
    /// Training steps.
    #[arg(long, allow_negative_numbers = true, default_value_t = 1600, value_parser = number::<u64>(100, 1_000_000))]
    steps: u64,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

/// The subcommand with which this program starts itself as one rank.
#[derive(Debug, Parser)]
struct RankOptions {
    #[command(flatten)]
    settings: TrainerSettings,
}

fn main() -> ExitCode {
    guard::init(); // this program is also the guard, in which this call does not return
    if std::env::args_os().nth(1).is_some_and(|a| a == "rank") {
        return rank();
    }
    let options: Options = program::options();
    program::run("quickstart", async {
        Box::pin(run(&options)).await?.print(options.json);
        Ok(())
    })
}

/// One rank: the training program, and the two lines that give it a lifeline.
fn rank() -> ExitCode {
    let options: RankOptions = program::options_from(std::env::args_os().skip(1));
    let lifeline = Lifeline::take_from_env();
    trainer::run_as_process(options.settings, |step| {
        if let Some(lifeline) = &lifeline {
            lifeline.step(step);
        }
    })
}

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
    let this = std::env::current_exe()?.to_string_lossy().into_owned();
    let args = settings.to_args().into_iter().map(|a| a.to_string_lossy().into_owned());
    let worker = WorkerSpec::new([this, "rank".to_owned()].into_iter().chain(args));
    let mut spec = JobSpec::new("quickstart", RANKS, worker);
    spec.policy.ready = Ready::Stepping; // an incident stays open until the job trains again
    spec.policy.termination_grace_period = Duration::from_millis(500); // these ranks have nothing to save when they are stopped
    spec.policy.start_timeout = Duration::from_secs(60);
    spec.policy.budget = BudgetSpec { recoveries_max: 5, ..BudgetSpec::default() };

    let launcher = Arc::new(LocalLauncher::builder(dir.path().join("run")).job_name("quickstart").build().await?);
    let runtime = Runtime::builder()
        .job(spec)
        .source(launcher.heartbeats(PROGRESS_EVERY))
        .detector(ExitDetector::new())
        .detector(SilenceDetector::after(SILENT_AFTER))
        .detector(StallDetector::after(Duration::from_secs(30)))
        .strategy(Restart::new())
        .strategy(ExitStrategy::new())
        .launcher(Arc::clone(&launcher))
        .build()?;

    println!(
        "supervised    {RANKS} ranks, seed {}; logs, while it runs, in {}",
        options.seed,
        dir.path().join("run/procs").display()
    );
    let listener = Listener::start(&runtime.handle(), |line| println!("{line}"));
    let injections = Injections::default();
    let books = settings.clone();
    let target =
        Target { launcher: Arc::clone(&launcher), read: move || read(&books), steps: options.steps, ranks: RANKS };
    let (injected, seed) = (injections.clone(), options.seed);
    let injector = tokio::spawn(async move { target.kill_one_freeze_one(seed, &injected).await });
    let report = runtime.run_with_signals(program::LEAVE).await?;
    injector.abort();
    launcher.shutdown(Duration::ZERO).await?;
    program::completed(&report)?;

    let outcome = TrainerOutcome::read(&settings.result_path())?;
    let lines = read(&settings);
    let mut rows = listener.rows(&report, &injections).await;
    for (row, lost) in rows.iter_mut().filter(|r| r.resumed_ms.is_some()).zip(books::steps_lost(&lines)) {
        row.steps_lost = Some(lost);
    }
    let mut account = Account::of(&report, rows);
    account.steps = Some(outcome.step);
    account.final_loss = Some(outcome.loss);
    account.loss_equal = Some(outcome.loss.to_bits() == reference.loss.to_bits());
    account.state_equal = Some(outcome.state_sha256 == reference.state_sha256);
    account.goodput = books::goodput(&lines);
    Ok(account)
}

/// Runs the same job on the same data, undisturbed, as threads of this process.
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

/// Returns the training program's metrics.
fn read(settings: &TrainerSettings) -> Vec<StepLine> {
    let lines = trainer::read_metrics(&settings.metrics_path()).unwrap_or_default();
    let line = |m: &MetricsLine| StepLine {
        generation: m.generation,
        step: m.step,
        loss: f64::from(m.loss),
        at_ms: m.t_ms as f64,
    };
    lines.iter().map(line).collect()
}
