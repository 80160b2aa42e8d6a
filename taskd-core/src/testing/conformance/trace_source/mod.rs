//! The source suite: reads a source to the end, once in peace and once with every call dropped at every await, and compares.

mod ledger;
mod reading;
#[cfg(test)]
mod tests;

use super::verdict::{Verdict, clauses, insist};
use super::{Clause, Report, Violation};
use crate::job::{Domain, Name, NodeId, Rank, Role};
use crate::trace::{Ask, Exhibit, Fact, SourceError, SourceInfo, TraceSource};
use ledger::Expected;
use reading::{End, Limits, Reading};
use std::fmt;
use std::time::Duration;
use tokio::time::timeout;

clauses! { "trace_source":
    INFO_CONSTANT = "`info` always returns the same value";
    INFO_USABLE = "a source has a name and a queue of at least one batch";
    CANCEL_SAFE = "no fact is lost when a call of `next` is dropped";
    WAITS = "`next` waits while there is nothing to tell: it does not spin";
    EMPTY_IS_RARE = "`next` does not return empty batches in a loop";
    ERRORS_WAIT = "`next` does not return errors without an await in between";
    NEVER_BLOCKS = "`next` does not block the thread that polls it";
    NEVER_PANICS = "no call panics";
    END_IS_THE_END = "`None` is returned only when nothing more will be told";
    LOSSES_COUNTED = "facts that a source drops are reported as `Lost`, with their number";
    OLDEST_FIRST = "the facts of a batch are in order, oldest first";
    UNKNOWN_IS_UNSUPPORTED = "a question that `info` does not name is answered with `Unsupported`";
    ANSWERS_WHAT_IT_NAMES = "a question that `info` names is answered, or fails with a reason";
    ANSWERS_FOR_ITS_DOMAIN = "a question about a domain that the source does not know is an error";
}

/// Checks a source against the contract of [`TraceSource`].
///
/// `make` gives a fresh source. What it tells is read twice, so a source of a changing world needs a
/// [stimulus](SourceSuite::with_stimulus). To see that nothing is lost the suite must know what is to be told: give it the
/// [facts](SourceSuite::with_reference), or a way to [number](SourceSuite::with_numbers) them.
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
/// Pause tokio's time for a source that ticks, and read one of the real world on real time.
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

/// A source and what is known of it, ready to be checked (see [`trace_source()`]).
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
    /// All facts that a fresh source tells, in order; ages do not matter.
    #[must_use]
    pub fn with_reference(mut self, facts: impl IntoIterator<Item = Fact>) -> Self {
        self.expected = Expected::Facts(facts.into_iter().map(|fact| ledger::words(&fact)).collect());
        self
    }

    /// A number for each fact that has one. A fresh source tells them without a gap.
    #[must_use]
    pub fn with_numbers(mut self, number: impl Fn(&Fact) -> Option<u64> + Send + 'static) -> Self {
        self.expected = Expected::Numbers(Box::new(number));
        self
    }

    /// Makes that the source has something to tell. Called before each batch is read, with 1, 2, and so on, and again
    /// from 1 for each fresh source.
    #[must_use]
    pub fn with_stimulus(mut self, stimulus: impl FnMut(u64) + Send + 'static) -> Self {
        self.stimulus = Box::new(stimulus);
        self
    }

    /// How many batches of a source to read; 20 unless told, or fewer if it ends.
    #[must_use]
    pub fn with_batches(mut self, batches: u64) -> Self {
        self.limits.batches = batches;
        self
    }

    /// How long to wait for a batch until the source counts as one that has no more to tell; 10 s unless told.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.limits.patience = patience;
        self
    }

    /// From how long on a single poll counts as one that blocks; 1 s unless told.
    #[must_use]
    pub fn with_blocking(mut self, blocking: Duration) -> Self {
        self.limits.blocking = blocking;
        self
    }

    /// A domain that the source can be asked about; rank 0 unless told.
    #[must_use]
    pub fn with_asked(mut self, about: Domain) -> Self {
        self.asked = vec![about];
        self
    }

    /// Says that the source does not keep `clause`, and why that is right. The report tells of it.
    #[must_use]
    pub fn without(mut self, clause: Clause, why: impl Into<String>) -> Self {
        self.verdict.waive(clause, why);
        self
    }

    /// Runs the suite.
    ///
    /// # Errors
    /// Every clause that was seen broken.
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
    /// With every clause that was seen broken.
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
                format!("the source told nothing within {:?}", self.limits.patience)
            } else {
                "nobody said what the source is to tell: call `with_reference` or `with_numbers`".to_owned()
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
            self.verdict.broken(CANCEL_SAFE, format!("{without} facts were told, and {with} with dropped calls"));
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
                let seen = format!("asked for {} it gave {answer:?}", unknown.what);
                self.verdict.broken(UNKNOWN_IS_UNSUPPORTED, seen);
            }
        }
        if info.answers.is_empty() {
            let why = "the source answers no questions";
            self.verdict.skip(ANSWERS_WHAT_IT_NAMES, why);
            return self.verdict.skip(ANSWERS_FOR_ITS_DOMAIN, why);
        }
        let nobody = Domain::Node(NodeId(Name::new("conformance-no-such-host")));
        for what in info.answers {
            let ask = ask(what);
            for about in &self.asked {
                let answer = timeout(self.limits.patience, source.collect(&ask, about)).await;
                if matches!(answer, Err(_) | Ok(Err(SourceError::Unsupported))) {
                    let seen = format!("asked for {} of {about} it gave {answer:?}", ask.what);
                    self.verdict.broken(ANSWERS_WHAT_IT_NAMES, seen);
                }
            }
            let answer = timeout(self.limits.patience, source.collect(&ask, &nobody)).await;
            if let Ok(Ok(Exhibit::Text(_) | Exhibit::Ext(_))) = answer {
                let seen = format!("asked for {} of {nobody} it gave {answer:?}", ask.what);
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

fn ask(what: impl Into<Name>) -> Ask {
    Ask { by: Name::new("conformance"), tag: 1, what: what.into(), about: Vec::new(), within: Duration::from_secs(1) }
}

impl<F> fmt::Debug for SourceSuite<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceSuite").field("limits", &self.limits).finish_non_exhaustive()
    }
}
