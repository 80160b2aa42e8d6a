//! The campaign behind the example `bench_diagnosis`: real trainings, a fault in each, and what the detectors report.
//!
//! Faults are injected from outside: by signals, by limits of CPU time and storage of one rank's container, and by a
//! narrow bandwidth between two ranks, in a network namespace of the program's own. Only a program can leave a
//! collective out, call it with another size, or become slower on all ranks: the script does so on finding a file.

mod account;
mod container;
mod inject;
mod job;
mod kind;
mod link;
mod trial;

pub use account::{Account, Line};
use clap::{Parser, ValueEnum};
pub use kind::{Kind, Ranks};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;
use taskd_examples::program::{self, Failure, number};
use taskd_pytorch::venv;
use trial::Trial;

/// Usual duration of a run in seconds, by which the remaining time is estimated.
const USUAL_SECONDS: f64 = 15.0;

/// Injects faults into real trainings, and compares what the detectors report.
#[derive(Debug, Parser)]
pub struct Options {
    /// Number of runs of each kind and layout.
    #[arg(long, allow_negative_numbers = true, default_value_t = 2, value_parser = number::<u64>(0, 10_000))]
    runs: u64,
    /// Number of runs of each layout without a fault. Default: twice as many as of each kind.
    #[arg(long, allow_negative_numbers = true, value_parser = number::<u64>(0, 10_000))]
    clean: Option<u64>,
    /// Kinds of faults. Default: all.
    #[arg(long, value_enum, value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// Layouts.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "4")]
    ranks: Vec<Ranks>,
    /// First seed. Each run has the next one, by which victim and moment are chosen.
    #[arg(long, allow_negative_numbers = true, default_value_t = 7, value_parser = number::<u64>(0, u64::MAX / 2))]
    seed: u64,
    /// File to which each run is appended as a line of JSON. Runs that it contains are not repeated, and are counted.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Directory in which the records of the runs that were not correct are kept, each in a directory of its own:
    /// `cluster_report -- DIR/RUN/records` shows them.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Also prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

/// A run of the campaign.
type Key = (Ranks, Kind, u64);

/// What the campaign needs of the machine.
#[derive(Debug)]
pub struct Prepared {
    python: PathBuf,
    /// Reason if there can be no slow links.
    no_links: Option<String>,
}

/// Installs Python, then continues the program in a network namespace of its own, from which no package index can be
/// reached. Call this first in `main`, before there are threads.
///
/// # Errors
/// There is no Python with PyTorch, and it cannot be installed.
pub fn prepare() -> Result<Prepared, Failure> {
    let python = venv::locate(&mut |line| println!("python        {line}"))?;
    Ok(Prepared { python, no_links: link::enter() })
}

/// Runs the campaign.
///
/// # Errors
/// A training cannot be run, or the file cannot be read or written.
pub async fn run(options: &Options, prepared: Prepared) -> Result<(), Failure> {
    let Prepared { python, no_links } = prepared;
    let no_containers = container::lacks();
    container::remove_left();
    let planned = plan(options, no_links.as_deref(), no_containers.as_deref());
    let mut lines = read(options.file.as_deref())?;
    let done: BTreeSet<Key> = lines.iter().map(Line::key).collect();
    let open: Vec<Key> = planned.iter().filter(|key| !done.contains(key)).copied().collect();
    println!(
        "{} runs, {} of them done, about {:.0} min",
        planned.len(),
        planned.len() - open.len(),
        minutes(open.len())
    );
    for (ranks, kind, seed) in open {
        let has_containers = no_containers.is_none();
        let keep = options.keep.as_ref().map(|keep| keep.join(format!("{kind}-{ranks}-{seed}")));
        if let Some(keep) = &keep {
            fs::create_dir_all(keep)?;
        }
        let trial = Trial { python: python.clone(), kind, ranks, seed, has_containers, keep: keep.clone() };
        let begun = Instant::now();
        let observed = trial.run().await?;
        let line = Line::of(kind, ranks, seed, begun.elapsed().as_secs_f64(), observed);
        println!("{}", line.summary());
        if let Some(keep) = keep.filter(|_| line.correct_cause) {
            fs::remove_dir_all(keep)?;
        }
        if let Some(file) = &options.file {
            let mut file = OpenOptions::new().create(true).append(true).open(file)?;
            writeln!(file, "{}", serde_json::to_string(&line)?)?;
        }
        lines.push(line);
    }
    let planned: BTreeSet<Key> = planned.into_iter().collect();
    lines.retain(|line| planned.contains(&line.key()));
    let account = Account::of(&lines);
    println!("{}", account.table());
    if options.json {
        program::print(&account, true, String::new);
    }
    Ok(())
}

/// Returns all runs, in an order that mixes kinds and layouts: what disturbs the machine for a while then disturbs all.
fn plan(options: &Options, no_links: Option<&str>, no_containers: Option<&str>) -> Vec<Key> {
    let kinds = if options.kinds.is_empty() { Kind::value_variants() } else { &options.kinds };
    let mut planned = Vec::new();
    for kind in kinds {
        let lacks = match kind {
            Kind::SlowLink => no_links,
            Kind::BusyLoop | Kind::Throttled | Kind::SlowInput | Kind::SlowCheckpoint => no_containers,
            _ => None,
        };
        if let Some(reason) = lacks {
            println!("skipped       {kind}: {reason}");
            continue;
        }
        let clean = options.clean.unwrap_or(2 * options.runs);
        let runs = if *kind == Kind::Clean { clean } else { options.runs };
        let seeds = options.seed..options.seed + runs;
        planned.extend(options.ranks.iter().flat_map(|ranks| seeds.clone().map(|seed| (*ranks, *kind, seed))));
    }
    planned.shuffle(&mut StdRng::seed_from_u64(options.seed));
    planned
}

/// Reads the runs that a file contains. A last line that was cut off is left out.
fn read(file: Option<&Path>) -> Result<Vec<Line>, Failure> {
    let text = match file.map(fs::read_to_string) {
        Some(Ok(text)) => text,
        Some(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => String::new(),
    };
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

#[allow(clippy::cast_precision_loss, reason = "a small number of runs")]
fn minutes(runs: usize) -> f64 {
    runs as f64 * USUAL_SECONDS / 60.0
}
