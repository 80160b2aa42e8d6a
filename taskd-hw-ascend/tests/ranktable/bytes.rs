//! Whatever a file holds, reading it ends, without a panic.
//!
//! `TASKD_SOAK=1` runs ten million cases, and prints what became of them.

use crate::samples::ALL;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeMap;
use taskd_hw_ascend::ranktable::RankTable;

fn cases() -> u32 {
    if std::env::var("TASKD_SOAK").is_ok_and(|soak| soak == "1") { 10_000_000 } else { 4_000 }
}

/// A sample with a few pieces of it replaced, moved or left out.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"\"".to_vec()),
        Just(b"}".to_vec()),
        Just(b"[[[[".to_vec()),
        Just(b"null".to_vec()),
        Just(b"-1".to_vec()),
        Just(b"1e999".to_vec()),
        Just(b"4294967296".to_vec()),
        Just(b"\"\\ud800\"".to_vec()),
        prop::collection::vec(any::<u8>(), 0..8),
    ];
    let edits = prop::collection::vec((any::<prop::sample::Index>(), 0..24usize, piece), 0..4);
    (prop::sample::select(ALL.to_vec()), edits).prop_map(|((_, sample), edits)| {
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
fn a_table_with_foreign_bytes_in_it_is_read_to_its_end() {
    let arbitrary = prop::collection::vec(any::<u8>(), 0..64);
    let bytes = prop_oneof![9 => mutated(), 1 => arbitrary];
    let seen = RefCell::new(BTreeMap::<&str, u64>::new());
    let config = Config { cases: cases(), failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&bytes, |bytes| {
        let what = match RankTable::from_bytes(&bytes) {
            Ok(table) => {
                let again = RankTable::from_json(&table.to_json());
                prop_assert_eq!(again, Ok(table));
                "read"
            }
            Err(problems) if problems.all[0].what.contains("JSON") => "refused: no JSON",
            Err(problems) => {
                prop_assert!(problems.all.iter().all(|problem| problem.path.starts_with('$')));
                "refused: by the rules"
            }
        };
        *seen.borrow_mut().entry(what).or_default() += 1;
        Ok(())
    });
    let seen = seen.into_inner();
    println!("{} tables: {seen:?}", cases());
    result.unwrap();
    assert_eq!(seen.len(), 3, "each way is taken: {seen:?}");
}
