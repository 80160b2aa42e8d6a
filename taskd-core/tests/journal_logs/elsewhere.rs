//! A test that needs another ground under its feet, a small disk or no privileges, runs once more in a namespace of its
//! own.

use std::path::PathBuf;
use std::process::Command;

/// The directory that a test finds there.
const DIR: &str = "TASKD_TEST_ELSEWHERE";

/// A directory elsewhere, or `None` after the test has run there and passed, in a process of its own. `script` is run
/// by `sh` in a user namespace with these options of `unshare`; `$0` is the directory, `$@` the command to become.
#[allow(clippy::unwrap_used)] // a helper of tests is a test
pub(crate) fn elsewhere(test: &str, options: &[&str], script: &str) -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os(DIR) {
        return Some(dir.into());
    }
    let dir = tempfile::tempdir().unwrap();
    let mut process = Command::new("unshare");
    process.arg("--user").args(options).args(["sh", "-c", script]).arg(dir.path());
    process.arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]).env(DIR, dir.path());
    let output = process.output().expect("unshare of util-linux");
    let stderr = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("1 passed"), "it must have run: {stderr}");
    None
}
