//! Starts the programs that cargo has built next to a test, and reads their output. Shared with the tests of
//! `taskd-soak`.

#![allow(dead_code)] // each test program uses a part of it

use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;

/// Held by a test that runs several ranks of a framework: a small machine has no room for two such jobs at once.
pub(crate) static TORCH: Mutex<()> = Mutex::new(());

/// Returns the command of an example that cargo has built next to this test, in the same profile and target folder.
pub(crate) fn example(name: &str) -> Command {
    let test = std::env::current_exe().expect("a running program has a path");
    let target: PathBuf = test.parent().and_then(|deps| deps.parent()).expect("target/PROFILE/deps").join("examples");
    let program = target.join(name);
    assert!(program.exists(), "{} is not built; `cargo test --workspace` builds it", program.display());
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

/// Returns the last line that a program printed, as JSON.
pub(crate) fn account(output: &Output) -> Value {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    let last = out.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {last}\n{out}\n{err}"))
}

/// Returns the first line that an example prints for an invalid command line, for which it starts nothing.
pub(crate) fn refusal(command_line: &str) -> String {
    let (name, args) = command_line.split_once(' ').expect("a program and its flags");
    let output = example(name).args(args.split(' ')).output().expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(64), 0), "{stderr}");
    stderr.lines().next().unwrap_or_default().to_owned()
}

/// Returns true, and reports it, if `TASKD_SKIP` names PyTorch.
pub(crate) fn skips_torch(test: &str) -> bool {
    skips("torch", test)
}

/// Returns true, and reports it, if `TASKD_SKIP` names a part.
pub(crate) fn skips(what: &str, test: &str) -> bool {
    let skips = std::env::var("TASKD_SKIP").is_ok_and(|skip| skip.split(',').any(|s| s == what));
    if skips {
        // stderr directly, since the test harness shows output only of a test that fails.
        let _ = writeln!(std::io::stderr(), "skipped: {test} (TASKD_SKIP names {what})");
    }
    skips
}
