//! Tests of the reducer against a slow model, on random traces in random batches, and at its bounds and gaps.

mod devices;
mod model;

use super::*;
use crate::job::{Domain, Incarnation, Name, Rank, Role};
use crate::trace::recorder::{Communication, DataType, Detail, NameId, Op};
use crate::trace::{Fact, Origin, RECENT_CALLS, Signal};
use proptest::prelude::*;

const KINDS: [Kind; 5] = [Kind::Step, Kind::Communication, Kind::DataLoader, Kind::SaveCheckpoint, Kind::Forward];

fn batch(lost: u64, records: Vec<TimedRecord>) -> RecordBatch {
    let origin = Origin { rank: Rank(0), incarnation: Incarnation(1), pid: 1 };
    let names = Arc::new(["allreduce", "default|0-3"].into_iter().collect());
    RecordBatch { origin, names, lost, records }
}

fn record(at: u64, thread: u32, kind: Kind, event: Event, detail: Detail) -> TimedRecord {
    let name = if kind == Kind::Communication { NameId(1) } else { NameId(0) };
    TimedRecord { unix_nanos: at, thread, kind, event, name, detail }
}

fn begin(at: u64, thread: u32, kind: Kind, range: u64) -> TimedRecord {
    let detail = match kind {
        Kind::Step => Detail::Step { number: range, cpu_nanos: 0 },
        Kind::Communication => call_of(2, Some(range)),
        _ => Detail::None,
    };
    record(at, thread, kind, Event::Begin { range }, detail)
}

fn end(at: u64, thread: u32, kind: Kind, range: u64) -> TimedRecord {
    let detail = if kind == Kind::Step { Detail::Step { number: range, cpu_nanos: at % 7 } } else { Detail::None };
    record(at, thread, kind, Event::End { range }, detail)
}

fn call_of(group: u32, sequence: Option<u64>) -> Detail {
    let (op, data_type) = (Op::AllReduce, DataType::F32);
    Detail::Communication(Communication {
        op,
        data_type,
        group: NameId(group),
        elements: 8,
        bytes: 32,
        peer: None,
        sequence,
    })
}

/// The next action of a thread: it begins a range, or ends one of the open ranges of any thread.
#[derive(Clone, Debug)]
struct Act {
    after: u64,
    thread: u32,
    kind: Kind,
    ends: Option<prop::sample::Index>,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let kind = prop::sample::select(&KINDS[..]);
    let act = (1..40_u64, 0..3_u32, kind, prop::option::of(any::<prop::sample::Index>()))
        .prop_map(|(after, thread, kind, ends)| Act { after, thread, kind, ends });
    prop::collection::vec(act, 0..80)
}

/// Returns a trace with distinct, increasing times, and with too few ended steps for any range to be forgotten.
fn trace_of(acts: &[Act]) -> Vec<TimedRecord> {
    let (mut now, mut open, mut trace, mut steps) = (0, Vec::<(u64, Kind)>::new(), Vec::new(), 0);
    for (range, act) in (1..).zip(acts) {
        now += act.after;
        match &act.ends {
            Some(which) if !open.is_empty() => {
                let (range, kind) = open.swap_remove(which.index(open.len()));
                trace.push(end(now, act.thread, kind, range));
            }
            _ if act.kind == Kind::Step && steps == RANGE_STEPS_MAX => (),
            _ => {
                steps += u64::from(act.kind == Kind::Step);
                open.push((range, act.kind));
                trace.push(begin(now, act.thread, act.kind, range));
            }
        }
    }
    trace
}

/// Reduces the trace in the batches of a reader: thread by thread, read up to a different time for each thread.
fn reduced(trace: &[TimedRecord], cuts: &[(u64, [u64; 3])]) -> (Vec<EndedStep>, Reducer) {
    let (mut reducer, mut steps) = (Reducer::default(), Vec::new());
    let mut from = [0; 3];
    for (until, more) in cuts.iter().copied().chain([(1 << 40, [0; 3])]) {
        let to: [u64; 3] = std::array::from_fn(|thread| from[thread].max(until + more[thread]));
        let of = |thread: usize| {
            let range = from[thread]..to[thread];
            trace.iter().filter(move |r| r.thread as usize == thread && range.contains(&r.unix_nanos)).copied()
        };
        reducer.take(&batch(0, (0..3).flat_map(of).collect()));
        steps.extend(reducer.settle(until.saturating_sub(1)));
        from = to;
    }
    steps.extend(reducer.settle(u64::MAX));
    (steps, reducer)
}

proptest! {
    #[test]
    fn reducer_returns_the_steps_of_the_model(acts in acts(), mut cuts in prop::collection::vec((0..2000_u64, any::<[u8; 3]>()), 0..6)) {
        cuts.sort();
        let cuts: Vec<_> = cuts.into_iter().map(|(until, more)| (until, more.map(u64::from))).collect();
        let trace = trace_of(&acts);
        let (steps, reducer) = reduced(&trace, &cuts);
        prop_assert_eq!(steps, model::steps(&trace));
        prop_assert_eq!(reducer.counts(), ReducerCounts::default());
    }

    #[test]
    fn whatever_is_missing_or_false_the_figures_can_be(
        acts in acts(),
        kept in prop::collection::vec(any::<(bool, u8)>(), 80),
    ) {
        let mut reducer = Reducer::default();
        let (mut lost, mut steps) = (0, Vec::new());
        for (record, (is_lost, noise)) in trace_of(&acts).into_iter().zip(kept) {
            lost += u64::from(is_lost);
            let mut record = record;
            record.unix_nanos ^= u64::from(noise / 16); // slightly out of order
            if !is_lost {
                reducer.take(&batch(std::mem::take(&mut lost), vec![record]));
                steps.extend(reducer.settle(record.unix_nanos.saturating_sub(u64::from(noise))));
            }
        }
        steps.extend(reducer.settle(u64::MAX));
        for EndedStep { times, .. } in steps {
            prop_assert!(times.wait_ns <= times.communication_ns && times.communication_ns <= times.wall_ns, "{times:?}");
            let parts = [times.data_loader_ns, times.save_checkpoint_ns, times.forward_ns];
            prop_assert!(parts.iter().chain(&times.cpu_ns).all(|part| *part <= times.wall_ns), "{times:?}");
        }
    }
}

#[test]
fn a_step_of_a_training_loop() {
    let trace = [
        begin(0, 1, Kind::Step, 1),
        begin(0, 1, Kind::DataLoader, 2),
        end(10, 1, Kind::DataLoader, 2),
        begin(10, 1, Kind::Forward, 3),
        begin(20, 1, Kind::Forward, 4),
        end(25, 1, Kind::Forward, 4),
        end(40, 1, Kind::Forward, 3),
        begin(50, 2, Kind::Communication, 5),
        begin(60, 2, Kind::Communication, 6),
        begin(60, 9, Kind::DataLoader, 7), // on another thread
        end(70, 3, Kind::Communication, 5),
        end(90, 3, Kind::Communication, 6),
        end(100, 1, Kind::Step, 1),
    ];
    let mut reducer = Reducer::default();
    reducer.take(&batch(0, trace.to_vec()));
    assert_eq!(reducer.settle(99), []);
    let times = StepTimes {
        step: 1,
        wall_ns: 100,
        cpu_ns: Some(100 % 7),
        wait_ns: 30,
        communication_ns: 40,
        data_loader_ns: 10,
        forward_ns: 30,
        communications: 2,
        ..StepTimes::default()
    };
    assert_eq!(reducer.settle(100), [EndedStep { unix_nanos: 100, times, device: None, transfers: None }]);
}

#[test]
fn after_a_gap_nothing_seems_to_last_for_ever() {
    let mut reducer = Reducer::default();
    let before = vec![begin(0, 1, Kind::Step, 1), begin(10, 1, Kind::Communication, 2), begin(12, 1, Kind::Forward, 3)];
    reducer.take(&batch(0, before));
    reducer.take(&batch(5, vec![end(50, 1, Kind::Step, 1), begin(50, 1, Kind::Step, 4)]));
    reducer.take(&batch(0, vec![end(80, 1, Kind::Step, 4), begin(80, 1, Kind::Step, 5), end(90, 1, Kind::Step, 5)]));
    let steps = reducer.settle(u64::MAX);
    let reported: Vec<_> =
        steps.iter().map(|s| (s.times.step, s.times.wall_ns, s.times.communication_ns, s.times.lost)).collect();
    assert_eq!(reported, [(1, 50, 0, 5), (4, 30, 0, 5), (5, 10, 0, 0)], "steps that the gap may have touched say so");
    assert_eq!((reducer.counts().forgotten, reducer.counts().lost), (2, 5));
    assert!(reducer.positions(100).iter().all(|group| group.recent.iter().all(|call| !call.is_pending)));
    assert_eq!(reducer.pending(1 << 60, Duration::ZERO), []);
}

#[test]
fn a_range_without_an_end_is_forgotten_after_some_steps() {
    let mut reducer = Reducer::default();
    let mut trace = vec![begin(0, 1, Kind::Communication, 1), begin(0, 1, Kind::DataLoader, 2)];
    for step in 0..RANGE_STEPS_MAX + 3 {
        trace.extend([begin(10 * step + 1, 1, Kind::Step, 100 + step), end(10 * step + 5, 1, Kind::Step, 100 + step)]);
    }
    reducer.take(&batch(0, trace));
    let loading: Vec<u64> = reducer.settle(u64::MAX).iter().map(|step| step.times.data_loader_ns).collect();
    assert_eq!(loading.iter().filter(|ns| **ns == 4).count() as u64, RANGE_STEPS_MAX + 1);
    assert_eq!(loading.iter().filter(|ns| **ns == 0).count(), 2);
    assert_eq!(reducer.counts().forgotten, 2);
}

#[test]
fn open_ranges_and_groups_are_bounded_and_counted() {
    let mut reducer = Reducer::default();
    let many = 10 * OPEN_RANGES_MAX as u64;
    for range in 0..many {
        let kind = KINDS[(range % 5) as usize];
        let mut record = begin(range, (range % 1000) as u32, kind, range);
        if let Detail::Communication(what) = &mut record.detail {
            what.group = NameId(u32::try_from(range).unwrap());
        }
        reducer.take(&batch(0, vec![record]));
    }
    reducer.settle(u64::MAX);
    let counts = reducer.counts();
    assert!(counts.forgotten > 0 && reducer.positions(0).len() == GROUPS_MAX);
    assert_eq!(counts.forgotten_steps, many / 5 - OPEN_STEPS_MAX as u64);
    assert_eq!(counts.forgotten_groups, many / 5 - GROUPS_MAX as u64);
    for range in 0..many {
        reducer.take(&batch(0, vec![end(many, 1, KINDS[(range % 5) as usize], range)]));
    }
    reducer.settle(u64::MAX);
    let counts = reducer.counts();
    assert_eq!(counts.orphan_ends, counts.forgotten + counts.forgotten_steps, "each had one end");
}

#[test]
fn positions_of_a_rank_list_its_recent_and_pending_calls() {
    let mut reducer = Reducer::default();
    let mut trace = Vec::new();
    for call in 0..20 {
        trace.push(begin(100 * call, 1, Kind::Communication, call));
        if call < 19 {
            trace.push(end(100 * call + 50, 2, Kind::Communication, call));
        }
    }
    let mut point_to_point = begin(1950, 1, Kind::Communication, 77);
    point_to_point.detail = call_of(2, None);
    trace.push(point_to_point);
    reducer.take(&batch(0, trace));
    reducer.settle(u64::MAX);
    let positions = reducer.positions(2000);
    let [group] = &positions[..] else { panic!("{positions:?}") };
    assert_eq!(
        (group.group.as_str(), &group.members[..], group.recent.len()),
        ("default", &[0, 1, 2, 3][..], RECENT_CALLS)
    );
    let last = group.recent.last().unwrap();
    assert_eq!((last.sequence, last.begun, last.is_pending), (19, Duration::from_nanos(100), true));
    assert_eq!((last.operation.as_str(), last.data_type.as_str(), last.elements), ("allreduce", "f32", 8));
    assert!(group.recent.iter().rev().skip(1).all(|call| !call.is_pending));
    assert_eq!(reducer.pending(1999, Duration::from_nanos(100)), [], "not long enough");
    let pending = PendingCall { group: "default".into(), sequence: 19, begun: 1900 };
    assert_eq!(reducer.pending(2000, Duration::from_nanos(100)), [pending]);
    assert_eq!(reducer.pending(3000, Duration::from_nanos(100)), [], "reported once");
}

#[test]
fn spans_without_a_device_change_no_figure() {
    let clean: Vec<TimedRecord> =
        (0..20).flat_map(|n| [begin(100 * n, 1, Kind::Step, n), end(100 * n + 90, 1, Kind::Step, n)]).collect();
    let kinds = [Kind::Kernel, Kind::Copy, Kind::Api, Kind::Marker, Kind::Communication, Kind::Step];
    let span = |at: usize, unix_nanos| TimedRecord {
        unix_nanos,
        thread: 0,
        kind: kinds[at % kinds.len()],
        event: Event::Span { nanos: u64::MAX },
        name: NameId(0),
        detail: Detail::None,
    };
    let disturbed = clean.iter().enumerate().flat_map(|(at, one)| [*one, span(at, 0), span(at, u64::MAX)]).collect();
    let reduced = |records: Vec<TimedRecord>| {
        let mut reducer = Reducer::default();
        reducer.take(&batch(0, records));
        (reducer.settle(u64::MAX), reducer.counts())
    };
    assert_eq!(reduced(disturbed), reduced(clean));
}

#[test]
fn figures_of_the_training_become_metrics_of_their_rank() {
    let names = ["loss", "grad_norm", "of the program", "replica_checksum|0-3", "replica_checksums"];
    let figure = |at: u64, name: u32, value: f64| TimedRecord {
        unix_nanos: at,
        thread: 1,
        kind: Kind::User(0),
        event: Event::Counter { value },
        name: NameId(name),
        detail: Detail::None,
    };
    let records = vec![figure(10, 1, 0.5), figure(11, 2, 1.5), figure(12, 3, 7.0), figure(20, 1, f64::INFINITY)];
    let records = [records, vec![figure(21, 4, 77.0), figure(22, 5, 1.0)]].concat();
    let batch = RecordBatch { names: Arc::new(names.into_iter().collect()), ..batch(0, records) };
    let mut observer = Observer::new(Duration::from_secs(1));
    assert_eq!(observer.take(&batch), None);
    let told: Vec<_> =
        observer.settle(batch.origin, 30).into_iter().map(|timed| (timed.unix_nanos, timed.fact)).collect();
    let fact = |name: Name, value| {
        let about = Domain::Process(Role::Rank(Rank(0)));
        Fact::new(about, Signal::Metric { name, value }).with_incarnation(Incarnation(1))
    };
    let [loss, grad_norm, ..] = TRAINING_METRICS;
    let checksum = Name::new("replica_checksum|0-3");
    let expected = [(10, fact(loss.clone(), 0.5)), (11, fact(grad_norm, 1.5)), (20, fact(loss, f64::INFINITY))];
    assert_eq!(told, [&expected[..], &[(21, fact(checksum, 77.0))]].concat());
    assert_eq!(observer.settle(batch.origin, 40), []);

    let many = vec![figure(50, 1, 0.5); METRICS_MAX + 3];
    let lost = observer.take(&RecordBatch { records: many, ..batch }).map(|timed| timed.fact.signal);
    assert_eq!(lost, Some(Signal::Lost { count: 3 }));
}
