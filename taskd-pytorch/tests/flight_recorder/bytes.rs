//! Whatever a dump contains, reading and evaluating it ends, without a panic and within bounds.
//!
//! `TASKD_SOAK=1` runs ten million cases, and prints what became of them.

use crate::samples::directory;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeMap;
use taskd_pytorch::flight_recorder::{Dump, DumpError, ENTRIES_MAX, FRAMES_MAX, evaluate};

fn cases() -> u32 {
    if std::env::var("TASKD_SOAK").is_ok_and(|soak| soak == "1") { 10_000_000 } else { 4_000 }
}

/// A real dump with a few pieces of it replaced, moved or left out.
fn mutated(samples: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"(".to_vec()),
        Just(b"u.".to_vec()),
        Just(b"}q\x00h\x00h\x00s".to_vec()),
        Just(b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f".to_vec()),
        Just(b"J\xff\xff\xff\xff".to_vec()),
        Just(b"cposix\nsystem\n".to_vec()),
        Just(b"X\xff\xff\xff\xff".to_vec()),
        Just(b"[[[[[[[[".to_vec()),
        Just(b"18446744073709551615".to_vec()),
        Just(b"-1".to_vec()),
        Just(b"gloo:send 3->0".to_vec()),
        prop::collection::vec(any::<u8>(), 0..8),
    ];
    let edits = prop::collection::vec((any::<prop::sample::Index>(), 0..24_usize, piece), 0..4);
    (prop::sample::select(samples), edits).prop_map(|(mut bytes, edits)| {
        for (at, length, piece) in edits {
            let from = at.index(bytes.len().max(1)).min(bytes.len());
            let to = (from + length).min(bytes.len());
            bytes.splice(from..to, piece);
        }
        bytes
    })
}

#[test]
fn any_bytes_are_a_dump_or_an_error_with_a_reason() {
    let sample = |name: &str| std::fs::read(directory("").join(name)).unwrap();
    let valid = Dump::parse(1, &sample("skip/dump_1")).unwrap();
    let samples = vec![sample("skip/dump_2"), sample("groups/dump_0"), sample("skip_json/dump_2.json")];
    let seen = RefCell::new(BTreeMap::<&str, u64>::new());
    let arbitrary = prop::collection::vec(any::<u8>(), 0..64);
    let config = Config { cases: cases(), failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&prop_oneof![19 => mutated(samples), 1 => arbitrary], |bytes| {
        let what = match Dump::parse(2, &bytes) {
            Ok(dump) => {
                prop_assert!(dump.entries.len() <= ENTRIES_MAX);
                prop_assert!(dump.entries.iter().all(|entry| entry.frames.len() <= FRAMES_MAX));
                let verdict = evaluate(&[valid.clone(), dump], None);
                prop_assert!(!verdict.to_string().is_empty());
                if verdict.verdict.culprits.is_empty() { "read, no culprit" } else { "read, a culprit" }
            }
            Err(error) => {
                prop_assert!(!error.to_string().is_empty());
                match error {
                    DumpError::Syntax { .. } => "refused: its bytes",
                    DumpError::Content(_) => "refused: its values",
                    _ => "refused: its size",
                }
            }
        };
        *seen.borrow_mut().entry(what).or_default() += 1;
        Ok(())
    });
    println!("{:?}", seen.borrow());
    result.unwrap_or_else(|error| panic!("{error}"));
}
