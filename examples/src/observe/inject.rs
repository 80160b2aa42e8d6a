//! Faults for a job that another program runs: the kind, the rank and the time of each.

use super::job::TorchrunJob;
use crate::clock::monotonic;
use crate::program::Failure;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// SIGSTOP, and SIGCONT later: the rank is frozen.
    Freeze,
    /// SIGKILL, as from an out-of-memory killer.
    Kill,
    /// SIGTERM to this rank alone.
    Terminate,
    /// The rank's own program fails with an exception.
    Exception,
}

impl Kind {
    /// The kinds that end a rank.
    pub const LETHAL: [Kind; 3] = [Kind::Kill, Kind::Terminate, Kind::Exception];

    /// Returns the kind in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Freeze => "SIGSTOP",
            Kind::Kill => "SIGKILL",
            Kind::Terminate => "SIGTERM",
            Kind::Exception => "ValueError",
        }
    }

    /// Returns the class of fault that a detector is expected to report.
    #[must_use]
    pub const fn class(self) -> &'static str {
        match self {
            Kind::Freeze => "silence",
            Kind::Kill | Kind::Terminate | Kind::Exception => "exit",
        }
    }
}

/// One fault that was injected.
#[derive(Clone, Copy, Debug)]
pub struct Injection {
    /// The kind of fault.
    pub kind: Kind,
    /// The rank.
    pub rank: u32,
    /// When, on the machine's monotonic clock.
    pub at: Duration,
}

/// Injects a fault into a rank of a running job. A frozen rank is continued after `freeze`.
///
/// # Errors
/// The rank has no process.
pub async fn inject(job: &TorchrunJob, kind: Kind, rank: u32, freeze: Duration) -> Result<Injection, Failure> {
    let number = job.pids().get(&rank).copied();
    let (number, pid) =
        number.zip(number.and_then(Pid::from_raw)).ok_or_else(|| format!("rank {rank} does not run"))?;
    println!("          >>> from outside: {} to rank {rank} (pid {number})", kind.name());
    let at = monotonic();
    match kind {
        Kind::Freeze => {
            kill_process(pid, Signal::STOP)?;
            tokio::time::sleep(freeze).await;
            println!("          >>> from outside: SIGCONT to rank {rank}");
            kill_process(pid, Signal::CONT)?;
        }
        Kind::Kill => kill_process(pid, Signal::KILL)?,
        Kind::Terminate => kill_process(pid, Signal::TERM)?,
        Kind::Exception => job.spoil_sample(rank)?,
    }
    Ok(Injection { kind, rank, at })
}
