//! The conformance suite of consensus engines: elects, writes, watches, kills and cuts off managers on three hosts, and
//! checks the contract of [`Consensus`] clause by clause.

mod calls;
mod losses;
mod office;
mod session;
#[cfg(test)]
mod tests;
mod watches;
mod writes;

use super::Consensus;
use session::{Act, Limits, Make, Session};
use std::fmt;
use std::time::Duration;
use taskd_testing::clauses;
use taskd_testing::testing::conformance::{Verdict, insist};

pub use taskd_testing::testing::conformance::{Clause, Report, Violation};

clauses! { "consensus":
    ONE_MANAGER = "at most one candidate is the manager under one epoch";
    EPOCHS_RISE = "every epoch is greater than all before";
    CAMPAIGN_STORES = "`campaign` returns when the candidate is the manager, and every host reads this";
    CAMPAIGN_WAITS = "`campaign` waits while another candidate is the manager";
    CAMPAIGN_CANCEL_SAFE = "the candidate of a dropped `campaign` does not stay the manager for longer than the lease";
    FAILOVER = "the end of a manager without `resign` ends its epoch within `info().failover`";
    EPOCH_KEEPS = "an epoch without an end is not taken away from a manager that the majority reaches";
    WRITE_NEEDS_EPOCH = "`compare_and_set` writes only if its epoch is in force, and returns `Superseded` otherwise";
    WRITE_NEEDS_VERSION = "`compare_and_set` writes only if the record has the expected version, and returns \
                           `Conflict` otherwise";
    WRITE_ATOMIC = "of concurrent writers that expect the same version, exactly one writes";
    WRITTEN_IS_READ = "every `read` from every host returns what was written, or a later record";
    WRITTEN_SURVIVES = "what was written outlives its manager";
    WRITE_BOUND = "a value of `RECORD_BYTES_MAX` is written, a longer one is `Refused`";
    VERSION_RISES = "every change raises the version, and `compare_and_set` returns the record's new version";
    CONFIRM_IN_FORCE = "`confirm` returns `Ok` for the epoch in force, and `Superseded` for every other";
    MAJORITY_ONLY = "without a majority, neither `confirm` nor `compare_and_set` returns `Ok`";
    READ_UNAVAILABLE = "without a majority `read` returns `Unavailable` within the engine's time limit, and works \
                        again afterwards";
    READ_NEVER_OLD = "without a majority `read` returns no old record";
    WATCH_NEWS = "`watch` waits for a record that is newer than the caller's, and returns it";
    WATCH_MANAGER = "a change of the manager is a change of the version that `watch` returns";
    WATCH_CANCEL_SAFE = "a dropped `watch` has taken nothing";
    RESIGN_ENDS = "`resign` ends the epoch at once";
    RESIGN_OLD_IS_FINE = "resigning an epoch that is not in force is no error, and ends no other epoch";
    DROP_BREAKS_NOTHING = "a call that was dropped breaks no later call";
    CALLS_AT_ONCE = "calls made concurrently do their work, and wait for no `campaign` and no `watch`";
}

/// Checks a consensus engine against the contract of [`Consensus`].
///
/// `make` returns the handle of the host with the given number, 1, 2 or 3, of one job. Every host can be the manager. A
/// host that was killed (see [`with_kill`](ConsensusSuite::with_kill)) is started again with the same number.
///
/// ```
/// use taskd_cluster::consensus::{Single, conformance};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let single = Single::default();
/// let report = conformance::consensus(async |_host| single.clone()).assert().await;
/// assert!(report.skipped().iter().any(|(clause, _)| *clause == conformance::FAILOVER), "{report}");
/// # }
/// ```
///
/// Pause tokio's time for an in-memory engine, and use real time for one of real processes.
pub fn consensus<'a, F, C>(make: F) -> ConsensusSuite<'a>
where
    F: AsyncFn(u32) -> C + 'a,
    C: Consensus + 'static,
{
    let (limits, verdict) = (Limits::default(), Verdict::default());
    ConsensusSuite { make: Box::new(make), kill: None, cut: None, limits, verdict }
}

/// What a caller can do to the hosts of an engine.
struct Cut<'a> {
    cut: Box<dyn Act + 'a>,
    reconnect: Box<dyn Act + 'a>,
}

/// A consensus engine, ready to be checked (see [`consensus()`]).
pub struct ConsensusSuite<'a> {
    make: Box<dyn Make + 'a>,
    kill: Option<Box<dyn Act + 'a>>,
    cut: Option<Cut<'a>>,
    limits: Limits,
    verdict: Verdict,
}

impl<'a> ConsensusSuite<'a> {
    /// Sets a function that ends the process of a host as SIGKILL does: the engine's handle of this host does nothing
    /// more, and resigns nothing. Without it, the clauses that need it are skipped.
    #[must_use]
    pub fn with_kill(mut self, kill: impl AsyncFn(u32) + 'a) -> Self {
        self.kill = Some(Box::new(kill));
        self
    }

    /// Sets functions that cut a host off from the majority, and that connect it again. Messages of a host that is cut
    /// off are lost without an error. Without them, the clauses that need them are skipped.
    #[must_use]
    pub fn with_cut(mut self, cut: impl AsyncFn(u32) + 'a, reconnect: impl AsyncFn(u32) + 'a) -> Self {
        self.cut = Some(Cut { cut: Box::new(cut), reconnect: Box::new(reconnect) });
        self
    }

    /// Sets the time limit of the engine's calls without a majority (default: 10 s).
    #[must_use]
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.limits.limit = limit;
        self
    }

    /// Sets how long to wait for an event that must happen, such as the return of a `read` (default: 30 s). Only an
    /// engine that breaks a clause makes the suite wait that long.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.limits.patience = patience;
        self
    }

    /// Sets how long to watch for an event that must not happen, such as a second manager (default: 200 ms).
    #[must_use]
    pub fn with_settle(mut self, settle: Duration) -> Self {
        self.limits.settle = settle;
        self
    }

    /// Sets the time that is added to every time that the engine states, for an overloaded machine (default: 2 s).
    #[must_use]
    pub fn with_slack(mut self, slack: Duration) -> Self {
        self.limits.slack = slack;
        self
    }

    /// Excludes `clause`, a requirement of the contract that the engine does not keep: breaking it is then no
    /// violation. The [report](Report::skipped) lists the clause with the reason `why`.
    #[must_use]
    pub fn without(mut self, clause: Clause, why: impl Into<String>) -> Self {
        self.verdict.waive(clause, why);
        self
    }

    /// Runs the suite.
    ///
    /// # Errors
    /// Returns one [`Violation`] for each clause of the contract that the engine broke, in the order of the contract.
    pub async fn check(self) -> Result<Report, Vec<Violation>> {
        let mut session = Session::open(&*self.make, self.limits, self.verdict).await;
        // An engine with calls that wait for each other would break every other clause too.
        if calls::at_once(&mut session).await {
            office::check(&mut session).await;
            writes::check(&mut session).await;
            watches::check(&mut session).await;
            losses::kill(&mut session, self.kill.as_deref()).await;
            losses::cut(&mut session, self.cut.as_ref()).await;
            losses::unchecked(&mut session, self.kill.is_some() || self.cut.is_some());
            calls::drops(&mut session).await; // an engine that a dropped call breaks does nothing more
        }
        session.close().await.finish(ALL)
    }

    /// Runs the suite.
    ///
    /// # Panics
    /// Panics if the engine broke a clause of the contract; the message lists each broken clause, what the engine did,
    /// and what the clause requires.
    pub async fn assert(self) -> Report {
        insist("consensus engine", self.check().await)
    }
}

impl fmt::Debug for ConsensusSuite<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsensusSuite").field("limits", &self.limits).finish_non_exhaustive()
    }
}
