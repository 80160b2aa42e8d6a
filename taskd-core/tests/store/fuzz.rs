//! Whatever stands in a stored file, reading it ends, without a panic and within bounds.
//!
//! `TASKD_SOAK=1` runs ten million cases of each reader, and prints how often each outcome was seen.

use super::batches::of_job;
use super::{compatible, native};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use taskd_core::job::{Incarnation, Rank};
use taskd_core::trace::store::compatible::CompatibleWriter;
use taskd_core::trace::store::native::{BLOCK_RECORDS_MAX, NativeHead, NativeWriter};
use taskd_core::trace::store::{PROBLEMS_MAX, Problem, Skipped};
use taskd_core::trace::synthetic::SyntheticJob;
use taskd_core::trace::{Origin, RecordBatch};

fn cases() -> u64 {
    if std::env::var("TASKD_SOAK").is_ok_and(|soak| soak == "1") { 10_000_000 } else { 4_000 }
}

fn batches() -> Vec<RecordBatch> {
    of_job(SyntheticJob::new(1).buckets(1).steps(3), 0, 1)
}

/// Bytes that are wrong somewhere: arbitrary, or valid ones that were changed, cut, doubled or put together again.
fn case(random: &mut StdRng, valid: &[u8]) -> Vec<u8> {
    if random.random_range(0..8) == 0 {
        return (0..random.random_range(0..300)).map(|_| random.random()).collect();
    }
    let mut bytes = valid.to_vec();
    for _ in 0..random.random_range(1..6) {
        let at = random.random_range(0..bytes.len().max(1)).min(bytes.len());
        match random.random_range(0..5) {
            0 => bytes.truncate(at),
            1 => bytes.extend_from_within(..at),
            2 => bytes.insert(at, random.random()),
            _ if bytes.is_empty() => {}
            3 => bytes[at.min(valid.len() - 1)..]
                .iter_mut()
                .take(1)
                .for_each(|byte| *byte ^= 1 << random.random_range(0..8)),
            _ => bytes[at.min(valid.len() - 1)..].iter_mut().take(8).for_each(|byte| *byte = random.random()),
        }
    }
    bytes
}

fn outcome((batches, skipped): &(Vec<RecordBatch>, Skipped)) -> &'static str {
    assert!(skipped.problems.len() <= PROBLEMS_MAX);
    assert!(batches.iter().all(|batch| batch.records.len() <= BLOCK_RECORDS_MAX));
    match skipped.problems.first() {
        None => "whole",
        Some(Problem::Foreign { .. }) => "foreign",
        Some(Problem::Version { .. }) => "version",
        Some(Problem::Torn { .. }) => "torn",
        Some(Problem::Damaged { .. }) if batches.is_empty() => "damaged, nothing read",
        Some(_) => "damaged, the rest read",
    }
}

fn run(valid: &[u8], repair: fn(&mut [u8]), read: fn(&[u8]) -> (Vec<RecordBatch>, Skipped)) {
    let mut random = StdRng::seed_from_u64(5);
    let mut seen = BTreeMap::new();
    for _ in 0..cases() {
        let mut bytes = case(&mut random, valid);
        if random.random() {
            repair(&mut bytes);
        }
        *seen.entry(outcome(&read(&bytes))).or_insert(0u64) += 1;
    }
    println!("{seen:?}");
    assert!(seen.len() >= 4, "the cases are worth it: {seen:?}");
}

/// Makes the check sums of all blocks right again, so that what is wrong gets past them.
fn with_right_check_sums(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(found) =
        bytes.get(at..).and_then(|rest| rest.windows(16).position(|frame| frame.starts_with(b"tkb")))
    {
        let frame = at + found;
        let length = u32::from_le_bytes(bytes[frame + 4..frame + 8].try_into().unwrap()) as usize;
        let end = (frame + 16).saturating_add(length).min(bytes.len());
        bytes[frame + 4..frame + 8].copy_from_slice(&u32::try_from(end - frame - 16).unwrap().to_le_bytes());
        let payload = crc32fast::hash(&bytes[frame + 16..end]);
        bytes[frame + 8..frame + 12].copy_from_slice(&payload.to_le_bytes());
        let check = crc32fast::hash(&bytes[frame..frame + 12]);
        bytes[frame + 12..frame + 16].copy_from_slice(&check.to_le_bytes());
        at = end.max(frame + 1);
    }
}

#[test]
fn any_bytes_are_read_to_their_end_as_native() {
    let origin = Origin { rank: Rank(0), incarnation: Incarnation(1), pid: 1 };
    let mut writer = NativeWriter::create(Vec::new(), &NativeHead { job: "j".into(), origin }).unwrap();
    batches().iter().for_each(|batch| writer.append(batch).unwrap());
    run(&writer.into_inner(), with_right_check_sums, native::read);
}

#[test]
fn any_bytes_are_read_to_their_end_as_compatible() {
    let mut writer = CompatibleWriter::new(Vec::new());
    batches().iter().for_each(|batch| writer.append(batch).unwrap());
    run(&writer.into_inner(), |_| {}, compatible::read);
}
