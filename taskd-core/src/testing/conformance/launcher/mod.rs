//! The launcher suite: starts, ends, watches and forgets real processes (or fake ones), changes the owner under them, and
//! compares all that is told.

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
    START_IS_TOLD = "what becomes of an accepted order is told by `watch`";
    START_ALL_OR_NOTHING = "an error of `start` means that no process of the batch was started";
    PREPARE_STARTS_NOTHING = "`prepare` starts none of the processes that it is about, and tells nothing of them";
    EXIT_ONCE = "every accepted process ends in exactly one `Exited`";
    EXIT_OF_FAILED_START = "an accepted process that could not be started is told as `Exited`, too";
    EXIT_EXACT = "`Exited` says with which code or signal the process ended";
    PHASE_FORWARD = "a process's phase only moves forward";
    DEAD_ONCE = "`Dead` is told at most once";
    STOP_ONLY_BEGINS = "`stop` begins the stop and does not wait for its end";
    STOP_ENDS = "a process that is stopped ends";
    STOP_GRACE = "no process is ended by force before its grace is over";
    STOP_BY_FORCE = "after the grace a process is ended by force, whatever it does";
    STOP_WHOLE_TREE = "a stop ends the process with all its descendants";
    STOP_UNKNOWN_IS_FINE = "stopping the unknown or the dead is no error";
    LIST_COMPLETE = "`list` gives every process that runs";
    LIST_HOSTS = "`list` gives every host";
    LIST_THEN_WATCH = "`watch` from a listing's revision misses nothing and repeats nothing";
    WATCH_WAITS = "`watch` returns at least one change, and a cursor that has moved on";
    WATCH_CALLER_HOLDS_PLACE = "the same cursor gives the same changes, to everybody who asks";
    WATCH_CANCEL_SAFE = "a dropped `watch` has taken nothing";
    WATCH_STALE = "a cursor of another history, or of the future, is answered with `Stale`";
    EXIT_KEPT = "an exit is listed until it is acknowledged";
    EXIT_OUTLIVES_OWNER = "an exit is kept also over a change of owner";
    DETACH_KEEPS = "what was handed over by `detach` runs on, and the next owner finds it";
    ACKNOWLEDGED_IS_FORGOTTEN = "an acknowledged exit is not listed any more";
    ACKNOWLEDGE_UNKNOWN_IS_FINE = "acknowledging the unknown is no error";
    OUT_OF_SIGHT_IS_NOT_ENDED = "processes of a host out of sight are not told as ended until the host is back or has left";
    DROP_BREAKS_NOTHING = "a call whose future was dropped can be repeated, and then does its work";
    CALLS_AT_ONCE = "calls from several tasks at once do their work, and none waits for a `watch`";
    REFUSED_IS_FINAL = "what was `Refused` once is refused again";
    CALLS_REACH_INNER = "a launcher around another one passes every call on";
}

/// Checks a launcher against the contract of [`Launcher`].
///
/// `make` gives the handle of the owner with the given number, from 1. All owners attach to the same processes. The suite
/// lets an owner detach and drops its handle, and then asks for the next one; a launcher that refuses to detach must keep its
/// processes when it is dropped. `programs` says how to make processes that run, end and resist.
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
/// Pause tokio's time for a launcher in memory, and run one of real processes on real time.
pub fn launcher<F, L>(make: F, programs: Programs) -> LauncherSuite<F>
where
    F: AsyncFn(u32) -> L,
    L: Launcher + 'static,
{
    LauncherSuite { make, programs, limits: Limits::default(), verdict: Verdict::default() }
}

/// A launcher and what is known of it, ready to be checked (see [`launcher()`]).
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
    /// How long to wait for what must come; 30 s unless told. Only a launcher that breaks a clause makes the suite wait
    /// for so long.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.limits.patience = patience;
        self
    }

    /// How long to look out for what must not come, such as a second exit; 200 ms unless told.
    #[must_use]
    pub fn with_settle(mut self, settle: Duration) -> Self {
        self.limits.settle = settle;
        self
    }

    /// The grace of the stops that are checked for it; 2 s unless told.
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.limits.grace = grace;
        self
    }

    /// Says that the launcher does not keep `clause`, and why that is right. The report tells of it.
    #[must_use]
    pub fn without(mut self, clause: Clause, why: impl Into<String>) -> Self {
        self.verdict.waive(clause, why);
        self
    }

    /// Runs the suite.
    ///
    /// # Errors
    /// Every clause that was seen broken.
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
    /// With every clause that was seen broken.
    pub async fn assert(self) -> Report {
        insist("launcher", self.check().await)
    }
}

impl<F> fmt::Debug for LauncherSuite<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LauncherSuite").field("programs", &self.programs).finish_non_exhaustive()
    }
}
