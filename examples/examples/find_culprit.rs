//! Which rank is to blame, for what, and since when? A fault is injected into one rank of a real DDP training, and the
//! detectors report it.
//!
//! `cargo run --release --example find_culprit -- --inject slow50`. The injected fault is compared with the report;
//! victim and moment come from the seed. A rank is slowed or stopped from outside. A skipped or mismatched collective,
//! numerical faults (a NaN, a wrong loss, one flipped bit of a parameter), and the slow storage and devices, which are
//! simulated, are the program's own, on finding a file. The Python environment is that of `pytorch_ddp`.

use clap::Parser;
use std::process::ExitCode;
use taskd_core::launch::guard;
use taskd_examples::culprit::account::{Account, Verdict};
use taskd_examples::culprit::inject::Injection;
use taskd_examples::culprit::trial::{SlowDetector, Trial};
use taskd_examples::program::{self, Failure, number};
use taskd_pytorch::venv;

/// Injects a fault into one rank of a real training; the detectors report rank, cause and onset.
#[derive(Debug, Parser)]
struct Options {
    /// The fault.
    #[arg(long, value_enum, default_value = "slow50")]
    inject: Injection,
    /// The detector of slow ranks.
    #[arg(long, value_enum, default_value = "slow-rank")]
    detector: SlowDetector,
    /// Chooses victims and moments.
    #[arg(long, allow_negative_numbers = true, default_value_t = 7, value_parser = number::<u64>(0, u64::MAX - 1000))]
    seed: u64,
    /// Number of trainings, one after another, each with the next seed.
    #[arg(long, allow_negative_numbers = true, default_value_t = 1, value_parser = number::<u64>(1, 1000))]
    runs: u64,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    guard::init(); // this program is also the guard, in which this call does not return
    let options: Options = program::options();
    program::run("find_culprit", async {
        run(&options).await?.print(options.json);
        Ok(())
    })
}

async fn run(options: &Options) -> Result<Account, Failure> {
    let located = tokio::task::spawn_blocking(|| venv::locate(&mut |line| println!("python        {line}")));
    let python = located.await??;
    let mut verdicts = Vec::new();
    for seed in options.seed..options.seed + options.runs {
        let trial = Trial { python: python.clone(), injection: options.inject, seed, detector: options.detector };
        let verdict = Verdict::of(options.inject, &trial.run().await?);
        println!("seed {seed}: victim {:?}, diagnosed {} in {:?}", verdict.victim, verdict.cause, verdict.blamed);
        verdicts.push(verdict);
    }
    Ok(Account::of(verdicts))
}
