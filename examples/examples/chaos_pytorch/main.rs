//! The soak run: a real PyTorch DDP job is killed over and over, in every way and at every moment, and must end as if
//! nothing had happened.
//!
//! `cargo run --release --example chaos_pytorch -- --kills 100`. Kills come from outside of the supervisor, which is a
//! process of its own and is killed as well; the seed chooses victims and moments. The job is that of `pytorch_ddp`, and so
//! is its Python environment.

mod account;
mod census;
mod inject;
mod job;
mod leaks;
mod notes;
mod plan;
mod soak;
mod supervisor;

use clap::Parser;
use plan::Kind;
use std::path::PathBuf;
use std::process::ExitCode;
use taskd_core::launch::guard;
use taskd_examples::program::number;

type Failure = Box<dyn std::error::Error>;

/// A real PyTorch job is killed in every way, and must end as if nothing had happened.
#[derive(Debug, Parser)]
struct Options {
    /// SIGKILLs to send.
    #[arg(long, allow_negative_numbers = true, default_value_t = 100, value_parser = number::<u32>(1, 100_000))]
    kills: u32,
    /// Chooses the victims and the moments.
    #[arg(long, allow_negative_numbers = true, default_value_t = 7, value_parser = number::<u64>(0, u64::MAX))]
    seed: u64,
    /// Only these kinds of kills; all of them if not given.
    #[arg(long, value_enum, value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// Training steps of one job; as many jobs are run as the kills need.
    #[arg(long, allow_negative_numbers = true, default_value_t = 600, value_parser = number::<u64>(300, 1_000_000))]
    steps: u64,
    /// For how many seconds the supervisor is stopped once, and continued; 0: not at all.
    #[arg(long, allow_negative_numbers = true, default_value_t = 30, value_parser = number::<u64>(0, 600))]
    pause_s: u64,
    /// Within how many seconds the job must train again after a kill; longer is a stall.
    #[arg(long, allow_negative_numbers = true, default_value_t = 60, value_parser = number::<u64>(1, 3600))]
    bound_s: u64,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
    /// What the program is called with when it is the supervisor: the directory of the job.
    #[arg(long, hide = true)]
    supervise: Option<PathBuf>,
    /// For the supervisor: the job outlives it.
    #[arg(long, hide = true)]
    keep: bool,
}

fn main() -> ExitCode {
    guard::init(); // a guard is this same program, started again: it never comes back from here
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let done = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(run(&options)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chaos_pytorch: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: &Options) -> Result<(), Failure> {
    if let Some(dir) = &options.supervise {
        let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false);
        log.with_max_level(tracing::Level::INFO).init();
        return supervisor::supervise(dir, options.keep).await;
    }
    let account = soak::run(options).await?;
    println!("{}", account.table());
    if options.json {
        println!("{}", serde_json::to_string(&account)?);
    }
    Ok(())
}
