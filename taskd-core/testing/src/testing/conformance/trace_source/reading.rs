//! Reads one source as the runtime does, and checks how it behaves.

use super::super::verdict::{Verdict, words};
use super::{
    EMPTY_IS_RARE, END_IS_THE_END, ERRORS_WAIT, INFO_CONSTANT, NEVER_BLOCKS, NEVER_PANICS, OLDEST_FIRST, WAITS,
};
use crate::trace::{Fact, SourceError, TraceBatch, TraceSource};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Number of consecutive empty batches or errors, with no await before any of them, that counts as a storm.
const IN_A_ROW_MAX: u32 = 8;
/// Number of polls of one call that are allowed at once, and again for each second; a source that exceeds it spins.
const POLLS_MAX: u32 = 10_000;
/// Largest number of awaits after which a call is dropped: first at its first await, then at its second, and so on.
const DROPS_MAX: u32 = 32;
/// Time for which a source that has ended is called once more.
const AFTER_THE_END: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) batches: u64,
    pub(super) patience: Duration,
    pub(super) blocking: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { batches: 20, patience: Duration::from_secs(10), blocking: Duration::from_secs(1) }
    }
}

/// How a reading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The suite has read as many batches as it needs.
    Enough,
    /// The source returned `None`, which means that it has ended.
    Ended,
    /// The source returned no further batch within the time that the suite waits.
    Quiet,
    /// The source panicked, woke its task again and again without a result, returned too many empty batches or errors
    /// in a row, or continued after its end.
    Unusable,
}

pub(super) struct Reading {
    pub(super) facts: Vec<Fact>,
    pub(super) end: End,
}

impl Reading {
    /// Returns true if the source had no more facts.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self.end, End::Ended | End::Quiet)
    }
}

/// The result of one call of `next`.
enum Outcome {
    /// The call returned this result; the second field is true if it did so at its first poll.
    Ready(Option<Result<TraceBatch, SourceError>>, bool),
    /// The call was dropped by the suite while it was pending.
    Dropped,
    Quiet,
    Spins,
    Panicked(String),
}

/// One reading: the facts so far, and the counters for storms.
struct Reader<'a> {
    limits: &'a Limits,
    verdict: &'a mut Verdict,
    facts: Vec<Fact>,
    empty_in_a_row: u32,
    errors_in_a_row: u32,
}

pub(super) async fn read(
    source: &mut dyn TraceSource,
    dropping: bool,
    limits: &Limits,
    stimulus: &mut (dyn FnMut(u64) + Send),
    verdict: &mut Verdict,
) -> Reading {
    let mut reader = Reader { limits, verdict, facts: Vec::new(), empty_in_a_row: 0, errors_in_a_row: 0 };
    let info = source.info();
    let mut end = End::Enough;
    for batch in 1..=limits.batches {
        stimulus(batch);
        if let Some(ended) = reader.batch(source, dropping).await {
            end = ended;
            break;
        }
        if source.info() != info {
            reader.verdict.broken(INFO_CONSTANT, format!("it was {info:?} and became {:?}", source.info()));
        }
    }
    if end == End::Ended && reader.goes_on(source).await {
        end = End::Unusable;
    }
    Reading { facts: reader.facts, end }
}

impl Reader<'_> {
    /// Reads one batch, with as many calls of `next` as needed. Returns how the reading ended, or `None` if there may
    /// be more batches.
    async fn batch(&mut self, source: &mut dyn TraceSource, dropping: bool) -> Option<End> {
        let mut drop_at = dropping.then_some(1);
        loop {
            match self.call(source, drop_at).await {
                Outcome::Ready(answer, at_once) => return self.take(answer, at_once),
                Outcome::Dropped => drop_at = drop_at.map(|at| at + 1).filter(|at| *at <= DROPS_MAX),
                Outcome::Quiet => return Some(End::Quiet),
                Outcome::Spins => {
                    let seen = format!("`next` was woken more than {POLLS_MAX} times in a row and returned nothing");
                    self.verdict.broken(WAITS, seen);
                    return Some(End::Unusable);
                }
                Outcome::Panicked(text) => {
                    self.verdict.broken(NEVER_PANICS, format!("`next` panicked: {text}"));
                    return Some(End::Unusable);
                }
            }
        }
    }

    /// Makes one call of the source's `next`, and drops the call after it has been pending `drop_at` times.
    async fn call(&mut self, source: &mut dyn TraceSource, drop_at: Option<u32>) -> Outcome {
        let mut call = source.next();
        let (began, mut polls, mut longest) = (Instant::now(), 0_u32, Duration::ZERO);
        let outcome = timeout(
            self.limits.patience,
            poll_fn(|cx| {
                polls = polls.saturating_add(1);
                let poll_began = std::time::Instant::now(); // real time, even if tokio's time is paused
                let polled = catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(cx)));
                longest = longest.max(poll_began.elapsed());
                let waited = u32::try_from(began.elapsed().as_secs()).unwrap_or(u32::MAX);
                match polled {
                    Err(panic) => Poll::Ready(Outcome::Panicked(words(panic.as_ref()).to_owned())),
                    Ok(Poll::Ready(answer)) => Poll::Ready(Outcome::Ready(answer, polls == 1)),
                    Ok(Poll::Pending) if polls > POLLS_MAX.saturating_mul(waited.saturating_add(1)) => {
                        Poll::Ready(Outcome::Spins)
                    }
                    Ok(Poll::Pending) if Some(polls) == drop_at => Poll::Ready(Outcome::Dropped),
                    Ok(Poll::Pending) => Poll::Pending,
                }
            }),
        );
        let outcome = outcome.await.unwrap_or(Outcome::Quiet);
        if longest >= self.limits.blocking {
            self.verdict.broken(NEVER_BLOCKS, format!("one poll of `next` took {longest:?}"));
        }
        outcome
    }

    fn take(&mut self, answer: Option<Result<TraceBatch, SourceError>>, at_once: bool) -> Option<End> {
        let (empty, failed) = match answer {
            None => return Some(End::Ended),
            Some(Ok(batch)) => {
                self.order(&batch.facts);
                let empty = batch.facts.is_empty();
                self.facts.extend(batch.facts);
                (empty, false)
            }
            Some(Err(_)) => (false, true),
        };
        self.empty_in_a_row = if empty && at_once { self.empty_in_a_row + 1 } else { 0 };
        self.errors_in_a_row = if failed && at_once { self.errors_in_a_row + 1 } else { 0 };
        let storms =
            [(self.empty_in_a_row, EMPTY_IS_RARE, "empty batches"), (self.errors_in_a_row, ERRORS_WAIT, "errors")];
        for (in_a_row, clause, what) in storms {
            if in_a_row > IN_A_ROW_MAX {
                self.verdict.broken(clause, format!("{in_a_row} {what} in a row came without an await"));
                return Some(End::Unusable);
            }
        }
        None
    }

    /// Checks that a batch lists its oldest facts first. Facts of unknown age (zero) may be at any position.
    fn order(&mut self, facts: &[Fact]) {
        let ages: Vec<Duration> = facts.iter().map(|fact| fact.age).filter(|age| !age.is_zero()).collect();
        if let Some((first, then)) = ages.iter().zip(ages.iter().skip(1)).find(|(first, then)| first < then) {
            self.verdict.broken(OLDEST_FIRST, format!("a fact {then:?} old comes after one {first:?} old"));
        }
    }

    /// Returns true if a source that has ended returns more facts, which is a violation.
    async fn goes_on(&mut self, source: &mut dyn TraceSource) -> bool {
        let again = timeout(AFTER_THE_END, self.call(source, None)).await;
        let Ok(Outcome::Ready(Some(Ok(batch)), _)) = again else { return false };
        if !batch.facts.is_empty() {
            let facts = batch.facts.len();
            self.verdict.broken(END_IS_THE_END, format!("after `None` it returned {facts} more facts"));
        }
        !batch.facts.is_empty()
    }
}
