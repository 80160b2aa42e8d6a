//! Real PyTorch DDP that survives the loss of a rank: the other ranks keep their processes and their state, and the job
//! continues from the same step.
//!
//! `cargo run --release --example pytorch_recover`. The first run makes a Python environment with torch in the user's
//! cache directory; `TASKD_PYTHON` names an interpreter to use instead. The script is
//! `examples/python/train_recover.py`.

use clap::{Parser, ValueEnum};
use std::process::ExitCode;
use taskd_core::launch::guard;
use taskd_examples::program::{self, Failure, number};
use taskd_examples::recover::{Account, Fault, Job, Run, Strategy, Strike, Victim};
use taskd_pytorch::{store, venv};

/// Milliseconds of pause in a step: the work of a larger model.
const PACE_MS: u64 = 20;
/// More steps than any job trains: a job is ordered to end.
const STEPS_MAX: u64 = 10_000_000;
/// Steps of a job that its fault ends and that is started again.
const STEPS_OF_ONE_THAT_ENDS: u64 = 210;

/// Hits ranks of a DDP training one after the other, and reports the phases of each recovery.
#[derive(Debug, Parser)]
struct Options {
    /// Strategy that recovers the job; if it fails, a more expensive one follows.
    #[arg(long, value_enum, default_value_t = Strategy::RecoverInPlace)]
    strategy: Strategy,
    /// The fault.
    #[arg(long, value_enum, default_value_t = Fault::Kill)]
    inject: Fault,
    /// The victim.
    #[arg(long, value_enum, default_value_t = Victim::Seed)]
    victim: Victim,
    /// Number of faults; 1 if the strategy ends the job.
    #[arg(long, allow_negative_numbers = true, default_value_t = 3, value_parser = number::<u32>(1, 10_000))]
    faults: u32,
    /// Seconds of training between two faults, added to one or two: a new standby needs about 8 to be ready.
    #[arg(long, allow_negative_numbers = true, default_value_t = 0, value_parser = number::<u64>(0, 3600))]
    settle_s: u64,
    /// Chooses the victims and the moments.
    #[arg(long, allow_negative_numbers = true, default_value_t = 7, value_parser = number::<u64>(0, u64::MAX))]
    seed: u64,
    /// Ranks.
    #[arg(long, allow_negative_numbers = true, default_value_t = 4, value_parser = number::<u32>(2, 64))]
    ranks: u32,
    /// Size of the training state, in MiB; all beyond 1 is ballast that no gradient changes.
    #[arg(long, allow_negative_numbers = true, default_value_t = 1, value_parser = number::<u32>(1, 4096))]
    state_mib: u32,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    guard::init(); // this program is also the guard, in which this call does not return
    store::init(); // nor does it return in the store
    let options: Options = program::options();
    program::run("pytorch_recover", Box::pin(run(&options)))
}

async fn run(options: &Options) -> Result<(), Failure> {
    let located = tokio::task::spawn_blocking(|| venv::locate(&mut |line| println!("python        {line}")));
    let python = located.await??;
    let mut dir = tempfile::Builder::new().prefix("taskd-recover-").tempdir()?;
    let job = Job {
        python,
        dir: dir.path().join("job"),
        ranks: options.ranks,
        steps: STEPS_MAX,
        state_mib: options.state_mib,
        pace_ms: PACE_MS,
        strategy: options.strategy,
        memory_every: None,
        children: None,
    };
    let what = options.inject.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let Options { ranks, state_mib, faults, seed, .. } = options;
    println!("supervised    {ranks} ranks, {state_mib} MiB of state, {faults} times {what}, seed {seed}");
    let mut faults = options.inject.plan(options.victim, *seed, *faults, *ranks);
    faults.iter_mut().for_each(|fault| fault.after_ms += options.settle_s * 1000);
    let done = if options.strategy.ends_job() {
        Box::pin(until_ended(options, &job, &faults[0])).await
    } else {
        Box::pin(to_the_end(options, &job, &faults)).await
    };
    if done.is_err() {
        dir.disable_cleanup(true);
        println!("everything is kept in {}", dir.path().display());
    }
    done
}

/// Runs the same training without faults.
async fn undisturbed(job: &Job, steps: u64) -> Result<Run, Failure> {
    println!("undisturbed   the same again, {steps} steps");
    Job { dir: job.dir.with_file_name("reference"), pace_ms: 0, steps, ..job.clone() }.run(&[]).await
}

/// Runs a job that continues after each fault.
async fn to_the_end(options: &Options, job: &Job, faults: &[Strike]) -> Result<(), Failure> {
    let run = job.run(faults).await?;
    let reported = Account::of(&undisturbed(job, run.steps).await?, run);
    program::print(&reported, options.json, || reported.table());
    reported.judge()
}

/// Runs a job that its fault ends, and starts it again if it has saved its state.
async fn until_ended(options: &Options, job: &Job, fault: &Strike) -> Result<(), Failure> {
    let job = Job { steps: STEPS_OF_ONE_THAT_ENDS, ..job.clone() };
    let mut ending = job.run_until_ended(fault).await?;
    if options.strategy.saves() {
        let run = job.run(&[]).await?;
        ending.again = Some(Account::of(&undisturbed(&job, run.steps).await?, run));
    }
    program::print(&ending, options.json, || ending.table());
    ending.judge()
}
