//! Whatever a file holds, reading it ends, without a panic.
//!
//! `TASKD_SOAK=1` runs ten million cases, and prints the outcomes.

use super::generated;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeMap;
use taskd_pytorch::kineto::generate::Plan;
use taskd_pytorch::kineto::{Mode, breakdown_of_reader, read};

fn cases() -> u32 {
    if std::env::var("TASKD_SOAK").is_ok_and(|soak| soak == "1") { 10_000_000 } else { 4_000 }
}

/// A short file with each kind of member.
const SMALL: &str = r#"{"schemaVersion": 1, "distributedInfo": {"rank": 3, "world_size": 4, "pg_config": [{"pg_name": "0",
 "pg_desc": "default_pg", "ranks": [0, 1, 2, 3]}]}, "baseTimeNanoseconds": 1790857026000000000, "traceEvents": [
 {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 1.5, "dur": 100},
 {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#2", "pid": 1, "tid": 1, "ts": 101.5, "dur": 100},
 {"ph": "B", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": "2.25"},
 {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 3, "dur": 1, "args": {"correlation": 7}},
 {"ph": "E", "pid": 1, "tid": 1, "ts": 4.125},
 {"ph": "X", "cat": "kernel", "name": "void gemm<\u0041, {lambda()#1}>(\"x\\\")", "pid": 0, "tid": 7, "ts": 5e0, "dur": 2.0625,
  "args": {"stream": 7, "correlation": 7, "grid": [1, [2, {"a": "]}"}], 3]}},
 {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 9, "ts": 5.5, "dur": 9.9,
  "args": {"stream": "9", "correlation": 8, "Collective name": "allreduce", "In msg nelems": 5, "dtype": "Float", "Seq": 2,
           "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3]"}},
 {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "pid": 0, "tid": 7, "ts": 20, "dur": 1.5, "args": {"stream": 7}},
 {"ph": "i", "s": "g", "name": "end", "ts": 30}], "traceName": "x"}"#;

fn samples() -> Vec<Vec<u8>> {
    let array = SMALL[SMALL.find("\"traceEvents\": [").unwrap() + 15..SMALL.rfind(", \"traceName").unwrap()].to_owned();
    let tiny = Plan { steps: 1, layers: 1, is_minified: true, ..Plan::default() };
    let few = generated(&tiny)[..6_000].to_vec();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, SMALL.as_bytes()).unwrap();
    vec![SMALL.into(), SMALL.into(), SMALL.into(), array.into_bytes(), few, packed.finish().unwrap()]
}

/// A file with a few pieces of it replaced, moved or left out.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let pieces = ["\"", "}", "]", "[[[[", "{", "null", "-1", "1e999", "9223372036854775808", "\"\\ud800\"", "\\", ","];
    let piece = prop_oneof![
        4 => prop::sample::select(pieces.to_vec()).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..8),
    ];
    let edits = prop::collection::vec((any::<prop::sample::Index>(), 0..24_usize, piece), 0..4);
    (prop::sample::select(samples()), edits, prop::option::weighted(0.2, any::<prop::sample::Index>())).prop_map(
        |(mut bytes, edits, cut)| {
            for (at, length, piece) in edits {
                let from = at.index(bytes.len());
                bytes.splice(from..(from + length).min(bytes.len()), piece);
            }
            if let Some(cut) = cut.filter(|_| !bytes.is_empty()) {
                bytes.truncate(cut.index(bytes.len()));
            }
            bytes
        },
    )
}

#[test]
fn a_file_of_foreign_bytes_is_read_to_its_end() {
    let arbitrary = prop::collection::vec(any::<u8>(), 0..64);
    let bytes = prop_oneof![9 => mutated(), 1 => arbitrary];
    let seen = RefCell::new(BTreeMap::<&str, u64>::new());
    let config = Config { cases: cases(), failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&bytes, |bytes| {
        let trace = read("rank3.json", bytes.as_slice());
        for mode in [Mode::Exact, Mode::Hta] {
            let breakdown = breakdown_of_reader(bytes.as_slice(), mode);
            let has_kernels = breakdown.ranks.iter().any(|rank| rank.count > 0);
            prop_assert!(has_kernels || !breakdown.missing.is_empty());
        }
        let events = trace.ranks.values().flat_map(|rank| &rank.events);
        prop_assert!(
            events
                .zip(trace.ranks.values().flat_map(|rank| rank.events.iter().skip(1)))
                .all(|(one, next)| one.start_ns <= next.start_ns)
        );
        let what = match (trace.ranks.is_empty(), trace.missing.is_empty()) {
            (true, _) => "nothing",
            (false, true) => "complete",
            (false, false) => "partial",
        };
        *seen.borrow_mut().entry(what).or_default() += 1;
        Ok(())
    });
    let seen = seen.into_inner();
    println!("{} files: {seen:?}", cases());
    result.unwrap();
    assert_eq!(seen.len(), 3, "each way is taken: {seen:?}");
}
