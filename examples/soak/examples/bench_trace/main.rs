//! The cost of recording and of standbys on this machine, each figure with that of a comparable library in the same
//! process.
//!
//! `cargo run --release -p taskd-soak --example bench_trace` prints the tables, `--json` the figures as the last line.
//! `--only cost,flow` runs some of the measurements; `python`, `training`, `numerical` and `standbys` use the Python environment of
//! `pytorch_ddp`. `--quick` reduces all counts and only checks that the program works. With `--features parquet` stored
//! records are compared with Parquet, too.
//! All that is compared is measured in turns, round after round; what is printed is the median of the rounds, the least and
//! All figures that are compared are measured in turns, round after round; the output has the median of the rounds, the
//! minimum and the maximum.

mod cost;
mod flow;
mod numerical;
mod python;
mod rivals;
mod spans;
mod standbys;
mod store;

use clap::{Parser, ValueEnum};
use serde::Serialize;
use std::process::ExitCode;
use taskd_core::launch::guard;
use taskd_examples::program::{self, Failure};

/// Measures the cost of recording.
#[derive(Debug, Parser)]
struct Options {
    /// Only these measurements.
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<Measurement>,
    /// Few and short rounds: checks that the program works; its figures mean nothing.
    #[arg(long)]
    quick: bool,
    /// Prints the figures as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measurement {
    /// Cost of a record for its thread.
    Cost,
    /// Throughput of records.
    Flow,
    /// Size of stored records, and the speed of writing and reading them.
    Store,
    /// Cost of a span of a device in the reducer.
    Spans,
    /// Cost of a mark in a Python program.
    Python,
    /// Cost of recording in a PyTorch training.
    Training,
    /// Cost of the figures that find numerical faults in a PyTorch training.
    Numerical,
    /// Cost of standbys in a PyTorch training while they start.
    Standbys,
}

/// The output of `--json`: the figures of the measurements that were run.
#[derive(Debug, Default, Serialize)]
struct Figures {
    #[serde(flatten)]
    cost: Option<cost::Figures>,
    #[serde(flatten)]
    flow: Option<flow::Figures>,
    #[serde(flatten)]
    store: Option<store::Figures>,
    #[serde(flatten)]
    spans: Option<spans::Figures>,
    #[serde(flatten)]
    calls: Option<python::Calls>,
    #[serde(flatten)]
    training: Option<python::Training>,
    #[serde(flatten)]
    numerical: Option<numerical::Figures>,
    #[serde(flatten)]
    standbys: Option<standbys::Figures>,
}

fn main() -> ExitCode {
    guard::init(); // this program is also the guard, in which this call does not return
    let options: Options = program::options();
    program::run("bench_trace", async move { run(&options).await })
}

async fn run(options: &Options) -> Result<(), Failure> {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load before {}", load.trim());
    let wanted = |what| options.only.is_empty() || options.only.contains(&what);
    let mut figures = Figures::default();
    if wanted(Measurement::Cost) {
        figures.cost = Some(cost::measure(options.quick)?);
    }
    if wanted(Measurement::Flow) {
        figures.flow = Some(flow::measure(options.quick)?);
    }
    if wanted(Measurement::Store) {
        figures.store = Some(store::measure(options.quick)?);
    }
    if wanted(Measurement::Spans) {
        figures.spans = Some(spans::measure(options.quick));
    }
    if wanted(Measurement::Python) {
        figures.calls = Some(python::calls(&python::interpreter().await?, options.quick).await?);
    }
    if wanted(Measurement::Training) {
        figures.training = Some(python::training(&python::interpreter().await?, options.quick).await?);
    }
    if wanted(Measurement::Numerical) {
        figures.numerical = Some(numerical::measure(&python::interpreter().await?, options.quick).await?);
    }
    if wanted(Measurement::Standbys) {
        figures.standbys = Some(standbys::measure(&python::interpreter().await?, options.quick).await?);
    }
    if options.json {
        println!("{}", serde_json::to_string(&figures)?);
    }
    Ok(())
}
