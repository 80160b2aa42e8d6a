//! Errors that torch 2.9.1 and 2.15.0 really reported (captured by `samples/capture.py`) are read and classified.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use taskd_pytorch::error::ErrorKind::{Interrupted, OutOfMemory, PeerLost, PortInUse, Program};
use taskd_pytorch::error::{ErrorKind, classify, exception_in, read_error_file, report};

fn expected(case: &str) -> ErrorKind {
    match case {
        "port-in-use" => PortInUse,
        "out-of-host-memory" => OutOfMemory,
        "interrupted" => Interrupted,
        "program-fails" => Program,
        _ => PeerLost,
    }
}

/// By version of torch.
fn samples() -> [PathBuf; 2] {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples");
    [samples.clone(), samples.join("torch-2.15.0")]
}

#[test]
fn each_sample_is_of_its_kind_by_record_and_by_stderr() {
    for samples in samples() {
        every_sample_of(&samples);
    }
}

fn every_sample_of(samples: &Path) {
    let mut seen = BTreeMap::new();
    for entry in fs::read_dir(samples).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if let Some(case) = name.strip_suffix(".json") {
            let record = read_error_file(&path).unwrap().unwrap();
            assert_eq!(classify(&record.message), expected(case), "{case}: {}", record.message);
            assert!(record.callstack.unwrap().starts_with("Traceback") && record.timestamp_s.is_some(), "{case}");
            *seen.entry(expected(case)).or_insert(0) += 1;
        } else if let Some(case) = name.strip_suffix(".stderr.txt") {
            let exception = exception_in(&fs::read_to_string(&path).unwrap()).unwrap();
            assert_eq!(classify(&exception), expected(case), "{case}: {exception}");
            *seen.entry(expected(case)).or_insert(0) += 1;
        }
    }
    let counts = [(Program, 2), (PeerLost, 22), (PortInUse, 2), (OutOfMemory, 2), (Interrupted, 1)];
    assert_eq!(seen, BTreeMap::from(counts), "no sample of {} is missing", samples.display());
}

#[test]
fn record_and_stderr_give_the_same_report() {
    let cases = ["program-fails", "peer-killed-in-ddp", "port-in-use"];
    for (samples, case) in samples().iter().flat_map(|samples| cases.map(|case| (samples, case))) {
        let record = read_error_file(&samples.join(format!("{case}.json"))).unwrap().unwrap();
        let tail = fs::read_to_string(samples.join(format!("{case}.stderr.txt"))).unwrap();
        let (by_record, by_stderr) = (report(Some(&record), "").unwrap(), report(None, &tail).unwrap());
        assert_eq!(by_record.code, by_stderr.code, "{case}");
        assert_eq!(by_record.follow_up, by_stderr.follow_up, "{case}");
        assert_eq!(by_record.retry_free, by_stderr.retry_free, "{case}");
    }
}
