//! What the probes count, as facts: the contract of a source, and what is told of losses and of a library that is not there.

use std::sync::{Arc, Mutex};
use taskd_core::job::{Incarnation, Rank};
use taskd_core::testing::conformance;
use taskd_core::trace::recorder::{Detail, Event, Kind};
use taskd_core::trace::{
    Fact, NameTable, Origin, RecordBatch, Signal, SourceError, TimedRecord, TraceSink, TraceSource,
};
use taskd_hw_ascend::mspti::{MsptiSink, watch};

fn batch(records: &[(&str, Event)]) -> Arc<RecordBatch> {
    let mut names = NameTable::default();
    let record = |(name, event): &(&str, Event)| TimedRecord {
        unix_nanos: 1,
        thread: 0,
        kind: Kind::Marker,
        event: *event,
        name: names.push(name),
        detail: Detail::None,
    };
    let records = records.iter().map(record).collect();
    let origin = Origin { rank: Rank(3), incarnation: Incarnation(2), pid: 7 };
    Arc::new(RecordBatch { origin, names: names.into(), lost: 0, records })
}

fn figure(name: &str, value: f64) -> (&str, Event) {
    (name, Event::Counter { value })
}

fn signals(facts: &[Fact]) -> Vec<String> {
    let words = |fact: &Fact| match &fact.signal {
        Signal::Metric { name, value } => format!("{name} {value}"),
        Signal::Lost { count } => format!("lost {count}"),
        other => format!("{other:?}"),
    };
    facts.iter().map(|fact| format!("{} #{:?} {}", fact.about, fact.incarnation.map(|i| i.0), words(fact))).collect()
}

#[tokio::test]
async fn figures_losses_and_a_missing_library_are_told() {
    let (mut sink, mut source) = watch(true);
    assert!(source.info().stand_in);
    sink.batch(&batch(&[figure("mspti.records", 10.0), figure("mspti.refused_requests", 0.0), figure("loss", 0.5)]));
    sink.batch(&batch(&[figure("mspti.refused_requests", 4.0), ("epoch 1", Event::Instant)]));
    sink.batch(&batch(&[figure("mspti.refused_requests", 9.0)]));
    let told = source.next().await.unwrap().unwrap();
    let expected = [
        "mspti.records 10",
        "mspti.refused_requests 0",
        "lost 4",
        "mspti.refused_requests 4",
        "lost 5",
        "mspti.refused_requests 9",
    ];
    assert_eq!(signals(&told.facts), expected.map(|words| format!("rank 3 #Some(2) {words}")));
    sink.batch(&batch(&[("mspti is unavailable: there is no libmspti.so", Event::Instant)]));
    let error = source.next().await.unwrap().unwrap_err();
    assert_eq!(error, SourceError::Unavailable("mspti for rank 3: there is no libmspti.so".into()));
    drop(sink);
    assert!(source.next().await.is_none());
}

#[tokio::test]
async fn what_waits_to_be_told_is_bounded_and_what_went_is_told() {
    let (mut sink, mut source) = watch(false);
    let many = vec![figure("mspti.records", 1.0); taskd_hw_ascend::mspti::FACTS_MAX + 9];
    sink.batch(&batch(&many));
    assert_eq!(signals(&source.next().await.unwrap().unwrap().facts), ["plugin mspti #None lost 9"]);
    assert_eq!(source.next().await.unwrap().unwrap().facts.len(), taskd_hw_ascend::mspti::FACTS_MAX);
}

#[tokio::test(start_paused = true)]
async fn it_keeps_the_contract_of_a_source() {
    let sinks: Arc<Mutex<Vec<MsptiSink>>> = Arc::default();
    let kept = Arc::clone(&sinks);
    let mut next = 0.0;
    let stimulus = move |_| {
        next += 1.0;
        let batch = batch(&[figure("mspti.records", next)]);
        sinks.lock().unwrap().iter_mut().for_each(|sink| sink.batch(&batch));
    };
    let make = async || {
        let (sink, source) = watch(true);
        kept.lock().unwrap().push(sink);
        source
    };
    #[allow(clippy::cast_possible_truncation)] // a count, which is whole
    let number = |fact: &Fact| match &fact.signal {
        Signal::Metric { value, .. } => Some(*value as u64),
        _ => None,
    };
    conformance::trace_source(make).with_numbers(number).with_stimulus(stimulus).assert().await;
}
