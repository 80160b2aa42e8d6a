//! What recording costs on this machine, each figure beside its rival's in the same process.
//!
//! `cargo run --release --example bench_trace` prints the tables, `--json` the figures as the last line. `--quick` shrinks
//! everything until it only shows that the program works.
//!
//! All that is compared is measured in turns, round after round; what is printed is the median of the rounds, the least and
//! the most.

mod cost;
mod flow;
mod rivals;
mod store;

use clap::Parser;
use serde::Serialize;
use std::process::ExitCode;
use taskd_examples::program::{self, Failure};

/// Measures what recording costs.
#[derive(Debug, Parser)]
struct Options {
    /// Few and short rounds: shows that the program works, and no figure that means anything.
    #[arg(long)]
    quick: bool,
    /// Prints the figures as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Figures {
    #[serde(flatten)]
    cost: cost::Figures,
    #[serde(flatten)]
    flow: flow::Figures,
    #[serde(flatten)]
    store: store::Figures,
}

fn main() -> ExitCode {
    let options: Options = program::options();
    program::run("bench_trace", async move { run(&options) })
}

fn run(options: &Options) -> Result<(), Failure> {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load before {}", load.trim());
    let figures = Figures {
        cost: cost::measure(options.quick)?,
        flow: flow::measure(options.quick)?,
        store: store::measure(options.quick)?,
    };
    if options.json {
        println!("{}", serde_json::to_string(&figures)?);
    }
    Ok(())
}
