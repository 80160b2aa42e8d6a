//! What several tests share.

use std::env;
use std::io::{Write, stderr};
use std::path::PathBuf;

use taskd_pytorch::venv;

/// A Python with torch, made if need be; `None` where the user skips what needs it (`TASKD_SKIP=torch`).
///
/// Fails the test with one sentence where there is none.
pub(crate) fn torch_python(test: &str) -> Option<PathBuf> {
    if env::var("TASKD_SKIP").is_ok_and(|skip| skip.split(',').any(|word| word == "torch")) {
        say(&format!("skipped: {test} (TASKD_SKIP names torch)"));
        return None;
    }
    match venv::locate(&mut say) {
        Ok(python) => Some(python),
        Err(error) => panic!("{test} needs PyTorch: {error} (or skip it with TASKD_SKIP=torch)"),
    }
}

/// Past the test harness, which would show a line only of a test that fails.
pub(crate) fn say(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}
