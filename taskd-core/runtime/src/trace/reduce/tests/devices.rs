//! Spans of devices: the figures of each step against a slow model, at the boundaries, and at every bound.

#![allow(clippy::single_range_in_vec_init, reason = "a list of one step")]

use super::*;
use crate::trace::DeviceTimes;
use crate::trace::recorder::{DeviceCommunication, DeviceWork};
use crate::trace::reduce::device::{DEVICE_LATENESS, DEVICE_SPANS_MAX, HELD_STEPS_MAX};
use std::ops::Range;

#[allow(clippy::cast_possible_truncation, reason = "some seconds")]
const LATE: u64 = DEVICE_LATENESS.as_nanos() as u64;

/// What a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Kernel,
    NcclKernel,
    Communication,
    Copy,
}

fn span(range: Range<u64>, stream: u32, what: What) -> TimedRecord {
    let work = DeviceWork { device: 0, stream, correlation: 7, bytes: 64 };
    let (op, data_type, group) = (Op::AllReduce, DataType::F32, NameId(2));
    let (kind, name, detail) = match what {
        What::Kernel => (Kind::Kernel, 3, Detail::Device(work)),
        What::NcclKernel => (Kind::Kernel, 4, Detail::Device(work)),
        What::Copy => (Kind::Copy, 5, Detail::Device(work)),
        What::Communication => {
            let communication = DeviceCommunication { op, data_type, group, peer: None, work };
            (Kind::Communication, 4, Detail::DeviceCommunication(communication))
        }
    };
    let event = Event::Span { nanos: range.end - range.start };
    TimedRecord { unix_nanos: range.start, thread: 0, kind, event, name: NameId(name), detail }
}

fn kernel(range: Range<u64>) -> TimedRecord {
    span(range, 7, What::Kernel)
}

/// A batch of a process whose names are those of spans.
fn spans(records: Vec<TimedRecord>) -> RecordBatch {
    let names = ["allreduce", "default|0-3", "gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "memcpy"];
    RecordBatch { names: Arc::new(names.into_iter().collect()), ..batch(0, records) }
}

/// Records of steps in the process, each with a number.
fn steps_of(ranges: &[Range<u64>]) -> Vec<TimedRecord> {
    let step = |(number, range): (u64, &Range<u64>)| {
        [begin(range.start, 1, Kind::Step, number), end(range.end, 1, Kind::Step, number)]
    };
    (1..).zip(ranges).flat_map(step).collect()
}

fn reduced(records: Vec<TimedRecord>) -> Vec<EndedStep> {
    let mut reducer = Reducer::default();
    reducer.take(&spans(records));
    let steps = reducer.settle(u64::MAX);
    assert_eq!(reducer.counts(), ReducerCounts::default());
    steps
}

fn device(step: &EndedStep) -> DeviceTimes {
    step.device.clone().unwrap_or_default()
}

#[test]
fn overlapping_streams_count_once_and_waiting_is_what_no_kernel_covers() {
    let records = [
        steps_of(&[100..200]),
        vec![
            kernel(100..130),
            span(110..140, 8, What::Kernel),        // on another stream
            kernel(112..118),                       // nested
            span(135..160, 9, What::Communication), // five of it beside a kernel
            span(155..165, 10, What::Copy),         // five of it beside the communication
            span(170..180, 9, What::NcclKernel),    // recorded as a kernel
        ],
    ];
    let times = device(&reduced(records.concat())[0]);
    let expected = DeviceTimes {
        step: 1,
        wall_ns: 100,
        compute_ns: 40,
        communication_ns: 35,
        wait_ns: 25,
        copy_ns: 10,
        idle_ns: 25,
        spans: 6,
        lost: 0,
    };
    assert_eq!(times, expected);
}

#[test]
fn work_counts_in_the_step_in_which_it_runs_until_the_next_one_begins() {
    // The process launches in 10 and returns; the device needs 100.
    let launches: Vec<Range<u64>> = (0..4).map(|step| 1000 + 100 * step..1010 + 100 * step).collect();
    let work = (0..4).map(|step| kernel(1005 + 100 * step..1105 + 100 * step));
    let steps = reduced(steps_of(&launches).into_iter().chain(work).collect());
    let figures: Vec<_> = steps.iter().map(|step| (device(step).wall_ns, device(step).compute_ns)).collect();
    assert_eq!(figures, [(100, 95), (100, 100), (100, 100), (10, 10)], "the last one has no successor");
    assert!(steps.iter().all(|step| step.times.wall_ns == 10));
    // A pause of the program belongs to no step.
    let apart = [1000..1010, 1010 + LATE + 1..1020 + LATE + 1];
    let records = [steps_of(&apart), vec![kernel(1000..1015), kernel(2000..3000), kernel(1010 + LATE..1015 + LATE)]];
    let figures: Vec<_> = reduced(records.concat()).iter().map(|step| device(step).compute_ns).collect();
    assert_eq!(figures, [10, 4]);
}

#[test]
fn late_spans_are_awaited_for_a_bounded_time_and_then_counted() {
    let mut reducer = Reducer::default();
    let at = 1_000_000_000_000;
    let steps: Vec<Range<u64>> = (0..40).map(|step| at + 1_000 * step..at + 1_000 * step + 900).collect();
    reducer.take(&spans([steps_of(&steps), vec![kernel(at..at + 500)]].concat()));
    assert_eq!(reducer.settle(at + LATE), [], "the first step waits");
    reducer.take(&spans(vec![kernel(at + 600..at + 700), kernel(at + 1_100..at + 1_150)]));
    let first = reducer.settle(at + 1_000 + LATE);
    assert_eq!((first.len(), device(&first[0]).compute_ns, device(&first[0]).lost), (1, 600, 0));
    // One is too late, one is so in part.
    reducer.take(&spans(vec![kernel(at + 10..at + 20), kernel(at + 990..at + 1_010)]));
    let second = reducer.settle(at + 2_000 + LATE);
    assert_eq!((second.len(), device(&second[0]).compute_ns, device(&second[0]).lost), (1, 60, 2));
    assert_eq!(reducer.counts().late_spans, 2);
    // Without further spans the steps stop waiting.
    assert_eq!(reducer.settle(at + 60_000 + LATE).len(), 38);
    let now = at + 60_000 + LATE;
    reducer.take(&spans(vec![begin(now, 1, Kind::Step, 99), end(now + 5, 1, Kind::Step, 99)]));
    assert_eq!(reducer.settle(now + 5).len(), 1);
}

#[test]
fn a_process_without_devices_does_not_wait() {
    let mut reducer = Reducer::default();
    reducer.take(&spans(steps_of(&[100..200, 200..300])));
    let steps = reducer.settle(300);
    assert_eq!(steps.iter().map(|step| step.device.clone()).collect::<Vec<_>>(), [None, None]);
}

#[test]
fn lost_records_mark_the_steps_that_wait_and_the_next_one() {
    let mut reducer = Reducer::default();
    let steps: Vec<Range<u64>> = (1..5).map(|step| 100 * step..100 * step + 100).collect();
    let records = steps_of(&steps);
    reducer.take(&spans([&records[..4], &[kernel(110..150), kernel(210..250)]].concat()));
    assert_eq!(reducer.settle(300), []);
    reducer.take(&RecordBatch { lost: 3, ..spans(records[4..6].to_vec()) });
    reducer.take(&spans([&records[6..], &[kernel(310..350), kernel(410..450)]].concat()));
    let lost: Vec<u64> = reducer.settle(u64::MAX).iter().map(|step| device(step).lost).collect();
    assert_eq!(lost, [3, 3, 3, 0]);
}

#[test]
fn impossible_times_are_counted_and_change_nothing() {
    let steps = steps_of(&[100..200]);
    let good = vec![kernel(110..150)];
    let expected = reduced([steps.clone(), good.clone()].concat());
    let mut reducer = Reducer::default();
    let endless = |at| TimedRecord { event: Event::Span { nanos: u64::MAX }, ..kernel(at..at + 1) };
    let bad = vec![kernel(0..50), endless(0), endless(120), endless(u64::MAX - 1), kernel(u64::MAX - 9..u64::MAX)];
    reducer.take(&spans([steps, bad, good].concat()));
    let mut found = reducer.settle(200 + LATE);
    found.extend(reducer.settle(u64::MAX));
    assert_eq!(found, expected);
    assert_eq!(reducer.counts(), ReducerCounts { false_spans: 5, ..ReducerCounts::default() });
}

#[test]
fn waiting_spans_and_steps_are_bounded_and_counted() {
    let mut reducer = Reducer::default();
    reducer.take(&spans(vec![begin(50, 1, Kind::Step, 1)]));
    let many = DEVICE_SPANS_MAX as u64 + 5;
    reducer.take(&spans((0..many).map(|n| kernel(100 + n..101 + n)).collect()));
    assert_eq!(reducer.settle(200), []);
    reducer.take(&spans(vec![end(100 + many, 1, Kind::Step, 1)]));
    let step = reducer.settle(u64::MAX);
    let times = device(&step[0]);
    assert_eq!((times.compute_ns, times.lost, reducer.counts().dropped_spans), (DEVICE_SPANS_MAX as u64, 5, 5));

    let mut reducer = Reducer::default();
    let steps: Vec<Range<u64>> = (0..HELD_STEPS_MAX as u64 + 9).map(|n| 100 + 10 * n..108 + 10 * n).collect();
    reducer.take(&spans([vec![kernel(100..105)], steps_of(&steps)].concat()));
    let hurried = reducer.settle(1_000_000);
    assert_eq!((hurried.len(), reducer.counts().hurried_steps), (9, 9));
    assert_eq!(device(&hurried[0]).compute_ns, 5);
    assert_eq!(reducer.settle(u64::MAX).len(), HELD_STEPS_MAX);
}

#[test]
fn a_process_without_steps_keeps_no_spans() {
    let mut reducer = Reducer::default();
    for round in 1..200_u64 {
        let at = round * 1_000_000;
        reducer.take(&spans((0..2_000).map(|n| kernel(at + n..at + n + 1)).collect()));
        assert_eq!(reducer.settle(at + 10_000), []);
    }
    assert_eq!(reducer.counts(), ReducerCounts::default(), "399,800 spans, none of which was dropped");
}

/// Returns the figures of a step by looking at every moment of its window.
fn modelled(step: u64, window: Range<u64>, all: &[(Range<u64>, What)]) -> Option<DeviceTimes> {
    let here = |what: fn(What) -> bool, at: u64| all.iter().any(|(range, is)| what(*is) && range.contains(&at));
    let count = |is_so: &dyn Fn(u64) -> bool| window.clone().filter(|at| is_so(*at)).count() as u64;
    let compute = |at| here(|what| what == What::Kernel, at);
    let communicates = |at| here(|what| matches!(what, What::Communication | What::NcclKernel), at);
    let copies = |at| here(|what| what == What::Copy, at);
    let spans = all.iter().filter(|(range, _)| range.start < window.end && range.end > window.start).count();
    let times = DeviceTimes {
        step,
        wall_ns: window.end - window.start,
        compute_ns: count(&compute),
        communication_ns: count(&communicates),
        wait_ns: count(&|at| communicates(at) && !compute(at) && !copies(at)),
        copy_ns: count(&copies),
        idle_ns: count(&|at| !communicates(at) && !compute(at) && !copies(at)),
        spans: u32::try_from(spans).unwrap(),
        lost: 0,
    };
    (spans > 0).then_some(times)
}

proptest! {
    #[test]
    fn figures_of_devices_equal_those_of_the_model(
        steps in prop::collection::vec((0..20_u64, 1..60_u64), 1..12),
        activity in prop::collection::vec((1..900_u64, 0..90_u64, 0..3_u32, 0..4_usize, any::<prop::sample::Index>()), 0..60),
        rounds in 1..5_usize,
    ) {
        let (mut now, mut ranges) = (100, Vec::new());
        for (pause, length) in steps {
            ranges.push(now + pause..now + pause + length);
            now += pause + length;
        }
        let what = [What::Kernel, What::NcclKernel, What::Communication, What::Copy];
        let all: Vec<(Range<u64>, What)> =
            activity.iter().map(|(at, length, _, which, _)| (*at..at + length, what[*which])).collect();
        // The first spans come with the steps, so that the steps wait; the others in any order, in some rounds.
        let mut reducer = Reducer::default();
        let at = 50; // before all steps
        reducer.take(&spans([vec![kernel(at..at + 1)], steps_of(&ranges)].concat()));
        let mut found = reducer.settle(now);
        for round in 0..rounds {
            let of = |index: &prop::sample::Index| index.index(rounds) == round;
            let records = activity.iter().zip(&all).filter(|((.., index), _)| of(index));
            reducer.take(&spans(records.map(|((_, _, stream, ..), (range, what))| span(range.clone(), *stream, *what)).collect()));
            found.extend(reducer.settle(now + round as u64));
        }
        prop_assert_eq!(found.len(), 0);
        found.extend(reducer.settle(u64::MAX));
        let nexts = ranges.iter().skip(1).map(|range| range.start).chain([ranges[ranges.len() - 1].end]);
        let windows = ranges.iter().zip(nexts).map(|(range, next)| range.start..next);
        let all: Vec<_> = all.into_iter().filter(|(range, _)| !range.is_empty()).collect();
        let expected: Vec<_> = (1..).zip(windows).map(|(step, window)| modelled(step, window, &all)).collect();
        prop_assert_eq!(found.into_iter().map(|step| step.device).collect::<Vec<_>>(), expected);
        prop_assert_eq!(reducer.counts(), ReducerCounts::default());
    }

    #[test]
    fn no_span_makes_a_figure_longer_than_its_step(
        records in prop::collection::vec((any::<bool>(), 0..3_000_u64, 0..500_u64, 0..4_usize, 0..3_000_u64), 0..80),
    ) {
        let what = [What::Kernel, What::NcclKernel, What::Communication, What::Copy];
        let (mut reducer, mut number, mut found) = (Reducer::default(), 0, Vec::new());
        for (is_step, at, length, which, until) in records {
            number += 1;
            let step = || vec![begin(at, 1, Kind::Step, number), end(at + length, 1, Kind::Step, number)];
            let records = if is_step { step() } else { vec![span(at..at + length, 1, what[which])] };
            reducer.take(&spans(records));
            found.extend(reducer.settle(until.saturating_mul(LATE / 1_000)));
        }
        found.extend(reducer.settle(u64::MAX));
        for times in found.into_iter().filter_map(|step| step.device) {
            prop_assert!(times.wait_ns <= times.communication_ns, "{times:?}");
            let parts = [times.compute_ns, times.communication_ns, times.copy_ns, times.idle_ns];
            prop_assert!(parts.iter().all(|part| *part <= times.wall_ns), "{times:?}");
            prop_assert!(parts.iter().sum::<u64>() >= times.wall_ns, "{times:?}");
        }
    }
}
