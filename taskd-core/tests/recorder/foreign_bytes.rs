//! Whatever stands in a recorder's file, reading it ends, without a panic and within bounds.
//!
//! `TASKD_SOAK=1` runs ten million cases (in release half an hour), and prints what became of them.

use super::{numbered, sealed, small};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range as Bytes;
use std::os::unix::fs::FileExt;
use taskd_core::trace::recorder::*;

fn is_soak() -> bool {
    std::env::var("TASKD_SOAK").is_ok_and(|soak| soak == "1")
}

fn cases() -> u32 {
    if is_soak() { 10_000_000 } else { 2_000 }
}

/// A file with two threads' records and some names in it.
fn valid() -> Vec<u8> {
    let config = small();
    let memory = config.memory().unwrap();
    let recorder = Recorder::create(memory.try_clone().unwrap(), config).unwrap();
    let (mut one, mut other) = (recorder.thread(), recorder.thread());
    let names = ["forward", "backward", "dp:0"].map(|name| recorder.name(name));
    recorder.except(Kind::Forward, Some("another profiler is active"));
    numbered(&mut one, 0..900);
    for name in names {
        let range = other.begin(Kind::Forward, name, Detail::None).unwrap();
        other.end(range);
    }
    let mut bytes = vec![0; config.bytes()];
    memory.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// The header, and the rings' heads: what decides where something is read, and what readers write themselves.
const HEADER: Bytes<usize> = 4096..4096 + 384;
const HEADS: Bytes<usize> = 8192..8192 + 384;
/// The first names, and the first slots.
const NAMES: Bytes<usize> = 20_480..20_480 + 64;
const SLOTS: Bytes<usize> = 262_144..262_144 + 256;

/// Eight bytes that are written somewhere.
#[derive(Clone, Copy, Debug)]
struct Mutation {
    at: usize,
    value: u64,
}

impl Mutation {
    fn anywhere_in(places: &[Bytes<usize>]) -> impl Strategy<Value = Mutation> + use<> {
        let at = prop::sample::select(places.to_vec()).prop_flat_map(|bytes| bytes);
        let value = prop_oneof![Just(0), Just(u64::MAX), Just(1 << 63), 0..4096u64, any::<u64>()];
        (at, value).prop_map(|(at, value)| Mutation { at, value })
    }

    fn write(self, file: &File) {
        file.write_all_at(&self.value.to_ne_bytes(), self.at as u64).unwrap();
    }

    fn take_back(self, file: &File, valid: &[u8]) {
        file.write_all_at(&valid[self.at..self.at + 8], self.at as u64).unwrap();
    }
}

/// Reads a file, if it is taken for one, twice; in between its header becomes another. What became of it.
fn read(file: &File, later: &[Mutation]) -> &'static str {
    let mut recording = match RecorderReader::open(file.try_clone().unwrap()) {
        Ok(recording) => recording,
        Err(error) if error.to_string().contains("version") => return "refused: its version",
        Err(error) if error.to_string().contains("header is invalid") => return "refused: its header",
        Err(_) => return "refused: not a recorder's file",
    };
    let mut seen = 0;
    for round in 0..2 {
        let mut records = Vec::new();
        let _ = recording.take(|one| records.push(one.record));
        assert!(records.len() <= 2 * 1024, "no more than the rings hold");
        seen += records.len();
        let line = recording.time_line();
        for record in records {
            let _ = (recording.name(record.name), line.map(|line| line.nanos(record.ticks)));
        }
        let _ = recording.commit();
        if round == 0 {
            later.iter().for_each(|mutation| mutation.write(file)); // by its writer, after it was opened
        }
        assert!(recording.threads().len() <= 64 && recording.exceptions().len() <= 64);
        let _ = (recording.losses().records(), recording.hooked(), recording.switches());
    }
    match (seen, recording.losses().records()) {
        (0, _) => "read: no records",
        (_, 0) => "read: all records",
        _ => "read: records, and losses",
    }
}

#[test]
fn a_file_with_foreign_bytes_in_it_is_read_to_its_end() {
    let valid = valid();
    let file = sealed(valid.len() as u64);
    file.write_all_at(&valid, 0).unwrap();
    let before = prop::collection::vec(Mutation::anywhere_in(&[HEADER, HEADS, NAMES, SLOTS]), 0..8);
    let later = prop::collection::vec(Mutation::anywhere_in(&[HEADER, HEADS]), 0..8);
    let seen = RefCell::new(BTreeMap::<&str, u64>::new());
    // Some ways are taken once in a few hundred files: few files are the same ones in every run.
    let rng_seed = if is_soak() { RngSeed::Random } else { RngSeed::Fixed(1) };
    let config = Config { cases: cases(), failure_persistence: None, rng_seed, ..Config::default() };
    let result = TestRunner::new(config).run(&(before, later), |(before, later)| {
        before.iter().for_each(|mutation| mutation.write(&file));
        *seen.borrow_mut().entry(read(&file, &later)).or_default() += 1;
        before.iter().chain(&later).for_each(|mutation| mutation.take_back(&file, &valid));
        file.write_all_at(&valid[HEADS], HEADS.start as u64).unwrap(); // what was committed
        Ok(())
    });
    let seen = seen.into_inner();
    println!("{} files: {seen:?}", cases());
    result.unwrap();
    assert_eq!(seen.len(), 6, "each way is taken: {seen:?}");
}
