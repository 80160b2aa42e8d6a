//! Faults of ranks, hosts, links and agents of a PyTorch job on hosts that are namespaces of this machine, and whether
//! the job blames the right one and trains on.
//!
//! `cargo run --release -p taskd-cluster-example --example netns_chaos`, as root. `--scenario host-lost` runs one of
//! them, `--list` names them, `--random 200` runs random cases instead. A run that fails although no gap is known makes
//! the exit code 1.

use clap::Parser;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use taskd_cluster::security::{HandshakeKind, handshakes_per_second};
use taskd_cluster_example::run_if_role;
use taskd_cluster_example::scenarios::{Machine, RandomCase, References, Row, Scenario, Setting, all};
use taskd_cluster_example::shards::{self, Shards};
use taskd_core::launch::guard;
use taskd_examples::program::{self, Failure, number};
use taskd_pytorch::{store, venv};

/// Handshakes of the measurement of the machine, and how many at the same time.
const HANDSHAKES: usize = 500;
const HANDSHAKES_AT_ONCE: usize = 32;

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
    /// Runs this number of random cases: several faults of one job, drawn from those of the scenarios.
    #[arg(long, allow_negative_numbers = true, value_parser = number::<u32>(1, 100_000))]
    random: Option<u32>,
    /// Compares every step with an undisturbed job's; random cases always are.
    #[arg(long)]
    compare: bool,
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
        println!("{:20}{}", shards::NAME, shards::ABOUT);
        return Ok(());
    }
    let setting = setting(options).await?;
    print_machine(&setting);
    let mut rows = Vec::new();
    if let Some(number) = options.random {
        for number in 1..=number {
            let case = RandomCase { number, seed: options.seed.wrapping_add(u64::from(number)) };
            rows.push(shown(options, interruptible(case.run(&setting)).await?));
        }
    } else {
        for seed in (options.seed..).take(options.runs as usize) {
            for scenario in &scenarios {
                rows.push(shown(options, interruptible(scenario.run(&setting, seed)).await?));
            }
        }
        if options.scenario.is_empty() || options.scenario.iter().any(|name| name == shards::NAME) {
            rows.push(shown(options, interruptible(sharded(&setting)).await?));
        }
    }
    let wrong = rows.iter().filter(|row| !row.correct && row.known_gap.is_none()).count();
    program::print(&rows, options.json, || summary(&rows));
    if wrong == 0 { Ok(()) } else { Err(format!("{wrong} of {} runs are not correct", rows.len()).into()) }
}

/// Runs to the end, or to Ctrl-C: then the run is dropped, and its hosts are removed.
async fn interruptible(run: impl Future<Output = Result<Row, Failure>>) -> Result<Row, Failure> {
    tokio::select! {
        row = run => row,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
    }
}

/// Shows a row at once, and returns it.
fn shown(options: &Options, row: Row) -> Row {
    if options.json {
        eprintln!("{:20}{}", row.scenario, if row.correct { "correct" } else { "not correct" });
    } else {
        print(&row);
    }
    row
}

async fn setting(options: &Options) -> Result<Setting, Failure> {
    let located = tokio::task::spawn_blocking(|| venv::locate(&mut |line| eprintln!("python        {line}")));
    let python = located.await??;
    let machine = measure(&python).await;
    let is_compared = options.compare || options.random.is_some();
    Ok(Setting {
        python,
        lease: Duration::from_millis(options.lease_ms),
        cpus: f64::from(options.cpu_percent) / 100.0,
        settle: Duration::from_secs(options.settle_s),
        keep: options.keep,
        references: is_compared.then(|| Arc::new(References::default())),
        machine,
    })
}

/// Measures what this machine can do: the times of the runs are to be read beside it.
async fn measure(python: &Path) -> Machine {
    let begun = Instant::now();
    let mut import = tokio::process::Command::new(python);
    let import = import.args(["-c", "import torch"]).env("OMP_NUM_THREADS", "1").status();
    let is_imported = import.await.is_ok_and(|status| status.success());
    let import_torch_s = is_imported.then(|| (begun.elapsed().as_secs_f64() * 1e3).round() / 1e3);
    let dir = std::env::temp_dir().join(format!("taskd-handshakes-{}", std::process::id()));
    let rate = match std::fs::create_dir_all(&dir) {
        Ok(()) => handshakes_per_second(HandshakeKind::Full, HANDSHAKES, HANDSHAKES_AT_ONCE, &dir).await.ok(),
        Err(_) => None,
    };
    let _ = std::fs::remove_dir_all(&dir);
    Machine { import_torch_s, tls_handshakes_per_s: rate.map(|rate| rate.per_second.round()) }
}

fn print_machine(setting: &Setting) {
    let Machine { import_torch_s, tls_handshakes_per_s } = setting.machine;
    let figure = |value: Option<f64>| value.map_or("-".to_owned(), |value| value.to_string());
    eprintln!(
        "machine       import torch {} s; {} mutual TLS handshakes per second; lease {:?}",
        figure(import_torch_s),
        figure(tls_handshakes_per_s),
        setting.lease
    );
}

/// Returns the account of all runs: how many are correct, and the exceptions with their reasons.
fn summary(rows: &[Row]) -> String {
    let count = |is: fn(&Row) -> bool| rows.iter().filter(|row| is(row)).count();
    let mut text = format!(
        "{} of {} runs correct, {} with known gaps; two worlds in {}; state equal in {}, different in {}",
        count(|row| row.correct),
        rows.len(),
        count(|row| !row.correct && row.known_gap.is_some()),
        count(|row| row.two_worlds),
        count(|row| row.state_equal == Some(true)),
        count(|row| row.state_equal == Some(false)),
    );
    for row in rows {
        let why = row.problems.iter().chain(row.exception.as_ref()).chain(&row.missed).map(String::as_str);
        let why: Vec<&str> = row.known_gap.filter(|_| !row.correct).into_iter().chain(why).collect();
        if !why.is_empty() {
            text += &format!("\n  {}: {}", row.scenario, first_line(&why.join("; ")));
        }
    }
    text
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn chosen(options: &Options) -> Result<Vec<Scenario>, Failure> {
    let all = all();
    for name in &options.scenario {
        if name != shards::NAME && !all.iter().any(|one| one.name == name) {
            let names: Vec<&str> = all.iter().map(|one| one.name).collect();
            return Err(format!("there is no scenario {name}: choose of {}", names.join(", ")).into());
        }
    }
    let is_chosen =
        |one: &Scenario| options.scenario.is_empty() || options.scenario.iter().any(|name| name == one.name);
    Ok(all.into_iter().filter(is_chosen).collect())
}

/// Takes a host of a job with sharded state away.
async fn sharded(setting: &Setting) -> Result<Row, Failure> {
    let Setting { python, lease, cpus, .. } = setting;
    let job = Shards { python: python.clone(), lease: *lease, every: 10, cpus: *cpus };
    Ok(job.run().await?.row(&job))
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
    if row.manager_s.is_some() {
        println!("  manager       {} after the fault", seconds(row.manager_s));
    }
    if row.grown_s.is_some() {
        println!("  grown         {} after the return; paused {}", seconds(row.grown_s), seconds(row.paused_s));
    }
    if let Some(equal) = row.state_equal {
        println!("  state         {equal}, {} steps of single ranks compared", row.steps_compared.unwrap_or(0));
    }
    row.notes.iter().for_each(|note| println!("  note          {note}"));
    row.missed.iter().for_each(|missed| println!("  bound missed  {missed}"));
    row.known_gap.iter().for_each(|gap| println!("  gap           {gap}"));
    row.problems.iter().for_each(|problem| println!("  problem       {problem}"));
}
