//! Whatever stands in a recorder's file, reading it ends, without a panic and within bounds.

use super::{numbered, sealed, small};
use proptest::prelude::*;
use std::os::unix::fs::FileExt;
use taskd_core::trace::recorder::*;

/// A file with two threads' records and some names in it.
fn valid() -> Vec<u8> {
    let config = small();
    let memory = config.memory().unwrap();
    let recorder = Recorder::create(memory.try_clone().unwrap(), config).unwrap();
    let (mut one, mut other) = (recorder.thread(), recorder.thread());
    let names = ["forward", "backward", "dp:0"].map(|name| recorder.name(name));
    numbered(&mut one, 0..2000);
    for name in names {
        let range = other.begin(Kind::Forward, name, Detail::None).unwrap();
        other.end(range);
    }
    let mut bytes = vec![0; config.bytes()];
    memory.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Reads such a file, if it is taken for one, twice; in between its header becomes another.
fn read(bytes: &[u8], later: &[u8]) {
    let file = sealed(bytes.len() as u64);
    file.write_all_at(bytes, 0).unwrap();
    let other_file = file.try_clone().unwrap();
    let Ok(mut recording) = Recording::open(file) else { return };
    for round in 0..2 {
        let mut records = Vec::new();
        let _ = recording.take(|one| records.push(one.record));
        assert!(records.len() <= 2 * 1024, "no more than the rings hold");
        for record in records {
            let _ = (recording.name(record.name), recording.time_line().map(|line| line.nanos(record.ticks)));
        }
        let _ = recording.commit();
        if round == 0 {
            other_file.write_all_at(later, 4096).unwrap(); // by whoever writes it, after it was opened
        }
        assert!(recording.threads().len() <= 64 && recording.exceptions().len() <= 64);
        let _ = recording.losses().records();
    }
}

/// Places that decide something: the header, the rings' heads, the names, the first slots.
const INTERESTING: [std::ops::Range<usize>; 4] =
    [4096..4096 + 384, 8192..8192 + 384, 20_480..20_480 + 32, 262_144..262_144 + 256];

fn mutation() -> impl Strategy<Value = (usize, u64)> {
    let at = prop::sample::select(INTERESTING.to_vec()).prop_flat_map(|range| range);
    let value = prop_oneof![Just(0), Just(u64::MAX), Just(1 << 63), 0..4096u64, any::<u64>()];
    (at, value)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_file_with_foreign_bytes_in_it_is_read_to_its_end(mutations in prop::collection::vec(mutation(), 1..8), later in prop::collection::vec(any::<u8>(), 384)) {
        static VALID: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(valid);
        let mut bytes = VALID.clone();
        for (at, value) in mutations {
            bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        read(&bytes, &later);
    }
}
