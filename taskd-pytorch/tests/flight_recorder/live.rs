//! A job that hangs now, and its dumps.

use crate::support;
use std::path::Path;
use std::process::Command;
use taskd_core::detect::hang::HangCause;
use taskd_pytorch::flight_recorder::{evaluate, read_directory};

#[test]
fn a_skipped_call_in_a_real_job_is_found_in_its_dumps() {
    let Some(python) = support::torch_python("a_skipped_call_in_a_real_job_is_found_in_its_dumps") else { return };
    let directory = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/flight_recorder/record.py");
    let out = Command::new(python).arg(script).arg(directory.path()).arg("skip").output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let read = read_directory(directory.path()).unwrap();
    assert!(read.problems.is_empty(), "{:?}", read.problems);
    let verdict = evaluate(&read.dumps, Some(4));
    let culprits: Vec<_> = verdict.verdict.culprits.iter().map(|culprit| (culprit.rank.0, culprit.cause)).collect();
    assert_eq!(culprits, [(2, HangCause::Skipped)], "{verdict}");
}
