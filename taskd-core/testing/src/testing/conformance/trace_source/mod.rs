//! The source suite: reads a source to its end, once undisturbed and once with every call dropped at every await, and
//! compares the results.

mod ledger;
mod reading;
#[cfg(test)]
mod tests;

use super::verdict::{Verdict, clauses, insist};
use super::{Clause, Report, Violation};
use crate::job::{Domain, Name, NodeId, Rank, Role};
use crate::trace::{Fact, Probe, ProbeResult, SourceError, SourceInfo, TraceSource};
use ledger::Expected;
use reading::{End, Limits, Reading};
use std::fmt;
use std::time::Duration;
use tokio::time::timeout;

clauses! { "trace_source":
    INFO_CONSTANT = "`info` always returns the same value";
    INFO_USABLE = "a source has a name and a queue of at least one batch";
    CANCEL_SAFE = "no fact is lost when a call of `next` is dropped";
    WAITS = "`next` waits while there are no facts: it does not spin";
    EMPTY_IS_RARE = "`next` does not return empty batches in a loop";
    ERRORS_WAIT = "`next` does not return errors without an await in between";
    NEVER_BLOCKS = "`next` does not block the thread that polls it";
    NEVER_PANICS = "no call panics";
    END_IS_THE_END = "`None` is returned only when no more facts will follow";
    LOSSES_COUNTED = "facts that a source drops are reported as `Lost`, with their number";
    OLDEST_FIRST = "the facts of a batch are in order, oldest first";
    UNKNOWN_IS_UNSUPPORTED = "a probe that `info` does not name is answered with `Unsupported`";
    ANSWERS_WHAT_IT_NAMES = "a probe that `info` names is answered, or fails with a reason";
    ANSWERS_FOR_ITS_DOMAIN = "a probe of a domain that the source does not know is an error";
}

/// Checks a source against the contract of [`TraceSource`].
///
/// `make` returns a new source. Its facts are read twice, so a source of a changing environment needs a
/// [stimulus](SourceSuite::with_stimulus). To detect losses, the suite must know the expected facts: pass the
/// [facts](SourceSuite::with_reference), or a function that [numbers](SourceSuite::with_numbers) them.
///
/// ```
/// use taskd_core::job::Domain;
/// use taskd_core::testing::{conformance, doubles::ScriptedSource};
/// use taskd_core::trace::{Fact, Signal};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let facts: Vec<Fact> = (1..=9).map(|step| Fact::new(Domain::Job, Signal::Progress { step })).collect();
/// let mine = async || ScriptedSource::new(facts.chunks(3).map(<[Fact]>::to_vec));
/// conformance::trace_source(mine).with_reference(facts.clone()).assert().await;
/// # }
/// ```
///
/// Pause tokio's time for a source that uses timers, and use real time for a source of the real environment.
pub fn trace_source<F, S>(make: F) -> SourceSuite<F>
where
    F: AsyncFn() -> S,
    S: TraceSource,
{
    SourceSuite {
        make,
        limits: Limits::default(),
        expected: Expected::Unknown,
        stimulus: Box::new(|_| {}),
        asked: vec![Domain::Process(Role::Rank(Rank(0)))],
        verdict: Verdict::default(),
    }
}

/// A source with its expected facts, ready to be checked (see [`trace_source()`]).
pub struct SourceSuite<F> {
    make: F,
    limits: Limits,
    expected: Expected,
    stimulus: Box<dyn FnMut(u64) + Send>,
    asked: Vec<Domain>,
    verdict: Verdict,
}

impl<F, S> SourceSuite<F>
where
    F: AsyncFn() -> S,
    S: TraceSource,
{
    /// Declares all facts that a new source must report, in order; ages are ignored.
    #[must_use]
    pub fn with_reference(mut self, facts: impl IntoIterator<Item = Fact>) -> Self {
        self.expected = Expected::Facts(facts.into_iter().map(|fact| ledger::words(&fact)).collect());
        self
    }

    /// Sets a function that returns a number for each fact that has one. A new source must report these numbers without
    /// a gap.
    #[must_use]
    pub fn with_numbers(mut self, number: impl Fn(&Fact) -> Option<u64> + Send + 'static) -> Self {
        self.expected = Expected::Numbers(Box::new(number));
        self
    }

    /// Sets a function that produces input for the source. It is called before each batch is read, with 1, 2, and so
    /// on, and again from 1 for each new source.
    #[must_use]
    pub fn with_stimulus(mut self, stimulus: impl FnMut(u64) + Send + 'static) -> Self {
        self.stimulus = Box::new(stimulus);
        self
    }

    /// Sets the number of batches that the suite reads from each source (default: 20). If a source ends earlier, the
    /// suite reads fewer.
    #[must_use]
    pub fn with_batches(mut self, batches: u64) -> Self {
        self.limits.batches = batches;
        self
    }

    /// Sets the time without a batch after which the source counts as having no more facts (default: 10 s).
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.limits.patience = patience;
        self
    }

    /// Sets the duration of one poll of `next` from which the source counts as blocking the thread (default: 1 s).
    #[must_use]
    pub fn with_blocking(mut self, blocking: Duration) -> Self {
        self.limits.blocking = blocking;
        self
    }

    /// Sets the domain about which the suite sends the source's probes (default: rank 0).
    #[must_use]
    pub fn with_asked(mut self, about: Domain) -> Self {
        self.asked = vec![about];
        self
    }

    /// Excludes `clause`, a requirement of the contract that the source does not keep: breaking it is then no
    /// violation. The [report](Report::skipped) lists the clause with the reason `why`.
    #[must_use]
    pub fn without(mut self, clause: Clause, why: impl Into<String>) -> Self {
        self.verdict.waive(clause, why);
        self
    }

    /// Runs the suite.
    ///
    /// # Errors
    /// Returns one [`Violation`] for each clause of the contract that the source broke, in the order of the contract.
    pub async fn check(mut self) -> Result<Report, Vec<Violation>> {
        let calm = self.read(false).await;
        if calm.end != End::Unusable {
            let disturbed = self.read(true).await;
            self.compare(&calm, &disturbed);
        }
        self.questions().await;
        self.verdict.finish(ALL)
    }

    /// Runs the suite.
    ///
    /// # Panics
    /// Panics if the source broke a clause of the contract; the message lists each broken clause, what the source did,
    /// and what the clause requires.
    pub async fn assert(self) -> Report {
        insist("source", self.check().await)
    }

    async fn read(&mut self, dropping: bool) -> Reading {
        let mut source = (self.make)().await;
        reading::read(&mut source, dropping, &self.limits, &mut self.stimulus, &mut self.verdict).await
    }

    fn compare(&mut self, calm: &Reading, disturbed: &Reading) {
        if matches!(self.expected, Expected::Unknown) || calm.facts.is_empty() {
            let why = if calm.facts.is_empty() {
                format!("the source returned no facts within {:?}", self.limits.patience)
            } else {
                "the suite does not know the expected facts: call `with_reference` or `with_numbers`".to_owned()
            };
            self.verdict.skip(CANCEL_SAFE, why.clone());
            return self.verdict.skip(LOSSES_COUNTED, why);
        }
        let complete = calm.is_complete() && disturbed.is_complete();
        let calm = self.expected.ledger(&calm.facts, calm.is_complete());
        let disturbed = self.expected.ledger(&disturbed.facts, disturbed.is_complete());
        if let Some(missing) = calm.missing(&self.expected) {
            self.verdict.broken(LOSSES_COUNTED, missing);
        } else if let Some(missing) = disturbed.missing(&self.expected) {
            self.verdict.broken(CANCEL_SAFE, format!("with dropped calls {missing}"));
        } else if (complete || disturbed.filled() == 0) && disturbed.filled() < calm.filled() {
            let (with, without) = (disturbed.filled(), calm.filled());
            self.verdict.broken(CANCEL_SAFE, format!("{without} facts were returned, and {with} with dropped calls"));
        }
    }

    async fn questions(&mut self) {
        let mut source = (self.make)().await;
        let info = source.info();
        self.judge_info(&info);
        let unknown = ask("conformance.no-such-question");
        match timeout(self.limits.patience, source.collect(&unknown, &self.asked[0])).await {
            Ok(Err(SourceError::Unsupported)) => {}
            answer => {
                let seen = format!("the probe {} returned {answer:?}", unknown.what);
                self.verdict.broken(UNKNOWN_IS_UNSUPPORTED, seen);
            }
        }
        if info.probes.is_empty() {
            let why = "the source answers no probes";
            self.verdict.skip(ANSWERS_WHAT_IT_NAMES, why);
            return self.verdict.skip(ANSWERS_FOR_ITS_DOMAIN, why);
        }
        let no_host = Domain::Node(NodeId(Name::new("conformance-no-such-host")));
        for what in info.probes {
            let ask = ask(what);
            for about in &self.asked {
                let answer = timeout(self.limits.patience, source.collect(&ask, about)).await;
                if matches!(answer, Err(_) | Ok(Err(SourceError::Unsupported))) {
                    let seen = format!("the probe {} of {about} returned {answer:?}", ask.what);
                    self.verdict.broken(ANSWERS_WHAT_IT_NAMES, seen);
                }
            }
            let answer = timeout(self.limits.patience, source.collect(&ask, &no_host)).await;
            if let Ok(Ok(ProbeResult::Text(_) | ProbeResult::Ext(_))) = answer {
                let seen = format!("the probe {} of {no_host} returned {answer:?}", ask.what);
                self.verdict.broken(ANSWERS_FOR_ITS_DOMAIN, seen);
            }
        }
    }

    fn judge_info(&mut self, info: &SourceInfo) {
        if info.name.as_str().is_empty() || info.queue_max == 0 {
            let seen = format!("its name is {:?}, its queue {}", info.name, info.queue_max);
            self.verdict.broken(INFO_USABLE, seen);
        }
    }
}

fn ask(what: impl Into<Name>) -> Probe {
    Probe::new("conformance", what.into(), Vec::new(), Duration::from_secs(1)).with_tag(1)
}

impl<F> fmt::Debug for SourceSuite<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceSuite").field("limits", &self.limits).finish_non_exhaustive()
    }
}
