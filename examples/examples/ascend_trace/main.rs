//! Records what a rank's NPU does through mspti while kinds are switched, and then writes a file for ui.perfetto.dev.
//! There is no NPU: a stand-in for libmspti.so, compiled from this repository's own C, simulates one. Everything from
//! its buffers on is real: the probe, the recorder, the switches, the store.
//!
//! `cargo run --release --example ascend_trace`, and `... -- bench` for what a record costs the probe and whether
//! records are lost. The training is `examples/python/train_npu_standin.py`; it needs `python3` and `cc`, and no
//! software of the vendor.

mod bench;
mod seen;
mod standin;
mod traced;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use taskd_core::launch::guard;
use taskd_examples::program::{self, number};

/// Records a training on a stand-in for an NPU, and switches kinds while it runs.
#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    what: Option<What>,
    /// Steps of each of the four phases.
    #[arg(long, allow_negative_numbers = true, default_value_t = 40, value_parser = number::<u64>(10, 100_000))]
    steps: u64,
    /// Directory for the files. Default: a temporary one, deleted at the end.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Prints the account as one line of JSON at the end.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Measures the probe's cost of a marker record, and the records lost at a given rate.
    Bench {
        /// Seconds of each of the three runs.
        #[arg(long, allow_negative_numbers = true, default_value_t = 5, value_parser = number::<u64>(1, 600))]
        seconds: u64,
        /// Marker records a second in the third run.
        #[arg(long, allow_negative_numbers = true, default_value_t = 1_000_000, value_parser = number::<u64>(1_000, 100_000_000))]
        rate: u64,
    },
}

fn main() -> ExitCode {
    guard::init(); // this program is also the guard, in which this call does not return
    let options: Options = program::options();
    program::run("ascend_trace", async {
        println!("no NPU: a stand-in for libmspti.so generates the records; the figures do not describe a real NPU");
        match options.what {
            None => traced::run(options.steps, options.out.as_deref()).await?.print(options.json),
            Some(What::Bench { seconds, rate }) => bench::run(seconds, rate).await?.print(options.json),
        }
        Ok(())
    })
}
