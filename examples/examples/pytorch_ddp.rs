//! The quick start's story with real PyTorch: an unmodified DDP script, one rank killed, one frozen, nothing lost.
//!
//! `cargo run --release --example pytorch_ddp`. The first run makes a Python environment with torch in the user's cache
//! directory (about 7 GB, two minutes or more); `TASKD_PYTHON` names an interpreter to use instead. The script is
//! `examples/python/train_digits.py`, an ordinary script for torchrun.

use clap::Parser;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use taskd_core::launch::{OnOwnerLoss, guard};
use taskd_examples::account::{Account, Injections, Listener};
use taskd_examples::books;
use taskd_examples::digits::{DigitsJob, Outcome, RANKS, Supervised};
use taskd_examples::faults::Target;
use taskd_examples::program::{self, Failure, number};
use taskd_pytorch::venv;

/// Four PyTorch ranks train under supervision; one is killed, one is frozen.
#[derive(Debug, Parser)]
struct Options {
    /// Chooses the victims and the moments.
    #[arg(long, allow_negative_numbers = true, default_value_t = 7, value_parser = number::<u64>(0, u64::MAX))]
    seed: u64,
    /// Training steps.
    #[arg(long, allow_negative_numbers = true, default_value_t = 600, value_parser = number::<u64>(100, 1_000_000))]
    steps: u64,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    guard::init(); // this program is also the guard, in which this call does not return
    let options: Options = program::options();
    program::run("pytorch_ddp", async {
        Box::pin(run(&options)).await?.print(options.json);
        Ok(())
    })
}

async fn run(options: &Options) -> Result<Account, Failure> {
    let located = tokio::task::spawn_blocking(|| venv::locate(&mut |line| println!("python        {line}")));
    let python = located.await??;
    let dir = tempfile::Builder::new().prefix("taskd-pytorch-ddp-").tempdir()?;

    println!("undisturbed   {RANKS} ranks, {} steps", options.steps);
    let (_, reference) = supervised(options, &python, &dir.path().join("reference"), None).await?;
    println!("              loss {:.6}, state {:.16}", reference.loss, reference.sha256);

    println!(
        "supervised    the same again, seed {}; logs, while it runs, in {}",
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
    let job = DigitsJob {
        python: python.to_owned(),
        out: dir.join("out"),
        steps: options.steps,
        checkpoint_every: 50,
        pace_ms: 10,
        restarts_max: 10,
    };
    let Supervised { local, torch, runtime } = job.supervise(dir, OnOwnerLoss::default()).await?;
    let announces = seed.is_some();
    let listener = Listener::start(&runtime.handle(), move |line| {
        if announces {
            println!("{line}");
        }
    });
    let injections = Injections::default();
    let books = job.clone();
    let target = Target { launcher: torch, read: move || books.books(), steps: options.steps, ranks: RANKS };
    let (injected, steps) = (injections.clone(), options.steps);
    let injector = tokio::spawn(async move {
        match seed {
            Some(seed) => target.kill_one_freeze_one(seed, &injected).await,
            None => target.reach(steps).await,
        }
    });
    let report = runtime.run_with_signals(program::LEAVE).await?;
    injector.abort();
    local.shutdown(Duration::ZERO).await?;
    program::completed(&report)?;

    let lines = job.books();
    let mut rows = listener.rows(&report, &injections).await;
    for (row, lost) in rows.iter_mut().filter(|r| r.resumed_ms.is_some()).zip(books::steps_lost(&lines)) {
        row.steps_lost = Some(lost);
    }
    let mut account = Account::of(&report, rows);
    let outcome = job.outcome().map_err(|why| format!("{why}; it ended with: {}", report.reason))?;
    account.steps = Some(outcome.steps);
    account.final_loss = Some(outcome.loss);
    account.goodput = books::goodput(&lines);
    Ok((account, outcome))
}
