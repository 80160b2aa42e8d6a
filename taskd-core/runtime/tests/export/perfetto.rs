//! The file for ui.perfetto.dev.

use super::perfetto_reader::{Shown, Slice, read};
use super::support::{DAY, all_reduce, batch, batches, begin, end, origin, record};
use proptest::prelude::*;
use std::collections::BTreeSet;
use taskd_core::trace::export::perfetto::{
    EARLY_ENDS_MAX, OPEN_RANGES_MAX, PerfettoWriter, SPAN_TRACKS_MAX, STREAMS_MAX, Summary,
};
use taskd_core::trace::recorder::{Detail, DeviceWork, Event, Kind, NameId};
use taskd_core::trace::{RecordBatch, TimedRecord};

fn export(batches: &[RecordBatch]) -> (Shown, Summary) {
    let mut writer = PerfettoWriter::new(Vec::new());
    for batch in batches {
        writer.batch(batch).unwrap();
    }
    let (file, summary) = writer.finish().unwrap();
    (read(&file), summary)
}

/// Of a slice: its track, its name, and when it began and ended after [`DAY`].
fn spans(shown: &Shown) -> Vec<(&str, &str, u64, u64)> {
    let span = |slice: &Slice| (slice.begin - DAY, slice.end.unwrap() - DAY);
    let mut spans: Vec<_> =
        shown.slices.iter().map(|slice| (&*slice.track, &*slice.name, span(slice).0, span(slice).1)).collect();
    spans.sort_by_key(|(_, _, begin, _)| *begin);
    spans
}

fn lanes(shown: &Shown) -> usize {
    shown.slices.iter().map(|slice| slice.lane).collect::<BTreeSet<_>>().len()
}

#[test]
fn a_step_is_shown_with_all_that_is_known_of_it() {
    let step = Detail::Step { number: 17, cpu_nanos: 0 };
    let ended = Detail::Step { number: 17, cpu_nanos: 1_500_000 };
    let records = vec![
        TimedRecord { detail: step, ..begin(0, Kind::Step, 1) },
        begin(10, Kind::DataLoader, 2),
        end(20, Kind::DataLoader, 2),
        TimedRecord { name: NameId(1), ..begin(20, Kind::Forward, 3) },
        end(40, Kind::Forward, 3),
        TimedRecord { name: NameId(3), detail: all_reduce(5), ..begin(50, Kind::Communication, 4) },
        end(70, Kind::Communication, 4),
        TimedRecord { detail: ended, ..end(90, Kind::Step, 1) },
        TimedRecord { name: NameId(1), ..record(90, Kind::User(3), Event::Instant) },
        TimedRecord { name: NameId(4), ..record(95, Kind::User(3), Event::Counter { value: 2.5 }) },
    ];
    let (shown, summary) = export(&[batch(origin(3, 1), &["net", "dp_1|1-7:2", "allreduce", "loss"], records)]);
    let expected = [
        ("Step", "step 17", 0, 90),
        ("DataLoader", "DataLoader", 10, 20),
        ("FP", "net", 20, 40),
        ("Communication", "allreduce", 50, 70),
    ];
    assert_eq!(spans(&shown), expected);
    assert!(shown.slices.iter().all(|slice| slice.process == "rank 3"));
    let arguments =
        |slice: usize| shown.slices[slice].arguments.iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>();
    assert_eq!(arguments(0), ["cpu_ms=1.5", "step=17", "thread=7"]);
    assert_eq!(
        arguments(3).join(" "),
        "bytes=2048 data_type=bf16 elements=1024 group=dp_1 members=1-7:2 op=all_reduce sequence=5 thread=7"
    );
    let rank = |text: &str| text.to_owned();
    assert_eq!(shown.counters, [(rank("rank 3"), rank("loss"), DAY + 95, 2.5)]);
    assert_eq!(shown.instants[0], (rank("rank 3"), rank("Recorder"), rank("first record"), DAY));
    assert_eq!(shown.instants[1], (rank("rank 3"), rank("User 3"), rank("net"), DAY + 90));
    assert_eq!(summary, Summary { ranges: 4, instants: 1, counters: 1, ..Summary::default() });
}

#[test]
fn communications_that_overlap_stand_below_each_other() {
    let call = |after, range| begin(after, Kind::Communication, range);
    let done = |after, range| end(after, Kind::Communication, range);
    let overlapping = vec![call(0, 1), call(5, 2), done(10, 1), call(10, 3), done(20, 2), done(30, 3)];
    let (shown, summary) = export(&[batch(origin(0, 1), &[], overlapping)]);
    let times: Vec<_> = spans(&shown).into_iter().map(|(_, _, begin, end)| (begin, end)).collect();
    assert_eq!(times, [(0, 10), (5, 20), (10, 30)]);
    assert_eq!((lanes(&shown), summary.ranges), (2, 3));
}

fn kernel(after: u64, nanos: u64, device: u32, stream: u32) -> TimedRecord {
    let detail = Detail::Device(DeviceWork { device, stream, correlation: 12, bytes: 0 });
    TimedRecord { thread: 0, detail, name: NameId(1), ..record(after, Kind::Kernel, Event::Span { nanos }) }
}

#[test]
fn device_spans_are_shown_per_stream_in_any_record_order() {
    let call = TimedRecord { name: NameId(2), ..record(0, Kind::Api, Event::Span { nanos: 3 }) };
    let copy = TimedRecord { kind: Kind::Copy, name: NameId(0), ..kernel(30, 5, 3, 7) };
    let batches = [
        batch(origin(0, 1), &["matmul", "launch"], vec![kernel(20, 10, 3, 7), kernel(10, 10, 3, 7), call, copy]),
        batch(origin(0, 1), &["matmul", "launch"], vec![kernel(12, 4, 3, 8), kernel(0, 2, 3, 7)]),
    ];
    let (shown, summary) = export(&batches);
    let expected = [
        ("API", "launch", 0, 3),
        ("device 3 stream 7", "matmul", 0, 2),
        ("device 3 stream 7", "matmul", 10, 20),
        ("device 3 stream 8", "matmul", 12, 16),
        ("device 3 stream 7", "matmul", 20, 30),
        ("device 3 stream 7", "Copy", 30, 35),
    ];
    assert_eq!(spans(&shown), expected);
    assert_eq!(summary, Summary { ranges: 6, ..Summary::default() });
    let arguments = shown.slices.iter().find(|slice| slice.name == "matmul").map(|slice| &slice.arguments).unwrap();
    assert_eq!(
        arguments.iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>(),
        ["correlation=12", "device=3", "stream=7"]
    );
}

#[test]
fn streams_and_overlaps_are_bounded_and_the_excess_is_counted() {
    let streams = u32::try_from(STREAMS_MAX).unwrap() + 5;
    let wide = batch(origin(0, 1), &["k"], (0..streams).map(|stream| kernel(0, 1, 0, stream)).collect());
    let deep = batch(origin(0, 1), &["k"], vec![kernel(10, 1, 0, 0); SPAN_TRACKS_MAX + 7]);
    let (shown, summary) = export(&[wide, deep]);
    assert_eq!(summary.left_out, 5 + 7);
    assert_eq!(shown.slices.len() as u64, summary.ranges);
}

#[test]
fn records_of_several_ranks_with_equal_numbers_stay_separate() {
    let one = |rank, from| batch(origin(rank, 1), &[], vec![begin(from, Kind::Forward, 1)]);
    let other = |rank, until| batch(origin(rank, 1), &[], vec![end(until, Kind::Forward, 1)]);
    let (shown, summary) = export(&[one(1, 10), one(0, 0), other(1, 30), other(0, 40)]);
    let mut seen: Vec<_> = shown.slices.iter().map(|s| (&*s.process, s.begin - DAY, s.end.unwrap() - DAY)).collect();
    seen.sort_unstable();
    assert_eq!(seen, [("rank 0", 0, 40), ("rank 1", 10, 30)]);
    assert_eq!((shown.processes, summary.orphan_ends), (2, 0));
}

#[test]
fn an_end_recorded_before_its_begin_is_paired_with_it() {
    let of_another_thread =
        batch(origin(0, 1), &[], vec![begin(10, Kind::Forward, 2), end(20, Kind::Communication, 1)]);
    let later = batch(origin(0, 1), &[], vec![end(30, Kind::Forward, 2), begin(0, Kind::Communication, 1)]);
    let (shown, summary) = export(&[of_another_thread, later]);
    assert_eq!(spans(&shown), [("Communication", "Communication", 0, 20), ("FP", "FP", 10, 30)]);
    assert_eq!(summary, Summary { ranges: 2, ..Summary::default() });
}

#[test]
fn lost_records_and_unpaired_ranges_are_marked_and_counted() {
    let records = vec![end(0, Kind::Forward, 9), begin(10, Kind::Step, 1), record(50, Kind::Forward, Event::Instant)];
    let lost = RecordBatch { lost: 42, ..batch(origin(0, 1), &[], records) };
    let (shown, summary) = export(&[lost]);
    assert_eq!(spans(&shown), [("Step", "Step", 10, 50)], "until the last that was received");
    assert_eq!(shown.slices[0].arguments["unfinished"], "true");
    assert!(shown.instants.iter().any(|(_, track, name, _)| track == "Recorder" && name == "records lost"));
    let expected = Summary { ranges: 1, unfinished: 1, orphan_ends: 1, instants: 1, lost: 42, ..Summary::default() };
    assert_eq!(summary, expected);
}

#[test]
fn a_new_incarnation_ends_the_open_ranges_of_its_predecessor() {
    let died = batch(origin(0, 1), &[], vec![begin(0, Kind::Step, 1), begin(5, Kind::Forward, 2)]);
    let again = batch(origin(0, 2), &[], vec![begin(100, Kind::Step, 1), end(120, Kind::Step, 1)]);
    let (shown, summary) = export(&[died, again]);
    assert_eq!(spans(&shown), [("Step", "Step", 0, 5), ("FP", "FP", 5, 5), ("Step", "Step", 100, 120)]);
    assert_eq!((shown.processes, lanes(&shown), summary.unfinished), (1, 2, 2), "in the same tracks");
}

#[test]
fn without_finish_the_file_is_whole_until_the_last_batch() {
    let mut file = Vec::new();
    let mut writer = PerfettoWriter::new(&mut file);
    writer.batch(&batch(origin(0, 1), &[], vec![begin(0, Kind::Step, 1), begin(5, Kind::Forward, 2)])).unwrap();
    writer.batch(&batch(origin(0, 1), &[], vec![end(9, Kind::Forward, 2)])).unwrap();
    drop(writer);
    let ends: Vec<_> = read(&file).slices.iter().map(|slice| slice.end.map(|end| end - DAY)).collect();
    assert_eq!(ends, [None, Some(9)]);
}

#[test]
fn open_ranges_are_bounded_and_the_excess_is_counted() {
    let (open, early) = (OPEN_RANGES_MAX as u64, EARLY_ENDS_MAX as u64);
    let begins = (0..open + 3).map(|range| begin(range, Kind::Forward, range)).collect();
    let ends = (0..early + 2).map(|range| end(open + 3, Kind::Forward, open + 3 + range)).collect();
    let (shown, summary) = export(&[batch(origin(0, 1), &[], begins), batch(origin(0, 1), &[], ends)]);
    let cut: Vec<_> = spans(&shown).into_iter().map(|(.., begin, end)| (begin, end)).take(4).collect();
    assert_eq!(cut, [(0, open), (1, open + 1), (2, open + 2), (3, open + 3)], "the oldest give way");
    assert_eq!((summary.unfinished, summary.orphan_ends), (open + 3, early + 2));
}

/// A disk with so much room.
struct Full(usize);

impl std::io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let one = batch(origin(0, 1), &[], vec![begin(0, Kind::Step, 1)]);
    let mut writer = PerfettoWriter::new(Full(900));
    let results: Vec<_> = (0..100).map(|_| writer.batch(&one).map_err(|error| error.kind())).collect();
    assert_eq!((results[0], results[99]), (Ok(()), Err(std::io::ErrorKind::StorageFull)));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is recorded, the file is valid, and everything is in it or counted.
    #[test]
    fn any_records_make_a_valid_file(batches in batches()) {
        let (shown, summary) = export(&batches);
        let all = || batches.iter().flat_map(|batch| &batch.records);
        let count = |which: fn(&Event) -> bool| all().filter(|record| which(&record.event)).count() as u64;
        prop_assert_eq!(shown.slices.len() as u64, summary.ranges);
        prop_assert!(shown.slices.iter().all(|slice| slice.end.is_some()));
        let unfinished = shown.slices.iter().filter(|slice| slice.arguments.contains_key("unfinished")).count() as u64;
        prop_assert_eq!(unfinished, summary.unfinished);
        let spans = count(|event| matches!(event, Event::Span { .. }));
        prop_assert_eq!(summary.ranges, count(|event| matches!(event, Event::Begin { .. })) + spans);
        let ends = count(|event| matches!(event, Event::End { .. }));
        prop_assert_eq!(summary.ranges - spans - summary.unfinished + summary.orphan_ends, ends);
        prop_assert_eq!(summary.instants, count(|event| matches!(event, Event::Instant)));
        prop_assert_eq!(summary.counters, shown.counters.len() as u64);
        let figures = count(|event| matches!(event, Event::Counter { .. }));
        prop_assert_eq!(summary.counters + summary.left_out, figures);
        prop_assert!(shown.counters.iter().all(|(.., value)| value.is_finite()));
    }
}
