//! Reads one source as the shell does, and watches how it does its work.

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

/// So many empty batches or errors in a row, with no await before any of them, are a storm.
const IN_A_ROW_MAX: u32 = 8;
/// So many polls of one call are allowed at once, and so many more for each second: beyond them it spins.
const POLLS_MAX: u32 = 10_000;
/// A call is dropped at its first await, then at its second, and so on up to here.
const DROPS_MAX: u32 = 32;
/// How long a source that has ended is asked once more.
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
    /// Enough was read.
    Enough,
    /// The source returned `None`.
    Ended,
    /// It had nothing more to tell.
    Quiet,
    /// It panics, spins, storms, or goes on after its end.
    Unusable,
}

pub(super) struct Reading {
    pub(super) facts: Vec<Fact>,
    pub(super) end: End,
}

impl Reading {
    /// Whether the source had no more to tell.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self.end, End::Ended | End::Quiet)
    }
}

/// What came of one call of `next`.
enum Outcome {
    /// It returned, at its first poll or later.
    Ready(Option<Result<TraceBatch, SourceError>>, bool),
    /// It was dropped while it waited.
    Dropped,
    Quiet,
    Spins,
    Panicked(String),
}

/// One reading: what is in it, and how it stands with storms.
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
    /// Reads one batch, by as many calls as that takes. `None`: there may be more.
    async fn batch(&mut self, source: &mut dyn TraceSource, dropping: bool) -> Option<End> {
        let mut drop_at = dropping.then_some(1);
        loop {
            match self.call(source, drop_at).await {
                Outcome::Ready(answer, at_once) => return self.take(answer, at_once),
                Outcome::Dropped => drop_at = drop_at.map(|at| at + 1).filter(|at| *at <= DROPS_MAX),
                Outcome::Quiet => return Some(End::Quiet),
                Outcome::Spins => {
                    let seen = format!("`next` was woken more than {POLLS_MAX} times at once and told nothing");
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

    /// One call of `next`, dropped when it has been pending so many times.
    async fn call(&mut self, source: &mut dyn TraceSource, drop_at: Option<u32>) -> Outcome {
        let mut call = source.next();
        let (began, mut polls, mut longest) = (Instant::now(), 0_u32, Duration::ZERO);
        let outcome = timeout(
            self.limits.patience,
            poll_fn(|cx| {
                polls = polls.saturating_add(1);
                let poll_began = std::time::Instant::now(); // real time, also where tokio's is paused
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

    /// Facts whose age is not known (zero) can stand anywhere.
    fn order(&mut self, facts: &[Fact]) {
        let ages: Vec<Duration> = facts.iter().map(|fact| fact.age).filter(|age| !age.is_zero()).collect();
        if let Some((first, then)) = ages.iter().zip(ages.iter().skip(1)).find(|(first, then)| first < then) {
            self.verdict.broken(OLDEST_FIRST, format!("a fact {then:?} old comes after one {first:?} old"));
        }
    }

    /// A source that has ended is not called any more; one that would go on has lied.
    async fn goes_on(&mut self, source: &mut dyn TraceSource) -> bool {
        let again = timeout(AFTER_THE_END, self.call(source, None)).await;
        let Ok(Outcome::Ready(Some(Ok(batch)), _)) = again else { return false };
        if !batch.facts.is_empty() {
            let facts = batch.facts.len();
            self.verdict.broken(END_IS_THE_END, format!("after `None` it had {facts} more facts to tell"));
        }
        !batch.facts.is_empty()
    }
}
