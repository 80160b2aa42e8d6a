//! With which code a program ends that ran one job, so that the script or service manager behind it knows what to do.
//!
//! It never ends a process: that is the host program's to do.
//!
//! | code | meaning | what to do |
//! |---|---|---|
//! | [0](COMPLETED) | training ended as it should | nothing |
//! | [1](FAILED) | the job failed: no recovery was left that could have helped | read the report |
//! | [64](USAGE) | the command line is wrong (`EX_USAGE`) | correct it |
//! | [69](UNAVAILABLE) | the runtime, or what it is built from, cannot be built: no rank was started (`EX_UNAVAILABLE`) | read the message; it names all that is wrong |
//! | [75](HANDED_OVER) | the job trains on without this program (`EX_TEMPFAIL`) | run the program again: it attaches and goes on |
//! | [77](TAKEN_OVER) | another supervisor has taken the job over, for good | nothing here: that one has it (`EX_NOPERM`) |
//! | [143](STOPPED) | the job was stopped because somebody asked for it (as a shell tells of SIGTERM) | run it again when it is to go on from its checkpoint |
//!
//! ```
//! use std::process::ExitCode;
//! use taskd_core::kernel::{JobReport, Outcome};
//!
//! fn end_of_main(report: &JobReport) -> ExitCode {
//!     report.outcome.into()
//! }
//! assert_eq!(Outcome::Detached.exit_code(), 75);
//! ```

use super::BuildError;
use crate::kernel::Outcome;
use std::process::ExitCode;

/// Training ended as it should.
pub const COMPLETED: u8 = 0;
/// The job failed.
pub const FAILED: u8 = 1;
/// The command line is wrong: `EX_USAGE` of sysexits.h.
pub const USAGE: u8 = 64;
/// The runtime, or its launcher, cannot be built: `EX_UNAVAILABLE` of sysexits.h.
pub const UNAVAILABLE: u8 = 69;
/// The job was handed over to the guard, and a program that is started now attaches to it: `EX_TEMPFAIL` of sysexits.h.
pub const HANDED_OVER: u8 = 75;
/// Another supervisor has the job: `EX_NOPERM` of sysexits.h.
pub const TAKEN_OVER: u8 = 77;
/// The job was stopped on request: 128 and SIGTERM.
pub const STOPPED: u8 = 143;

impl Outcome {
    /// The code of the [table](crate::runtime::exit_code). A program that ends while its job runs has failed.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Outcome::Completed => COMPLETED,
            Outcome::Running | Outcome::Failed => FAILED,
            Outcome::Stopped => STOPPED,
            Outcome::Detached => HANDED_OVER,
            Outcome::Superseded => TAKEN_OVER,
        }
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> ExitCode {
        ExitCode::from(outcome.exit_code())
    }
}

impl From<&BuildError> for ExitCode {
    fn from(_: &BuildError) -> ExitCode {
        ExitCode::from(UNAVAILABLE)
    }
}
