//! Whatever a buffer of mspti's, the name of a marker or a printed environment holds, reading it ends without a panic.
//!
//! `TASKD_SOAK=1` runs ten million cases, and prints what became of them.

use super::own::forms;
use super::own::joins::FAR_MAX;
use super::own::records::{Address, first};
use super::own::texts::{Said, said};
use super::own::translate::{Outside, Translator};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeMap;
use taskd_hw_ascend::mspti::CannEnv;

fn cases() -> u32 {
    if std::env::var("TASKD_SOAK").is_ok_and(|soak| soak == "1") { 10_000_000 } else { 4_000 }
}

fn run<S: Strategy>(strategy: &S, what: &str, case: impl Fn(S::Value) -> &'static str) -> BTreeMap<&'static str, u64> {
    let seen = RefCell::new(BTreeMap::new());
    let config = Config { cases: cases(), failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(strategy, |value| {
        *seen.borrow_mut().entry(case(value)).or_insert(0) += 1;
        Ok(())
    });
    let seen = seen.into_inner();
    println!("{} {what}: {seen:?}", cases());
    result.unwrap();
    seen
}

/// Texts at the addresses 1 to 7, and nothing elsewhere.
struct Made;

impl Outside for Made {
    fn text(&self, address: Address) -> &[u8] {
        let texts: [&[u8]; 8] =
            [b"", b"step 3", b"default", b"communication", b"forward", b"comm:HcclSend,g,fp32,9", b"{}", b"\xff\x80"];
        texts.get(address.0).copied().unwrap_or_default()
    }

    fn number(&self, text: &[u8]) -> u32 {
        u32::try_from(text.len()).unwrap()
    }
}

/// Records with small fields, so that some belong together, some of which are anything.
fn buffer() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![6 => Just(1), 3 => 2..=9i32, 1 => -1..14i32];
    let word = prop_oneof![6 => 0..8u64, 1 => any::<u64>(), 1 => (0..64u32).prop_map(|bit| 1 << bit)];
    let marker =
        (prop::sample::select(vec![1u32, 2, 4, 8, 16, 32, 0]), 0..2u32, prop::collection::vec(word.clone(), 5));
    let record = (kind, marker, prop::collection::vec(word, 8)).prop_map(|(kind, (flag, source, fields), rest)| {
        let mut bytes = kind.to_ne_bytes().to_vec();
        if kind == 1 {
            bytes.extend(flag.to_ne_bytes().into_iter().chain(source.to_ne_bytes()));
            fields.iter().for_each(|field| bytes.extend(field.to_ne_bytes()));
            bytes.extend([0; 4]);
        } else {
            rest.iter().for_each(|field| bytes.extend(field.to_ne_bytes()));
            bytes.resize(first(&[&bytes[..], &[0; 72]].concat()).map_or(8, |(_, size)| size), 0);
        }
        bytes
    });
    let cut = prop::option::weighted(0.2, any::<prop::sample::Index>());
    (prop::collection::vec(record, 0..24), cut).prop_map(|(records, cut)| {
        let mut bytes = records.concat();
        bytes.truncate(cut.map_or(bytes.len(), |at| at.index(bytes.len() + 1)));
        bytes
    })
}

#[test]
fn no_buffer_makes_it_panic_or_hold_more_than_it_may() {
    let any_buffer = prop_oneof![1 => prop::collection::vec(any::<u8>(), 0..200), 4 => buffer()];
    let translator = RefCell::new(Translator::default());
    let seen = run(&any_buffer, "buffers", |bytes| {
        let mut translator = translator.borrow_mut();
        translator.switches = if bytes.len() % 7 == 0 { 0x155 } else { u64::MAX };
        let (mut rest, before) = (&bytes[..], translator.counts.records);
        while let Some((record, size)) = first(rest) {
            translator.take(record, &Made);
            rest = &rest[size..];
        }
        let read = translator.counts.records - before;
        assert!(translator.out.len() as u64 <= 2 * read, "two records of one at most");
        assert!(
            translator
                .out
                .iter()
                .all(|one| (1..=3).contains(&one.event) && one.form <= forms::OF_A_DEVICES_COMMUNICATION)
        );
        let made = translator.out.len();
        translator.out.clear();
        match (rest.is_empty(), made) {
            (true, 0) => "read, nothing made",
            (true, _) => "read",
            (false, _) => "cut, or of an unknown kind",
        }
    });
    assert!(translator.into_inner().joins.len() <= FAR_MAX + (1 << 15));
    assert_eq!(seen.len(), 3, "each way is taken: {seen:?}");
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    const VALID: &str =
        r#"{"streamId":"7","count":"1024","dataType":"fp16","opName":"HcclSend","groupName":"g\u00e9\n","srcRank":1}"#;
    let valid = prop::sample::select(vec![VALID, "comm:HcclAllReduce,group,fp32,16", "step 17", "{}", "forward"]);
    let changes =
        prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(b"{}\":,\\u0a \xff".to_vec())), 0..4);
    let cut = prop::option::weighted(0.2, any::<prop::sample::Index>());
    (valid, changes, cut).prop_map(|(text, changes, cut)| {
        let mut bytes = text.as_bytes().to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.map_or(bytes.len(), |at| at.index(bytes.len() + 1)));
        bytes
    })
}

#[test]
fn no_text_makes_it_panic() {
    let domain = prop::sample::select(vec![&b"default"[..], b"communication", b"", b"mine"]);
    let any_text = prop_oneof![1 => prop::collection::vec(any::<u8>(), 0..100), 6 => text()];
    let seen = run(&(any_text, domain), "texts", |(text, domain)| match said(&text, domain) {
        Said::Step(_) => "step",
        Said::Kind(_) => "kind",
        Said::Communication(told) => {
            assert!(told.op <= 11 && told.data_type <= 12);
            "communication"
        }
        Said::Marker(_) => "marker",
    });
    assert_eq!(seen.len(), 4, "each way is taken: {seen:?}");
}

#[test]
fn no_environment_makes_it_panic() {
    let part = prop_oneof![
        8 => "[A-Z_]{1,6}=[a-z/:=]{0,12}\0".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..12),
        1 => Just(b"=x\0".to_vec()),
    ];
    let printed = prop::collection::vec(part, 0..8).prop_map(|parts| parts.concat());
    let seen = run(&printed, "environments", |printed| match CannEnv::of_variables(&printed, |_| None) {
        Ok(env) => {
            assert!(env.variables().iter().all(|(name, value)| !name.is_empty() && !value.contains('\0')));
            "read"
        }
        Err("its last variable is cut off") => "no end",
        Err("a variable is not UTF-8") => "no UTF-8",
        Err("a variable has no value") => "no value",
        Err("a variable has no name") => "no name",
        Err(other) => panic!("{other}"),
    });
    assert_eq!(seen.len(), 5, "each way is taken: {seen:?}");
}
