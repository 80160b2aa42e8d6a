//! The benchmark behind the example `bench_recovery`: the same training under taskd, under other systems and under
//! none, with the same faults, in turns, and the time of each until all ranks had completed a step again.
//!
//! It measures from outside, from the times that the script writes, and never inspects a system.

mod account;
mod candidates;
mod lines;
mod ours;
mod peers;
mod processes;
mod repetition;

use crate::outside::supervised::Role;
use account::{Came, Row};
pub use candidates::Candidate;
use clap::{Parser, ValueEnum};
use peers::Script;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use repetition::{Bench, Repetition};
use std::collections::BTreeMap;
use std::path::Path;
use taskd_examples::program::{Failure, number};

/// Hits a rank of the same training under several systems, and measures the time until each trains again.
#[derive(Debug, Parser)]
pub struct Options {
    /// Number of faults for each system, each in a fresh job.
    #[arg(long, allow_negative_numbers = true, default_value_t = 20, value_parser = number::<u32>(1, 10_000))]
    n: u32,
    /// Systems to measure. Default: all.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Candidate>,
    /// Ranks that train.
    #[arg(long, allow_negative_numbers = true, default_value_t = 2, value_parser = number::<u32>(2, 64))]
    ranks: u32,
    /// Size of the training state, in MiB.
    #[arg(long, allow_negative_numbers = true, default_value_t = 1, value_parser = number::<u32>(1, 8))]
    state_mib: u32,
    /// Pause in every step, in milliseconds.
    #[arg(long, allow_negative_numbers = true, default_value_t = 20, value_parser = number::<u32>(1, 10_000))]
    pace_ms: u32,
    /// Seconds of training before the fault: long enough for taskd's standbys to start.
    #[arg(long, allow_negative_numbers = true, default_value_t = 15, value_parser = number::<u64>(0, 3600))]
    settle_s: u64,
    /// Seconds after which a job that has not recovered is stopped; it is in none of the times.
    #[arg(long, allow_negative_numbers = true, default_value_t = 30, value_parser = number::<u64>(1, 3600))]
    stall_s: u64,
    /// Chooses order, victims and moments.
    #[arg(long, allow_negative_numbers = true, default_value_t = 7, value_parser = number::<u64>(0, u64::MAX))]
    seed: u64,
    /// Also prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    role: Role,
}

/// Runs all repetitions in turns, and prints the account. The same program, started again by itself, is taskd's
/// supervisor.
///
/// # Errors
/// One sentence: what is missing on this machine, or that taskd's ranks have other results than an undisturbed run. No
/// process that was started still runs.
pub async fn run(options: &Options) -> Result<(), Failure> {
    if let Some(dir) = &options.role.supervise {
        return Box::pin(ours::supervise(dir)).await;
    }
    let rows = tokio::select! {
        biased;
        signal = ordered_to_end() => return Err(format!("ended by {}", signal?).into()),
        rows = Box::pin(measure(options)) => rows?,
    };
    println!("{}", account::table(&rows, options.n));
    if options.json {
        println!("{}", serde_json::to_string(&rows)?);
    }
    account::judge(&rows)
}

/// The measurement is dropped then, which ends its processes.
async fn ordered_to_end() -> Result<&'static str, Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => Ok("SIGTERM"),
        _ = interrupt.recv() => Ok("SIGINT"),
    }
}

async fn measure(options: &Options) -> Result<Vec<Row>, Failure> {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load before   {}", load.trim());
    let all = Candidate::value_variants();
    let mut candidates: Vec<Candidate> = if options.only.is_empty() { all.into() } else { options.only.clone() };
    candidates.sort_unstable();
    candidates.dedup();
    let mut pythons = BTreeMap::new();
    for candidate in &candidates {
        pythons.insert(*candidate, peers::python_of(*candidate).await?);
    }
    let mut dir = tempfile::Builder::new().prefix("taskd-bench-").tempdir()?;
    let mut dice = StdRng::seed_from_u64(options.seed);
    let reference = undisturbed(options, dir.path(), &mut dice).await?;
    let bench = Bench { options, dir: dir.path(), pythons: &pythons, reference };
    let mut came: BTreeMap<Candidate, Vec<Came>> = candidates.iter().map(|one| (*one, Vec::new())).collect();
    let (mut number, mut kept) = (0, false);
    for round in 1..=options.n {
        candidates.shuffle(&mut dice);
        for candidate in &candidates {
            number += 1;
            let mut own_dice = StdRng::seed_from_u64(dice.random());
            let repetition = Box::pin(bench.repeat(*candidate, number, &mut own_dice)).await;
            println!(
                "{round:>4}/{}  {:<14}  {:<16}  {}",
                options.n,
                candidate.system(),
                candidate.variant(),
                line(&repetition)
            );
            kept |= !matches!(repetition, Ok(Repetition { came: Came::Back { .. }, .. }));
            came.entry(*candidate).or_default().extend(repetition.ok().map(|repetition| repetition.came));
        }
    }
    dir.disable_cleanup(kept);
    Ok(came.into_iter().map(|(candidate, came)| Row::of(candidate, options.ranks, &came)).collect())
}

/// Runs the same script undisturbed, to obtain the states for the comparison: a little longer than any run with a
/// fault.
async fn undisturbed(options: &Options, dir: &Path, dice: &mut StdRng) -> Result<BTreeMap<u64, String>, Failure> {
    let python = peers::python_of(Candidate::Floor).await?;
    let steps = (options.settle_s + 4) * 1000 / u64::from(options.pace_ms) + 50;
    println!("undisturbed   {} ranks, {steps} steps", options.ranks);
    let dir = dir.join("reference");
    let script = Script { python: &python, dir: &dir, ranks: options.ranks, state_mib: options.state_mib, pace_ms: 0 };
    repetition::undisturbed(&script, steps, dice).await
}

fn line(repetition: &Result<Repetition, Failure>) -> String {
    match repetition {
        Err(why) => format!("is not counted: {why}"),
        Ok(Repetition { came: Came::NotBack, remark }) => format!("did not recover{remark}"),
        Ok(Repetition { came: Came::Back { seconds, steps_lost, .. }, remark }) => {
            format!("{seconds:>7.3} s  {steps_lost:>3} steps lost{remark}")
        }
    }
}
