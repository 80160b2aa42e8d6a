//! Tests of the drain with real recorders: times, threads, names, losses, bounds.

use super::*;
use crate::job::{Incarnation, Rank};
use crate::trace::recorder::{Detail, Event, Imported, Kind, Recorder, RecorderConfig, ThreadRecorder};
use std::fs::File;

const ORIGIN: Origin = Origin { rank: Rank(3), incarnation: Incarnation(2), pid: 7 };

fn recorder(threads_max: usize) -> (Recorder, File) {
    let config = RecorderConfig { threads_max, records_per_thread: 1 << 13, ..RecorderConfig::default() };
    let memory = config.memory().unwrap();
    (Recorder::create(memory.try_clone().unwrap(), config).unwrap(), memory)
}

fn drain(memory: &File) -> Drain {
    Drain::new(RecorderReader::open(memory.try_clone().unwrap()).unwrap(), ORIGIN).unwrap()
}

fn count(thread: &mut ThreadRecorder<'_>, value: f64) {
    assert!(thread.record(Kind::User(0), Event::Counter { value }, NameId(0), Detail::None));
}

fn values(records: &[TimedRecord]) -> Vec<f64> {
    let value = |record: &TimedRecord| if let Event::Counter { value } = record.event { value } else { f64::NAN };
    records.iter().map(value).collect()
}

fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

#[test]
fn records_come_with_time_thread_and_name() {
    let (recorder, memory) = recorder(2);
    let mut thread = recorder.thread();
    let mut drain = drain(&memory);
    let (anchor, unix) = drain.recording.begun();
    for round in 0..50_u64 {
        let name = recorder.name(&format!("round {round}"));
        let before = monotonic();
        assert!(thread.record(Kind::User(0), Event::Instant, name, Detail::None));
        let after = monotonic();
        let Drained { batch, settled } = drain.take().unwrap();
        drain.commit().unwrap();
        assert_eq!((batch.origin, batch.lost, batch.records.len()), (ORIGIN, 0, 1));
        let record = batch.records[0];
        assert_eq!(batch.names.get(record.name), format!("round {round}"));
        assert_eq!(record.thread, rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        let nanos = record.unix_nanos - unix + anchor.nanos;
        let slack = 20_000; // the thread may be interrupted between the reads of the two clocks
        assert!((before - slack..=after + slack).contains(&nanos), "{before} {nanos} {after}");
        assert!(settled.unwrap() + slack >= record.unix_nanos && settled.unwrap() <= drain.now());
    }
}

#[test]
fn a_thread_stays_in_its_order_however_lines_are_drawn() {
    let (recorder, memory) = recorder(1);
    let mut thread = recorder.thread();
    let mut drain = drain(&memory);
    let mut last = (0, -1.0);
    for round in 0..2000 {
        for part in 0..3 {
            count(&mut thread, f64::from(3 * round + part));
        }
        let batch = drain.take().unwrap().batch;
        if round % 3 != 0 {
            drain.commit().unwrap();
        }
        for (record, value) in batch.records.iter().zip(values(&batch.records)) {
            assert!(record.unix_nanos >= last.0 && value == last.1 + 1.0, "{last:?} {record:?}");
            last = (record.unix_nanos, value);
        }
    }
    assert!(last.1 == 5999.0);
}

#[test]
fn a_ring_that_others_had_before_separates_its_records() {
    let (recorder, memory) = recorder(1);
    let mut drain = drain(&memory);
    let mut ids = Vec::new();
    for round in 0..4 {
        let id = std::thread::scope(|scope| {
            let recording = || {
                let mut thread = recorder.thread();
                count(&mut thread, 1.0);
                count(&mut thread, 2.0);
                rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
            };
            scope.spawn(recording).join().unwrap()
        });
        ids.push(id);
        if round == 1 {
            continue; // its records are taken with those of the next one
        }
        let threads: Vec<u32> = drain.take().unwrap().batch.records.iter().map(|record| record.thread).collect();
        drain.commit().unwrap();
        match round {
            2 => assert_eq!(threads, [0, 0, id, id], "it is unknown which thread had the ring in between"),
            _ => assert_eq!(threads, [id, id]),
        }
    }
}

#[test]
fn a_call_is_bounded_and_the_next_goes_on() {
    let (recorder, memory) = recorder(2);
    let [mut one, mut other] = [recorder.thread(), recorder.thread()];
    let most = u32::try_from(THREAD_RECORDS_MAX).unwrap();
    for value in 0..most + 10 {
        count(&mut one, value.into());
    }
    count(&mut other, -1.0);
    let mut drain = drain(&memory);
    let first = drain.take().unwrap();
    assert_eq!(
        (first.batch.records.len() as u64, first.settled),
        (THREAD_RECORDS_MAX + 1, None),
        "the other's is there"
    );
    let rest = drain.take().unwrap();
    assert_eq!(values(&rest.batch.records), (most..most + 10).map(f64::from).collect::<Vec<_>>());
    assert!(
        rest.settled.is_some() && rest.batch.records[0].unix_nanos >= first.batch.records[most as usize - 1].unix_nanos
    );
    drop(drain);
    assert_eq!(
        self::drain(&memory).take().unwrap().batch.records.len() as u64,
        THREAD_RECORDS_MAX + 1,
        "not committed"
    );
}

#[test]
fn losses_are_reported_once_each() {
    let (recorder, memory) = recorder(1);
    let mut thread = recorder.thread();
    let mut drain = drain(&memory);
    let mut refused = recorder.thread();
    assert!(!refused.record(Kind::User(0), Event::Instant, NameId(0), Detail::None));
    for value in 0..(1 << 13) + 5 {
        count(&mut thread, value.into());
    }
    let lost: Vec<u64> = (0..3).map(|_| drain.take().unwrap().batch.lost).collect();
    assert_eq!(lost, [6, 0, 0]);
    drain.commit().unwrap();
    assert_eq!(drain.take().unwrap().batch.lost, 0);
}

#[test]
fn a_rival_reader_fails_at_its_commit() {
    let (recorder, memory) = recorder(1);
    let [mut one, mut other] = [drain(&memory), drain(&memory)];
    count(&mut recorder.thread(), 1.0);
    assert_eq!([one.take().unwrap(), other.take().unwrap()].map(|drained| drained.batch.records.len()), [1, 1]);
    one.commit().unwrap();
    assert!(other.commit().unwrap_err().to_string().contains("only one reader may"));
}

#[test]
fn imported_records_retain_their_times_order_and_threads() {
    let (recorder, memory) = recorder(1);
    let mut thread = recorder.thread();
    let mut drain = drain(&memory);
    count(&mut thread, 1.0);
    let system = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let now = system.tv_sec.unsigned_abs() * 1_000_000_000 + system.tv_nsec.unsigned_abs();
    let span = |unix_nanos, thread| Imported {
        unix_nanos,
        thread,
        kind: Kind::Kernel,
        event: Event::Span { nanos: 5 },
        name: NameId(0),
        detail: Detail::None,
    };
    let second = 1_000_000_000;
    assert_eq!(thread.import([span(now + second, 7), span(now - 9 * second, 0), span(0, 8)].into_iter()), 3);
    count(&mut thread, 2.0);
    let records = drain.take().unwrap().batch.records;
    assert_eq!(records.iter().map(|record| record.thread).collect::<Vec<_>>()[1..4], [7, 0, 8]);
    let [before, later, earlier, unknown, after] = [0, 1, 2, 3, 4].map(|at| records[at].unix_nanos);
    assert_eq!((later - earlier, unknown), (10 * second, 0), "one correction for all, and none for what is unknown");
    assert!(before <= after && after < later, "the thread's own stay in their order");
    assert!(later.abs_diff(drain.now() + second) < second / 2, "on the same calendar");
}
