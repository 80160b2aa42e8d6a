//! The frame of every example program: warnings on stderr, one sentence for a failure, numbers on the command line
//! whose errors name their range, and the [exit codes](taskd_core::runtime::exit_code) of a program that runs a job.
//!
//! On stdout it prints only the program's account, whose last line may be JSON.

use clap::Parser;
use serde::Serialize;
use std::ffi::OsString;
use std::fmt;
use std::io::{IsTerminal, stderr};
use std::process::ExitCode;
use std::time::Duration;
use taskd_core::kernel::{JobReport, Outcome};
use taskd_core::launch::LocalError;
use taskd_core::runtime::{BuildError, ShutdownMode, exit_code};
use taskd_hw_cuda::health::Unavailable;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// A failure of a program, whose text is its report.
pub type Failure = Box<dyn std::error::Error>;

/// How SIGTERM and Ctrl-C end an example: its ranks are stopped, since they have little to save.
pub const LEAVE: ShutdownMode = ShutdownMode::Terminate { grace: Duration::from_secs(2) };

/// A job that did not complete.
#[derive(Debug)]
pub struct Ended {
    outcome: Outcome,
    reason: String,
}

impl std::error::Error for Ended {}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Returns Ok if the job completed.
///
/// # Errors
/// Any other outcome, whose exit code becomes the program's.
pub fn completed(report: &JobReport) -> Result<(), Ended> {
    let ended = || Ended { outcome: report.outcome, reason: report.reason.clone() };
    if report.outcome == Outcome::Completed { Ok(()) } else { Err(ended()) }
}

/// Returns the options of the command line; if they are invalid, prints an error on stderr and ends the program.
pub fn options<O: Parser>() -> O {
    options_from(std::env::args_os())
}

/// Returns the options from `words`, the program's name first.
pub fn options_from<O: Parser>(words: impl Iterator<Item = OsString>) -> O {
    O::try_parse_from(words).unwrap_or_else(|failure| {
        let _ = failure.print(); // an error means that the output has no reader
        std::process::exit(if failure.use_stderr() { exit_code::USAGE.into() } else { exit_code::COMPLETED.into() })
    })
}

/// Prints a program's account: a table, or one line of JSON as the last line.
pub fn print(account: &impl Serialize, json: bool, table: impl FnOnce() -> String) {
    match serde_json::to_string(account) {
        _ if !json => println!("{}", table()),
        Ok(line) => println!("{line}"),
        Err(error) => println!("{{\"error\":\"{error}\"}}"),
    }
}

/// Runs a program's future to its end on two threads. A failure is one sentence on stderr, after the program's name.
///
/// taskd's warnings go to stderr; `RUST_LOG` sets other levels.
pub fn run(name: &str, story: impl Future<Output = Result<(), Failure>>) -> ExitCode {
    print_warnings();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    match runtime.map_err(Failure::from).and_then(|runtime| runtime.block_on(story)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::from(code_of(&error))
        }
    }
}

fn code_of(failure: &Failure) -> u8 {
    match failure.downcast_ref::<Ended>() {
        Some(ended) => ended.outcome.exit_code(),
        None if failure.is::<BuildError>() || failure.is::<LocalError>() || failure.is::<Unavailable>() => {
            exit_code::UNAVAILABLE
        }
        None => exit_code::FAILED,
    }
}

/// Installs the examples' subscriber: taskd only emits `tracing` events, and the host program chooses what to do with
/// them.
fn print_warnings() {
    let levels = levels_of(&std::env::var("RUST_LOG").unwrap_or_default()).unwrap_or_else(|| {
        eprintln!(
            "RUST_LOG is none of `LEVEL`, `TARGET=LEVEL` and a list of these with commas: only warnings are shown"
        );
        Targets::new().with_default(LevelFilter::WARN)
    });
    let format = tracing_subscriber::fmt::layer().without_time().with_target(false);
    let format = format.with_writer(stderr).with_ansi(stderr().is_terminal());
    tracing_subscriber::registry().with(format).with(levels).init();
}

/// Returns the levels that `RUST_LOG` requests, or warnings if it is empty. `EnvFilter` would also support spans and
/// fields, but needs a crate of regular expressions for them.
fn levels_of(asked: &str) -> Option<Targets> {
    if asked.trim().is_empty() { Some(Targets::new().with_default(LevelFilter::WARN)) } else { asked.parse().ok() }
}

/// Returns a clap value parser for whole numbers from `least` to `most`, which must fit `N`; its error names the range.
///
/// Its option needs `allow_negative_numbers = true`, otherwise clap parses `-1` as a flag.
pub fn number<N: TryFrom<u64>>(least: u64, most: u64) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync {
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        let number = number.and_then(|number| N::try_from(number).ok());
        number.ok_or_else(|| format!("must be a whole number from {least} to {most}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_before_the_start_of_a_job_exit_as_unavailable() {
        let failures: [Failure; 2] =
            [Box::new(BuildError { problems: Vec::new() }), Box::new(LocalError::NotInitialised)];
        assert!(failures.iter().all(|failure| code_of(failure) == exit_code::UNAVAILABLE));
    }

    #[test]
    fn rust_log_asks_for_levels_of_targets() {
        let debug_of = |asked: &str, target: &str| {
            levels_of(asked).map(|levels| levels.would_enable(target, &tracing::Level::DEBUG))
        };
        for (asked, core, other) in [
            ("", false, false),
            ("debug", true, true),
            ("taskd_core=debug", true, false),
            ("warn,taskd_core=trace", true, false),
        ] {
            let expected = (Some(core), Some(other));
            assert_eq!((debug_of(asked, "taskd_core::runtime"), debug_of(asked, "acme")), expected, "{asked}");
        }
        assert_eq!(debug_of("taskd_core=loud", "taskd_core"), None);
    }

    #[test]
    fn a_number_is_in_its_range_or_the_range_is_named() {
        let parse = number::<u32>(1, 20);
        assert_eq!((parse("1"), parse("20")), (Ok(1), Ok(20)));
        let refusal = Err("must be a whole number from 1 to 20".to_owned());
        for text in ["0", "21", "-1", "4294967297", "1.5", "many", ""] {
            assert_eq!(parse(text), refusal, "{text:?}");
        }
    }
}
