//! The hooks in real MindSpore processes with the real recorder: what is recorded, and that nothing else changes.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod support;

use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use taskd_core::testing::python::{BEAT_TIME, Lifeline, Rank, Recorded, waited};
use taskd_core::trace::recorder::{Communication, DataType, Detail, Event, Kind, Op};
use taskd_core::worker::library;
use taskd_mindspore::PYTHON_FILES;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shim/cluster.py");

/// A cluster of two workers: what each of them printed, and its recorder.
fn cluster(python: &Path, hooks: &str) -> Vec<(Value, Recorded)> {
    let dir = tempfile::tempdir().unwrap();
    let port = support::free_port();
    let start = |worker: Option<u32>| -> (Child, Recorded) {
        let rank = Recorded::new(PYTHON_FILES);
        let checkpoints = dir.path().join(format!("{worker:?}"));
        std::fs::create_dir_all(&checkpoints).unwrap();
        let mut command = rank.command(python, PROGRAM, &[checkpoints.to_str().unwrap()]);
        support::in_cluster(&mut command, port, 2, worker);
        (command.env("TASKD_HOOKS", hooks).spawn().unwrap(), rank)
    };
    let (mut scheduler, _rank) = start(None);
    let workers = [0, 1].map(|worker| start(Some(worker)));
    let errors = workers.map(|(child, rank)| {
        let (stdout, stderr) = waited(child);
        assert!(!stderr.contains("taskd:"), "{stderr}");
        let line = stdout.lines().find(|line| line.starts_with('{')).unwrap(); // beside what MindSpore prints
        (serde_json::from_str(line).unwrap(), rank)
    });
    let _ = scheduler.kill(); // it would end by itself, seconds later
    scheduler.wait().unwrap();
    errors.into()
}

#[test]
fn an_unmodified_cluster_is_recorded_and_computes_the_same() {
    let Some(python) = support::mindspore_python("an_unmodified_cluster_is_recorded_and_computes_the_same") else {
        return;
    };
    let expected = cluster(&python, "0");
    for ((output, rank), (plain, untouched)) in cluster(&python, "1").into_iter().zip(expected) {
        assert_eq!(output, plain, "the same bits");
        assert!(untouched.is_untouched(), "without hooks nothing is recorded");
        let seen = rank.seen();
        let count = |kind| seen.ranges(kind).len();
        let recorded = json!({
            "step": seen.steps().len(),
            "data loader": count(Kind::DataLoader), // the one that learns that there are no more has no end
            "save": count(Kind::SaveCheckpoint),
            "communication": count(Kind::Communication),
        });
        assert_eq!(recorded, output["did"]);
        let begun = seen.records.iter().filter_map(|record| match (record.event, record.detail) {
            (Event::Begin { .. }, Detail::Communication(what)) => Some((record.name.as_str(), what)),
            _ => None,
        });
        let begun: Vec<(&str, Communication)> = begun.collect();
        let numbers: Vec<Option<u64>> = begun.iter().map(|(_, what)| what.sequence).collect();
        assert_eq!(numbers, (0..).map(Some).take(begun.len()).collect::<Vec<_>>());
        let (name, first) = begun[0];
        assert_eq!(
            (name, first.op, first.data_type, first.elements, first.bytes, first.peer),
            ("AllReduce", Op::AllReduce, DataType::F32, 8 * 16, 4 * 8 * 16, None)
        );
        let (name, last) = begun[begun.len() - 1];
        assert_eq!((name, last.op, last.elements, last.peer), ("Broadcast", Op::Broadcast, 3, Some(1)));
        assert!(seen.names.iter().any(|name| name == "mccl_world_group"), "{:?}", seen.names);
        assert!(!seen.hooked.contains(&Kind::Forward), "the forward pass is shown as not supported");
        assert_eq!(seen.exceptions, []);
    }
}

#[test]
fn heartbeat_continues_while_mindspore_holds_the_gil() {
    let Some(python) = support::mindspore_python("heartbeat_continues_while_mindspore_holds_the_gil") else {
        return;
    };
    let rank = Rank::new(PYTHON_FILES);
    // A scheduler whose workers never come. Its own Python thread reports when it runs, and then does not any more.
    let program = rank.file(
        "scheduler.py",
        "import os, threading, time, mindspore as ms
from mindspore.communication import init
def tick():
    while True:
        open('ticks', 'a').write('.')
        time.sleep(0.01)
ms.set_device('CPU')
threading.Thread(target=tick, daemon=True).start()
while not os.path.exists('ticks'):
    time.sleep(0.01)
init()",
    );
    let mut command = rank.command(&[python.to_str().unwrap(), &program]);
    support::in_cluster(&mut command, support::free_port(), 1, None);
    let mut scheduler = command.env("TASKD_LIB", library::unpack().unwrap()).current_dir(rank.dir()).spawn().unwrap();
    let ticks = || std::fs::metadata(rank.dir().join("ticks")).map_or(0, |file| file.len());
    let until = Instant::now() + Duration::from_secs(300);
    // Python is held up when it has ticked, and then has not for as long as a hundred heartbeats take.
    loop {
        let (before, beats) = (ticks(), beats_of(&rank, 100, until));
        if before > 0 && ticks() == before {
            assert_eq!(beats, 100);
            break;
        }
    }
    assert_eq!(rank.lifeline(), Lifeline::Held);
    scheduler.kill().unwrap();
    scheduler.wait().unwrap();
}

/// Waits for `count` heartbeats, which are sent every 20 ms, and returns their number; panics if they do not arrive
/// until `until`.
fn beats_of(rank: &Rank, count: u32, until: Instant) -> u32 {
    let mut last = rank.u64(BEAT_TIME);
    let mut seen = 0;
    while seen < count {
        let now = rank.u64(BEAT_TIME);
        seen += u32::from(now != last);
        last = now;
        assert!(Instant::now() < until, "{seen} heartbeats, and no more");
        std::thread::yield_now();
    }
    seen
}
