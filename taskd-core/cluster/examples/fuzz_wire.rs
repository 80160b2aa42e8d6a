//! Damages valid messages of agents, managers and voters, records and log entries by seed, and checks that each case is read
//! or refused without a panic, in bounded time and memory.
//!
//! `cargo run --profile fuzz -p taskd-cluster --features test-util --example fuzz_wire -- --cases 10000000` is the soak
//! run; the profile makes every overflow of an integer a panic. A case is repeated by its number: `--first N --cases 1`.
//! Options: `--cases N` of each parser, `--first N`, `--seed N`, `--parser NAME` (again for more), `--json`.

use serde::Serialize;
use std::process::ExitCode;
use taskd_cluster::fuzz::{Cases, Figures, TARGETS};

/// What the command line requests.
struct Options {
    cases: Cases,
    parsers: Vec<String>,
    json: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Account {
    seed: u64,
    first: u64,
    /// True if an overflow of an integer panics, as in the profile `fuzz`.
    checks_overflows: bool,
    parsers: Vec<Figures>,
}

fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("fuzz_wire: {why}");
            return ExitCode::from(2);
        }
    };
    std::panic::set_hook(Box::new(|_| {})); // panics are counted and listed
    let Cases { seed, first, .. } = options.cases;
    let mut account = Account { seed, first, checks_overflows: cfg!(debug_assertions), parsers: Vec::new() };
    let is_chosen = |name: &str| options.parsers.is_empty() || options.parsers.iter().any(|chosen| chosen == name);
    for target in TARGETS.iter().filter(|target| is_chosen(target.name)) {
        let figures = target.run(options.cases);
        if !options.json {
            println!("{figures}");
        }
        account.parsers.push(figures);
    }
    if options.json {
        println!("{}", serde_json::to_string(&account).unwrap_or_default());
    }
    let bad = account.parsers.iter().filter(|figures| !figures.problems.is_empty()).count();
    if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options { cases: Cases { seed: 1, first: 0, cases: 100_000 }, parsers: Vec::new(), json: false };
    while let Some(name) = arguments.next() {
        if name == "--json" {
            options.json = true;
            continue;
        }
        let value = arguments.next().ok_or_else(|| format!("{name} has no value"))?;
        let number = || value.parse().map_err(|_| format!("{name} {value}: a number is expected"));
        match &*name {
            "--cases" => options.cases.cases = number()?,
            "--first" => options.cases.first = number()?,
            "--seed" => options.cases.seed = number()?,
            "--parser" if TARGETS.iter().any(|target| target.name == value) => options.parsers.push(value),
            "--parser" => {
                let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
                return Err(format!("there is no parser {value}: choose of {}", known.join(", ")));
            }
            _ => return Err(format!("there is no option {name}: --cases, --first, --seed, --parser and --json are")),
        }
    }
    Ok(options)
}
