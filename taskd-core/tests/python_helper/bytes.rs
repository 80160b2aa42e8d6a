//! Whatever a failed program has left, reading it ends, without a panic.
//!
//! `TASKD_SOAK=1` runs ten million cases, and prints what became of them.

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use taskd_core::job::ProcId;
use taskd_core::launch::python::{ErrorRecord, Failure, report_of};

const SAMPLES: [&str; 4] = [
    r#"{"message": {"message": "ValueError: boom", "errorCode": 1, "extraInfo": {"py_callstack": "Traceback",
        "timestamp": "1795248366", "taskd_step": "41"}}}"#,
    r#"{"message": "it broke", "timestamp": 1795248366}"#,
    "Traceback (most recent call last):\n  File \"a\", line 1\n    x\nsome.module.ValueError: boom\nof two lines\n",
    "some.Error: x\nterminate called after throwing an instance of 'some::Error'\n  what():  it broke\n",
];

fn cases() -> u32 {
    if std::env::var("TASKD_SOAK").is_ok_and(|soak| soak == "1") { 10_000_000 } else { 4_000 }
}

/// A sample with a few pieces of it replaced, moved or left out.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"\"".to_vec()),
        Just(b"}".to_vec()),
        Just(b"[[[[".to_vec()),
        Just(b"-1".to_vec()),
        Just(b"1e999".to_vec()),
        Just(b": \n".to_vec()),
        Just("é'".as_bytes().to_vec()),
        Just(b"\nTraceback (most recent call last):".to_vec()),
        prop::collection::vec(any::<u8>(), 0..8),
    ];
    let edits = prop::collection::vec((any::<prop::sample::Index>(), 0..24usize, piece), 0..4);
    (prop::sample::select(SAMPLES.to_vec()), edits).prop_map(|(sample, edits)| {
        let mut bytes = sample.as_bytes().to_vec();
        for (at, length, piece) in edits {
            let from = at.index(bytes.len());
            let to = (from + length).min(bytes.len());
            bytes.splice(from..to, piece);
        }
        bytes
    })
}

#[test]
fn records_and_stderr_with_arbitrary_bytes_are_read_to_the_end() {
    let arbitrary = prop::collection::vec(any::<u8>(), 0..64);
    let bytes = prop_oneof![9 => mutated(), 1 => arbitrary];
    let seen = RefCell::new(BTreeMap::<&str, u64>::new());
    let proc = ProcId::rank(0, 1);
    let config = Config { cases: cases(), failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&bytes, |bytes| {
        let record = ErrorRecord::parse(&bytes);
        let tail = String::from_utf8_lossy(&bytes);
        let exception = Failure::new(&proc, record.as_ref().ok(), &tail).exception();
        if let Some(exception) = &exception {
            let report = report_of(exception);
            prop_assert!(exception.starts_with(&report.text) && exception.contains(report.code.as_str()));
        }
        let what = match (record, exception) {
            (Ok(_), _) => "a record",
            (Err(_), Some(_)) => "an exception in stderr",
            (Err(_), None) => "nothing",
        };
        *seen.borrow_mut().entry(what).or_default() += 1;
        Ok(())
    });
    let seen = seen.into_inner();
    println!("{} failures: {seen:?}", cases());
    result.unwrap();
    assert_eq!(seen.len(), 3, "each way is taken: {seen:?}");
}
