//! The launcher suite: starts, ends, watches and forgets real or fake processes, changes their owner, and checks
//! everything that is reported.

mod history;
mod inner;
mod life;
mod owners;
mod programs;
mod session;
#[cfg(test)]
mod tests;

pub use programs::{Hosts, Programs, Witnessed};

use super::verdict::{Verdict, clauses, insist};
use super::{Clause, Report, Violation};
use crate::launch::Launcher;
use session::{Limits, Session};
use std::fmt;
use std::time::Duration;

clauses! { "launcher":
    START_ONCE = "a process that runs, or has ended, is not started a second time";
    START_NEVER_AGAIN = "a process whose exit was acknowledged is not started again";
    START_ONLY_ACCEPTS = "`start` returns when the orders are accepted, not when processes run or end";
    START_IS_REPORTED = "`watch` reports the result of an accepted order";
    START_ALL_OR_NOTHING = "an error of `start` means that no process of the batch was started";
    PREPARE_STARTS_NOTHING = "`prepare` starts none of the processes in its argument, and reports nothing about them";
    EXIT_ONCE = "every accepted process ends in exactly one `Exited`";
    EXIT_OF_FAILED_START = "an accepted process that could not be started is also reported as `Exited`";
    EXIT_EXACT = "`Exited` contains the code or signal with which the process ended";
    PHASE_FORWARD = "a process's phase only moves forward";
    DEAD_ONCE = "`Dead` is reported at most once";
    STOP_ONLY_BEGINS = "`stop` begins the stop and does not wait for its end";
    STOP_ENDS = "a process that is stopped ends";
    STOP_GRACE = "no process is ended by force before its grace is over";
    STOP_BY_FORCE = "after the grace a process is ended by force, even if it ignores the stop";
    STOP_WHOLE_TREE = "a stop ends the process with all its descendants";
    STOP_UNKNOWN_IS_FINE = "stopping the unknown or the dead is no error";
    LIST_COMPLETE = "`list` gives every process that runs";
    LIST_HOSTS = "`list` gives every host";
    LIST_THEN_WATCH = "`watch` from a listing's revision misses nothing and repeats nothing";
    WATCH_WAITS = "`watch` returns at least one change, and a cursor that has moved on";
    WATCH_CALLER_HOLDS_PLACE = "the same cursor gives the same changes to every caller";
    WATCH_CANCEL_SAFE = "a dropped `watch` has taken nothing";
    WATCH_STALE = "a cursor of another history, or of the future, is answered with `Stale`";
    EXIT_KEPT = "an exit is listed until it is acknowledged";
    EXIT_OUTLIVES_OWNER = "an exit is kept also over a change of owner";
    DETACH_KEEPS = "processes handed over by `detach` keep running, and the next owner lists them";
    ACKNOWLEDGED_IS_FORGOTTEN = "an acknowledged exit is not listed any more";
    ACKNOWLEDGE_UNKNOWN_IS_FINE = "acknowledging the unknown is no error";
    OUT_OF_SIGHT_IS_NOT_ENDED = "processes of a host out of sight are not reported as ended until the host is back or \
                                 has left";
    DROP_BREAKS_NOTHING = "a call whose future was dropped can be repeated, and then does its work";
    CALLS_AT_ONCE = "calls from several tasks at once do their work, and none waits for a `watch`";
    REFUSED_IS_FINAL = "what was `Refused` once is refused again";
    CALLS_REACH_INNER = "a launcher around another one passes every call on";
}

/// Checks a launcher against the contract of [`Launcher`].
///
/// `make` returns the handle of the owner with the given number, from 1. All owners attach to the same processes. The
/// suite lets an owner detach, drops its handle, and then requests the next one; a launcher that refuses to detach must
/// keep its processes when it is dropped. `programs` provides processes that run, exit and resist.
///
/// ```
/// use taskd_core::testing::conformance;
/// use taskd_core::testing::doubles::FakeLauncher;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let mine = FakeLauncher::new(); // a launcher of commands would take `Programs::shell()`
/// let report = conformance::launcher(async |_owner| mine.attach(), mine.programs()).assert().await;
/// assert!(report.skipped().is_empty(), "{report}");
/// # }
/// ```
///
/// Pause tokio's time for an in-memory launcher, and use real time for one of real processes.
pub fn launcher<F, L>(make: F, programs: Programs) -> LauncherSuite<F>
where
    F: AsyncFn(u32) -> L,
    L: Launcher + 'static,
{
    LauncherSuite { make, programs, limits: Limits::default(), verdict: Verdict::default() }
}

/// A launcher with its programs, ready to be checked (see [`launcher()`]).
pub struct LauncherSuite<F> {
    make: F,
    programs: Programs,
    limits: Limits,
    verdict: Verdict,
}

impl<F, L> LauncherSuite<F>
where
    F: AsyncFn(u32) -> L,
    L: Launcher + 'static,
{
    /// Sets how long to wait for an event that must happen, such as an exit (default: 30 s). Only a launcher that
    /// breaks a clause makes the suite wait that long.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.limits.patience = patience;
        self
    }

    /// Sets how long to watch for an event that must not happen, such as a second exit (default: 200 ms).
    #[must_use]
    pub fn with_settle(mut self, settle: Duration) -> Self {
        self.limits.settle = settle;
        self
    }

    /// Sets the grace period with which the suite stops processes (default: 2 s).
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.limits.grace = grace;
        self
    }

    /// Excludes `clause`, a requirement of the contract that the launcher does not keep: breaking it is then no
    /// violation. The [report](Report::skipped) lists the clause with the reason `why`.
    #[must_use]
    pub fn without(mut self, clause: Clause, why: impl Into<String>) -> Self {
        self.verdict.waive(clause, why);
        self
    }

    /// Runs the suite.
    ///
    /// # Errors
    /// Returns one [`Violation`] for each clause of the contract that the launcher broke, in the order of the contract.
    pub async fn check(self) -> Result<Report, Vec<Violation>> {
        let mut session = Session::open(&self.make, &self.programs, self.limits, self.verdict).await;
        life::check(&mut session).await;
        history::check(&mut session).await;
        inner::direct(&mut session).await;
        owners::check(&mut session).await;
        inner::check(&mut session);
        session.close().await.finish(ALL)
    }

    /// Runs the suite.
    ///
    /// # Panics
    /// Panics if the launcher broke a clause of the contract; the message lists each broken clause, what the launcher
    /// did, and what the clause requires.
    pub async fn assert(self) -> Report {
        insist("launcher", self.check().await)
    }
}

impl<F> fmt::Debug for LauncherSuite<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LauncherSuite").field("programs", &self.programs).finish_non_exhaustive()
    }
}
