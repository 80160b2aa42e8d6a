//! Observe mode: watches a job that plain torchrun runs while a rank is frozen and another is lost, and prints what
//! taskd would have done, when, why, and how much time that would have saved.
//!
//! `cargo run --release --example observe`. `--jobs 20` repeats it twenty times with other faults, `--pairs 20`
//! measures what observing costs the job. The Python environment is that of `pytorch_ddp`. The job is an ordinary
//! script (`examples/python/train_steps.py`) that does not use taskd, and torchrun is started before the supervisor.

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use taskd_examples::observe::sealed;
use taskd_examples::observe::story::{self, Setting};
use taskd_examples::observe::watch::{self, Watch};
use taskd_examples::program::{self, Failure, number};
use taskd_pytorch::venv;

/// Observes torchrun jobs with injected faults, and changes nothing.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Options {
    #[command(subcommand)]
    role: Option<Role>,
    /// Chooses victims and moments.
    #[arg(long, allow_negative_numbers = true, default_value_t = 7, value_parser = number::<u64>(0, u64::MAX))]
    seed: u64,
    /// Ranks of each job.
    #[arg(long, allow_negative_numbers = true, default_value_t = 3, value_parser = number::<u32>(2, 64))]
    ranks: u32,
    /// Number of jobs, one after another. With more than one, the seed chooses the fault that each loses its rank to.
    #[arg(long, allow_negative_numbers = true, default_value_t = 1, value_parser = number::<u32>(1, 1000))]
    jobs: u32,
    /// Pairs of turns, without and with a supervisor, for measuring the job's slowdown; 0: none.
    #[arg(long, allow_negative_numbers = true, default_value_t = 0, value_parser = number::<u32>(0, 1000))]
    pairs: u32,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// The supervisor that watches a running job.
    Watch(Watch),
}

fn main() -> ExitCode {
    let options: Options = program::options();
    match &options.role {
        Some(Role::Watch(job)) => {
            if let Err(error) = sealed::seal() {
                eprintln!("observe: the seccomp filter that forbids signals cannot be installed: {error}");
                return ExitCode::FAILURE;
            }
            program::run("observe watch", watch::watch(job))
        }
        None => program::run("observe", async {
            run(&options).await?.print(options.json);
            Ok(())
        }),
    }
}

async fn run(options: &Options) -> Result<taskd_examples::observe::account::Account, Failure> {
    let located = tokio::task::spawn_blocking(|| venv::locate(&mut |line| println!("python        {line}")));
    let python = located.await??;
    let setting = Setting { python, ranks: options.ranks, seed: options.seed };
    story::run(&setting, options.jobs, options.pairs).await
}
