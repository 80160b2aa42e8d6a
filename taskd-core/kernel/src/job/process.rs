//! Supervised processes: their roles, their identifiers, and how they ended.

use super::{Incarnation, Name, Rank};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The purpose of a supervised process: a rank, or a service that ranks need.
///
/// MindSpore's scheduler and a rendezvous store are services, not ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// One rank of the job: a process that trains.
    Rank(Rank),
    /// A process that ranks need but that does not train.
    Service(Name),
}

impl Role {
    /// Returns the rank; `None` for a service.
    #[must_use]
    pub const fn rank(&self) -> Option<Rank> {
        match self {
            Role::Rank(rank) => Some(*rank),
            Role::Service(_) => None,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Rank(rank) => rank.fmt(f),
            Role::Service(name) => write!(f, "service {name}"),
        }
    }
}

/// Unique identifier of one process: its role (rank or service) and the number of its start. An identifier is never
/// reused. All launcher operations refer to a process by it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcId {
    /// The purpose of the process: a rank, or a service.
    pub role: Role,
    /// Number of the process's start among all starts of the same role, from 1: a restarted rank has a new number.
    pub incarnation: Incarnation,
}

impl ProcId {
    /// Returns the identifier of the process that start number `incarnation` of the rank `rank` created.
    #[must_use]
    pub const fn rank(rank: u32, incarnation: u32) -> ProcId {
        ProcId { role: Role::Rank(Rank(rank)), incarnation: Incarnation(incarnation) }
    }

    /// Returns the identifier of the process that start number `incarnation` of the service `name` created.
    #[must_use]
    pub const fn service(name: Name, incarnation: u32) -> ProcId {
        ProcId { role: Role::Service(name), incarnation: Incarnation(incarnation) }
    }
}

impl fmt::Display for ProcId {
    /// Formats the identifier: `rank 3#2` is the second start of rank 3 (incarnations count from 1).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.role, self.incarnation)
    }
}

/// How a process ended, as reported by the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Termination {
    /// The process exited with this exit code.
    Code(i32),
    /// A signal terminated the process.
    Signal {
        /// Number of the signal, such as 9 for SIGKILL.
        number: i32,
        /// True if the Linux kernel wrote a core dump of the process.
        core_dumped: bool,
    },
    /// The process is gone, and no surviving process could observe how it ended.
    Unknown,
}

impl Termination {
    /// Returns true if the process exited with code 0.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Termination::Code(0))
    }
}

impl Termination {
    /// Converts a wait status of the Linux kernel, as `waitpid` returns it.
    #[doc(hidden)]
    pub const fn of_wait_status(status: i32) -> Termination {
        match status & 0x7f {
            0 => Termination::Code(status >> 8 & 0xff),
            number => Termination::Signal { number, core_dumped: status & 0x80 != 0 },
        }
    }

    /// Returns true if an interrupt (SIGINT) ended the process. If there is an error report, it decides
    /// ([`ErrorReport::is_interrupt`]); otherwise the termination does: by SIGINT, or with exit code 130.
    #[must_use]
    pub fn is_interrupt(self, error: Option<&ErrorReport>) -> bool {
        const SIGINT: i32 = 2; // Linux, x86-64 and aarch64; a shell returns 128 + number
        let by_signal = matches!(self, Termination::Signal { number: SIGINT, .. } | Termination::Code(130));
        error.map_or(by_signal, ErrorReport::is_interrupt)
    }
}

impl fmt::Display for Termination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Termination::Code(code) => write!(f, "exit code {code}"),
            Termination::Signal { number, core_dumped } => {
                match signal_name(*number) {
                    Some(name) => write!(f, "signal {number} ({name})")?,
                    None => write!(f, "signal {number}")?,
                }
                f.write_str(if *core_dumped { ", core dumped" } else { "" })
            }
            Termination::Unknown => f.write_str("unknown end"),
        }
    }
}

/// Names of the signals that terminate processes (Linux numbers, equal on x86-64 and aarch64), except the real-time
/// signals, which have no names.
const fn signal_name(number: i32) -> Option<&'static str> {
    Some(match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        16 => "SIGSTKFLT",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        26 => "SIGVTALRM",
        27 => "SIGPROF",
        29 => "SIGIO",
        30 => "SIGPWR",
        31 => "SIGSYS",
        _ => return None,
    })
}

/// Exit of a process: how it ended, and its last output, step and error. A launcher reports it once, and keeps it
/// until the decision kernel has acknowledged it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Exit {
    /// How the process ended: with which exit code, or by which signal.
    pub how: Termination,
    /// The last lines that the process wrote to stderr, at most [`Exit::STDERR_TAIL_BYTES_MAX`] bytes.
    pub stderr_tail: String,
    /// The last training step that the process reported as completed, in the program's own count.
    pub step: Option<u64>,
    /// The error that the process's framework recorded before the process ended, for example a Python exception, if
    /// there was one.
    pub error: Option<Box<ErrorReport>>,
}

impl Exit {
    /// Maximum size of `stderr_tail`, in bytes. Of a longer output, the last bytes are kept.
    pub const STDERR_TAIL_BYTES_MAX: usize = 4096;

    /// Creates an exit of which only the exit code or signal is known.
    #[must_use]
    pub const fn new(how: Termination) -> Exit {
        Exit { how, stderr_tail: String::new(), step: None, error: None }
    }

    /// Sets the last lines that the process wrote to stderr.
    #[must_use]
    pub fn with_stderr_tail(mut self, tail: impl Into<String>) -> Exit {
        self.stderr_tail = tail.into();
        self
    }

    /// Sets the last completed training step, if known.
    #[must_use]
    pub fn with_step(mut self, step: impl Into<Option<u64>>) -> Exit {
        self.step = step.into();
        self
    }

    /// Sets the error that the process's framework recorded before the process ended, if there was one.
    #[must_use]
    pub fn with_error(mut self, error: impl Into<Option<Box<ErrorReport>>>) -> Exit {
        self.error = error.into();
        self
    }
}

/// Family of the error reports of a host's guard.
const GUARD: Name = Name::new("guard");
/// Code of the report of a process that its guard has killed at the end of its host's lease.
const FENCED: Name = Name::new("Fenced");

/// An error, with the code and text with which a framework or a vendor's software reported it.
///
/// This crate uses `follow_up` and `retry_free`, and compares family, code and text to recognise a recurring error. The
/// crates of frameworks and hardware translate the other information in the report into faults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ErrorReport {
    /// Family of the error, that is, the framework or vendor system that defines its code, such as `python` or
    /// `cuda.xid`.
    pub family: Name,
    /// Code or type of the error within its family, such as `ValueError` or `79`.
    pub code: Name,
    /// Description of the error in one or a few lines, for people.
    pub text: String,
    /// True if the error is a consequence of another fault, such as a failed connection, collective or peer. Such an
    /// error blames no rank.
    pub follow_up: bool,
    /// True if the process has lost a race at start-up, such as the race for a port, so that neither the program nor
    /// the host has failed. The retry of the start does not count as a restart.
    pub retry_free: bool,
    /// The training step at which the error occurred, if known.
    pub step: Option<u64>,
}

impl ErrorReport {
    /// Creates a report of an error that is not a consequence of another fault and occurred at an unknown step. Its
    /// recovery counts as a restart.
    pub fn new(family: impl Into<Name>, code: impl Into<Name>, text: impl Into<String>) -> ErrorReport {
        let (family, code, text) = (family.into(), code.into(), text.into());
        ErrorReport { family, code, text, follow_up: false, retry_free: false, step: None }
    }

    /// Sets if the error is a consequence of another fault.
    #[must_use]
    pub const fn with_follow_up(mut self, follow_up: bool) -> ErrorReport {
        self.follow_up = follow_up;
        self
    }

    /// Sets if the error is a race lost at start-up, such as the race for a port: its retry does not count as a
    /// restart.
    #[must_use]
    pub const fn with_retry_free(mut self, retry_free: bool) -> ErrorReport {
        self.retry_free = retry_free;
        self
    }

    /// Sets the training step at which the error occurred, if known.
    #[must_use]
    pub fn with_step(mut self, step: impl Into<Option<u64>>) -> ErrorReport {
        self.step = step.into();
        self
    }

    /// Creates the report of a process that the guard of its host has killed because the host had no lease any more. `text`
    /// is the reason, in one sentence.
    #[doc(hidden)]
    pub fn fenced(text: impl Into<String>) -> ErrorReport {
        ErrorReport::new(GUARD, FENCED, text).with_follow_up(true)
    }

    /// Returns true if the guard of the host has killed the process, because the time until which the host may run processes
    /// was over. Neither the program nor the process has failed: it starts again once its host has a lease.
    #[must_use]
    pub fn is_fence(&self) -> bool {
        self.family == GUARD && self.code == FENCED
    }

    /// Returns true for the exception with which Python ends a program that receives SIGINT (`KeyboardInterrupt`), and
    /// for the one that torchrun's agent raises for a signal that it receives (`SignalException`). Such an error does
    /// not point to the program or the machine: its cause is outside of the process.
    #[must_use]
    pub fn is_interrupt(&self) -> bool {
        self.family == "python" && (self.code == "KeyboardInterrupt" || self.code == "SignalException")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_statuses() {
        assert_eq!(Termination::of_wait_status(3 << 8), Termination::Code(3));
        assert_eq!(Termination::of_wait_status(9), Termination::Signal { number: 9, core_dumped: false });
        assert_eq!(Termination::of_wait_status(0x80 | 11), Termination::Signal { number: 11, core_dumped: true });
    }

    #[test]
    fn every_signal_that_ends_a_process_has_its_name() {
        let named = [
            ("SIGHUP", libc::SIGHUP),
            ("SIGINT", libc::SIGINT),
            ("SIGQUIT", libc::SIGQUIT),
            ("SIGILL", libc::SIGILL),
            ("SIGTRAP", libc::SIGTRAP),
            ("SIGABRT", libc::SIGABRT),
            ("SIGBUS", libc::SIGBUS),
            ("SIGFPE", libc::SIGFPE),
            ("SIGKILL", libc::SIGKILL),
            ("SIGUSR1", libc::SIGUSR1),
            ("SIGSEGV", libc::SIGSEGV),
            ("SIGUSR2", libc::SIGUSR2),
            ("SIGPIPE", libc::SIGPIPE),
            ("SIGALRM", libc::SIGALRM),
            ("SIGTERM", libc::SIGTERM),
            ("SIGSTKFLT", libc::SIGSTKFLT),
            ("SIGXCPU", libc::SIGXCPU),
            ("SIGXFSZ", libc::SIGXFSZ),
            ("SIGVTALRM", libc::SIGVTALRM),
            ("SIGPROF", libc::SIGPROF),
            ("SIGIO", libc::SIGIO),
            ("SIGPWR", libc::SIGPWR),
            ("SIGSYS", libc::SIGSYS),
        ];
        for (name, number) in named {
            assert_eq!(signal_name(number), Some(name));
        }
        // By default these signals terminate no process: they are ignored, or stop or continue the process (signal(7)).
        let harmless = [libc::SIGCHLD, libc::SIGCONT, libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
        let harmless = [&harmless[..], &[libc::SIGURG, libc::SIGWINCH]].concat();
        let unnamed: Vec<i32> = (1..32).filter(|number| signal_name(*number).is_none()).collect();
        assert_eq!(unnamed.len(), harmless.len());
        assert!(harmless.iter().all(|number| unnamed.contains(number)), "{unnamed:?}");
    }
}
