//! What real MindSpore processes have left on stderr when they failed, and what is made of it.
//!
//! The samples are the last 4 KiB that scheduler and workers of MindSpore 2.7.1 on the CPU wrote, with other paths;
//! those of 2.10.0 were made by `samples/capture.py`.

use std::path::Path;

use taskd_core::job::{ErrorReport, ProcId};
use taskd_core::launch::python::Failure;
use taskd_mindspore::error::{ErrorKind, classify, report};

fn report_of(sample: &str) -> Option<ErrorReport> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(format!("{sample}.stderr.txt"));
    let tail = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    report(&Failure::new(&ProcId::rank(0, 1), None, &tail))
}

#[test]
fn every_sample_is_classified() {
    let cases = [
        // (sample, code, a consequence of another process's fault, a race lost at start-up)
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
    let of_newer = [("out-of-host-memory", "RuntimeError", false, false)];
    for (directory, more) in [("", 0), ("mindspore-2.10.0", 1)] {
        for (sample, code, follow_up, retry_free) in cases.iter().chain(of_newer.iter().take(more)) {
            let sample = Path::new(directory).join(sample);
            let report =
                report_of(sample.to_str().unwrap()).unwrap_or_else(|| panic!("{} has no report", sample.display()));
            assert_eq!(
                (report.code.as_str(), report.follow_up, report.retry_free),
                (*code, *follow_up, *retry_free),
                "{}",
                sample.display()
            );
        }
        let files =
            std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(directory)).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let samples = names.filter(|name| name.ends_with(".stderr.txt")).count();
        assert_eq!(samples, cases.len() + more, "a sample that no case reads");
    }
    let memory = report_of("mindspore-2.10.0/out-of-host-memory").unwrap();
    assert_eq!(classify(&memory.text), ErrorKind::OutOfMemory, "{}", memory.text);
}

#[test]
fn output_without_an_error_gives_no_report() {
    assert_eq!(report(&Failure::new(&ProcId::rank(0, 1), None, "epoch 3: loss 0.5\n")), None);
}

#[test]
fn an_interrupt_is_no_consequence_of_another_ranks_failure() {
    let tail = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\nKeyboardInterrupt\n";
    let report = report(&Failure::new(&ProcId::rank(0, 1), None, tail)).expect("it names an exception");
    assert!(report.is_interrupt() && !report.follow_up && !report.retry_free, "{report:?}");
}

#[test]
fn memory_that_ran_out_is_known_also_where_a_collective_finds_it_first() {
    for text in [
        "RuntimeError: Memory not enough:\nDevice(id:0) memory isn't enough and alloc failed, kernel name: Default/MatMul-op1, alloc size: 8B",
        "RuntimeError: Launch kernel failed, name:Default/AllReduce-op0\nAllocate memory failed, size: 8",
        "RuntimeError: EL0004: Failed to allocate memory.",
        "MemoryError",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 PiB for an array",
        "OSError: [Errno 12] Cannot allocate memory",
    ] {
        assert_eq!(classify(text), ErrorKind::OutOfMemory, "{text}");
    }
}

/// CANN's codes mean the same whatever framework they come through: those that the other crate knows are known here as
/// what they are there.
#[test]
fn codes_of_cann_are_what_they_are_under_torch() {
    let errors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../taskd-pytorch/src/error");
    let read = |file: &str| std::fs::read_to_string(errors.join(file)).ok();
    let (Some(kinds), Some(memory)) = (read("kind.rs"), read("memory.rs")) else { return }; // not in a packaged crate
    let code = |line: &str| -> Option<String> {
        let text = line.split('"').nth(1)?;
        let is_code = text.len() == 6 && text.starts_with('E') && text[2..].bytes().all(|byte| byte.is_ascii_digit());
        is_code.then(|| text.to_owned())
    };
    let rules =
        kinds.lines().take_while(|line| !line.contains("mod tests")).filter_map(|line| Some((line, code(line)?)));
    let mut all: Vec<(String, String)> = rules
        .map(|(line, code)| {
            (line.trim_start_matches([' ', '(']).split(',').next().unwrap_or_default().to_owned(), code)
        })
        .collect();
    all.extend(memory.lines().filter_map(code).map(|code| ("OutOfMemory".to_owned(), code)));
    assert!(all.len() >= 5, "{all:?}");
    for (kind, code) in all {
        assert_eq!(format!("{:?}", classify(&format!("RuntimeError: {code}: x"))), kind, "{code}");
    }
}
