//! The soak run behind the example `chaos_recovery`: a real PyTorch job that recovers inside of its processes, hit from outside over
//! and over, a job for each strategy.
//!
//! It only strikes, watches and keeps the account: what recovers the job is taskd.

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
use crate::program::{self, Failure, number};
use crate::recover::Strategy;
use clap::Parser;
use clap::builder::{EnumValueParser, TypedValueParser};
use kind::Kind;
use std::num::NonZeroU64;

/// Real PyTorch jobs are hit in every way, each under one strategy, and must go on as if nothing had happened.
#[derive(Debug, Parser)]
pub struct Options {
    /// Faults, shared out among the jobs.
    #[arg(long, allow_negative_numbers = true, default_value_t = 60, value_parser = number::<u32>(1, 100_000))]
    faults: u32,
    /// Only a job with this strategy; one job for each of them if not given.
    #[arg(long, value_parser = EnumValueParser::<Strategy>::new().try_map(goes_on))]
    strategy: Option<Strategy>,
    /// Only these kinds of faults; what suits the strategy if not given.
    #[arg(long, value_enum, value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// Chooses kinds, victims and moments.
    #[arg(long, allow_negative_numbers = true, default_value_t = 7, value_parser = number::<u64>(0, u64::MAX))]
    seed: u64,
    /// Ranks.
    #[arg(long, allow_negative_numbers = true, default_value_t = 4, value_parser = number::<u32>(3, 64))]
    ranks: u32,
    /// After so many steps each a copy of the state is kept in memory, with which a job that has lost all ranks goes on; without it
    /// such a job begins anew, unless its strategy is to restart, which does so every ten steps.
    #[arg(long, allow_negative_numbers = true, value_parser = number::<NonZeroU64>(1, 1_000_000))]
    memory_every: Option<NonZeroU64>,
    /// Within how many seconds all ranks must complete a step again after a fault; longer is a stall.
    #[arg(long, allow_negative_numbers = true, default_value_t = 60, value_parser = number::<u64>(1, 3600))]
    bound_s: u64,
    /// Every rank leaves children of every kind (daemons, chains of short-lived processes, other users' and so on), which are to be gone
    /// with it.
    #[arg(long)]
    children: bool,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    role: Role,
}

/// Whether a job with this strategy can be hit by whatever there is.
fn goes_on(strategy: Strategy) -> Result<Strategy, &'static str> {
    if strategy.ends_job() { Err("such a job ends by its first fault; choose another strategy") } else { Ok(strategy) }
}

/// Strikes as often as asked, prints the account and judges it. The same program, started again by itself, is the supervisor.
///
/// # Errors
/// One sentence: what cannot be done here, or what is not as it must be.
pub async fn run(options: &Options) -> Result<(), Failure> {
    if let Some(dir) = &options.role.supervise {
        return Box::pin(supervisor::supervise(dir)).await;
    }
    let account = soak::run(options).await?;
    program::print(&account, options.json, || account.table());
    account.judge()
}
