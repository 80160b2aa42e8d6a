//! The soak run behind the example `chaos_recovery`: real PyTorch jobs, one for each strategy, are hit from outside
//! repeatedly and recover without restarting all processes.
//!
//! It only injects, observes and keeps the account: taskd recovers the jobs.

mod account;
mod children;
mod fire;
mod growth;
mod inject;
mod kind;
mod progress;
mod soak;
mod stalled;
mod supervisor;

use crate::outside::supervised::Role;
use clap::Parser;
use clap::builder::{EnumValueParser, TypedValueParser};
use kind::Kind;
use std::num::NonZeroU64;
use taskd_examples::program::{self, Failure, number};
use taskd_examples::recover::Strategy;

/// Hits real PyTorch jobs in every way, each under one strategy; each must end like an undisturbed one.
#[derive(Debug, Parser)]
pub struct Options {
    /// Faults, divided among the jobs.
    #[arg(long, allow_negative_numbers = true, default_value_t = 60, value_parser = number::<u32>(1, 100_000))]
    faults: u32,
    /// Only a job with this strategy. Default: one job for each strategy.
    #[arg(long, value_parser = EnumValueParser::<Strategy>::new().try_map(goes_on))]
    strategy: Option<Strategy>,
    /// Kinds of faults. Default: those that suit the strategy.
    #[arg(long, value_enum, value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// Chooses kinds, victims and moments.
    #[arg(long, allow_negative_numbers = true, default_value_t = 7, value_parser = number::<u64>(0, u64::MAX))]
    seed: u64,
    /// Ranks.
    #[arg(long, allow_negative_numbers = true, default_value_t = 4, value_parser = number::<u32>(3, 64))]
    ranks: u32,
    /// Steps between two copies of the state in memory, from which a job that has lost all ranks continues. Default:
    /// 10 if the strategy is a restart, otherwise no copies: such a job then starts from the beginning.
    #[arg(long, allow_negative_numbers = true, value_parser = number::<NonZeroU64>(1, 1_000_000))]
    memory_every: Option<NonZeroU64>,
    /// Seconds within which all ranks must complete a step again after a fault; longer is a stall.
    #[arg(long, allow_negative_numbers = true, default_value_t = 60, value_parser = number::<u64>(1, 3600))]
    bound_s: u64,
    /// Every rank starts children of every kind (daemons, chains of short-lived processes, processes of other users
    /// and so on), which must end with it.
    #[arg(long)]
    children: bool,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    role: Role,
}

/// Returns the strategy, or an error if a job ends with it.
fn goes_on(strategy: Strategy) -> Result<Strategy, &'static str> {
    if strategy.ends_job() { Err("it ends the job; choose another strategy") } else { Ok(strategy) }
}

/// Injects the requested faults, prints the account and checks it. The same program, started again by itself, is the
/// supervisor.
///
/// # Errors
/// One sentence: what is missing on this machine, or what is not as expected.
pub async fn run(options: &Options) -> Result<(), Failure> {
    if let Some(dir) = &options.role.supervise {
        return Box::pin(supervisor::supervise(dir)).await;
    }
    let account = soak::run(options).await?;
    program::print(&account, options.json, || account.table());
    account.judge()
}
