//! Damaged and unusual files: what can be read is used, and a sentence names the rest.

use super::{generated, write_job};
use std::path::Path;
use taskd_pytorch::kineto::generate::Plan;
use taskd_pytorch::kineto::{KinetoError, Mode, breakdown_of_directory, breakdown_of_reader, read, read_directory};

fn sentences(missing: &[taskd_core::analysis::model::Missing]) -> String {
    missing.iter().map(|missing| missing.what.as_str()).collect::<Vec<_>>().join("\n")
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, bytes).unwrap();
    packed.finish().unwrap()
}

#[test]
fn layout_and_compression_do_not_change_figures() {
    let plan = Plan { layers: 3, ..Plan::default() };
    let indented = generated(&plan);
    let minified = generated(&Plan { is_minified: true, ..plan });
    assert!(minified.len() < indented.len());
    for mode in [Mode::Exact, Mode::Hta] {
        let expected = breakdown_of_reader(indented.as_slice(), mode);
        assert_eq!(expected.missing, []);
        for bytes in [&minified, &gzip(&indented), &gzip(&minified)] {
            assert_eq!(breakdown_of_reader(bytes.as_slice(), mode).ranks, expected.ranks);
        }
    }
    assert_eq!(read("a", indented.as_slice()).ranks, read("a", gzip(&minified).as_slice()).ranks);
}

#[test]
fn reads_of_single_bytes_do_not_change_figures() {
    struct Slow<'a>(&'a [u8]);
    impl std::io::Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let (Some((first, rest)), Some(place)) = (self.0.split_first(), buffer.first_mut()) else { return Ok(0) };
            *place = *first;
            self.0 = rest;
            Ok(1)
        }
    }
    let bytes = generated(&Plan { layers: 1, steps: 1, ..Plan::default() });
    let [slow, quick] =
        [breakdown_of_reader(Slow(&bytes), Mode::Exact), breakdown_of_reader(bytes.as_slice(), Mode::Exact)];
    assert_eq!(slow.ranks, quick.ranks);
}

#[test]
fn truncated_file_yields_its_events_and_a_sentence() {
    let bytes = generated(&Plan::default());
    let whole = read("rank0.json", bytes.as_slice());
    let packed = gzip(&bytes);
    for cut in [&bytes[..bytes.len() / 2], &packed[..packed.len() / 2]] {
        let trace = read("rank0.json", cut);
        let events = trace.ranks[&0].events.len();
        assert!(events > 100 && events < whole.ranks[&0].events.len(), "{events}");
        let text = sentences(&trace.missing);
        assert!(text.starts_with("rank0.json ") && text.contains("events") && text.contains("are used"), "{text}");
    }
}

#[test]
fn damaged_byte_ends_the_file_with_its_position() {
    let bytes = br#"{"distributedInfo":{"rank":0},"traceEvents":[{"ph":"X","cat":"kernel","name":"a","ts":1,"dur":2},{"ph"=1}]}"#;
    let trace = read("a.json", bytes.as_slice());
    assert_eq!(trace.ranks[&0].events.len(), 1);
    let at = bytes.iter().position(|byte| *byte == b'=').unwrap();
    let expected = format!("a.json is not JSON at byte {at}: the 1 events before it are used, the rest is not");
    assert_eq!(sentences(&trace.missing), expected);
}

#[test]
fn foreign_files_are_named_for_what_they_are() {
    let utf16: Vec<u8> = "{\"traceEvents\": []}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let cases: [(&[u8], &str); 5] = [
        (b"", "t is empty"),
        (b" \n", "t is empty"),
        (&utf16, "t is encoded as UTF-16: convert it to UTF-8"),
        (b"PK\x03\x04", "t is not JSON, nor a gzip file of JSON"),
        (b"{\"a\": 1}", "t has no events"),
    ];
    for (bytes, expected) in cases {
        let trace = read("t", bytes);
        assert_eq!((trace.ranks.len(), sentences(&trace.missing)), (0, expected.to_owned()));
    }
}

#[test]
fn header_behind_the_events_and_numbers_as_text_are_read() {
    let bytes = "\u{feff}{\"traceEvents\":[{\"dur\":\"2.5\",\"name\":\"k\\u00e9\\n\\\"\",\"ts\":\"1.25\",\"cat\":\"kernel\",\"ph\":\"X\",
        \"args\":{\"x\":[{\"y\":\"]}\"}],\"stream\":\"7\"}}],\"distributedInfo\":{\"world_size\":1,\"rank\":0},
        \"baseTimeNanoseconds\":1790857026000000000}";
    let trace = read("a", bytes.as_bytes());
    assert_eq!((trace.began_unix_ns, trace.missing.len()), (Some(1_790_857_026_000_001_250), 0));
    let rank = &trace.ranks[&0];
    let event = rank.events[0];
    assert_eq!(
        (rank.names.get(event.name), event.start_ns, event.duration_ns, event.lane),
        ("k\u{e9}\n\"", 0, 2500, 7)
    );
}

#[test]
fn array_without_its_end_is_complete_and_old_times_are_calendar_times() {
    let bytes = br#"[{"ph":"X","cat":"Kernel","name":"a","ts":1650000000000000.5,"dur":2,"pid":0,"tid":7},
        {"ph":"B","cat":"cpu_op","name":"b","ts":1650000000000001,"pid":1,"tid":1},
        {"ph":"E","ts":1650000000000003.5,"pid":1,"tid":1}"#;
    let trace = read("rank5.json", [bytes.as_slice(), b"\n"].concat().as_slice());
    assert_eq!(trace.began_unix_ns, Some(1_650_000_000_000_000_500));
    let spans: Vec<(i64, u64)> =
        trace.ranks[&5].events.iter().map(|event| (event.start_ns, event.duration_ns)).collect();
    assert_eq!(spans, [(0, 2000), (500, 2500)]);
}

#[test]
fn unpaired_ends_and_unreadable_times_are_counted() {
    let bytes = br#"{"distributedInfo":{"rank":0},"traceEvents":[{"ph":"E","ts":1},{"ph":"B","ts":1},
        {"ph":"X","cat":"kernel","name":"a","ts":"x","dur":2},{"ph":"X","cat":"kernel","name":"a","ts":1,"dur":-2},
        {"ph":"X","cat":"kernel","name":"a","ts":1,"dur":2}, 7, null, "text"]}"#;
    let trace = read("a", bytes.as_slice());
    assert_eq!(trace.ranks[&0].events.len(), 1);
    let text = sentences(&trace.missing);
    assert!(
        text.contains("a has 2 events without a readable start") && text.contains("a has 2 begin or end events"),
        "{text}"
    );
}

#[test]
fn ranks_are_assigned_once_and_absent_ones_are_listed() {
    let directory = tempfile::tempdir().unwrap();
    let plan = Plan { layers: 1, steps: 1, ..Plan::default() };
    write_job(directory.path(), plan, 2);
    let write = |name: &str, plan: &Plan| std::fs::write(directory.path().join(name), generated(plan)).unwrap();
    write("rank9_copy.json", &Plan { rank: 1, world_size: 5, ..plan });
    write("z.json", &Plan { rank: 3, world_size: 5, ..plan });
    let nameless = br#"{"traceEvents":[{"ph":"X","cat":"kernel","name":"a","ts":1,"dur":2}]}"#;
    std::fs::write(directory.path().join("host.json"), nameless).unwrap();
    std::fs::write(directory.path().join("rank4.json"), nameless).unwrap();
    let trace = read_directory(directory.path()).unwrap();
    assert_eq!(trace.ranks.keys().copied().collect::<Vec<_>>(), [0, 1, 3, 4]);
    let text = sentences(&trace.missing);
    for part in [
        "host.json does not name its rank and is not used",
        "rank9_copy.json has rank 1, as rank1.json has, and is not used",
        "1 of 5 ranks have no trace file: 2",
        "rank4.json has no clock (baseTimeNanoseconds)",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let ranks: Vec<u32> =
        breakdown_of_directory(directory.path(), Mode::Exact).unwrap().ranks.iter().map(|rank| rank.rank).collect();
    assert_eq!(ranks, [0, 1, 3, 4]);
}

#[test]
fn directory_without_traces_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let error = read_directory(directory.path()).unwrap_err();
    assert!(
        matches!(error, KinetoError::NoFile { .. }) && error.to_string().contains("one *.json or *.json.gz per rank")
    );
    assert!(matches!(read_directory(Path::new("/nonexistent")), Err(KinetoError::Open { .. })));
}

#[test]
fn longest_values_are_skipped_within_bounded_memory() {
    let filler = "x".repeat(9 << 20);
    let bytes = format!(
        r#"{{"deviceProperties":["{filler}"],"distributedInfo":{{"rank":0}},"traceEvents":[
        {{"ph":"X","cat":"kernel","name":"a","ts":1,"dur":2}},{{"ph":"X","name":"{filler}"}},{{"ph":"X","cat":"kernel","name":"a","ts":4,"dur":2}}]}}"#
    );
    let breakdown = breakdown_of_reader(bytes.as_bytes(), Mode::Exact);
    assert_eq!((breakdown.ranks[0].busy_ns, breakdown.ranks[0].idle_ns), (4000, 1000));
    assert_eq!(sentences(&breakdown.missing), "the trace has 1 events longer than 8 MiB, which were skipped");
}

#[test]
fn times_at_the_edges_of_their_type_are_counted_as_unreadable() {
    let kernel = |start: &str, duration: &str| {
        format!(
            r#"{{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":{start},"dur":{duration},"args":{{"stream":7,"correlation":1}}}}"#
        )
    };
    let times = [("9223372036854775", "1"), ("-9223372036854775", "1"), ("5", "9223372036854775"), ("5", "2")];
    let events: Vec<String> = times.iter().map(|(start, duration)| kernel(start, duration)).collect();
    let file = format!(r#"{{"traceEvents":[{}]}}"#, events.join(","));
    for mode in [Mode::Exact, Mode::Hta] {
        let breakdown = breakdown_of_reader(file.as_bytes(), mode);
        assert_eq!((breakdown.ranks[0].count, breakdown.ranks[0].kernel_time_ns), (1, 2_000), "{mode:?}");
        assert!(breakdown.missing.iter().any(|missing| missing.what.contains("has 3 ")), "{:?}", breakdown.missing);
    }
}
