//! The oldest kernel that we support, Linux 4.18, has none of the system calls that came later: no pidfd, no
//! `close_range`, no `clone3`. A filter takes them away here, from the supervisor, its guard and its ranks.

use crate::harness::{self, tests};
use crate::missing_calls::take_away;
use crate::support::*;
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::process::{Child, Command, ExitCode, Stdio};

tests![everything_works_as_on_linux_4_18];

/// The first role of a process that runs tests as on that kernel.
pub(crate) const ROLE: &str = "as-on-linux-4.18";

/// `pidfd_send_signal`, of Linux 5.1: from there on all processors have the same numbers, and between 4.18 and 5.1 no
/// number of ours was given out.
const FIRST_LATER_CALL: u32 = 424;

/// What of this file's tests is run again: starts, exits, stops, kills, keeping, attaching, with and without a guard.
const SUITES: [&str; 5] = ["attach::", "guard_death::", "lifelines::", "loss::", "no_guard::"];

async fn everything_works_as_on_linux_4_18() {
    assert!(pidfd_open(getpid(), PidfdFlags::empty()).is_ok(), "this kernel has no pidfds: no filter is needed");
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(ROLE).args(SUITES).stdin(Stdio::null()).stdout(file.reopen().unwrap()).stderr(file.reopen().unwrap());
    let mut tests = Ends(command.spawn().unwrap());
    let status = within(PATIENCE * 2, "these tests end", || tests.0.try_wait().unwrap()).await;
    let file = std::fs::read_to_string(file.path()).unwrap();
    assert!(status.success(), "{file}");
    for suite in SUITES {
        assert!(file.contains(suite), "no test of {suite} was run");
    }
}

/// A process that ends at the latest with its test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Is such a process.
pub(crate) fn run(suites: &[&str]) -> ExitCode {
    take_away(FIRST_LATER_CALL..);
    assert_eq!(pidfd_open(getpid(), PidfdFlags::empty()).err(), Some(Errno::NOSYS));
    harness::run(suites, &crate::SUITES)
}
