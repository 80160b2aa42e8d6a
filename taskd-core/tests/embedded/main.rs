//! A runtime in another program's tokio runtime: it touches nothing that is not its own, and ends as it is ordered to.
//!
//! Called without a role this program runs its tests; with one it is a host program of them, or their guard.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test may fail where it stands")]

mod dropped;
mod guest;
#[path = "../local_owners/harness.rs"]
mod harness;
mod host;
mod kept;
mod process;
mod secrets;
mod signals;
#[path = "../local_launcher/support.rs"]
mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    taskd_core::launch::guard::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["guest", threads, reaping, jobs, rounds, dir] => guest::run(threads, reaping, jobs, rounds, dir.as_ref()),
        ["without-guard", dir] => guest::run_without_guard(dir.as_ref()),
        ["kept", life, dir] => kept::run(life, dir.as_ref()),
        ["secrets", life, dir] => secrets::run(life, dir.as_ref()),
        ["signals", leave, dir] => signals::run(leave, dir.as_ref()),
        _ => harness::run(&words, &[dropped::TESTS, guest::TESTS, kept::TESTS, secrets::TESTS, signals::TESTS]),
    }
}
