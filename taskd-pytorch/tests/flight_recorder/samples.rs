//! Real dumps of four ranks, two seconds after a fault.

use std::path::{Path, PathBuf};
use taskd_core::detect::hang::HangCause;
use taskd_pytorch::flight_recorder::{Dump, FlightVerdict, evaluate, read_directory};

pub(crate) fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/flight_recorder/samples").join(name)
}

fn dumps(name: &str) -> Vec<Dump> {
    let read = read_directory(&directory(name)).unwrap();
    assert!(read.problems.is_empty(), "{:?}", read.problems);
    read.dumps
}

fn verdict(name: &str) -> FlightVerdict {
    let verdict = evaluate(&dumps(name), Some(4));
    println!("{name}: {verdict}\n");
    verdict
}

fn causes(verdict: &FlightVerdict) -> Vec<(u32, HangCause)> {
    verdict.verdict.culprits.iter().map(|culprit| (culprit.rank.0, culprit.cause)).collect()
}

#[test]
fn dumps_of_a_job_without_a_fault_blame_no_rank() {
    let verdict = verdict("clean");
    assert!(!verdict.verdict.is_stuck && causes(&verdict).is_empty() && verdict.missing.is_empty());
    assert_eq!(verdict.summary, "no collective is in progress");
}

#[test]
fn a_skipped_all_reduce_is_found_with_the_line_of_the_program() {
    let verdict = verdict("skip");
    assert_eq!(causes(&verdict), [(2, HangCause::Skipped)]);
    assert_eq!(
        verdict.summary,
        "rank 2 has skipped allreduce of 64 Float, number 7 of group 0 (default_pg): it has called broadcast of 16 \
         Float instead"
    );
    let own = &verdict.evidence[0];
    assert!(own.starts_with("rank 2 is in gloo:broadcast, number 7, called from last_step (record.py:"), "{own}");
    assert!(
        verdict.evidence[1].starts_with("ranks 0, 1 and 3 in allreduce of 64 Float, number 7"),
        "{:?}",
        verdict.evidence
    );
}

#[test]
fn another_size_is_found_although_it_ended_another_rank() {
    let verdict = verdict("size");
    assert_eq!(causes(&verdict), [(1, HangCause::Mismatch)], "rank 0 was aborted by gloo");
    assert_eq!(verdict.missing, [0]);
    assert!(verdict.summary.contains("allreduce of 96 Float instead"), "{}", verdict.summary);
    assert!(verdict.to_string().ends_with("\n  rank 0 wrote no dump"), "{verdict}");
}

#[test]
fn a_frozen_rank_is_found_by_its_missing_dump() {
    let verdict = verdict("frozen");
    assert_eq!(causes(&verdict), [(3, HangCause::Unreported)]);
    assert_eq!(verdict.missing, [3]);
    let without_size = evaluate(&dumps("frozen"), None);
    assert!(without_size.verdict.culprits.is_empty() && without_size.verdict.is_stuck, "{without_size}");
    assert!(without_size.summary.contains("whose existence is not known"), "{without_size}");
}

#[test]
fn a_chain_of_groups_ends_at_the_rank_that_waits_in_none() {
    let verdict = verdict("groups");
    assert_eq!(causes(&verdict), [(1, HangCause::Missing)], "rank 0 waits for it, the others wait for rank 0");
    let last = &verdict.evidence[0];
    assert!(last.starts_with("rank 1 was last in gloo:broadcast, number 6, called from train_step"), "{last}");
}

#[test]
fn pickle_and_json_dumps_have_the_same_content() {
    let (pickled, json) = (dumps("skip"), dumps("skip_json"));
    for (pickled, mut json) in pickled.into_iter().zip(json) {
        assert!(json.entries.iter().all(|entry| entry.frames.is_empty()), "JSON dumps contain no stacks");
        for (to, from) in json.entries.iter_mut().zip(&pickled.entries) {
            to.frames = from.frames.clone();
        }
        assert_eq!(pickled, json);
        let entry = pickled.entries.last().unwrap();
        assert_eq!((entry.collective_seq, &*entry.input_dtypes[0], entry.timeout_ms), (7, "Float", 60_000));
        assert_eq!((entry.is_pending(), entry.completed_ns, &*entry.state), (true, None, "scheduled"));
        assert_eq!(pickled.status[&0].enqueued, Some(7));
    }
    assert_eq!(causes(&verdict("skip_json")), [(2, HangCause::Skipped)]);
}
