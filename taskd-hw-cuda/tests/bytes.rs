//! Whatever a log or a table holds, reading it ends, without a panic.
//!
//! `TASKD_SOAK=1` runs ten million cases of each, and prints what became of them.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use taskd_hw_cuda::xid::{LINE_TEXT_BYTES_MAX, Line, Record, XidTable};

const LINES: [&str; 7] = [
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python3, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
    "May  6 00:38:27 host kernel: [ 4909.922970] NVRM: Xid (0000:01:00): 13, 0005 00000000 0000502d",
    "NVRM: Xid (PCI:0018:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)",
    "NVRM: GPU at 0000:01:00.0 has fallen off the bus.",
    "4,1042,5140900123,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n SUBSYSTEM=pci\n",
];

const TABLE: &str = r#"{"source": "x", "xids": [
    {"xid": 79, "name": "gone", "action": "reboot-node", "note": "n"},
    {"xid": 48, "name": "dbe", "action": "drain-and-reset", "unless": 94},
    {"xid": 13, "name": "exception", "action": "restart-app", "application": true}]}"#;

fn cases() -> u32 {
    if std::env::var("TASKD_SOAK").is_ok_and(|soak| soak == "1") { 10_000_000 } else { 4_000 }
}

/// A sample with a few pieces of it replaced, moved or left out.
fn mutated(samples: Vec<&'static str>) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"Xid (".to_vec()),
        Just(b"PCI:".to_vec()),
        Just(b"): 99999999999".to_vec()),
        Just(b"pid=-1".to_vec()),
        Just(b"name='".to_vec()),
        Just(b" to 0x".to_vec()),
        Just(b";".to_vec()),
        Just(b"\"".to_vec()),
        Just(b"4294967296".to_vec()),
        Just("ü\u{0}\u{1b}[".as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..8),
    ];
    let edits = prop::collection::vec((any::<prop::sample::Index>(), 0..24_usize, piece), 0..4);
    (prop::sample::select(samples), edits).prop_map(|(sample, edits)| {
        let mut bytes = sample.as_bytes().to_vec();
        for (at, length, piece) in edits {
            let from = at.index(bytes.len().max(1)).min(bytes.len());
            let to = (from + length).min(bytes.len());
            bytes.splice(from..to, piece);
        }
        bytes
    })
}

fn run<S: Strategy>(what: &str, strategy: S, case: impl Fn(S::Value) -> Result<&'static str, TestCaseError>)
where
    S::Value: Debug,
{
    let seen = RefCell::new(BTreeMap::<&str, u64>::new());
    let config = Config { cases: cases(), failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&strategy, |value| {
        *seen.borrow_mut().entry(case(value)?).or_default() += 1;
        Ok(())
    });
    println!("{what}: {:?}", seen.borrow());
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn lines_of_any_log_are_an_xid_or_none() {
    let arbitrary = prop::collection::vec(any::<u8>(), 0..96);
    run("lines", prop_oneof![9 => mutated(LINES.to_vec()), 1 => arbitrary], |bytes| {
        let text = String::from_utf8_lossy(&bytes);
        let message = Record::parse(&text).map_or(&*text, |record| record.message);
        let Some(line) = Line::parse(message) else { return Ok("no Xid") };
        prop_assert!(line.text.len() <= LINE_TEXT_BYTES_MAX && !line.text.contains(char::is_control));
        prop_assert_eq!(line.pid, Line::pid_in(&line.text));
        let _ = Line::recovery_action_in(&line.text);
        Ok(if line.pci.is_some() { "an Xid of a device" } else { "an Xid of nobody" })
    });
}

#[test]
fn any_table_is_taken_whole_or_refused_with_a_place() {
    run("tables", mutated(vec![TABLE]), |bytes| {
        let (text, mut table) = (String::from_utf8_lossy(&bytes), XidTable::empty());
        match table.extend_from(&text) {
            Ok(()) => {
                prop_assert!(table.iter().all(|entry| entry.xid > 0 && !entry.name.is_empty()));
                Ok("taken")
            }
            Err(error) => {
                prop_assert_eq!(&table, &XidTable::empty());
                prop_assert!(!error.to_string().is_empty());
                Ok("refused")
            }
        }
    });
}
