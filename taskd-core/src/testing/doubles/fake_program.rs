//! What fake processes do, written into the orders that start them.

use crate::job::WorkerSpec;
use std::time::Duration;

/// What a process of a [`FakeLauncher`](super::FakeLauncher) does. It travels in the `argv` of the order; any other `argv` means
/// [`Runs`](FakeProgram::Runs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FakeProgram {
    /// It runs until it is stopped or ended.
    Runs,
    /// It ends by itself.
    Exits {
        /// After this time, in whole milliseconds.
        after: Duration,
        /// With this code.
        code: i32,
    },
    /// It runs and does not listen to a stop: only force ends it.
    Stubborn,
    /// It is accepted, but then cannot be started.
    CannotStart,
    /// It is not even accepted.
    Refused,
}

impl FakeProgram {
    /// The specification that makes a process do this.
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
