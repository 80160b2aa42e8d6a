//! The speed and the memory of the analysis, beside other tools on the same files, in one run.
//!
//! `cargo run --release -p taskd-soak --example bench_analysis` prints the tables, `--json` the figures as the last line.
//! The other tools run in Python environments of their own, which are created when they are needed; `TASKD_PYTHON_HTA`
//! and `TASKD_PYTHON_MSPROF` name others. `--mib 1 --rounds 1` only checks that the program works.
//! Tools are run in turns; the output has the median of the rounds, the minimum and the maximum.

mod fail_slow;
mod hta_tables;
mod kineto;
mod msprof;

use clap::Parser;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use taskd_examples::program::{self, Failure};

/// Measures the analysis of traces.
#[derive(Debug, Parser)]
struct Options {
    /// Size of each of the four Kineto files in MiB.
    #[arg(long, default_value = "257", value_parser = program::number::<u64>(1, 4096), allow_negative_numbers = true)]
    mib: u64,
    /// Rounds; HTA needs about a minute for one with the default size.
    #[arg(long, default_value = "3", value_parser = program::number::<u32>(1, 100), allow_negative_numbers = true)]
    rounds: u32,
    /// Measures without the other tools.
    #[arg(long)]
    alone: bool,
    /// Prints the figures as one line of JSON at the end.
    #[arg(long)]
    json: bool,
    /// Directory for the generated files, which are deleted at the end.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Analyzes the files in this directory once, and prints figures and costs: how the program measures itself.
    #[arg(long, hide = true, value_names = ["MODE", "DIR"], num_args = 2)]
    once: Vec<String>,
}

/// The output of `--json`.
#[derive(Debug, Default, Serialize)]
struct Figures {
    #[serde(flatten)]
    kineto: Option<kineto::Figures>,
    #[serde(flatten)]
    msprof: Option<msprof::Figures>,
    #[serde(flatten)]
    fail_slow: Option<fail_slow::Figures>,
}

fn main() -> ExitCode {
    let options: Options = program::options();
    program::run("bench_analysis", async move { run(&options) })
}

fn run(options: &Options) -> Result<(), Failure> {
    if let [mode, directory] = options.once.as_slice() {
        return match mode.as_str() {
            "msprof" => msprof::once(directory.as_ref()),
            mode => kineto::once(mode, directory.as_ref()),
        };
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load before {}", load.trim());
    let fail_slow = Some(fail_slow::measure()?);
    let msprof = Some(msprof::measure(options)?);
    let figures = Figures { kineto: Some(kineto::measure(options)?), msprof, fail_slow };
    if options.json {
        println!("{}", serde_json::to_string(&figures)?);
    }
    Ok(())
}
