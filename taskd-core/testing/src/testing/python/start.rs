//! Starts a rank as a launcher does: as the process that the page names, with the helper on its path.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

use super::pythons::system;

/// Replaces the guard's child between fork and exec: writes its process id to the page, then executes the program.
const BEFORE_EXEC: &str = r"
import os, struct, sys
start = open('/proc/self/stat', 'rb').read().rsplit(b')', 1)[1].split()[19]
with open(os.environ['TASKD_LIFELINE'], 'r+b') as page:
    page.seek(16)
    page.write(struct.pack('=I', os.getpid()))
    page.seek(24)
    page.write(struct.pack('=Q', int(start)))
os.execvp(sys.argv[1], sys.argv[1:])
";

/// Returns a page that names no process yet.
pub(super) fn page() -> Vec<u8> {
    let mut page = vec![0; 4096];
    page[..8].copy_from_slice(b"TASKDPG1");
    page[8..12].copy_from_slice(&1u32.to_ne_bytes());
    page[12..16].copy_from_slice(&4096u32.to_ne_bytes());
    page
}

/// Returns the path of the helper in a directory, under the same name as in a launcher's directory.
pub(super) fn helper_in(dir: &TempDir) -> PathBuf {
    dir.path().join("python")
}

/// Returns a command that runs `argv` as the process that the page names, with this helper and with its output
/// captured.
pub(super) fn start(page: &Path, helper: &Path, argv: &[&str]) -> Command {
    let mut command = Command::new(system());
    command.args(["-I", "-S", "-c", BEFORE_EXEC]).args(argv);
    command.env("PYTHONPATH", helper);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("PYTHON", system()).env("PAGE", page);
    command.env("TASKD_SECRET", "5a".repeat(32));
    command.env("TASKD_LIFELINE", page).env("TASKD_HEARTBEAT_INTERVAL_MS", "20");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns the output of a process as text.
#[must_use]
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the stdout and the stderr of a program that has ended successfully.
///
/// # Panics
/// Panics if the program has not ended successfully.
pub fn finished(out: Output) -> (String, String) {
    let printed = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{}: {}{}", out.status, printed.0, printed.1);
    printed
}

/// Waits for a started program, and returns the same as [`finished`].
///
/// # Panics
/// Panics if the program has not ended successfully.
pub fn waited(child: Child) -> (String, String) {
    finished(child.wait_with_output().unwrap())
}
