//! The quick start's story with real PyTorch: an unmodified DDP script, one rank killed, one frozen, nothing lost.
//!
//! `cargo run --release --example pytorch_ddp`. The first run makes a Python environment with torch in the user's cache
//! directory (about 7 GB, two minutes and more); `TASKD_PYTHON` names an interpreter to use instead. The script is
//! `examples/python/train_digits.py`, as one would write it for torchrun.

use clap::Parser;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::{ExitDetector, ProgramErrorDetector, RestartStormDetector, SilenceDetector, StallDetector};
use taskd_core::job::{BudgetSpec, JobSpec, Ready, WorkerSpec};
use taskd_core::launch::{LocalLauncher, guard};
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::Runtime;
use taskd_examples::account::{Account, Injections, Listener};
use taskd_examples::books::{self, StepLine};
use taskd_examples::faults::Target;
use taskd_pytorch::TorchLauncher;
use taskd_pytorch::venv::PythonEnv;

const RANKS: u32 = 4;
/// Importing torch can keep a rank's heartbeat thread waiting for a while on a busy machine.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// Four PyTorch ranks train under supervision; one is killed, one is frozen.
#[derive(Debug, Parser)]
struct Options {
    /// Chooses the victims and the moments.
    #[arg(long, allow_negative_numbers = true, default_value_t = 7)]
    seed: u64,
    /// Training steps.
    #[arg(long, allow_negative_numbers = true, default_value_t = 600, value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    steps: u64,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    guard::init(); // a guard is this same program, started again: it never comes back from here
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let done = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(run(&options)));
    match done {
        Ok(account) => {
            account.print(options.json);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("pytorch_ddp: {error}");
            ExitCode::FAILURE
        }
    }
}

type Failure = Box<dyn std::error::Error>;

/// What rank 0 of the script writes at the end.
#[derive(Debug, Deserialize)]
struct Outcome {
    steps: u64,
    loss: f64,
    sha256: String,
    ranks_equal: bool,
}

async fn run(options: &Options) -> Result<Account, Failure> {
    let located = tokio::task::spawn_blocking(|| PythonEnv::locate(&mut |line| println!("python        {line}")));
    let python = located.await??.python().to_owned();
    let dir = tempfile::Builder::new().prefix("taskd-pytorch-ddp-").tempdir()?;

    println!("undisturbed   {RANKS} ranks, {} steps", options.steps);
    let (_, reference) = supervised(options, &python, &dir.path().join("reference"), None).await?;
    println!("              loss {:.6}, state {:.16}", reference.loss, reference.sha256);

    println!(
        "supervised    the same again, seed {}; logs in {}",
        options.seed,
        dir.path().join("job/run/procs").display()
    );
    let (mut account, outcome) = supervised(options, &python, &dir.path().join("job"), Some(options.seed)).await?;
    if !outcome.ranks_equal {
        return Err("the ranks ended with different parameters".into());
    }
    account.loss_equal = Some(outcome.loss.to_bits() == reference.loss.to_bits());
    account.state_equal = Some(outcome.sha256 == reference.sha256);
    Ok(account)
}

/// Runs the job to its end; with a seed, faults are injected.
async fn supervised(
    options: &Options,
    python: &Path,
    dir: &Path,
    seed: Option<u64>,
) -> Result<(Account, Outcome), Failure> {
    let local = Arc::new(LocalLauncher::builder(dir.join("run")).job_name("pytorch-ddp").build().await?);
    let torch = Arc::new(TorchLauncher::new(Arc::clone(&local), dir.join("torch")));
    let out = dir.join("out");
    let runtime = Runtime::builder()
        .job(job(options, python, &out))
        .source(local.heartbeats(SILENT_AFTER / 10))
        .detector(ExitDetector::new())
        .detector(ProgramErrorDetector::new())
        .detector(SilenceDetector::after(SILENT_AFTER))
        .detector(StallDetector::after(Duration::from_secs(120)))
        .detector(RestartStormDetector::more_than(10, Duration::from_secs(600)))
        .strategy(Restart::new())
        .strategy(ExitStrategy::new())
        .launcher(Arc::clone(&torch))
        .journal(dir.join("journal"))
        .build()?;

    let tell = seed.is_some();
    let listener = Listener::start(&runtime.handle(), move |line| {
        if tell {
            println!("{line}");
        }
    });
    let injections = Injections::default();
    let books = out.clone();
    let target = Target { launcher: torch, read: move || read(&books), steps: options.steps, ranks: RANKS };
    let (told, steps) = (injections.clone(), options.steps);
    let injector = tokio::spawn(async move {
        match seed {
            Some(seed) => target.kill_one_freeze_one(seed, &told).await,
            None => target.reach(steps).await,
        }
    });
    let report = runtime.run().await;
    injector.abort();
    local.shutdown(Duration::ZERO).await?;

    let lines = read(&out);
    let mut rows = listener.rows(&report, &injections).await;
    for (row, lost) in rows.iter_mut().filter(|r| r.resumed_ms.is_some()).zip(books::steps_lost(&lines)) {
        row.steps_lost = Some(lost);
    }
    let mut account = Account::of(&report, rows);
    let text = std::fs::read_to_string(out.join("result.json"))
        .map_err(|e| format!("the job wrote no result ({e}); it ended with: {}", report.reason))?;
    let outcome: Outcome = serde_json::from_str(&text)?;
    account.steps = Some(outcome.steps);
    account.final_loss = Some(outcome.loss);
    account.goodput = books::goodput(&lines);
    Ok((account, outcome))
}

fn job(options: &Options, python: &Path, out: &Path) -> JobSpec {
    let script = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/python/train_digits.py"));
    let words = |p: &Path| p.to_string_lossy().into_owned();
    let steps = options.steps.to_string();
    let argv = [
        words(python),
        "-u".into(),
        words(&script),
        "--dir".into(),
        words(out),
        "--steps".into(),
        steps,
        "--pace-ms".into(),
        "10".into(),
    ];
    let mut spec = JobSpec::new("pytorch-ddp", RANKS, WorkerSpec::new(argv));
    spec.policy.ready = Ready::Stepping; // an incident stays open until the job trains again
    spec.policy.stop_grace = Duration::from_millis(500); // the script saves nothing when it is stopped
    spec.policy.start_within = Duration::from_secs(300);
    spec.policy.budget = BudgetSpec { recoveries_max: 10, ..BudgetSpec::default() };
    spec
}

/// One line of the script's `metrics.jsonl`.
#[derive(Debug, Deserialize)]
struct Metrics {
    generation: u64,
    step: u64,
    loss: f64,
    t: f64,
}

/// The script's books; a line that is being written is left out.
fn read(out: &Path) -> Vec<StepLine> {
    let text = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Metrics>(line).ok());
    let line = |m: Metrics| StepLine { generation: m.generation, step: m.step, loss: m.loss, at_ms: m.t * 1e3 };
    lines.map(line).collect()
}
