//! The measurements of taskd's core on this machine: detection of deaths, cost of an idle job, throughput of the
//! kernel, and reading a week of logs.
//!
//! `cargo run --release -p taskd-soak --example bench_core` runs all of them, 10 to 20 minutes; `--only idle,kernel`
//! runs some, `--kills N` sets how many ranks of each kind are killed, `--quick` reduces all counts and only checks
//! that the program works. `--json` prints the figures as the last line.
//!
//! No figure is compared with one of another run: each is measured in turn with its baseline.

mod deaths;
mod idle;
mod job;
mod kernel;
mod logs;
mod rank;

use clap::{Parser, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use taskd_core::launch::guard;
use taskd_examples::program::{self, number};

/// A failure, whose text is its report.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Measures the time until a death is known, the cost of an idle job, and the kernel's throughput.
#[derive(Debug, Parser)]
struct Options {
    /// Ranks to kill of each size, with a lifeline and again without.
    #[arg(long, allow_negative_numbers = true, default_value_t = 100, value_parser = number::<u32>(1, 100_000))]
    kills: u32,
    /// Only these measurements.
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<Measurement>,
    /// Path of a `taskd-guard`, whose memory is measured and compared with that of this program as a guard.
    #[arg(long, value_name = "PATH")]
    guard: Option<PathBuf>,
    /// Small ranks, short times: checks that the program works; its figures mean nothing.
    #[arg(long)]
    quick: bool,
    /// Prints the figures as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measurement {
    /// Deaths and exits of killed ranks.
    Deaths,
    /// Supervisor and guard over sleeping ranks.
    Idle,
    /// Observations a second, and memory per rank.
    Kernel,
    /// A week of logs: needs 1.6 GB for temporary files.
    Logs,
}

/// The output of `--json`; measurements that were not run are left out.
#[derive(Debug, Default, Serialize)]
struct Figures {
    #[serde(flatten)]
    deaths: Option<deaths::Figures>,
    #[serde(flatten)]
    idle: Option<idle::Figures>,
    #[serde(flatten)]
    kernel: Option<kernel::Figures>,
    #[serde(flatten)]
    logs: Option<logs::Figures>,
}

fn main() -> ExitCode {
    guard::init(); // this program is also the guard, in which this call does not return
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["rank", act, mib] => rank::run(act, mib),
        ["footprint", ranks] => kernel::print_footprint(ranks),
        _ => run(&program::options()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench_core: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    let wanted = |what| options.only.is_empty() || options.only.contains(&what);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut figures = Figures::default();
    println!("{}", machine());
    // As separate tasks, like the runtime's.
    if wanted(Measurement::Deaths) {
        figures.deaths = Some(runtime.block_on(runtime.spawn(deaths::measure(options.kills, options.quick)))??);
    }
    if wanted(Measurement::Idle) {
        figures.idle = Some(runtime.block_on(runtime.spawn(idle::measure(options.quick, options.guard.clone())))??);
    }
    drop(runtime);
    if wanted(Measurement::Kernel) {
        figures.kernel = Some(kernel::measure(options.quick)?);
    }
    if wanted(Measurement::Logs) {
        figures.logs = Some(logs::measure(options.quick)?);
    }
    if options.json {
        println!("{}", serde_json::to_string(&figures)?);
    }
    Ok(())
}

/// Returns a description of the machine.
fn machine() -> String {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let (release, load) = (text("/proc/sys/kernel/osrelease"), text("/proc/loadavg"));
    let pages = text("/sys/kernel/mm/transparent_hugepage/enabled");
    format!("{cores} cores, Linux {release}, huge pages {pages}, load before {load}")
}
