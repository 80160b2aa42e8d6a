//! Exit codes of a program that ran one job, so that a script or service manager knows what to do next.
//!
//! No function here ends the process: the host program does.
//!
//! | code | meaning | what to do |
//! |---|---|---|
//! | [0](COMPLETED) | training completed | nothing |
//! | [1](FAILED) | the job failed: no recovery was left that could help | read the report |
//! | [64](USAGE) | the command line is wrong (`EX_USAGE`) | correct it |
//! | [69](UNAVAILABLE) | the runtime, or one of its parts, cannot be built: no rank was started (`EX_UNAVAILABLE`) | read the message, which names all problems |
//! | [75](HANDED_OVER) | the job continues without this program (`EX_TEMPFAIL`) | run the program again: it attaches and continues |
//! | [77](TAKEN_OVER) | another supervisor has taken the job over, permanently (`EX_NOPERM`) | nothing: the other supervisor has the job |
//! | [143](STOPPED) | the job was stopped on request (like a shell's code for SIGTERM) | run it again to continue from its checkpoint |
//!
//! ```
//! # extern crate taskd_kernel as taskd_core;
//! use std::process::ExitCode;
//! use taskd_core::kernel::{JobReport, Outcome};
//!
//! fn end_of_main(report: &JobReport) -> ExitCode {
//!     report.outcome.into()
//! }
//! assert_eq!(Outcome::Detached.exit_code(), 75);
//! ```

use super::Outcome;
use std::process::ExitCode;

/// Exit code of a program whose job completed its training.
pub const COMPLETED: u8 = 0;
/// Exit code of a program whose job failed.
pub const FAILED: u8 = 1;
/// Exit code for a wrong command line: `EX_USAGE` of sysexits.h.
pub const USAGE: u8 = 64;
/// Exit code if the runtime, or its launcher, cannot be built: `EX_UNAVAILABLE` of sysexits.h.
pub const UNAVAILABLE: u8 = 69;
/// Exit code if the job was handed over to the guard and continues; run the program again to attach to it:
/// `EX_TEMPFAIL` of sysexits.h.
pub const HANDED_OVER: u8 = 75;
/// Exit code if another supervisor has taken the job over: `EX_NOPERM` of sysexits.h.
pub const TAKEN_OVER: u8 = 77;
/// Exit code if the job was stopped on request: 128 plus the number of SIGTERM.
pub const STOPPED: u8 = 143;

impl Outcome {
    /// Returns the exit code of a program whose job has this outcome (see the [table](self)). A program that ends while
    /// its job is still running has failed.
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
