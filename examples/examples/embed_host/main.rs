//! Embeds taskd in a service with signal handlers, children, a `tracing` subscriber and a panic hook of its own.
//!
//! `cargo run --release --example embed_host` runs two processes. The service ([`service`]) runs a job on two hosts
//! (simulated by two local launchers with a guard each) and serves the operators' socket. The scenario ([`story`])
//! starts the service, kills it, starts it again, and then sends it commands and a fault: drain a host, report a broken
//! device, end in order. `--json` prints the account as JSON.
//!
//! The part for a platform team to copy is [`embedded`]: the hundred lines between their service and taskd.

mod embedded;
mod exporter;
mod service;
mod story;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use taskd_core::launch::guard;
use taskd_core::worker::Lifeline;
use taskd_examples::program::{self, number};
use taskd_examples::trainer::{self, TrainerSettings};

/// Kills a service that embeds taskd, starts it again, and sends it commands.
#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    part: Option<Part>,
    /// Chooses the rank that is killed while no supervisor runs.
    #[arg(long, allow_negative_numbers = true, default_value_t = 7, value_parser = number::<u64>(0, u64::MAX))]
    seed: u64,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

/// The other processes of the scenario, each of them this same program.
#[derive(Debug, Subcommand)]
enum Part {
    /// The service, with all its files in one directory.
    Service {
        /// The directory, the same at every start.
        dir: PathBuf,
    },
    /// An exporter that reports a broken device through the socket.
    Exporter {
        /// The service's socket.
        socket: PathBuf,
        /// Host of the device.
        node: String,
    },
    /// One rank of the job.
    Rank {
        #[command(flatten)]
        settings: TrainerSettings,
    },
}

fn main() -> ExitCode {
    guard::init(); // this program is also the guard, in which this call does not return
    let options: Options = program::options();
    match options.part {
        Some(Part::Rank { settings }) => rank(settings),
        Some(Part::Service { dir }) => service::main(&dir),
        Some(Part::Exporter { socket, node }) => exporter::main(&socket, &node),
        None => program::run("embed_host", async move {
            story::run(options.seed).await?.print(options.json);
            Ok(())
        }),
    }
}

/// One rank: the training program, and the two lines that give it a lifeline.
fn rank(settings: TrainerSettings) -> ExitCode {
    let lifeline = Lifeline::take_from_env();
    trainer::run_as_process(settings, |step| {
        if let Some(lifeline) = &lifeline {
            lifeline.step(step);
        }
    })
}
