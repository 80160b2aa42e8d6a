//! Damages valid inputs of every reader by seed, and checks that each case is read or refused without a panic, in bounded
//! time and memory, and that messages name the file or the position.
//!
//! `cargo run --profile fuzz -p taskd-soak --features parquet --example fuzz_readers -- --cases 10000000` is the soak run;
//! the profile makes every overflow of an integer a panic. A case is repeated by its number: `--first N --cases 1`.

mod analysis;
mod ascend;
mod flight;
mod kineto;
mod logs;
mod mutate;
#[cfg(feature = "parquet")]
mod operations;
mod random;
mod store;
mod watch;

use clap::Parser;
use random::Random;
use serde::Serialize;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use taskd_examples::program::{self, Failure};
use watch::{Problem, Watch};

/// Fuzzes the readers of traces.
#[derive(Debug, Parser)]
struct Options {
    /// Cases of each reader.
    #[arg(long, default_value = "100000", value_parser = program::number::<u64>(1, u64::MAX), allow_negative_numbers = true)]
    cases: u64,
    /// Number of the first case.
    #[arg(long, default_value = "0")]
    first: u64,
    /// Seed of all cases.
    #[arg(long, default_value = "1")]
    seed: u64,
    /// Readers, separated by commas; all by default.
    #[arg(long, value_delimiter = ',')]
    reader: Vec<String>,
    /// Threads; by default one per core.
    #[arg(long, default_value = "0", value_parser = program::number::<usize>(0, 256), allow_negative_numbers = true)]
    jobs: usize,
    /// Prints the figures as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

/// What a reader made of a case.
pub(crate) enum Outcome {
    /// Everything was read.
    Whole,
    /// A part was read; the messages say what is missing.
    Part(Vec<String>),
    /// Nothing was read.
    Refused(String),
}

/// A reader with its valid inputs.
pub(crate) trait Target: Send {
    /// Damages a valid input and reads it.
    fn case(&mut self, random: &mut Random) -> Outcome;

    /// Returns true if the message names the file, the place in it, or the rank.
    fn is_clear(&self, message: &str) -> bool;
}

/// Makes the reader with its inputs, for one thread.
type Make = fn() -> Result<Box<dyn Target>, Failure>;

const TARGETS: &[(&str, Make)] = &[
    ("kineto", kineto::target),
    ("flight-recorder", flight::target),
    ("ascend", ascend::target),
    ("store", store::target),
    #[cfg(feature = "parquet")]
    ("operations", operations::target),
    ("logs", logs::target),
    ("analysis", analysis::target),
];

/// Figures of one reader.
#[derive(Debug, Default, Serialize)]
struct Figures {
    reader: &'static str,
    cases: u64,
    whole: u64,
    part: u64,
    refused: u64,
    panics: u64,
    slow: u64,
    unclear: u64,
    over_memory: u64,
    seconds: f64,
    cases_per_s: f64,
    slowest_case_ms: f64,
    peak_growth_mib: u64,
    problems: Vec<String>,
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Account {
    seed: u64,
    first: u64,
    /// True if an overflow of an integer panics, as in the profile `fuzz`.
    checks_overflows: bool,
    readers: Vec<Figures>,
}

fn main() -> ExitCode {
    let options: Options = program::options();
    program::run("fuzz_readers", async move { run(&options) })
}

fn run(options: &Options) -> Result<(), Failure> {
    if let Some(unknown) = options.reader.iter().find(|name| TARGETS.iter().all(|target| target.0 != **name)) {
        let known: Vec<&str> = TARGETS.iter().map(|target| target.0).collect();
        return Err(format!("there is no reader {unknown}: the readers are {}", known.join(", ")).into());
    }
    watch::install();
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let jobs = if options.jobs == 0 { cores } else { options.jobs };
    let mut account = Account {
        seed: options.seed,
        first: options.first,
        checks_overflows: cfg!(debug_assertions),
        readers: Vec::new(),
    };
    let is_chosen = |name: &str| options.reader.is_empty() || options.reader.iter().any(|chosen| chosen == name);
    for (name, make) in TARGETS.iter().filter(|target| is_chosen(target.0)) {
        let figures = fuzz(name, *make, options, jobs)?;
        if !options.json {
            println!("{}", line(&figures));
        }
        account.readers.push(figures);
    }
    let bad: u64 =
        account.readers.iter().map(|reader| reader.panics + reader.slow + reader.unclear + reader.over_memory).sum();
    if options.json {
        program::print(&account, true, String::new);
    }
    if bad > 0 { Err(format!("{bad} cases are bad").into()) } else { Ok(()) }
}

fn line(figures: &Figures) -> String {
    let Figures { reader, cases, whole, part, refused, panics, slow, unclear, over_memory, .. } = figures;
    let mut text = format!(
        "{reader:16} {cases} cases, {:.0}/s: {whole} read, {part} in part, {refused} refused; {panics} panics, {slow} slow \
         (slowest {:.1} ms), {unclear} unclear messages, {over_memory} beyond the memory (grew by {} MiB)",
        figures.cases_per_s, figures.slowest_case_ms, figures.peak_growth_mib
    );
    for problem in &figures.problems {
        text += &format!("\n    {problem}");
    }
    text
}

/// Cases that a thread takes at once; memory is looked at after each.
const BLOCK: u64 = 512;

fn fuzz(name: &'static str, make: Make, options: &Options, jobs: usize) -> Result<Figures, Failure> {
    let next = AtomicU64::new(0);
    let began = Instant::now();
    let watches: Vec<Result<Watch, String>> = std::thread::scope(|scope| {
        let worker = || -> Result<Watch, String> {
            let mut target = make().map_err(|error| format!("the inputs of {name} cannot be made: {error}"))?;
            let mut watch = Watch::new(name);
            loop {
                let first = next.fetch_add(BLOCK, Ordering::Relaxed);
                if first >= options.cases {
                    return Ok(watch);
                }
                for case in first..(first + BLOCK).min(options.cases) {
                    let case = options.first.wrapping_add(case);
                    watch.case(&mut *target, options.seed, case);
                }
                watch.memory(options.first.wrapping_add(first));
            }
        };
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(worker)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())))
            .collect()
    });
    let seconds = began.elapsed().as_secs_f64();
    let mut figures = Figures { reader: name, seconds, ..Figures::default() };
    let mut problems: Vec<Problem> = Vec::new();
    for watch in watches {
        let watch = watch?;
        figures.whole += watch.whole;
        figures.part += watch.part;
        figures.refused += watch.refused;
        figures.panics += watch.panics;
        figures.slow += watch.slow;
        figures.unclear += watch.unclear;
        figures.over_memory += watch.over_memory;
        figures.slowest_case_ms = figures.slowest_case_ms.max(watch.slowest.as_secs_f64() * 1000.0);
        figures.peak_growth_mib = figures.peak_growth_mib.max(watch.growth_kib / 1024);
        problems.extend(watch.problems);
    }
    figures.cases = figures.whole + figures.part + figures.refused + figures.panics;
    #[allow(clippy::cast_precision_loss, reason = "a rate for display")]
    let rate = figures.cases as f64 / seconds.max(1e-9);
    figures.cases_per_s = rate;
    problems.sort_by(|one, other| (&one.what, one.case).cmp(&(&other.what, other.case)));
    problems.dedup_by(|one, other| one.what == other.what);
    figures.problems = problems.iter().map(|problem| format!("case {}: {}", problem.case, problem.what)).collect();
    Ok(figures)
}
