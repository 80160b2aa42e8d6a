//! The soak run behind the example `chaos_pytorch`: a real PyTorch DDP job, killed repeatedly from outside.
//!
//! It only kills, observes and keeps the account: taskd recovers the job.

mod account;
mod inject;
mod job;
mod plan;
mod soak;
mod supervisor;

use crate::outside::supervised::Role;
use clap::Parser;
use plan::Kind;
use taskd_examples::program::{Failure, number};

/// Kills a real PyTorch job in every way; it must end with the result of an undisturbed one.
#[derive(Debug, Parser)]
pub struct Options {
    /// SIGKILLs to send.
    #[arg(long, allow_negative_numbers = true, default_value_t = 100, value_parser = number::<u32>(1, 100_000))]
    kills: u32,
    /// Chooses the victims and the moments.
    #[arg(long, allow_negative_numbers = true, default_value_t = 7, value_parser = number::<u64>(0, u64::MAX))]
    seed: u64,
    /// Kinds of kills. Default: all.
    #[arg(long, value_enum, value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// Training steps of one job; as many jobs are run as the kills need.
    #[arg(long, allow_negative_numbers = true, default_value_t = 600, value_parser = number::<u64>(300, 1_000_000))]
    steps: u64,
    /// Seconds for which the supervisor is stopped once; 0: not at all.
    #[arg(long, allow_negative_numbers = true, default_value_t = 30, value_parser = number::<u64>(0, 600))]
    pause_s: u64,
    /// Seconds within which the job must train again after a kill; longer is a stall.
    #[arg(long, allow_negative_numbers = true, default_value_t = 60, value_parser = number::<u64>(1, 3600))]
    bound_s: u64,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    role: Role,
    /// For the supervisor: the guard keeps the job if the supervisor dies.
    #[arg(long, hide = true)]
    keep: bool,
}

/// Sends the requested number of kills and prints the account. The same program, started again by itself, is the
/// supervisor.
///
/// # Errors
/// One sentence: what is missing on this machine. A job that does not recover is no error but is in the account.
pub async fn run(options: &Options) -> Result<(), Failure> {
    if let Some(dir) = &options.role.supervise {
        return Box::pin(supervisor::supervise(dir, options.keep)).await;
    }
    let account = soak::run(options).await?;
    println!("{}", account.table());
    if options.json {
        println!("{}", serde_json::to_string(&account)?);
    }
    Ok(())
}
