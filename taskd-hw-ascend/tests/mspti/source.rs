//! The probes' counters as facts: the contract of a source, and the facts about losses and a missing library.

use std::sync::{Arc, Mutex};
use taskd_core::job::{Incarnation, Rank};
use taskd_core::testing::conformance;
use taskd_core::trace::probe_reader::FACTS_MAX;
use taskd_core::trace::recorder::{Detail, Event, Kind};
use taskd_core::trace::{Fact, NameTable, Origin, RecordBatch, Signal, TimedRecord, TraceSink, TraceSource};
use taskd_hw_ascend::mspti::{FAMILY, MsptiSink, UNAVAILABLE, reader};

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
async fn metrics_losses_and_a_missing_library_are_reported() {
    let (mut sink, source) = reader();
    let mut source = source.with_stand_in();
    assert!(source.info().stand_in);
    sink.batch(&batch(&[figure("mspti.records", 10.0), figure("mspti.refused_requests", 0.0), figure("loss", 0.5)]));
    sink.batch(&batch(&[figure("mspti.refused_requests", 4.0), ("epoch 1", Event::Instant)]));
    sink.batch(&batch(&[figure("mspti.refused_requests", 9.0)]));
    let told = source.next().await.unwrap().unwrap();
    let expected = [
        "mspti.records 10",
        "mspti.refused_requests 0",
        "mspti.refused_requests 4",
        "lost 4",
        "mspti.refused_requests 9",
        "lost 5",
    ];
    assert_eq!(signals(&told.facts), expected.map(|words| format!("rank 3 #Some(2) {words}")));
    sink.batch(&batch(&[("mspti is unavailable: there is no libmspti.so", Event::Instant)]));
    let told = source.next().await.unwrap().unwrap();
    let Signal::Error(error) = &told.facts[0].signal else { panic!("{told:?}") };
    assert_eq!((&error.family, &error.code, error.text.as_str()), (&FAMILY, &UNAVAILABLE, "there is no libmspti.so"));
    drop(sink);
    assert!(source.next().await.is_none());
}

#[tokio::test]
async fn pending_facts_are_bounded_and_dropped_facts_are_counted() {
    let (mut sink, mut source) = reader();
    let many = vec![figure("mspti.records", 1.0); FACTS_MAX + 9];
    sink.batch(&batch(&many));
    let told = source.next().await.unwrap().unwrap().facts;
    assert_eq!((told.len(), signals(&told[FACTS_MAX..])), (FACTS_MAX + 1, vec!["the job #None lost 9".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn recorder_source_passes_the_conformance_suite() {
    let sinks: Arc<Mutex<Vec<MsptiSink>>> = Arc::default();
    let kept = Arc::clone(&sinks);
    let mut next = 0.0;
    let stimulus = move |_| {
        next += 1.0;
        let batch = batch(&[figure("mspti.records", next)]);
        sinks.lock().unwrap().iter_mut().for_each(|sink| sink.batch(&batch));
    };
    let make = async || {
        let (sink, source) = reader();
        kept.lock().unwrap().push(sink);
        source.with_stand_in()
    };
    #[allow(clippy::cast_possible_truncation)] // a count, which is whole
    let number = |fact: &Fact| match &fact.signal {
        Signal::Metric { value, .. } => Some(*value as u64),
        _ => None,
    };
    conformance::trace_source(make).with_numbers(number).with_stimulus(stimulus).assert().await;
}
