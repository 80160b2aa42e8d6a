//! The recorder in one process: what comes back, what is lost, and what it does without.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod foreign_bytes;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::File;
use taskd_core::trace::recorder::*;

/// A recorder in memory and its reader.
fn pair(config: RecorderConfig) -> (Recorder, RecorderReader) {
    let memory = config.memory().unwrap();
    let recorder = Recorder::create(memory.try_clone().unwrap(), config).unwrap();
    (recorder, RecorderReader::open(memory).unwrap())
}

fn small() -> RecorderConfig {
    RecorderConfig { threads_max: 2, records_per_thread: 1024, ..RecorderConfig::default() }
}

fn taken(recording: &mut RecorderReader) -> Vec<(usize, Record)> {
    let mut taken = Vec::new();
    recording.take(|one| taken.push((one.ring, one.record))).unwrap();
    recording.commit().unwrap();
    taken
}

#[test]
fn recorded_steps_ranges_and_events_are_read_in_order() {
    let (recorder, mut recording) = pair(RecorderConfig::default());
    let [forward, group] = ["forward", "dp:0"].map(|name| recorder.name(name));
    let mut thread = recorder.thread();
    let reduce = Detail::Communication(Communication {
        op: Op::AllReduce,
        data_type: DataType::Bf16,
        group,
        elements: 1_126_410,
        bytes: 2_252_820,
        peer: None,
        sequence: Some(0),
    });
    let step = thread.begin_step(7).unwrap();
    let range = thread.begin(Kind::Forward, forward, Detail::None).unwrap();
    thread.end(range);
    let range = thread.begin(Kind::Communication, NameId(0), reduce).unwrap();
    thread.end(range);
    thread.record(Kind::User(3), Event::Counter { value: 0.25 }, forward, Detail::None);
    thread.record(Kind::SaveCheckpoint, Event::Instant, NameId(0), Detail::None);
    thread.end_step(step);

    let records = taken(&mut recording);
    assert!(records.iter().all(|(ring, _)| *ring == 0));
    let records: Vec<Record> = records.into_iter().map(|(_, record)| record).collect();
    assert!(records.is_sorted_by_key(|record| record.ticks));
    let found: Vec<(Kind, Event)> = records.iter().map(|record| (record.kind, record.event)).collect();
    let number = |kind: Kind, count| u64::from(kind.number()) << 58 | 1 << 36 | count; // of the first thread
    let begin = |kind, count| (kind, Event::Begin { range: number(kind, count) });
    let end = |kind, count| (kind, Event::End { range: number(kind, count) });
    let expected = [
        begin(Kind::Step, 1),
        begin(Kind::Forward, 2),
        end(Kind::Forward, 2),
        begin(Kind::Communication, 3),
        end(Kind::Communication, 3),
        (Kind::User(3), Event::Counter { value: 0.25 }),
        (Kind::SaveCheckpoint, Event::Instant),
        end(Kind::Step, 1),
    ];
    assert_eq!(found, expected);
    assert_eq!((records[3].detail, records[4].detail), (reduce, Detail::None), "what was not given is not there");
    assert_eq!((recording.name(records[1].name), recording.name(group)), (Some("forward"), Some("dp:0")));
    assert_eq!(records[2].name, NameId(0), "an end is named by its beginning");
    assert!(matches!(records[7].detail, Detail::Step { number: 7, cpu_nanos: 1.. }), "{:?}", records[7]);
    assert_eq!((recording.pid(), recording.losses()), (std::process::id(), Losses::default()));
    assert!(taken(&mut recording).is_empty(), "once");
}

#[test]
fn ticks_are_moments_of_the_monotonic_clock() {
    let now = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
    };
    let (recorder, mut recording) = pair(small());
    let mut thread = recorder.thread();
    let before = now();
    thread.record(Kind::Step, Event::Instant, NameId(0), Detail::None);
    let after = now();
    while now() < after + 20_000_000 {} // a line through two moments is the better the further they are apart
    let at = recording.time_line().unwrap().nanos(taken(&mut recording)[0].1.ticks);
    let slack = 20_000; // the anchors' own error
    assert!((before - slack..=after + slack).contains(&at), "{before} <= {at} <= {after}");
}

#[test]
fn kind_switched_off_is_not_recorded_but_its_open_range_ends() {
    let (recorder, mut recording) = pair(small());
    let mut thread = recorder.thread();
    let open = thread.begin(Kind::Forward, NameId(0), Detail::None).unwrap();
    recording.switch(Switches::ALL.without(Kind::Forward)); // by the reader
    assert_eq!((recorder.is_on(Kind::Forward), recorder.is_on(Kind::Step)), (false, true));
    assert_eq!(thread.begin(Kind::Forward, NameId(0), Detail::None), None);
    thread.end(open);
    assert!(!thread.record(Kind::Forward, Event::Instant, NameId(0), Detail::None));
    recorder.switch(Switches::NONE.with(Kind::Forward));
    assert!(thread.record(Kind::Forward, Event::Instant, NameId(0), Detail::None));
    let events: Vec<Event> = taken(&mut recording).into_iter().map(|(_, record)| record.event).collect();
    let range = open.number();
    assert_eq!(events, [Event::Begin { range }, Event::End { range }, Event::Instant]);
}

#[test]
fn recording_lists_hooked_kinds_and_reasons_for_exceptions() {
    let (recorder, mut recording) = pair(small());
    assert_eq!((recording.hooked(), recording.exceptions()), (Switches::NONE, vec![]));
    recorder.hooked(Kind::Step);
    recorder.hooked(Kind::Communication);
    recorder.except(Kind::Communication, Some("another profiler is active"));
    recorder.except(Kind::Forward, Some("torch.compile"));
    assert_eq!(recording.hooked(), Switches::NONE.with(Kind::Step).with(Kind::Communication));
    assert!(recording.hooked().has(Kind::Step) && !recording.hooked().has(Kind::Forward));
    let exception = |kind, reason: &str| (kind, reason.to_owned());
    let both =
        [exception(Kind::Forward, "torch.compile"), exception(Kind::Communication, "another profiler is active")];
    assert_eq!(recording.exceptions(), both);
    recorder.except(Kind::Communication, None);
    assert_eq!(recording.exceptions(), both[..1]);
    let refused = (0..).find(|i| recorder.name(&format!("{i:0>250}")) == NameId(0));
    recorder.except(Kind::Step, Some(&"x".repeat(250)));
    let unnamed = exception(Kind::Step, "for an unknown reason");
    assert_eq!((recording.exceptions().remove(0), refused.is_some()), (unnamed, true), "the table of names is full");
}

#[test]
fn recorder_config_is_read_from_environment_variables() {
    let of = |text: &str| {
        let (name, value) = text.split_once('=').unwrap();
        RecorderConfig::from_env(|asked| (asked == name).then(|| value.to_owned()))
    };
    let usual = RecorderConfig::default();
    assert_eq!(of("TASKD_TRACE_THREADS=64").threads_max, 64);
    assert_eq!(of("TASKD_TRACE_RECORDS=5000").records_per_thread, 8192);
    assert_eq!(of("TASKD_TRACE_RECORDS=1").records_per_thread, 1024);
    assert_eq!(of("TASKD_TRACE_FULL=newest").when_full, WhenFull::DropNewest);
    assert_eq!(of("TASKD_TRACE=off").kinds, Switches::NONE);
    assert_eq!(of("TASKD_TRACE=on").kinds, Switches::USUAL);
    assert_eq!(of("TASKD_TRACE=all").kinds, Switches::ALL);
    let of_devices = [Kind::Kernel, Kind::Copy, Kind::Api, Kind::Marker];
    assert_eq!(of_devices.into_iter().fold(Switches::USUAL, Switches::with), Switches::ALL);
    assert_eq!(
        of("TASKD_TRACE=kernel,copy,api,marker").kinds,
        of_devices.into_iter().fold(Switches::NONE, Switches::with)
    );
    let two = Switches::NONE.with(Kind::Step).with(Kind::Communication);
    assert_eq!(of("TASKD_TRACE=step, communication").kinds, two);
    assert!(of("TASKD_TRACE=user").kinds.has(Kind::User(47)));
    let not_understood =
        ["_THREADS=65", "_THREADS=0", "_THREADS=x", "_RECORDS=2000000", "_RECORDS=-1", "_FULL=", "=stp"];
    for text in not_understood {
        assert_eq!(of(&format!("TASKD_TRACE{text}")), usual, "{text}");
    }
}

fn numbered(thread: &mut ThreadRecorder<'_>, numbers: std::ops::Range<u64>) -> u64 {
    let one = |number| (Kind::Step, Event::Instant, NameId(0), Detail::Step { number, cpu_nanos: 0 });
    numbers.map(one).filter(|(kind, event, name, detail)| thread.record(*kind, *event, *name, *detail)).count() as u64
}

fn numbers(recording: &mut RecorderReader) -> Vec<u64> {
    let number = |(_, record): (usize, Record)| match record.detail {
        Detail::Step { number, .. } => number,
        other => panic!("{other:?}"),
    };
    taken(recording).into_iter().map(number).collect()
}

#[test]
fn burst_records_beyond_the_ring_size_are_counted_as_lost() {
    let (recorder, mut recording) = pair(small());
    let mut thread = recorder.thread();
    assert_eq!(numbered(&mut thread, 0..1024), 1024);
    assert_eq!(numbers(&mut recording), (0..1024).collect::<Vec<_>>());
    assert_eq!(numbered(&mut thread, 1024..5000), 3976, "the oldest make room");
    assert_eq!(numbers(&mut recording), (3976..5000).collect::<Vec<_>>());
    assert_eq!(recording.losses(), Losses { overwritten: 3976 - 1024, ..Losses::default() });

    let (recorder, mut recording) = pair(RecorderConfig { when_full: WhenFull::DropNewest, ..small() });
    let mut thread = recorder.thread();
    assert_eq!(numbered(&mut thread, 0..5000), 1024, "the newest find no room");
    assert_eq!(numbers(&mut recording), (0..1024).collect::<Vec<_>>());
    assert_eq!(numbered(&mut thread, 5000..5010), 10);
    assert_eq!(numbers(&mut recording), (5000..5010).collect::<Vec<_>>());
    assert_eq!(recording.losses(), Losses { dropped: 5000 - 1024, ..Losses::default() });
}

#[test]
fn a_later_reader_goes_on_where_the_one_before_has_committed() {
    let config = small();
    let memory = config.memory().unwrap();
    let recorder = Recorder::create(memory.try_clone().unwrap(), config).unwrap();
    let mut thread = recorder.thread();
    numbered(&mut thread, 0..1030);
    let opened = || RecorderReader::open(memory.try_clone().unwrap()).unwrap();
    assert_eq!(numbers(&mut opened()).len(), 1024);
    numbered(&mut thread, 1030..1032);
    let mut dies = opened();
    let mut seen = 0;
    dies.take(|_| seen += 1).unwrap();
    let mut next = opened();
    assert_eq!((seen, numbers(&mut next)), (2, vec![1030, 1031]), "what was not committed is read again");
    assert_eq!(next.losses().overwritten, 6, "those of the first reader");
    assert!(dies.commit().unwrap_err().to_string().contains("another reader"));
}

#[test]
fn read_only_reader_consumes_no_records() {
    let config = small();
    let memory = config.memory().unwrap();
    let recorder = Recorder::create(memory.try_clone().unwrap(), config).unwrap();
    numbered(&mut recorder.thread(), 0..3);
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memory));
    let mut looking = RecorderReader::look(File::open(path).unwrap()).unwrap();
    let mut seen = 0;
    looking.take(|_| seen += 1).unwrap();
    looking.switch(Switches::NONE);
    assert!(looking.commit().is_err() && recorder.is_on(Kind::Step));
    assert_eq!((seen, numbers(&mut RecorderReader::open(memory).unwrap())), (3, vec![0, 1, 2]));
}

/// A thread of this name that records one number, and how many of its records found room.
fn thread_named(recorder: &Recorder, name: &str, number: u64) -> u64 {
    std::thread::scope(|scope| {
        let record = || numbered(&mut recorder.thread(), number..number + 1);
        std::thread::Builder::new().name(name.into()).spawn_scoped(scope, record).unwrap().join().unwrap()
    })
}

#[test]
fn threads_have_rings_of_their_own_which_others_get_when_they_have_ended() {
    let (recorder, mut recording) = pair(RecorderConfig { when_full: WhenFull::DropNewest, ..small() });
    let named = |name, number| thread_named(&recorder, name, number);
    assert_eq!((named("first", 1), named("second-with-a-long-name", 2)), (1, 1));
    assert_eq!(named("third", 3), 0, "what the two have recorded was not taken yet");
    let threads = recording.threads();
    let names: Vec<&str> = threads.iter().map(|thread| thread.name.as_str()).collect();
    assert_eq!((names, threads[0].has_ended), (vec!["first", "second-with-a-l"], true));
    assert_eq!(numbers(&mut recording), [1, 2]);
    assert_eq!(recording.losses(), Losses { threads: 1, refused: 1, ..Losses::default() });
    assert_eq!(named("fourth", 4), 1);
    let fourth = recording.threads().remove(0);
    assert_eq!((numbers(&mut recording), fourth.name.as_str()), (vec![4], "fourth"));
    assert_eq!((fourth.claim, fourth.since, fourth.written), (3, 1, 2), "the ring's second record is its first");
}

#[test]
fn new_thread_with_drop_oldest_gets_the_ring_that_ended_first() {
    let (recorder, mut recording) = pair(small());
    let numbers_of = (1..=9).map(|number| thread_named(&recorder, "one-of-many", number)).sum::<u64>();
    assert_eq!((numbers_of, recording.losses()), (9, Losses::default()), "though no process reads");
    assert_eq!(numbers(&mut recording), [1, 3, 5, 7, 9, 2, 4, 6, 8]);
}

#[test]
fn a_thread_without_a_ring_looks_for_one_again() {
    let (recorder, mut recording) = pair(small());
    let (first, _second) = (recorder.thread(), recorder.thread());
    let mut third = recorder.thread();
    assert_eq!(numbered(&mut third, 0..3), 0);
    drop(first);
    assert_eq!(numbered(&mut third, 3..6), 2, "it looks after the fourth");
    assert_eq!(numbers(&mut recording), [4, 5]);
    assert_eq!(recording.losses(), Losses { threads: 1, refused: 4, ..Losses::default() });
}

#[test]
fn ranges_of_one_file_have_different_numbers() {
    let (recorder, mut recording) = pair(small());
    for _ in 0..3 {
        let mut thread = recorder.thread();
        let range = thread.begin(Kind::Forward, NameId(0), Detail::None).unwrap();
        drop(thread);
        let again = Range::of_number(range.number()).unwrap();
        assert_eq!((again, again.kind()), (range, Kind::Forward));
        recorder.thread().end(again); // on another thread, as that of asynchronous work
    }
    assert_eq!((Range::of_number(0), Range::of_number(15 << 58)), (None, None), "of no kind");
    let mut open = std::collections::BTreeSet::new();
    for (_, record) in taken(&mut recording) {
        match record.event {
            Event::Begin { range } => assert!(open.insert(range), "{range} again"),
            Event::End { range } => assert!(open.remove(&range), "{range} was not begun"),
            other => panic!("{other:?}"),
        }
    }
    assert!(open.is_empty());
}

#[test]
fn names_are_deduplicated_cut_if_long_and_refused_if_out_of_room() {
    let (recorder, mut recording) = pair(small());
    let long = format!("{}é", "x".repeat(254));
    let [a, b, again, cut] = ["a", "b", "a", long.as_str()].map(|name| recorder.name(name));
    assert_eq!((a, b, again, cut), (NameId(1), NameId(2), NameId(1), NameId(3)));
    let refused = (0..2000).filter(|i| recorder.name(&format!("{i}{}", "y".repeat(200))) == NameId(0)).count();
    taken(&mut recording);
    assert_eq!(recording.name(cut), Some("x".repeat(254).as_str()), "no half characters");
    assert!(refused > 0 && recording.losses().names == refused as u64, "{:?}", recording.losses());
    assert_eq!((recording.name(NameId(0)), recording.name(NameId(u32::MAX))), (None, None));
}

/// A child that was forked shares the rings' memory, and must not write into them.
#[test]
#[allow(unsafe_code)]
fn a_forked_process_records_nothing() {
    let (recorder, mut recording) = pair(small());
    let mut thread = recorder.thread();
    numbered(&mut thread, 0..1);
    // SAFETY: the child calls nothing but what is tested, which takes no lock and allocates nothing, and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let quiet = !recorder.is_on(Kind::Step) && numbered(&mut thread, 7..9) == 0 && recorder.name("x") == NameId(0);
        drop(thread); // must not say that the parent's thread has ended
        drop(recorder.thread());
        recorder.switch(Switches::NONE);
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(i32::from(!quiet)) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "it saw everything off");
    numbered(&mut thread, 1..2);
    assert_eq!((numbers(&mut recording), recording.threads()[0].has_ended), (vec![0, 1], false));
    assert_eq!((recording.losses(), recorder.is_on(Kind::Step)), (Losses::default(), true));
}

/// Memory of this length that no process can make shorter.
pub(crate) fn sealed(bytes: u64) -> File {
    let memory = memfd_create("taskd-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let file = File::from(memory);
    file.set_len(bytes).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file
}

#[test]
fn invalid_recorder_files_are_refused_with_a_reason() {
    let refusal = |file: File| RecorderReader::open(file).map(drop).unwrap_err().to_string();
    assert_eq!(refusal(sealed(0)), "not a recorder's file: it has 0 bytes, and needs at least 262144");
    assert_eq!(refusal(sealed(1 << 20)), "not a recorder's file, or not initialized yet");
    let create = |file: File, config| Recorder::create(file, config).map(drop).unwrap_err().to_string();
    let words = "393215 bytes are too few for 2 rings of 1024 slots: use 393216 bytes";
    assert_eq!(create(sealed(393_215), small()), words);
    let odd = RecorderConfig { records_per_thread: 1000, ..small() };
    let words = "a recorder cannot have 2 rings of 1000 slots: use 1 to 64 rings, and a power of two from 1024 to \
                 1048576 slots";
    assert_eq!(create(sealed(1 << 20), odd), words);
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    assert!(create(file.try_clone().unwrap(), small()).starts_with("its length is not sealed"));
    assert!(refusal(file).starts_with("its length is not sealed"));
    let file = sealed(393_216);
    Recorder::create(file.try_clone().unwrap(), small()).unwrap();
    let words = format!("process {} records into it already: use a file of its own", std::process::id());
    assert_eq!(create(file.try_clone().unwrap(), small()), words);
    std::os::unix::fs::FileExt::write_all_at(&file, &9u32.to_ne_bytes(), 4096 + 8).unwrap();
    assert_eq!(refusal(file), "a recorder's file of version 9, and this program reads version 1");
}

#[test]
fn a_file_of_before_has_no_time_line() {
    let memory = small().memory().unwrap();
    Recorder::create(memory.try_clone().unwrap(), small()).unwrap();
    assert!(RecorderReader::open(memory.try_clone().unwrap()).unwrap().time_line().is_some());
    std::os::unix::fs::FileExt::write_all_at(&memory, &[1], 4096 + 104).unwrap();
    assert!(RecorderReader::open(memory).unwrap().time_line().is_none(), "another start of the system");
}

fn imported(event: Event, thread: u32) -> Imported {
    let detail = Detail::Device(DeviceWork { device: 3, stream: 7, correlation: 1 << 40, bytes: 4096 });
    Imported { unix_nanos: 0, thread, kind: Kind::Copy, event, name: NameId(0), detail }
}

#[test]
fn imported_records_are_read_with_their_thread_and_length() {
    let (recorder, mut recording) = pair(small());
    let half_an_hour = 1_800_000_000_000;
    let lengths = [0, 1, half_an_hour, 2 * half_an_hour + 1999, u64::MAX];
    let threads = [0, 1, (1 << 22) - 1];
    let spans = lengths.iter().flat_map(|nanos| threads.map(|thread| imported(Event::Span { nanos: *nanos }, thread)));
    let spans: Vec<Imported> = spans.chain(threads.map(|thread| imported(Event::Instant, thread))).collect();
    assert_eq!(recorder.thread().import(spans.iter().copied()), spans.len());
    let kept = |event| match event {
        Event::Span { nanos } if nanos > 2 * half_an_hour + 1999 => Event::Span { nanos: ((1 << 41) - 1) * 1000 },
        Event::Span { nanos } if nanos > half_an_hour => Event::Span { nanos: nanos / 1000 * 1000 },
        other => other,
    };
    let expected = spans.iter().map(|one| {
        let by = RecordedBy::Import { thread: one.thread };
        (0, Record { ticks: 0, by, kind: one.kind, event: kept(one.event), name: one.name, detail: one.detail })
    });
    assert_eq!(taken(&mut recording), expected.collect::<Vec<_>>());
}

#[test]
fn a_full_ring_takes_no_more_of_others_records_and_loses_none() {
    let (recorder, mut recording) = pair(small()); // in which own records go over the oldest
    let mut thread = recorder.thread();
    thread.record(Kind::Step, Event::Instant, NameId(0), Detail::None);
    let many = (1..=1500).map(|number| imported(Event::Span { nanos: number }, 0)).collect::<Vec<_>>();
    assert_eq!(thread.import(many.iter().copied()), 1023);
    assert_eq!(thread.import(many[1023..].iter().copied()), 0);
    assert_eq!((taken(&mut recording).len(), recording.losses()), (1024, Losses::default()));
    assert_eq!(thread.import(many[1023..].iter().copied()), 477);
    let rest = taken(&mut recording);
    assert!(rest.iter().map(|(_, record)| record.event).eq((1024..=1500).map(|nanos| Event::Span { nanos })));
    assert_eq!(recording.losses(), Losses::default(), "what finds no room is still the caller's");
}

#[test]
fn a_thread_without_a_ring_imports_once_there_is_one() {
    let (recorder, mut recording) = pair(RecorderConfig { threads_max: 1, ..small() });
    let first = recorder.thread();
    let mut second = recorder.thread();
    let one = [imported(Event::Instant, 5)];
    assert_eq!(second.import(one.into_iter()), 0);
    drop(first);
    let taken_after = (0..8).map(|_| second.import(one.into_iter())).sum::<usize>();
    assert!(taken_after > 0 && taken(&mut recording).len() == taken_after);
    assert_eq!((recording.losses().refused, recording.losses().threads), (0, 1));
}
