//! The fence of a host: the time at which the host's processes are killed, although the process that supervises them may
//! be stopped, starved of processor time, or dead.

use std::time::Duration;

/// Kills a host's processes at a time that is moved on as long as the host may run them.
///
/// An agent that holds a lease for its host sets the end of the lease here. The launcher passes the time to a process
/// that survives the agent: the guard of [`LocalLauncher`](super::LocalLauncher).
pub trait Fence: Send + Sync {
    /// Sets the time since the machine's start ([`since_boot`]) at which all processes of the launcher are killed with
    /// their descendants (SIGKILL); `None`: they are kept. The latest call counts.
    ///
    /// This method does not wait, and may be called ten times a second. The deadline stays in force when the caller
    /// ends. After it has passed, no process starts until a later deadline is set, or none.
    fn set_deadline(&self, deadline: Option<Duration>);
}

/// Returns the time since the machine's start, the time for which it was suspended included (`CLOCK_BOOTTIME`).
#[must_use]
pub fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(time).unwrap_or_default() // the time since the start is not negative
}
