//! What real MindSpore processes have left on stderr when they failed, and what is made of it.
//!
//! The samples are the last 4 KiB that scheduler and workers of MindSpore 2.7.1 on the CPU wrote, with other paths.

use std::path::Path;

use taskd_core::job::{ErrorReport, ProcId};
use taskd_core::launch::python::Failure;
use taskd_mindspore::error::report;

fn told(sample: &str) -> Option<ErrorReport> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(format!("{sample}.stderr.txt"));
    let tail = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    report(&Failure::new(&ProcId::rank(0, 1), None, &tail))
}

#[test]
fn every_sample_is_known_for_what_it_is() {
    let cases = [
        // (sample, code, a consequence of somebody else's fault, a race lost at start-up)
        ("program-fails", "ValueError", false, false),
        ("peer-killed", "RuntimeError", true, false),
        ("peer-frozen", "RuntimeError", true, false),
        ("peer-fails", "PeersLost", true, false),
        ("scheduler-killed", "PeersLost", true, false),
        ("worker-killed-scheduler", "RuntimeError", true, false),
        ("peer-never-joins", "RuntimeError", true, false),
        ("worker-never-joins-scheduler", "RuntimeError", true, false),
        ("scheduler-never-there", "RuntimeError", true, false),
        ("port-in-use-scheduler", "RuntimeError", false, true),
    ];
    for (sample, code, follow_up, retry_free) in cases {
        let report = told(sample).unwrap_or_else(|| panic!("{sample} tells nothing"));
        assert_eq!(
            (report.code.as_str(), report.follow_up, report.retry_free),
            (code, follow_up, retry_free),
            "{sample}"
        );
    }
    let samples = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples"));
    assert_eq!(samples.map(Iterator::count).ok(), Some(cases.len()), "a sample that no case reads");
}

#[test]
fn what_says_nothing_is_no_report() {
    assert_eq!(report(&Failure::new(&ProcId::rank(0, 1), None, "epoch 3: loss 0.5\n")), None);
}

#[test]
fn an_interrupt_is_no_consequence_of_another_ranks_failure() {
    let tail = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\nKeyboardInterrupt\n";
    let report = report(&Failure::new(&ProcId::rank(0, 1), None, tail)).expect("it names an exception");
    assert!(report.is_interrupt() && !report.follow_up && !report.retry_free, "{report:?}");
}
