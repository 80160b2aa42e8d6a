//! Which rank is it, what is wrong with it, and since when? Something goes wrong in one rank of a real DDP training, and the
//! detectors say.
//!
//! `cargo run --release --example find_culprit -- --inject slow50`. What was done is compared with what is said; victim and
//! moment come from the seed. Slow and frozen ranks are made so from outside; to leave a collective out, or to call another
//! one, only the program itself can do, when it finds a file. The Python environment is that of `pytorch_ddp`.

use clap::Parser;
use std::process::ExitCode;
use taskd_core::launch::guard;
use taskd_examples::culprit::account::{Account, Verdict};
use taskd_examples::culprit::inject::Injection;
use taskd_examples::culprit::trial::Trial;
use taskd_examples::program::{self, Failure, number};
use taskd_pytorch::venv::PythonEnv;

/// One rank of a real training goes wrong, and the detectors say which, why and since when.
#[derive(Debug, Parser)]
struct Options {
    /// What goes wrong.
    #[arg(long, value_enum, default_value = "slow50")]
    inject: Injection,
    /// Chooses victims and moments.
    #[arg(long, allow_negative_numbers = true, default_value_t = 7, value_parser = number::<u64>(0, u64::MAX - 1000))]
    seed: u64,
    /// How many trainings, one after another, each with the next seed.
    #[arg(long, allow_negative_numbers = true, default_value_t = 1, value_parser = number::<u64>(1, 1000))]
    runs: u64,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    guard::init(); // a guard is this same program, started again: it never comes back from here
    let options: Options = program::options();
    program::run("find_culprit", async {
        run(&options).await?.print(options.json);
        Ok(())
    })
}

async fn run(options: &Options) -> Result<Account, Failure> {
    let located = tokio::task::spawn_blocking(|| PythonEnv::locate(&mut |line| println!("python        {line}")));
    let python = located.await??.python().to_owned();
    let mut verdicts = Vec::new();
    for seed in options.seed..options.seed + options.runs {
        let trial = Trial { python: python.clone(), injection: options.inject, seed };
        let verdict = Verdict::of(options.inject, &trial.run().await?);
        println!("seed {seed}: {:?}, said {} of {:?}", verdict.victim, verdict.cause, verdict.blamed);
        verdicts.push(verdict);
    }
    Ok(Account::of(verdicts))
}
