//! The health of this machine's NVIDIA GPUs, live: figures, and Xid errors with NVIDIA's recommended action.
//!
//! `cargo run --release --example gpu_watch`. It needs only NVIDIA's driver; without a driver it reports that in one
//! sentence and exits with code 69 (see `taskd_core::runtime::exit_code`). With `--stand-in` it needs no GPU: a
//! stand-in for NVIDIA's library (compiled by this program, which needs a C compiler) reports two cards, and an Xid 79
//! under a real supervised job, which then leaves that host.
//!
//! `gpu_watch trace -- python3 train.py` runs a program under supervision and reports the work of its GPU through
//! CUPTI: kernels, copies, NCCL, NVTX ranges.

mod story;
mod table;
mod traced;

use clap::{Parser, Subcommand};
use serde::Serialize;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use table::{Card, Table};
use taskd_core::job::{Name, NodeId};
use taskd_core::launch::guard;
use taskd_core::trace::TraceSource;
use taskd_examples::program::{self, Failure, number};
use taskd_hw_cuda::health::NvmlSource;
use taskd_hw_cuda::xid::XidTable;

/// Watches GPUs, and explains their errors.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Options {
    #[command(subcommand)]
    what: Option<What>,
    /// Seconds to watch; 0: until Ctrl-C.
    #[arg(long, allow_negative_numbers = true, default_value_t = 10, value_parser = number::<u64>(0, 1_000_000))]
    seconds: u64,
    /// Milliseconds between two reads.
    #[arg(long, allow_negative_numbers = true, default_value_t = 1000, value_parser = number::<u64>(20, 3_600_000))]
    interval_ms: u64,
    /// Path of NVIDIA's library, if the loader does not find it.
    #[arg(long)]
    library: Option<PathBuf>,
    /// Path of your own table of Xids, which takes precedence over NVIDIA's.
    #[arg(long)]
    xids: Option<PathBuf>,
    /// No GPU: a stand-in for NVIDIA's library simulates a fault under a real job.
    #[arg(long, conflicts_with_all = ["seconds", "interval_ms", "library"])]
    stand_in: bool,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Runs a program and reports the work of its GPU.
    Trace(traced::Traced),
}

/// What was observed.
#[derive(Debug, Serialize)]
struct Account {
    stand_in: bool,
    devices: Vec<Card>,
    xids: u64,
    lost: u64,
}

fn main() -> ExitCode {
    guard::init(); // this program is also the guard, in which this call does not return
    let options: Options = program::options();
    program::run("gpu_watch", async move {
        if let Some(What::Trace(traced)) = &options.what {
            return traced::run(traced).await;
        }
        let mut xids = XidTable::built_in();
        if let Some(path) = &options.xids {
            xids.extend_from_file(path)?;
        }
        if options.stand_in { story::run(xids, options.json).await } else { watch(&options, xids).await }
    })
}

async fn watch(options: &Options, xids: XidTable) -> Result<(), Failure> {
    let builder = NvmlSource::builder(NodeId(Name::new("localhost")));
    let builder = builder.with_interval(Duration::from_millis(options.interval_ms));
    let mut source = match &options.library {
        Some(library) => builder.with_library(library).open().await?,
        None => builder.open().await?,
    };
    let mut table = Table::new(xids);
    if source.info().stand_in {
        println!("This is no GPU: the library declares itself a stand-in for NVIDIA's.");
    }
    let end = async {
        match options.seconds {
            0 => drop(tokio::signal::ctrl_c().await),
            seconds => tokio::time::sleep(Duration::from_secs(seconds)).await,
        }
    };
    tokio::pin!(end);
    let mut shown = tokio::time::interval(Duration::from_secs(5));
    loop {
        tokio::select! {
            biased;
            () = &mut end => break,
            next = source.next() => match next {
                Some(Ok(batch)) => batch.facts.iter().filter_map(|fact| table.take(fact)).for_each(|line| println!("{line}")),
                Some(Err(error)) => println!("!  {error}"),
                None => break,
            },
            _ = shown.tick() => if std::io::stdout().is_terminal() && !table.is_empty() {
                println!("{table}");
            },
        }
    }
    let Table { xids_seen, lost, .. } = table;
    let account = Account { stand_in: source.info().stand_in, devices: table.cards(), xids: xids_seen, lost };
    program::print(&account, options.json, || table.to_string());
    Ok(())
}
