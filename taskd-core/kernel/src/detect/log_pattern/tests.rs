use super::*;
use crate::detect::fixture::{Scene, exception, exited, failed, fault, follow_up, rank_domain};
use crate::detect::{ExitDetector, Finding, Health};
use crate::job::{Exit, NodeId, Termination};
use proptest::prelude::*;

fn error(text: &str) -> ErrorReport {
    ErrorReport { code: Name::new("RuntimeError"), ..exception(text) }
}

/// A failed process without an error report, of which only the end of its standard error is known.
fn wordless(stderr_tail: &str) -> Signal {
    let exit = Exit { stderr_tail: stderr_tail.into(), ..Exit::new(Termination::Code(1)) };
    Signal::Phase(Phase::Exited(Box::new(exit)))
}

fn scene() -> Scene {
    Scene::on(4, &[("a", 2), ("b", 2)])
}

fn tell(signal: Signal) -> Vec<Finding> {
    scene().tell(&mut LogPatternDetector::default(), 1, signal)
}

/// Returns domain, class, confidence and the id in the evidence of the only fault.
fn blamed(found: &[Finding]) -> (Domain, String, u16, String) {
    let fault = fault(found);
    let suspect = fault.primary_suspect();
    let id = fault.evidence[0].text.split(": ").next().unwrap_or_default().to_owned();
    (suspect.domain.clone(), suspect.class.to_string(), suspect.confidence_permille, id)
}

#[test]
fn every_built_in_entry_is_valid_and_finds_its_own_text() {
    let table = LogTable::built_in();
    let document: serde_json::Value = serde_json::from_str(include_str!("table.json")).unwrap();
    assert_eq!(table.patterns().count(), document["patterns"].as_array().unwrap().len());
    for pattern in table.patterns() {
        let text = pattern.pattern.replace('*', " some text ").replace("{rank}", "7");
        let found = table.find(&text).unwrap();
        assert_eq!(found.pattern.id, pattern.id, "an earlier entry takes its lines");
        assert!(
            !pattern.source.is_empty() && !pattern.advice.is_empty() && !pattern.advice.ends_with('.'),
            "{pattern:?}"
        );
    }
}

#[test]
fn known_lines_are_attributed_as_the_table_states() {
    let host = |name: &'static str| Domain::Node(NodeId(Name::new(name)));
    let one = rank_domain(1);
    let victim = |id: &str| (one.clone(), "exit".to_owned(), 100, id.to_owned());
    let cases = [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            (one.clone(), "program".into(), 600, "cuda.out-of-memory".into()),
        ),
        (
            "RuntimeError: CUDA error: device-side assert triggered",
            (one.clone(), "program".into(), 800, "cuda.device-side-assert".into()),
        ),
        (
            "OSError: [Errno 5] Input/output error: '/data/x'",
            (host("a"), "storage".into(), 600, "storage.input-output".into()),
        ),
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer",
            victim("gloo.peer-closed"),
        ),
        ("E40021: call failed\nEI0006: Getting socket times out.", victim("hccl.EI0006")),
        ("EI0002: The wait execution of the Notify register times out.", victim("hccl.EI0002")),
        (
            "EI0002: Notify register has not received the Notify record from remote rank [3].",
            (rank_domain(3), "stall".into(), 400, "hccl.EI0002-remote".into()),
        ),
        ("EI0003: invalid argument", (one.clone(), "program".into(), 700, "hccl.EI0003".into())),
    ];
    for (text, expected) in cases {
        assert_eq!(blamed(&tell(failed(error(text)))), expected, "{text}");
    }
}

#[test]
fn lines_without_a_culprit_are_notes() {
    for text in [
        "OSError: [Errno 28] No space left on device: '/shared/x'",
        "OSError: [Errno 116] Stale file handle: 'x'",
        "EI0005: differ",
    ] {
        let found = tell(failed(error(text)));
        assert!(matches!(found.as_slice(), [Finding::Note(..), Finding::Note(..)]), "{found:?}");
    }
    assert!(tell(failed(exception("of the program"))).is_empty(), "an unknown line is left to other detectors");
}

#[test]
fn a_device_error_blames_the_device_or_the_rank_without_one() {
    let found = tell(wordless("step 7\nRuntimeError: CUDA error: uncorrectable ECC error encountered\n"));
    assert_eq!(blamed(&found), (rank_domain(1), "device".into(), 950, "cuda.ecc".into()));
    assert_eq!(fault(&found).primary_suspect().damage.device, Health::Faulty);
}

#[test]
fn a_process_that_continues_is_blamed_for_proofs_only() {
    let live = |text: &str| Signal::Error(Box::new(error(text)));
    let found = tell(live("CUDA out of memory"));
    assert!(found.iter().all(|finding| matches!(finding, Finding::Note(..))), "programs handle it: {found:?}");
    let found = tell(live("Connection closed by peer"));
    assert!(found.iter().all(|finding| matches!(finding, Finding::Note(..))), "{found:?}");
    assert_eq!(blamed(&tell(live("uncorrectable NVLink error detected"))).2, 900);
}

#[test]
fn the_verdict_of_the_frameworks_crate_is_never_contradicted() {
    let report = ErrorReport { text: "CUDA error: device-side assert triggered".into(), ..follow_up() };
    let found = tell(failed(report));
    assert!(!fault(&found).primary_suspect().is_cause());
}

#[test]
fn the_first_entry_decides_among_several_lines() {
    let text =
        "Connection closed by peer\nCUDA error: an illegal memory access was encountered\nConnection reset by peer";
    assert_eq!(blamed(&tell(wordless(text))).3, "cuda.illegal-memory-access");
}

#[test]
fn each_entry_is_reported_once_for_each_process() {
    let (mut scene, mut detector) = (scene(), LogPatternDetector::default());
    let recorded = |text: &str| Signal::FailureRecorded(Box::new(error(text)));
    assert_eq!(scene.tell(&mut detector, 1, recorded("NPU out of memory")).len(), 1);
    assert!(scene.tell(&mut detector, 1, failed(error("NPU out of memory"))).is_empty());
    assert_eq!(scene.tell(&mut detector, 2, recorded("NPU out of memory")).len(), 1);
    scene.restart();
    assert_eq!(scene.tell(&mut detector, 1, recorded("NPU out of memory")).len(), 1);
}

#[test]
fn ends_that_were_requested_or_successful_are_not_searched() {
    let (mut scene, mut detector) = (scene(), LogPatternDetector::default());
    assert!(scene.tell(&mut detector, 1, exited(Termination::Code(0))).is_empty());
    scene.proc(1).wanted = false;
    assert!(scene.tell(&mut detector, 1, wordless("CUDA out of memory")).is_empty());
}

#[test]
fn limits_cut_long_lines_and_many_lines_and_count_them() {
    let (mut scene, mut detector) = (scene(), LogPatternDetector::default());
    let long = format!("{}CUDA out of memory", "ä".repeat(LINE_BYTES_MAX));
    assert!(scene.tell(&mut detector, 1, wordless(&long)).is_empty());
    let many = format!("CUDA out of memory\n{}", "line\n".repeat(LINES_MAX));
    assert!(scene.tell(&mut detector, 1, wordless(&many)).is_empty());
    assert_eq!(detector.counts(), LogCounts { cut: 1, skipped: 1, unreported: 0 });
}

#[test]
fn a_users_entry_replaces_and_precedes_built_in_ones() {
    let mut table = LogTable::built_in();
    let entry = r#"{"patterns": [{"id": "cuda.out-of-memory", "pattern": "CUDA out of memory", "class": "acme.memory", "blame": "unknown"}, {"id": "acme", "pattern": "peer 7", "class": "network", "blame": "reporter"}]}"#;
    table.extend_from(entry).unwrap();
    assert_eq!(table.patterns().next().map(|pattern| pattern.id.as_str()), Some("cuda.out-of-memory"));
    assert_eq!(table.find("CUDA out of memory").unwrap().class, &FaultClass::Other(Name::new("acme.memory")));
    assert_eq!(table.find("Connection closed by peer 7").unwrap().pattern.id, "acme");
    assert_ne!(LogPatternDetector::new(table).config(), LogPatternDetector::default().config());
}

#[test]
fn invalid_tables_are_refused_with_the_entry_that_is_wrong() {
    let entry = |fields: &str| format!(r#"{{"patterns": [{{"id": "x", "class": "network", {fields}}}]}}"#);
    let wrong = [
        entry(r#""pattern": "", "blame": "peer""#),
        entry(r#""pattern": "**", "blame": "peer""#),
        entry(r#""pattern": "a * ", "blame": "peer""#),
        entry(r#""pattern": "rank {rank}", "blame": "peer""#),
        entry(r#""pattern": "rank", "blame": "named""#),
        entry(r#""pattern": "{rank} is lost", "blame": "named""#),
        entry(r#""pattern": "1{rank}", "blame": "named""#),
        entry(r#""pattern": "rank {rank} {rank}", "blame": "named""#),
        entry(r#""pattern": "a", "blame": "peer", "confidence_permille": 1001"#),
        entry(r#""pattern": "a", "blame": "peer", "unknown": 1"#),
        entry(&format!(r#""pattern": "{}", "blame": "peer""#, "a".repeat(PATTERN_BYTES_MAX + 1))),
        " ".repeat(TABLE_BYTES_MAX + 1),
    ];
    for document in wrong {
        let mut table = LogTable::built_in();
        assert!(table.extend_from(&document).is_err(), "{document}");
        assert_eq!(table, LogTable::built_in(), "it is unchanged");
    }
    let many: Vec<String> = (0..=PATTERNS_MAX)
        .map(|n| format!(r#"{{"id": "x{n}", "pattern": "a", "class": "network", "blame": "peer"}}"#))
        .collect();
    assert!(LogTable::empty().extend_from(&format!(r#"{{"patterns": [{}]}}"#, many.join(","))).is_err());
}

#[test]
fn a_restored_detector_reports_no_line_again() {
    let (mut scene, mut detector) = (scene(), LogPatternDetector::default());
    scene.tell(&mut detector, 1, failed(error("NPU out of memory")));
    let saved = detector.snapshot().unwrap();
    let mut restored = LogPatternDetector::default();
    restored.restore(&saved).unwrap();
    assert!(scene.tell(&mut restored, 1, failed(error("NPU out of memory"))).is_empty());
}

#[test]
fn a_victims_class_is_that_of_the_exit_detector() {
    let signal = failed(error("Connection closed by peer"));
    let mine = tell(signal.clone());
    let theirs = scene().tell(&mut ExitDetector::default(), 1, signal);
    assert!(fault(&mine).is_duplicate_of(fault(&theirs)), "the kernel keeps the rank a victim");
    assert_eq!(fault(&mine).primary_suspect().damage, fault(&theirs).primary_suspect().damage);
}

proptest! {
    /// The search gives the same result as a search that tries every position of every piece.
    #[test]
    fn pattern_search_equals_an_exhaustive_search(line in "[ab1 ]{0,12}", pieces in prop::collection::vec("[ab ]{0,2}[ab]", 1..4)) {
        fn exhaustive(line: &str, pieces: &[String]) -> bool {
            let Some((piece, rest)) = pieces.split_first() else { return true };
            line.match_indices(piece.as_str()).any(|(at, _)| exhaustive(&line[at + piece.len()..], rest))
        }
        let pattern = pattern::Pattern::parse(&pieces.join("*")).unwrap();
        prop_assert_eq!(pattern.find(&line).is_some(), exhaustive(&line, &pieces));
    }

    /// No text makes the search fail, and innocent ranks are named by no text.
    #[test]
    fn any_text_is_searched(text in ".{0,200}", rank in any::<u64>()) {
        let text = format!("{text} EI0002 remote rank [{rank}] {text}");
        let found = tell(failed(error(&text)));
        prop_assert!(found.iter().all(|finding| !matches!(finding, Finding::Blame(fault) if fault.primary_suspect().is_cause())));
    }
}
