//! Programs of fake processes, encoded in the orders that start them.

use crate::job::WorkerSpec;
use std::time::Duration;

/// The behavior of a fake process of a [`FakeLauncher`](super::FakeLauncher). It is encoded in the `argv` of the
/// start order; any other `argv` means [`Runs`](FakeProgram::Runs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FakeProgram {
    /// The process runs until it is stopped or ended.
    Runs,
    /// The process exits by itself after a given time.
    Exits {
        /// Time from the start until the exit, in whole milliseconds.
        after: Duration,
        /// The exit code of the process.
        code: i32,
    },
    /// The process runs and ignores a stop: only a forced stop ends it.
    Stubborn,
    /// The launcher accepts the start order, but the process cannot be started.
    CannotStart,
    /// The launcher refuses a batch with this program, so that `start` fails.
    Refused,
}

impl FakeProgram {
    /// Returns the specification of a process with this program.
    #[must_use]
    pub fn spec(self) -> WorkerSpec {
        let words = match self {
            FakeProgram::Runs => "fake runs".to_owned(),
            FakeProgram::Exits { after, code } => format!("fake exits {} {code}", after.as_millis()),
            FakeProgram::Stubborn => "fake stubborn".to_owned(),
            FakeProgram::CannotStart => "fake cannot-start".to_owned(),
            FakeProgram::Refused => "fake refused".to_owned(),
        };
        WorkerSpec::new(words.split(' '))
    }

    pub(super) fn of(spec: &WorkerSpec) -> FakeProgram {
        let words: Vec<&str> = spec.argv.iter().map(String::as_str).collect();
        match words[..] {
            ["fake", "exits", after_ms, code] => {
                let after = Duration::from_millis(after_ms.parse().unwrap_or(0));
                FakeProgram::Exits { after, code: code.parse().unwrap_or(1) }
            }
            ["fake", "stubborn"] => FakeProgram::Stubborn,
            ["fake", "cannot-start"] => FakeProgram::CannotStart,
            ["fake", "refused"] => FakeProgram::Refused,
            _ => FakeProgram::Runs,
        }
    }
}
