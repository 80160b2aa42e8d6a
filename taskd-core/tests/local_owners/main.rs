//! Owners that die, guards that die, and lifelines: real processes whose supervisor is a process, too.
//!
//! Called without a role this program runs its tests; with one it is the supervisor, the guard or a rank of them.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test may fail where it stands")]

mod attach;
mod containment;
mod cost;
mod fence;
mod guard_blame;
mod guard_death;
mod harness;
mod identity;
mod lifelines;
mod loss;
mod missing_calls;
mod no_guard;
mod old_kernel;
mod out_of_memory;
mod pid_one;
mod rank;
mod refused_calls;
mod strangers;
mod supervisor;
#[path = "../local_launcher/support.rs"]
mod support;
mod tee;
mod tracer;
mod turns;

use std::process::ExitCode;

const SUITES: [&[harness::Test]; 17] = [
    attach::TESTS,
    containment::TESTS,
    cost::TESTS,
    fence::TESTS,
    guard_blame::TESTS,
    guard_death::TESTS,
    identity::TESTS,
    lifelines::TESTS,
    loss::TESTS,
    no_guard::TESTS,
    old_kernel::TESTS,
    out_of_memory::TESTS,
    pid_one::TESTS,
    refused_calls::TESTS,
    strangers::TESTS,
    tee::TESTS,
    turns::TESTS,
];

fn main() -> ExitCode {
    taskd_core::launch::guard::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["supervisor", dir, on_loss] => supervisor::run(dir.as_ref(), on_loss),
        ["rank", act, argument] => rank::run(act, argument),
        ["headless", file] => rank::headless(file),
        ["flood", socket] => strangers::flood(socket.as_ref()),
        ["namespace", act, dir] => pid_one::run(act, dir),
        ["tee", dir, script] => tee::run(dir, script),
        ["no-guard", dir] => no_guard::run(dir),
        [missing_calls::NO_ROBUST_LOCKS, ref rest @ ..] => missing_calls::run_without_robust_locks(rest),
        [refused_calls::ROLE, calls, dir] => refused_calls::run(calls, dir),
        [old_kernel::ROLE, ref suites @ ..] => old_kernel::run(suites),
        _ => harness::run(&words, &SUITES),
    }
}
