//! Whatever a switch file contains, it switches or it does not: nothing in between, and no panic.
//!
//! `TASKD_SOAK=1` runs ten million cases (in release a few minutes), and prints what became of them.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeMap;
use taskd_core::trace::switches::{Requested, SwitchError};

const KINDS: [&str; 5] = ["CommunicationOperator", "Step", "SaveCheckpoint", "FP", "DataLoader"];
const VALUES: [&str; 8] = ["\"on\"", "\"off\"", "\"On\"", "true", "null", "1e999", "[]", "\"\\u0000\""];
const KEYS: [&str; 6] = ["Kernel", "Marker", "Communication", "", "step", "kernel"];

fn cases() -> u32 {
    if std::env::var("TASKD_SOAK").is_ok_and(|soak| soak == "1") { 10_000_000 } else { 4_000 }
}

/// A document that is nearly always valid but for one thing or two: a value, a key, some bytes, its end.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![9 => Just(VALUES[0]), 9 => Just(VALUES[1]), 1 => prop::sample::select(VALUES.to_vec())];
    let kind = |name| prop::option::weighted(0.97, value.clone().prop_map(move |value| (name, value)));
    let key = prop::option::weighted(0.2, (prop::sample::select(KEYS.to_vec()), value.clone()));
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    let cut = prop::option::weighted(0.1, any::<prop::sample::Index>());
    (KINDS.map(kind), key, prop::option::weighted(0.3, changes), cut).prop_map(|(kinds, key, changes, cut)| {
        let fields = kinds.into_iter().flatten().chain(key);
        let fields: Vec<String> = fields.map(|(name, value)| format!("\"{name}\":{value}")).collect();
        let mut bytes = format!("{{{}}}", fields.join(",")).into_bytes();
        for (at, byte) in changes.unwrap_or_default() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.map_or(bytes.len(), |at| at.index(bytes.len())));
        bytes
    })
}

#[test]
fn no_document_makes_it_panic_or_guess() {
    let any_document = prop_oneof![1 => prop::collection::vec(any::<u8>(), 0..200), 4 => mutated()];
    let seen = RefCell::new(BTreeMap::<&str, u64>::new());
    let config = Config { cases: cases(), failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&any_document, |document| {
        let parsed = Requested::parse(&document);
        let became = match &parsed {
            Ok((_, unknown)) if unknown.is_empty() => "switched",
            Ok(_) => "switched, with unknown keys",
            Err(SwitchError::NoObject(_)) => "no object",
            Err(SwitchError::Missing(_)) => "a kind is missing",
            Err(SwitchError::NoSwitch { .. }) => "neither on nor off",
            Err(_) => "another error",
        };
        *seen.borrow_mut().entry(became).or_default() += 1;
        match parsed {
            Ok((requested, _)) => {
                let again = serde_json::to_vec(&requested).unwrap();
                prop_assert_eq!(Requested::parse(&again), Ok((requested, Vec::new())));
            }
            Err(error) => prop_assert!(error.to_string().len() < 400, "{}", error),
        }
        Ok(())
    });
    let seen = seen.into_inner();
    println!("{} documents: {seen:?}", cases());
    result.unwrap();
    assert_eq!(seen.len(), 5, "each way is taken: {seen:?}");
}
