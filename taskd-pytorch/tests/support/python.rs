//! The Python of this machine, for tests that need no PyTorch.

use std::process::Command;
use std::sync::LazyLock;

/// The interpreter behind `python3` (which may be a wrapper script itself).
pub(crate) static PYTHON: LazyLock<String> = LazyLock::new(|| {
    let out = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    let out = out.expect("these tests need python3 on PATH");
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
});
