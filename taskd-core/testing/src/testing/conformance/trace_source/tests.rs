//! The correct source passes; for every clause, a source that breaks it fails that clause.

use super::*;
use crate::testing::doubles::{Faulty, ScriptedSource};
use crate::trace::{Signal, TraceBatch};
use async_trait::async_trait;
use std::collections::VecDeque;

const WHAT: Name = Name::new("process-state");

fn facts() -> Vec<Fact> {
    let fact = |step| Fact::new(Domain::Job, Signal::Progress { step }).with_age(Duration::from_millis(100 - step));
    (1..=12).map(fact).collect()
}

fn number(fact: &Fact) -> Option<u64> {
    if let Signal::Progress { step } = fact.signal { Some(step) } else { None }
}

fn good() -> ScriptedSource {
    let rank = Domain::Process(Role::Rank(Rank(0)));
    ScriptedSource::new(facts().chunks(3).map(<[Fact]>::to_vec)).answering(
        WHAT,
        rank,
        ProbeResult::Text("running".into()),
    )
}

/// A source that breaks one clause of the contract.
struct Broken {
    good: ScriptedSource,
    clause: Clause,
    calls: u32,
}

impl Broken {
    fn new(clause: Clause) -> Broken {
        Broken { good: good(), clause, calls: 0 }
    }
}

#[async_trait]
impl TraceSource for Broken {
    fn info(&self) -> SourceInfo {
        let mut info = self.good.info();
        match self.clause {
            INFO_CONSTANT => info.version = Name::from(self.calls.to_string()),
            INFO_USABLE => info.queue_max = 0,
            _ => {}
        }
        info
    }

    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        if self.calls == 2 {
            match self.clause {
                WAITS => loop {
                    tokio::task::yield_now().await;
                },
                EMPTY_IS_RARE => return Some(Ok(TraceBatch::default())),
                ERRORS_WAIT => return Some(Err(SourceError::Failed("again".into()))),
                NEVER_PANICS => panic!("two were enough"),
                NEVER_BLOCKS => {
                    let began = std::time::Instant::now();
                    while began.elapsed() < Duration::from_millis(30) {}
                }
                _ => {}
            }
        }
        if self.calls == 2 && self.clause == END_IS_THE_END {
            self.calls += 1;
            return None;
        }
        let mut batch = self.good.next().await;
        if self.clause == CANCEL_SAFE {
            tokio::task::yield_now().await; // only this call holds the batch here
        }
        self.calls += 1;
        if let Some(Ok(batch)) = &mut batch {
            match self.clause {
                LOSSES_COUNTED if self.calls == 2 => drop(batch.facts.pop()),
                OLDEST_FIRST => batch.facts.reverse(),
                _ => {}
            }
        }
        batch
    }

    async fn collect(&mut self, ask: &Probe, about: &Domain) -> Result<ProbeResult, SourceError> {
        let named = ask.what == WHAT;
        match self.clause {
            UNKNOWN_IS_UNSUPPORTED if !named => Ok(ProbeResult::Silence),
            ANSWERS_WHAT_IT_NAMES if named => Err(SourceError::Unsupported),
            ANSWERS_FOR_ITS_DOMAIN if named => Ok(ProbeResult::Text("running".into())),
            _ => self.good.collect(ask, about).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_correct_source_passes_every_clause() {
    let by_reference = trace_source(async || good()).with_reference(facts()).assert().await;
    let by_number = trace_source(async || good()).with_numbers(number).assert().await;
    for report in [by_reference, by_number] {
        assert_eq!((report.checked(), report.skipped()), (ALL, [].as_slice()));
    }
}

#[tokio::test(start_paused = true)]
async fn every_clause_convicts_the_source_that_breaks_it() {
    let mut missed = Vec::new();
    for clause in ALL {
        let mut suite = trace_source(async || Broken::new(*clause)).with_reference(facts());
        if *clause == NEVER_BLOCKS {
            suite = suite.with_blocking(Duration::from_millis(20));
        }
        let broken = suite.check().await.err().unwrap_or_default();
        if broken.len() != 1 || broken[0].clause != *clause {
            missed.push(clause.to_string());
        }
    }
    assert_eq!(missed, [] as [String; 0], "broken by a source that was not convicted of it alone");
}

#[tokio::test(start_paused = true)]
async fn numbers_find_what_a_reference_finds() {
    for clause in [CANCEL_SAFE, LOSSES_COUNTED] {
        let broken = trace_source(async || Broken::new(clause)).with_numbers(number).check().await.unwrap_err();
        assert_eq!(broken.iter().map(|v| v.clause).collect::<Vec<_>>(), [clause]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reported_loss_is_no_violation() {
    let lossy = || {
        let mut facts = facts();
        facts[4] = Fact::new(Domain::Job, Signal::Lost { count: 1 });
        ScriptedSource::new([facts])
    };
    trace_source(async || lossy()).with_numbers(number).assert().await;
    trace_source(async || lossy()).with_reference(facts()).assert().await;
}

#[tokio::test(start_paused = true)]
async fn a_panicking_source_fails_and_slow_or_failing_ones_pass() {
    trace_source(async || Faulty::slow(good(), Duration::from_millis(70))).with_reference(facts()).assert().await;
    trace_source(async || Faulty::failing(good(), 20)).with_reference(facts()).assert().await;
    trace_source(async || Faulty::repeating(good())).with_reference(facts()).assert().await;
    let panics = trace_source(async || Faulty::panicking(good(), 3)).check().await.unwrap_err();
    assert_eq!((panics.len(), panics[0].clause), (1, NEVER_PANICS));
}

#[tokio::test(start_paused = true)]
async fn a_source_that_needs_a_stimulus_gets_one_before_each_batch() {
    /// Reports the numbers of a queue that it shares with the stimulus, and takes each after its await, or before.
    struct Queue(std::sync::Arc<std::sync::Mutex<VecDeque<u64>>>, bool);

    #[async_trait]
    impl TraceSource for Queue {
        fn info(&self) -> SourceInfo {
            SourceInfo::new("queue")
        }
        async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
            let pause = || tokio::time::sleep(Duration::from_millis(5));
            if self.1 {
                pause().await;
            }
            let steps: Vec<u64> = self.0.lock().unwrap().drain(..).collect();
            if !self.1 {
                pause().await;
            }
            let fact = |step| Fact::new(Domain::Job, Signal::Progress { step });
            Some(Ok(TraceBatch::of(steps.into_iter().map(fact).collect())))
        }
    }

    let queue = std::sync::Arc::<std::sync::Mutex<VecDeque<u64>>>::default();
    let given = queue.clone();
    let suite = trace_source(async || Queue(queue.clone(), true)).with_numbers(number).with_batches(10);
    suite.with_stimulus(move |n| given.lock().unwrap().push_back(n)).assert().await;
    assert!(queue.lock().unwrap().is_empty());

    let given = queue.clone();
    let suite = trace_source(async || Queue(queue.clone(), false)).with_numbers(number).with_batches(10);
    let broken = suite.with_stimulus(move |n| given.lock().unwrap().push_back(n)).check().await.unwrap_err();
    assert_eq!((broken.len(), broken[0].clause), (1, CANCEL_SAFE), "it loses everything, so no gap is seen");
}

#[tokio::test(start_paused = true)]
async fn clauses_that_cannot_be_checked_are_listed_in_the_report() {
    let report = trace_source(async || ScriptedSource::new([facts()])).assert().await;
    let skipped: Vec<Clause> = report.skipped().iter().map(|(clause, _)| *clause).collect();
    assert_eq!(skipped, [CANCEL_SAFE, LOSSES_COUNTED, ANSWERS_WHAT_IT_NAMES, ANSWERS_FOR_ITS_DOMAIN]);
    let silent = async || ScriptedSource::new([]).then_waits();
    let report = trace_source(silent).with_reference([]).assert().await;
    assert_eq!(report.skipped()[0].1, "the source returned no facts within 10s");
}
