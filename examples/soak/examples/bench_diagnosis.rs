//! Real trainings, a fault in each, and the verdicts: is the right component blamed, for the right cause, how soon?
//!
//! `cargo run --release -p taskd-soak --example bench_diagnosis -- --runs 20 --ranks 4,8,2x2 --file runs.jsonl`. The
//! program can be stopped and continued: the runs that the file contains are not repeated. The fault is injected from
//! outside, victim and moment come from the seed; each line of the file lists `injected` beside `blamed`. Containers
//! (control groups of version 1) and slow links (a network namespace) need root; without it the kinds that need them
//! are skipped.

use std::process::ExitCode;
use taskd_core::launch::guard;
use taskd_examples::program;
use taskd_soak::bench_diagnosis::{self, Options};

fn main() -> ExitCode {
    guard::init(); // this program is also the guard, in which this call does not return
    let options: Options = program::options();
    let prepared = bench_diagnosis::prepare();
    program::run("bench_diagnosis", Box::pin(async move { bench_diagnosis::run(&options, prepared?).await }))
}
