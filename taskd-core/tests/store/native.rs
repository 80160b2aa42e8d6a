//! The native format: what comes back of whole files, and of those that are not.

use super::batches::{batches, of_job, shown, training};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use taskd_core::job::{Incarnation, Rank};
use taskd_core::trace::store::native::{BLOCK_RECORDS_MAX, NAMES_BYTES_MAX, NativeHead, NativeReader, NativeWriter};
use taskd_core::trace::store::{Problem, Skipped};
use taskd_core::trace::synthetic::SyntheticJob;
use taskd_core::trace::{NameTable, Origin, RecordBatch};

fn head() -> NativeHead {
    NativeHead { job: "a \"job\"".into(), origin: Origin { rank: Rank(3), incarnation: Incarnation(2), pid: 77 } }
}

fn written(batches: &[RecordBatch]) -> Vec<u8> {
    let mut writer = NativeWriter::create(Vec::new(), &head()).unwrap();
    batches.iter().for_each(|batch| writer.append(batch).unwrap());
    assert_eq!(writer.written(), writer.get_ref().len() as u64);
    writer.into_inner()
}

pub(crate) fn read(bytes: &[u8]) -> (Vec<RecordBatch>, Skipped) {
    let mut reader = NativeReader::new(bytes);
    let batches = reader.by_ref().collect();
    (batches, reader.skipped().clone())
}

/// Where the head ends in the file, and then each batch.
fn ends(batches: &[RecordBatch]) -> Vec<usize> {
    let mut writer = NativeWriter::create(Vec::new(), &head()).unwrap();
    let mut ends = vec![writer.get_ref().len()];
    for batch in batches {
        writer.append(batch).unwrap();
        ends.push(writer.get_ref().len());
    }
    ends
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn batches_written_are_read_back_unchanged(batches in batches()) {
        let bytes = written(&batches);
        let (mut reader, head) = (NativeReader::new(&bytes[..]), head());
        prop_assert_eq!(reader.head(), Some(&head));
        let back: Vec<RecordBatch> = reader.by_ref().collect();
        prop_assert_eq!(shown(&back), shown(&batches));
        prop_assert!(reader.skipped().is_empty());
    }

    #[test]
    fn a_flipped_bit_costs_no_record_silently(batches in batches(), at: prop::sample::Index, bit in 0..8u8) {
        let mut bytes = written(&batches);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let (back, skipped) = read(&bytes);
        let (back, all) = (shown(&back), shown(&batches));
        prop_assert!(!skipped.is_empty(), "every byte is checked");
        let mut rest = all.iter();
        prop_assert!(back.iter().all(|one| rest.any(|other| other == one)), "nothing but what was written");
    }
}

#[test]
fn a_file_cut_at_any_byte_lacks_only_the_block_in_which_it_ends() {
    let batches = training(0, 12, 2);
    let (bytes, ends) = (written(&batches), ends(&batches));
    for cut in 0..=bytes.len() {
        let (back, skipped) = read(&bytes[..cut]);
        let whole = ends.partition_point(|end| *end <= cut).saturating_sub(1);
        assert!(back == batches[..whole], "cut at {cut}");
        let from = if cut < ends[0] { 0 } else { ends[whole] };
        let left = (cut - from) as u64;
        let torn = (left > 0).then_some(Problem::Torn { at: from as u64, bytes: left });
        assert_eq!(skipped.problems, Vec::from_iter(torn), "cut at {cut}");
    }
}

#[test]
fn damage_costs_what_builds_on_it_and_the_rest_is_read() {
    let batches = training(0, 6_000, 20);
    let (mut bytes, ends) = (written(&batches), ends(&batches));
    assert!(bytes.len() > 300_000, "several key blocks: {}", bytes.len());
    bytes[ends[1] + 100] ^= 1;
    let (back, skipped) = read(&bytes);
    assert!(back[0] == batches[0]);
    let missing = batches.len() - back.len();
    assert!(back[1..] == batches[1 + missing..]);
    let upto = ends[1 + missing];
    assert_eq!(skipped.problems, [Problem::Damaged { at: ends[1] as u64, bytes: (upto - ends[1]) as u64 }]);
    assert!(upto < 80_000, "up to the next key block, which comes after 64 KiB at most and a block: {upto}");
}

#[test]
fn a_damaged_head_costs_no_batch() {
    let batches = training(0, 10, 1);
    let mut bytes = written(&batches);
    let from = ends(&batches)[0] as u64;
    bytes[21] ^= 1;
    let (back, skipped) = read(&bytes);
    assert!(back == batches);
    assert_eq!(skipped.problems, [Problem::Damaged { at: 0, bytes: from }]);
    assert_eq!(NativeReader::new(&bytes[..]).head(), None);
}

#[test]
fn foreign_files_and_other_versions_are_reported_as_problems() {
    for foreign in [&b"{\"Kind\":1,\"Flag\":2}\n"[..], b"hello", &[0; 100_000]] {
        assert_eq!(read(foreign).1.problems, [Problem::Foreign { bytes: foreign.len() as u64 }]);
    }
    assert!(read(&[]).1.is_empty());

    for version in [1, 3] {
        let other = claiming(version, written(&training(0, 10, 1)));
        let (batches, skipped) = read(&other);
        let problem = Problem::Version { version: version.into(), bytes: other.len() as u64 };
        assert_eq!((batches.len(), skipped.problems), (0, vec![problem]));
    }
}

/// A file with another version in its head.
fn claiming(version: u8, mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[8] = version;
    let text_ends = 20 + bytes[20..].iter().position(|byte| *byte == b'}').unwrap() + 1;
    let mut hasher = crc32(&bytes[..16]);
    hasher.update(&bytes[20..text_ends]);
    let check = hasher.finalize();
    bytes[16..20].copy_from_slice(&check.to_le_bytes());
    bytes
}

fn crc32(bytes: &[u8]) -> crc32fast::Hasher {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(bytes);
    hasher
}

#[test]
fn a_batch_of_many_records_becomes_several_blocks() {
    let mut batch = training(0, 6_000, 6_000).remove(0);
    batch.lost = 5;
    assert!(batch.records.len() > BLOCK_RECORDS_MAX);
    let (back, skipped) = read(&written(&[batch.clone()]));
    assert_eq!(back.iter().map(|part| part.lost).collect::<Vec<_>>(), [5, 0]);
    assert_eq!(back.into_iter().flat_map(|part| part.records).collect::<Vec<_>>(), batch.records);
    assert!(skipped.is_empty());
}

#[test]
fn names_without_end_are_refused_and_the_next_batch_is_written() {
    let batches = training(0, 2, 1);
    let mut writer = NativeWriter::create(Vec::new(), &head()).unwrap();
    writer.append(&batches[0]).unwrap();
    let endless = NameTable::from_iter(["x".repeat(NAMES_BYTES_MAX + 1)]);
    let refused = RecordBatch { names: Arc::new(endless), ..batches[1].clone() };
    assert_eq!(writer.append(&refused).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    writer.append(&batches[1]).unwrap();
    assert!(read(&writer.into_inner()) == (batches, Skipped::default()));
}

/// A file with room for `room` bytes.
struct Full<'a> {
    bytes: &'a RefCell<Vec<u8>>,
    room: &'a Cell<usize>,
}

impl std::io::Write for Full<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let taken = self.room.get().min(bytes.len());
        if taken == 0 && !bytes.is_empty() {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.room.set(self.room.get() - taken);
        self.bytes.borrow_mut().extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn block_after_a_truncated_partial_block_is_read() {
    let batches = training(0, 12, 4);
    let ends = ends(&batches);
    let (bytes, room) = (RefCell::default(), Cell::new(ends[1] + 40));
    let mut writer = NativeWriter::create(Full { bytes: &bytes, room: &room }, &head()).unwrap();
    writer.append(&batches[0]).unwrap();
    assert!(writer.append(&batches[1]).is_err());
    assert_eq!((bytes.borrow().len(), writer.written()), (ends[1] + 40, ends[1] as u64));

    bytes.borrow_mut().truncate(ends[1]);
    room.set(usize::MAX);
    writer.append(&batches[2]).unwrap();
    assert!(read(&bytes.borrow()) == (vec![batches[0].clone(), batches[2].clone()], Skipped::default()));
}

#[test]
fn a_training_trace_takes_at_most_eight_bytes_a_record() {
    for (buckets, steps_per_batch) in [(2, 10), (5, 10), (10, 10), (5, 1000)] {
        let batches = of_job(SyntheticJob::new(4).buckets(buckets).steps(5_000), 0, steps_per_batch);
        let records: usize = batches.iter().map(|batch| batch.records.len()).sum();
        let each = written(&batches).len() as f64 / records as f64;
        assert!(each <= 8.0, "{each:.2} bytes a record with {buckets} all-reduces a step");
        println!("{buckets} all-reduces, {steps_per_batch} steps a block: {each:.2} bytes a record");
    }
}
