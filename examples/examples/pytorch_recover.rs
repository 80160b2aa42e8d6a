//! Real PyTorch DDP that survives the loss of a rank: the others keep their processes and their state, and the job goes on where
//! it was.
//!
//! `cargo run --release --example pytorch_recover`. The first run makes a Python environment with torch in the user's cache
//! directory; `TASKD_PYTHON` names an interpreter to use instead. The script is `examples/python/train_recover.py`.

use clap::{Parser, ValueEnum};
use std::process::ExitCode;
use taskd_core::launch::guard;
use taskd_examples::program::{self, Failure, number};
use taskd_examples::recover::{Fault, Job, Run, Strategy, Strike, Told, Victim};
use taskd_pytorch::{store, venv};

/// Milliseconds of pause in a step: the work of a larger model.
const PACE_MS: u64 = 20;

/// Ranks of a DDP training are hit one after the other; what each recovery took is told in parts.
#[derive(Debug, Parser)]
struct Options {
    /// How the job is to be mended; whatever is dearer comes after it.
    #[arg(long, value_enum, default_value_t = Strategy::RecoverInPlace)]
    strategy: Strategy,
    /// What is done to the victim.
    #[arg(long, value_enum, default_value_t = Fault::Kill)]
    inject: Fault,
    /// Who the victim is.
    #[arg(long, value_enum, default_value_t = Victim::Seed)]
    victim: Victim,
    /// How often; where the strategy ends the job, once.
    #[arg(long, allow_negative_numbers = true, default_value_t = 3, value_parser = number::<u32>(0, 10_000))]
    faults: u32,
    /// How many seconds the job trains between two of them, beside one or two: a standby needs some 8 to be ready where none is.
    #[arg(long, allow_negative_numbers = true, default_value_t = 0, value_parser = number::<u64>(0, 3600))]
    settle_s: u64,
    /// Chooses the victims and the moments.
    #[arg(long, allow_negative_numbers = true, default_value_t = 7, value_parser = number::<u64>(0, u64::MAX))]
    seed: u64,
    /// Ranks.
    #[arg(long, allow_negative_numbers = true, default_value_t = 4, value_parser = number::<u32>(2, 64))]
    ranks: u32,
    /// Size of the training state, in MiB.
    #[arg(long, allow_negative_numbers = true, default_value_t = 1, value_parser = number::<u32>(1, 4096))]
    state_mib: u32,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    guard::init(); // a guard is this same program, started again: it never comes back from here
    store::init(); // and so is the store
    let options: Options = program::options();
    program::run("pytorch_recover", Box::pin(run(&options)))
}

async fn run(options: &Options) -> Result<(), Failure> {
    let located = tokio::task::spawn_blocking(|| venv::PythonEnv::locate(&mut |line| println!("python        {line}")));
    let python = located.await??.python().to_owned();
    let mut dir = tempfile::Builder::new().prefix("taskd-recover-").tempdir()?;
    let between = if options.strategy == Strategy::Shrink { 300 } else { 60 }; // until who is lost comes back
    let settling = options.settle_s * 1000 / PACE_MS; // no step is shorter than its pause
    let steps = 150 + (between + settling) * u64::from(options.faults);
    let job = Job {
        python,
        dir: dir.path().join("reference"),
        ranks: options.ranks,
        steps,
        state_mib: options.state_mib,
        pace_ms: PACE_MS,
        strategy: options.strategy,
        memory_every: None,
    };
    println!("undisturbed   {} ranks, {steps} steps, {} MiB of state", options.ranks, options.state_mib);
    let reference = Job { pace_ms: 0, ..job.clone() }.run(&[]).await?;
    let name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| value().map(|v| v.get_name().to_owned());
    let what = name(&|| options.inject.to_possible_value()).unwrap_or_default();
    println!("supervised    the same again, {} times {what}, seed {}", options.faults, options.seed);
    let mut faults = options.inject.plan(options.victim, options.seed, options.faults, options.ranks);
    faults.iter_mut().for_each(|fault| fault.after_ms += options.settle_s * 1000);
    let job = Job { dir: dir.path().join("job"), ..job };
    let done = match faults.as_slice() {
        [fault, ..] if options.strategy.ends_job() => Box::pin(until_ended(options, &job, fault, &reference)).await,
        faults => Box::pin(to_the_end(options, &job, faults, &reference)).await,
    };
    if done.is_err() {
        dir.disable_cleanup(true);
        println!("everything is kept in {}", dir.path().display());
    }
    done
}

/// The job goes on after each fault.
async fn to_the_end(options: &Options, job: &Job, faults: &[Strike], reference: &Run) -> Result<(), Failure> {
    let told = Told::of(reference, job.run(faults).await?);
    program::print(&told, options.json, || told.table());
    told.judge()
}

/// The job ends by the fault, and is started again where it has saved its state.
async fn until_ended(options: &Options, job: &Job, fault: &Strike, reference: &Run) -> Result<(), Failure> {
    let mut ending = job.run_until_ended(fault).await?;
    if options.strategy.saves() {
        ending.again = Some(Told::of(reference, job.run(&[]).await?));
    }
    program::print(&ending, options.json, || ending.table());
    ending.judge()
}
