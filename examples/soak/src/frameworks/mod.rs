//! The soak run behind the example `chaos_frameworks`: it kills ranks of small trainings, each with another framework.
//!
//! It only kills and compares: taskd recovers the jobs, and they resume from the frameworks' own checkpoints.

mod account;
mod job;
mod kills;
mod loops;

use account::{Account, Row};
use clap::Parser;
use job::{Job, Training};
use kills::Dice;
use loops::Loop;
use std::path::{Path, PathBuf};
use taskd_core::launch::python::venv::VenvSpec;
use taskd_examples::program::{self, Failure, number};
use taskd_pytorch::venv;

/// The packages that the programs import.
static FRAMEWORKS: VenvSpec = VenvSpec {
    what: "accelerate, DeepSpeed, Lightning and transformers",
    takes: "about 8 GB, once, about 3 minutes",
    requirements: include_str!("../../python/frameworks/requirements.txt"),
    modules: &["accelerate", "deepspeed", "lightning", "transformers", "torch", "numpy"],
    versions: &[(3, 13), (3, 12), (3, 11), (3, 10)],
    needs_bytes: 12_000_000_000,
    variable: "TASKD_PYTHON_FRAMEWORKS",
};

/// Kills ranks of many frameworks' loops; each job must end bit-identical to an undisturbed one.
#[derive(Debug, Parser)]
pub struct Options {
    /// Kills of each loop.
    #[arg(long, allow_negative_numbers = true, default_value_t = 20, value_parser = number::<u32>(1, 10_000))]
    kills: u32,
    /// Loops to run. Default: all.
    #[arg(long, value_enum, value_delimiter = ',')]
    loops: Vec<Loop>,
    /// Only with `taskd.steps`, or only without.
    #[arg(long)]
    taskd_steps: Option<bool>,
    /// Chooses victims and moments.
    #[arg(long, allow_negative_numbers = true, default_value_t = 7, value_parser = number::<u64>(0, u64::MAX))]
    seed: u64,
    /// Training steps of each job.
    #[arg(long, allow_negative_numbers = true, default_value_t = 200, value_parser = number::<u64>(40, 100_000))]
    steps: u64,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

/// Trains with every selected loop, prints the account and checks it.
///
/// # Errors
/// One sentence: what is missing on this machine, or what is not as expected.
pub async fn run(options: &Options) -> Result<(), Failure> {
    let loops = if options.loops.is_empty() { Loop::all() } else { options.loops.clone() };
    let need_torch_alone = loops.iter().all(|what| what.needs_torch_alone());
    let located = tokio::task::spawn_blocking(move || {
        let mut log = |line: &str| println!("python        {line}");
        if need_torch_alone {
            venv::locate(&mut log)
        } else {
            FRAMEWORKS.locate(&mut log).map(|env| env.python().to_owned())
        }
    });
    let python = located.await??;
    let mut dir = tempfile::Builder::new().prefix("taskd-chaos-frameworks-").tempdir()?;
    dir.disable_cleanup(true); // deleted only after success
    let mut account = Account::default();
    for what in loops {
        Box::pin(under_fire(options, what, &python, dir.path(), &mut account)).await?;
    }
    if account.is_well() {
        dir.disable_cleanup(false);
    } else {
        println!("everything is kept in {}", dir.path().display());
    }
    program::print(&account, options.json, || account.table());
    account.judge()
}

/// Runs an undisturbed training, and as many disturbed ones as its kills need, with and without `taskd.steps`.
async fn under_fire(
    options: &Options,
    what: Loop,
    python: &Path,
    dir: &Path,
    account: &mut Account,
) -> Result<(), Failure> {
    let job = |name: &str, with_steps: bool| -> Job {
        let dir: PathBuf = dir.join(format!("{}-{name}", what.name()));
        Job { what, with_steps, python: python.to_owned(), dir, steps: options.steps }
    };
    println!("{}: undisturbed", what.name());
    let undisturbed: Training = Box::pin(job("undisturbed", false).run(0, &mut Dice::new(options.seed))).await?;
    undisturbed.completed()?;
    for with_steps in [false, true] {
        if options.taskd_steps.is_some_and(|only| only != with_steps) || with_steps && !what.has_steps() {
            continue;
        }
        let mut row = Row::of(what, with_steps);
        let mut dice = Dice::new(options.seed);
        while row.kills < options.kills {
            let name = format!("{}-{}", if with_steps { "steps" } else { "plain" }, row.jobs);
            let training = Box::pin(job(&name, with_steps).run(options.kills - row.kills, &mut dice)).await?;
            if training.kills.is_empty() {
                return Err(format!("a job of {} ended before a rank was killed: use more --steps", what.name()).into());
            }
            row.add(&training, &undisturbed);
        }
        println!("{row}");
        account.rows.push(row);
    }
    Ok(())
}
