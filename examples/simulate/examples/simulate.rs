//! Simulates thousands of jobs around the real kernel, each from one seed, with all kinds of faults.
//!
//! `cargo run --release -p taskd-simulate --example simulate -- --seeds 1000` runs jobs of 8 to 512 ranks through
//! crashes, hangs, lost hosts, a launcher that fails, a supervisor that is killed and an operator that drains, pauses,
//! forbids and restarts. One job in eight is run by another launcher and only observed; half of the others have control
//! links, over which survivors receive orders. After every step of the kernel its invariants are checked. Every 20th
//! seed is run twice and replayed. Then each safety check of the kernel is removed to show that the simulation detects
//! that. A seed that fails is printed with the command that reruns it; `--explain` prints the log of a job.

use clap::Parser;
use serde::Serialize;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use taskd_core::kernel::{Branch, Check, Checks};
use taskd_core::sim::{self, FaultKind, Outcome, SimConfig};
use taskd_examples::program::{self, number};

/// Every seed with this period is run twice and replayed.
const REPEAT_EVERY: u64 = 20;
/// Seeds to try until a missing check is detected.
const TEETH_SEEDS_MAX: u64 = 400;
/// Jobs in one run: two weeks of them.
const SEEDS_MAX: u64 = 10_000_000;
/// Lines printed of one job's log.
const LINES_MAX: u64 = 1_000_000;
/// Violations printed in full.
const PRINTED_MAX: usize = 10;

/// Simulates jobs and checks the invariants.
#[derive(Debug, Parser)]
struct Options {
    /// Number of jobs.
    #[arg(long, allow_negative_numbers = true, default_value_t = 200, value_parser = number::<u64>(1, SEEDS_MAX))]
    seeds: u64,
    /// The first seed.
    #[arg(long, allow_negative_numbers = true, default_value_t = 0, value_parser = number::<u64>(0, u64::MAX))]
    from: u64,
    /// Number of jobs that run at a time.
    #[arg(long, allow_negative_numbers = true, default_value_t = 2, value_parser = number::<u64>(1, 256))]
    threads: u64,
    /// Prints this many last lines of the log of each seed, for at most 3 seeds.
    #[arg(long, allow_negative_numbers = true, value_parser = number::<usize>(1, LINES_MAX))]
    explain: Option<usize>,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

/// The sums over all jobs.
#[derive(Debug, Default, Serialize)]
struct Account {
    seeds: u64,
    violations: u64,
    stuck: u64,
    /// True if the same seed gives the same log, and the same log the same commands.
    journals_equal: bool,
    journals_compared: u64,
    fault_kinds: BTreeMap<&'static str, u64>,
    branches: BTreeMap<&'static str, u64>,
    teeth: BTreeMap<&'static str, bool>,
    /// Number of incidents that each strategy has closed.
    recovered: BTreeMap<String, u64>,
    rank_steps: u64,
    restarts: u64,
    inputs: u64,
    #[serde(skip)]
    printed: Vec<String>,
}

fn main() -> ExitCode {
    let options: Options = program::options();
    if let Some(lines) = options.explain {
        return explain(&options, lines);
    }
    let began = Instant::now();
    let mut account = simulate(&options);
    account.teeth = teeth(options.from);
    print(&account, began.elapsed(), options.json);
    ExitCode::SUCCESS // the run is complete: its findings are in the account
}

/// Runs one job, and checks for some seeds that its log is reproducible.
fn job(seed: u64) -> (Outcome, Option<Result<(), String>>) {
    let config = SimConfig::default();
    let plugins = || sim::drawn(seed);
    let repeated = seed.is_multiple_of(REPEAT_EVERY).then(|| sim::repeat(seed, &config, &plugins));
    (sim::run(seed, &config, &plugins), repeated)
}

fn simulate(options: &Options) -> Account {
    let account = Mutex::new(Account { journals_equal: true, ..Account::default() });
    let next = AtomicU64::new(options.from);
    let end = options.from.saturating_add(options.seeds);
    std::thread::scope(|scope| {
        for _ in 0..options.threads {
            scope.spawn(|| {
                while let seed = next.fetch_add(1, Ordering::Relaxed)
                    && seed < end
                {
                    let (outcome, repeated) = job(seed);
                    let mut account = account.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    account.add(&outcome, repeated);
                    if account.seeds.is_multiple_of(500) {
                        eprintln!("{} jobs, {} violations", account.seeds, account.violations);
                    }
                }
            });
        }
    });
    account.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Account {
    fn add(&mut self, outcome: &Outcome, repeated: Option<Result<(), String>>) {
        self.seeds += 1;
        self.rank_steps += outcome.rank_steps;
        self.restarts += u64::from(outcome.report.restarts);
        self.inputs += outcome.inputs;
        for (kind, count) in &outcome.faults {
            *self.fault_kinds.entry(kind.as_str()).or_default() += u64::from(*count);
        }
        for (branch, count) in &outcome.counts.branches {
            *self.branches.entry(branch.as_str()).or_default() += count;
        }
        for incident in &outcome.report.incidents {
            if let Some(strategy) = incident.outcome.strip_prefix("recovered by ") {
                *self.recovered.entry(strategy.to_owned()).or_default() += 1;
            }
        }
        let rerun = format!(
            "cargo run --release -p taskd-simulate --example simulate -- --from {} --seeds 1 --explain 200",
            outcome.seed
        );
        if let Some((at, violation)) = &outcome.violation {
            self.violations += 1;
            self.stuck += u64::from(violation.invariant() == "stuck");
            self.print(format!("seed {} at {at}: {violation}\n    {rerun}", outcome.seed));
        }
        if let Some(repeated) = repeated {
            self.journals_compared += 1;
            if let Err(difference) = repeated {
                self.journals_equal = false;
                self.print(format!("{difference}\n    {rerun}"));
            }
        }
    }

    fn print(&mut self, what: String) {
        if self.printed.len() < PRINTED_MAX {
            eprintln!("{what}");
        }
        self.printed.push(what);
    }
}

/// For each safety check of the kernel: whether the simulation fails without it.
fn teeth(from: u64) -> BTreeMap<&'static str, bool> {
    let bites = |check: Check| {
        let config = SimConfig::default().with_checks(Checks::without(check));
        let fails = |seed: u64| sim::run(seed, &config, &|| sim::drawn(seed)).violation.is_some();
        (from..from.saturating_add(TEETH_SEEDS_MAX)).any(fails)
    };
    Check::ALL.into_iter().map(|check| (check.as_str(), bites(check))).collect()
}

fn explain(options: &Options, lines: usize) -> ExitCode {
    for seed in options.from..options.from.saturating_add(options.seeds.min(3)) {
        let (outcome, story) = sim::explain(seed, &SimConfig::default(), &|| sim::drawn(seed), lines);
        story.iter().for_each(|line| println!("{line}"));
        match &outcome.violation {
            Some((at, violation)) => println!("seed {seed}, {} ranks, at {at}: {violation}", outcome.ranks),
            None => println!("seed {seed}, {} ranks: {}", outcome.ranks, outcome.report.reason),
        }
    }
    ExitCode::SUCCESS
}

fn print(account: &Account, took: Duration, json: bool) {
    println!(
        "{} jobs in {took:.1?}: {} rank-steps, {} restarts, {} inputs of the kernel",
        account.seeds, account.rank_steps, account.restarts, account.inputs
    );
    println!(
        "{} violations ({} stuck); {} logs compared and replayed, {}",
        account.violations,
        account.stuck,
        account.journals_compared,
        if account.journals_equal { "all equal" } else { "NOT equal" }
    );
    println!("\nfaults injected");
    for kind in FaultKind::ALL {
        println!("  {:22} {:>10}", kind.as_str(), account.fault_kinds.get(kind.as_str()).unwrap_or(&0));
    }
    println!("\nrecovered by");
    for (strategy, times) in &account.recovered {
        println!("  {strategy:22} {times:>10}");
    }
    println!("\nbranches of decisions taken");
    for branch in Branch::ALL {
        println!("  {:22} {:>10}", branch.as_str(), account.branches.get(branch.as_str()).unwrap_or(&0));
    }
    println!("\nwithout this check");
    for (check, bites) in &account.teeth {
        println!("  {check:30} the simulation {}", if *bites { "fails" } else { "does NOT notice" });
    }
    if json {
        println!("{}", serde_json::to_string(account).unwrap_or_default());
    }
}
