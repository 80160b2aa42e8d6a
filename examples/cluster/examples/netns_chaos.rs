//! Faults of ranks, hosts, links and agents of a PyTorch job on hosts that are namespaces of this machine, and whether
//! the job blames the right one and trains on.
//!
//! `cargo run --release -p taskd-cluster-example --example netns_chaos`, as root. `--scenario host-lost` runs one of
//! them, `--list` names them. A scenario that fails although no gap is known makes the exit code 1.

use clap::Parser;
use std::process::ExitCode;
use std::time::Duration;
use taskd_cluster_example::run_if_role;
use taskd_cluster_example::scenarios::{Row, Scenario, Setting, all};
use taskd_core::launch::guard;
use taskd_examples::program::{self, Failure, number};
use taskd_pytorch::{store, venv};

/// Injects faults into jobs on hosts in namespaces.
#[derive(Debug, Parser)]
struct Options {
    /// Number of runs of each scenario.
    #[arg(long, allow_negative_numbers = true, default_value_t = 1, value_parser = number::<u32>(1, 10_000))]
    runs: u32,
    /// Chooses the victims and the moments.
    #[arg(long, allow_negative_numbers = true, default_value_t = 7, value_parser = number::<u64>(0, u64::MAX))]
    seed: u64,
    /// Names of the scenarios (default: all).
    #[arg(long)]
    scenario: Vec<String>,
    /// Lease of a host in milliseconds.
    #[arg(long, allow_negative_numbers = true, default_value_t = 6000, value_parser = number::<u64>(1000, 600_000))]
    lease_ms: u64,
    /// Seconds of training before the fault: a standby needs about 8 to be ready, more on a loaded machine.
    #[arg(long, allow_negative_numbers = true, default_value_t = 15, value_parser = number::<u64>(0, 3600))]
    settle_s: u64,
    /// Hundredths of a processor that each host has.
    #[arg(long, allow_negative_numbers = true, default_value_t = 100, value_parser = number::<u32>(10, 100_000))]
    cpu_percent: u32,
    /// Keeps the files of runs that are not correct.
    #[arg(long)]
    keep: bool,
    /// Names the scenarios, and ends.
    #[arg(long)]
    list: bool,
    /// Prints the rows as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    guard::init(); // this program is also the guard, in which this call does not return
    store::init(); // nor does it return in the store
    if let Some(code) = run_if_role() {
        return code;
    }
    let options: Options = program::options();
    program::run("netns_chaos", Box::pin(run(&options)))
}

async fn run(options: &Options) -> Result<(), Failure> {
    let scenarios = chosen(options)?;
    if options.list {
        scenarios.iter().for_each(|one| println!("{:20}{}", one.name, one.about));
        return Ok(());
    }
    let located = tokio::task::spawn_blocking(|| venv::locate(&mut |line| eprintln!("python        {line}")));
    let python = located.await??;
    let (lease, cpus) = (Duration::from_millis(options.lease_ms), f64::from(options.cpu_percent) / 100.0);
    let settle = Duration::from_secs(options.settle_s);
    let setting = Setting { python, lease, cpus, settle, keep: options.keep };
    let mut rows = Vec::new();
    for seed in (options.seed..).take(options.runs as usize) {
        for scenario in &scenarios {
            // On Ctrl-C the run is dropped, and its hosts are removed.
            let row = tokio::select! {
                row = scenario.run(&setting, seed) => row?,
                _ = tokio::signal::ctrl_c() => return Err("interrupted".into()),
            };
            if !options.json {
                print(&row);
            }
            rows.push(row);
        }
    }
    let wrong = rows.iter().filter(|row| !row.correct && row.known_gap.is_none()).count();
    program::print(&rows, options.json, || {
        format!("{} of {} runs are not correct, apart from known gaps", wrong, rows.len())
    });
    if wrong == 0 { Ok(()) } else { Err(format!("{wrong} of {} runs are not correct", rows.len()).into()) }
}

fn chosen(options: &Options) -> Result<Vec<Scenario>, Failure> {
    let all = all();
    for name in &options.scenario {
        if !all.iter().any(|one| one.name == name) {
            let names: Vec<&str> = all.iter().map(|one| one.name).collect();
            return Err(format!("there is no scenario {name}: choose of {}", names.join(", ")).into());
        }
    }
    let is_chosen =
        |one: &Scenario| options.scenario.is_empty() || options.scenario.iter().any(|name| name == one.name);
    Ok(all.into_iter().filter(is_chosen).collect())
}

/// Prints a row, over several lines.
fn print(row: &Row) {
    let seconds = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2} s"));
    let verdict = match (row.correct, row.known_gap) {
        (true, _) => "correct",
        (false, None) => "NOT CORRECT",
        (false, Some(_)) => "known gap",
    };
    println!("{:20}{verdict}; lease {} s, load {}", row.scenario, row.lease_s, row.load);
    println!("  injected      {}", row.injected);
    println!("  blamed        {}", if row.blamed.is_empty() { "nothing" } else { &row.blamed });
    let lost = row.steps_lost.map_or("-".into(), |lost| lost.to_string());
    println!(
        "  detected      {}; resumed {}; steps lost {lost}; other ranks' processes kept: {}; two worlds: {}",
        seconds(row.detected_s),
        seconds(row.resumed_s),
        row.pids_kept,
        row.two_worlds
    );
    if row.fenced_s.is_some() {
        println!("  fenced        {} after the cut", seconds(row.fenced_s));
    }
    row.known_gap.iter().for_each(|gap| println!("  gap           {gap}"));
    row.problems.iter().for_each(|problem| println!("  problem       {problem}"));
}
