//! Supervised processes: what they are for, which one is meant, and how one ended.

use super::{Incarnation, Name, Rank};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a supervised process is for.
///
/// MindSpore's scheduler or a rendezvous store is a service, not a rank.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// One rank of the training world.
    Rank(Rank),
    /// A process that ranks need but that does not train.
    Service(Name),
}

impl Role {
    /// The rank, if this role is one.
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

/// One process, for ever: the key of everything that a launcher does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcId {
    /// What the process is for.
    pub role: Role,
    /// Which start of that role.
    pub incarnation: Incarnation,
}

impl ProcId {
    /// The given start of a rank.
    #[must_use]
    pub const fn rank(rank: u32, incarnation: u32) -> ProcId {
        ProcId { role: Role::Rank(Rank(rank)), incarnation: Incarnation(incarnation) }
    }

    /// The given start of a service.
    #[must_use]
    pub const fn service(name: Name, incarnation: u32) -> ProcId {
        ProcId { role: Role::Service(name), incarnation: Incarnation(incarnation) }
    }
}

impl fmt::Display for ProcId {
    /// `rank 3#2`: the second start of rank 3 (incarnations count from 1).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.role, self.incarnation)
    }
}

/// How a process ended, as the operating system tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Termination {
    /// It ended by itself with this exit code.
    Code(i32),
    /// A signal ended it.
    Signal {
        /// Number of the signal, such as 9 for SIGKILL.
        number: i32,
        /// Whether the kernel wrote a core dump.
        core_dumped: bool,
    },
    /// It is gone, and nobody who could know how has survived.
    Unknown,
}

impl Termination {
    /// Whether the process ended by itself with exit code 0.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Termination::Code(0))
    }
}

impl Termination {
    /// A wait status as the kernel keeps it.
    pub(crate) const fn of_wait_status(status: i32) -> Termination {
        match status & 0x7f {
            0 => Termination::Code(status >> 8 & 0xff),
            number => Termination::Signal { number, core_dumped: status & 0x80 != 0 },
        }
    }

    /// Whether it was interrupted (SIGINT): it says so, or the error does with which it ended.
    #[must_use]
    pub fn is_interrupt(self, error: Option<&ErrorReport>) -> bool {
        const SIGINT: i32 = 2; // Linux, x86-64 and aarch64; a shell says 128 more
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

/// Names of the signals that end processes (Linux numbers, equal on x86-64 and aarch64), but for the real-time ones, which have
/// none.
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

/// The exact end of a process: reported once, kept until acknowledged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Exit {
    /// Exit code or signal.
    pub how: Termination,
    /// The last lines that it wrote to stderr, at most [`Exit::STDERR_TAIL_BYTES_MAX`] bytes.
    pub stderr_tail: String,
    /// The last training step that it said it had completed, as the program counts steps.
    pub step: Option<u64>,
    /// What its framework recorded about the failure, where it did.
    pub error: Option<Box<ErrorReport>>,
}

impl Exit {
    /// How much of a process's stderr travels with its exit, in bytes.
    pub const STDERR_TAIL_BYTES_MAX: usize = 4096;

    /// An exit of which nothing but the termination is known.
    #[must_use]
    pub const fn new(how: Termination) -> Exit {
        Exit { how, stderr_tail: String::new(), step: None, error: None }
    }
}

/// An error in the words of the framework or vendor that reported it.
///
/// Core reads whether it is a consequence or a lost race, and compares family, code and text to tell whether an error comes
/// back; framework and hardware crates translate the rest into faults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorReport {
    /// Which family of errors, such as `python` or `cuda.xid`.
    pub family: Name,
    /// The error's own code or type, such as `ValueError` or `79`.
    pub code: Name,
    /// One or a few lines for people.
    pub text: String,
    /// True for the error of a connection, a collective or a peer: a consequence of somebody else's fault, so it blames
    /// nobody.
    pub follow_up: bool,
    /// Nothing was wrong with program or machine: a race at start-up was lost (such as the one for a port), and trying
    /// again does not count as a restart.
    pub retry_free: bool,
    /// The training step at which it happened, where that is known.
    pub step: Option<u64>,
}

impl ErrorReport {
    /// Whether it is the exception by which Python ends a program that gets SIGINT, or the one that torchrun's agent raises for a signal
    /// that it gets. It says nothing of program or machine: it came from outside of the process.
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
        // What these do of themselves ends nothing: they are ignored, or stop and go on (signal(7)).
        let harmless = [libc::SIGCHLD, libc::SIGCONT, libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
        let harmless = [&harmless[..], &[libc::SIGURG, libc::SIGWINCH]].concat();
        let unnamed: Vec<i32> = (1..32).filter(|number| signal_name(*number).is_none()).collect();
        assert_eq!(unnamed.len(), harmless.len());
        assert!(harmless.iter().all(|number| unnamed.contains(number)), "{unnamed:?}");
    }
}
