//! The hooks and marks of the Python package, in real programs with the real recorder: what is recorded, and that
//! nothing else changes.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use taskd_core::testing::python::{Recorded, finished, waited};
use taskd_core::trace::recorder::{Communication, DataType, Detail, Event, Kind, Op, Switches};
use taskd_pytorch::PYTHON_FILES;

/// The path of a program of `shim/`.
fn program(name: &str) -> String {
    format!("{}/tests/shim/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The Pythons with torch that a test runs on: the usual one, and in a soak (`TASKD_SOAK=1`) those of
/// `TASKD_TORCH_PYTHONS`, whose paths are separated by colons.
fn torches(test: &str) -> Vec<PathBuf> {
    let others = std::env::var("TASKD_TORCH_PYTHONS").ok().filter(|_| is_soak()).unwrap_or_default();
    let others = others.split(':').filter(|path| !path.is_empty()).map(PathBuf::from);
    support::torch_python(test).into_iter().chain(others).collect()
}

fn is_soak() -> bool {
    std::env::var("TASKD_SOAK").is_ok_and(|soak| soak == "1")
}

/// Without hooks: the same program as it is.
fn plain(python: &Path, program: &str, arguments: &[&str]) -> (String, String) {
    let rank = Recorded::new(PYTHON_FILES);
    finished(rank.command(python, &self::program(program), arguments).env("TASKD_HOOKS", "0").output().unwrap())
}

#[test]
fn early_rank_dials_the_store_only_once_it_listens() {
    for torch in &torches("early_rank_dials_the_store_only_once_it_listens") {
        let dir = tempfile::tempdir().unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let mark = dir.path().join("mark").display().to_string();
        let ranks = ["0", "1"].map(|rank| {
            let recorded = Recorded::new(PYTHON_FILES);
            let child = recorded.command(torch, &program("late_store.py"), &[rank, &port, &mark]).spawn().unwrap();
            (recorded, child)
        });
        let parsed = ranks.map(|(_recorded, child)| waited(child).0);
        assert_eq!(parsed.each_ref().map(|out| out.lines().next()), [Some("refused"), Some("listens")]);
    }
}

#[test]
fn an_unmodified_program_is_recorded_and_computes_the_same() {
    for torch in &torches("an_unmodified_program_is_recorded_and_computes_the_same") {
        let parsed = |out: &str| serde_json::from_str::<Value>(out.trim()).unwrap();
        let expected = parsed(&plain(torch, "train.py", &["none"]).0);
        let start = |workers| {
            let rank = Recorded::new(PYTHON_FILES);
            let child = rank.command(torch, &program("train.py"), &[workers]).spawn().unwrap();
            (workers, rank, child)
        };
        for (workers, rank, child) in ["none", "fork", "forkserver", "spawn"].map(start) {
            let (stdout, stderr) = waited(child);
            assert_eq!(parsed(&stdout), expected, "{workers}: the same bits");
            assert!(!stderr.contains("taskd:"), "{workers}: {stderr}");
            let seen = rank.seen();
            let count = |kind| seen.ranges(kind).len();
            let recorded = json!({
                "step": seen.steps().len(),
                "data loader": count(Kind::DataLoader),
                "forward": count(Kind::Forward),
                "save": count(Kind::SaveCheckpoint),
            });
            assert_eq!(recorded, expected["did"], "{workers}");
            assert_eq!(
                seen.steps(),
                (1..=200).collect::<Vec<_>>(),
                "{workers}: two optimizers, one of them with a class of its own"
            );
            let saves = seen.ranges(Kind::SaveCheckpoint);
            assert_eq!(saves[..2], ["torch.save"; 2], "{workers}");
            assert!(
                saves[2].starts_with("torch.distributed.checkpoint.save"),
                "what it calls is part of it: {saves:?}"
            );
            assert_eq!(seen.ranges(Kind::Forward)[..2], ["Net", "MSELoss"]);
            assert_eq!(seen.exceptions, []);
        }
    }
}

#[test]
fn a_training_step_counts_once_however_often_an_optimizer_is_stepped() {
    let Some(torch) = support::torch_python("a_training_step_counts_once_however_often_an_optimizer_is_stepped") else {
        return;
    };
    let start = |(program, steps): (&'static str, Vec<u64>)| {
        let rank = Recorded::new(PYTHON_FILES);
        let child = rank.command(&torch, &self::program("resumed.py"), &[program]).spawn().unwrap();
        (program, steps, rank, child)
    };
    // The first step that is under way has number 1, whatever number an optimizer then continues with.
    let expected = [
        ("resumed", vec![1, 22, 23]),
        ("loaded_late", vec![1, 2, 3, 4, 22, 23]),
        ("saved_often", vec![1, 2, 3]),
        ("by_groups", vec![1, 2, 3]),
        ("with_closure", vec![1, 2, 3]),
        ("around_another", vec![1, 2, 3]),
        ("several", vec![1, 2, 3, 4, 5, 6]),
        ("scaled", vec![1, 2, 3]),
    ];
    for two in expected.chunks(2) {
        let started: Vec<_> = two.iter().cloned().map(start).collect();
        for (program, steps, rank, child) in started {
            let (_, stderr) = waited(child);
            assert_eq!(rank.seen().steps(), steps, "{program}: {stderr}");
        }
    }
}

#[test]
fn program_output_with_hooks_is_unchanged() {
    for torch in &torches("program_output_with_hooks_is_unchanged") {
        let rank = Recorded::new(PYTHON_FILES);
        let (stdout, _) = rank.run(torch, &program("traps.py"), &[]);
        assert_eq!(stdout, plain(torch, "traps.py", &[]).0);
        let seen = rank.seen();
        let begun = |kind| {
            let begins = |event| matches!(event, Event::Begin { .. });
            seen.records.iter().filter(|record| record.kind == kind && begins(record.event)).count()
        };
        for kind in [Kind::DataLoader, Kind::SaveCheckpoint, Kind::Forward] {
            assert_eq!(seen.ranges(kind).len(), begun(kind), "{kind:?}: what ends with an exception ends");
            assert!(begun(kind) > 0, "{kind:?}");
        }
    }
}

#[test]
fn compiled_graphs_are_unchanged_and_hidden_passes_are_reported() {
    for torch in &torches("compiled_graphs_are_unchanged_and_hidden_passes_are_reported") {
        let rank = Recorded::new(PYTHON_FILES);
        let (stdout, _) = rank.run(torch, &program("compiled.py"), &[]);
        assert_eq!(stdout, plain(torch, "compiled.py", &[]).0, "the same graphs");
        let seen = rank.seen();
        assert_eq!(
            seen.ranges(Kind::Forward)[seen.ranges(Kind::Forward).len() - 4..],
            ["Net", "Net", "OptimizedModule", "OptimizedModule"]
        );
        // torch 2.1 calls what it has compiled of a function as a module: then it is recorded, in each of the ten
        // steps.
        let is_reported = seen.names.iter().any(|name| name.contains("inside of a compiled function"));
        let passes = seen.ranges(Kind::Forward);
        let is_recorded = passes.iter().rev().take(10).filter(|name| **name == "OptimizedModule").count() == 8;
        assert!(is_reported || is_recorded, "{:?}, {passes:?}", seen.names);
        assert_eq!(seen.exceptions, [], "taken back when a module was called again");
        assert_eq!(seen.steps().len(), 10);
    }
}

#[test]
fn operations_of_process_groups_are_recorded() {
    let Some(torch) = support::torch_python("operations_of_process_groups_are_recorded") else { return };
    let dir = tempfile::tempdir().unwrap();
    let rendezvous = dir.path().join("store");
    let start = |number: usize| {
        let rank = Recorded::new(PYTHON_FILES);
        let arguments = [rendezvous.to_str().unwrap(), &number.to_string(), "2"];
        let mut command = rank.command(&torch, &program("../groups/unmodified.py"), &arguments);
        (command.env("GLOO_SOCKET_IFNAME", "lo").spawn().unwrap(), rank)
    };
    for (child, rank) in [0, 1].map(start) {
        let (stdout, stderr) = waited(child);
        assert!(!stderr.contains("taskd:"), "{stderr}");
        let parsed = stdout.lines().find(|line| line.starts_with('{')).unwrap(); // beside what gloo prints
        let parsed: Value = serde_json::from_str(parsed).unwrap();
        let seen = rank.seen();
        let begun = seen.records.iter().filter_map(|record| match (record.event, record.detail) {
            (Event::Begin { .. }, Detail::Communication(what)) => Some(what),
            _ => None,
        });
        let begun: Vec<Communication> = begun.collect();
        assert_eq!(begun.len(), parsed["seen"], "as many as the profiler saw");
        assert_eq!(seen.ranges(Kind::Communication).len(), begun.len(), "all of them have ended");
        assert!(begun.iter().map(|what| what.sequence).eq((0..).map(Some).take(begun.len())), "{begun:#?}");
        let last = begun.last().unwrap();
        let expected = (Op::Broadcast, DataType::Bf16, 3, 6, Some(1));
        assert_eq!((last.op, last.data_type, last.elements, last.bytes, last.peer), expected);
        assert_eq!(seen.exceptions, []);
        assert!(seen.hooked.contains(&Kind::Communication));
    }
}

/// What is recorded of the operations of a rank: the begin of each in the main thread's order, and how many have ended.
fn operations(rank: &Recorded) -> (Vec<String>, usize) {
    let seen = rank.seen();
    assert_eq!(seen.exceptions, []);
    let begun = seen.records.iter().filter_map(|record| match (record.event, record.detail) {
        (
            Event::Begin { .. },
            Detail::Communication(Communication { op, data_type, group, elements, bytes, peer, sequence }),
        ) => {
            let group = &seen.names[group.0 as usize - 1]; // names have other numbers in the other run
            let tensors = format!("{data_type:?} {elements} {bytes}");
            Some(format!("{} {op:?} {group} {tensors} {peer:?} {sequence:?}", record.name))
        }
        _ => None,
    });
    (begun.collect(), seen.ranges(Kind::Communication).len())
}

#[test]
fn native_code_and_python_record_the_same_operations() {
    for torch in &torches("native_code_and_python_record_the_same_operations") {
        let recorded = |way: &str| {
            let dir = tempfile::tempdir().unwrap();
            let rendezvous = dir.path().join("store");
            let start = |number: usize| {
                let rank = Recorded::new(PYTHON_FILES);
                let arguments = [rendezvous.to_str().unwrap(), &number.to_string(), "2"];
                let mut command = rank.command(torch, &program("../groups/both_ways.py"), &arguments);
                command.env("GLOO_SOCKET_IFNAME", "lo").env("TASKD_NATIVE", way);
                (command.spawn().unwrap(), rank)
            };
            [0, 1].map(start).map(|(child, rank)| {
                let (stdout, stderr) = waited(child);
                assert!(!stderr.contains("taskd:"), "{way}: {stderr}");
                let printed = stdout.lines().find(|line| line.starts_with('{')).unwrap(); // beside what gloo prints
                (serde_json::from_str::<Value>(printed).unwrap(), operations(&rank))
            })
        };
        let (native, python) = (recorded("abi3"), recorded("ctypes"));
        for ((native, operations), (python, expected)) in native.iter().zip(&python) {
            assert_eq!([&native["method"], &python["method"]], ["operation", "function"], "each way was used");
            assert_eq!(native["seen"], python["seen"]);
            assert_eq!(native["seen"]["dropped"], json!([true, true]), "no object is kept alive");
            assert_eq!(native["seen"]["forked"], true);
            assert_eq!(native["seen"]["half done"], json!([true, false]), "the wait for the latest is over");
            let places: BTreeSet<String> =
                native["seen"]["places"].as_array().unwrap().iter().map(Value::to_string).collect();
            assert_eq!(places, ["\"backward\"", "\"buffers\"", "\"order\"", "null"].map(str::to_owned).into());
            assert_eq!(operations, expected);
            assert!(operations.0.len() > 50, "{operations:?}");
            assert_eq!(operations.0.len(), operations.1, "all of them have ended");
        }
    }
}

#[test]
fn marks_of_torch_npu_are_steps_without_an_edit_on_a_stand_in() {
    let Some(torch) = support::torch_python("marks_of_torch_npu_are_steps_without_an_edit_on_a_stand_in") else {
        return;
    };
    let rank = Recorded::new(PYTHON_FILES);
    let python_path = format!("{}:{}", rank.helper().display(), program("npu"));
    let run = |command: &mut Command| finished(command.env("PYTHONPATH", &python_path).output().unwrap());
    let (stdout, stderr) = run(&mut rank.command(&torch, &program("marked.py"), &[]));
    let (plain, _) = run(rank.command(&torch, &program("marked.py"), &[]).env("TASKD_HOOKS", "0"));
    assert_eq!(stdout, plain, "the stand-in is called as ever: {stderr}");
    let seen = rank.seen();
    assert_eq!(seen.steps(), [3, 4, 5, 6, 7], "the program's own, and none of the optimizer's");
    assert_eq!(seen.ranges(Kind::User(0)), ["load"; 5]);
    assert_eq!(seen.ranges(Kind::SaveCheckpoint), ["save_checkpoint"], "marked, so not derived");
    assert_eq!(seen.ranges(Kind::Forward).len(), 5);
}

#[test]
fn kinds_are_switched_while_the_program_runs() {
    for torch in &torches("kinds_are_switched_while_the_program_runs") {
        let rank = Recorded::new(PYTHON_FILES);
        let mut child = rank.command(torch, &program("switched.py"), &[]).stdin(Stdio::piped()).spawn().unwrap();
        let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let (all, none) = (Switches::ALL, Switches::NONE);
        // What is on, and what comes of one round: steps, batches, forward passes, saves.
        let rounds = [
            (all, [1, 1, 1, 1]),
            (none, [1, 0, 0, 0]), // the step that was under way
            (none.with(Kind::Forward), [0, 0, 1, 0]),
            (all.without(Kind::Step).without(Kind::Forward), [0, 1, 0, 1]),
            (all, [0, 1, 1, 1]), // the step that now begins
            (all, [1, 1, 1, 1]),
        ];
        let mut before = [0; 4];
        for (round, (on, expected)) in rounds.into_iter().enumerate() {
            if round > 0 {
                rank.switch(on); // before there is a recorder, everything is on
            }
            stdin.write_all(b"train\n").unwrap();
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            assert_eq!(line, "trained\n");
            let seen = rank.seen();
            let count = |kind| seen.ranges(kind).len();
            let now = [seen.steps().len(), count(Kind::DataLoader), count(Kind::Forward), count(Kind::SaveCheckpoint)];
            let came: Vec<usize> = now.iter().zip(before).map(|(now, before)| now - before).collect();
            assert_eq!(came, expected, "round {round}");
            before = now;
        }
        drop(stdin);
        waited(child);
    }
}

#[test]
fn a_hook_that_fails_is_turned_off_and_the_program_goes_on() {
    for torch in &torches("a_hook_that_fails_is_turned_off_and_the_program_goes_on") {
        let rank = Recorded::new(PYTHON_FILES);
        let (stdout, stderr) = rank.run(torch, &program("failing.py"), &[]);
        assert_eq!(stdout.trim(), "trained; 3 hooks have failed");
        assert_eq!(stderr.matches("taskd:").count(), 1, "one line: {stderr}");
        let seen = rank.seen();
        let failed: Vec<Kind> = seen.exceptions.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(failed, [Kind::DataLoader, Kind::SaveCheckpoint, Kind::Forward]);
        assert!(
            seen.exceptions.iter().all(|(_, reason)| reason == "the hook failed: ZeroDivisionError: of the double")
        );
        assert_eq!(seen.steps(), [1, 2, 3], "the others go on");
    }
}

/// Printed, and not judged: the speed of a machine shows nothing of the hooks.
#[test]
fn cost_of_marks_and_hooks_is_printed() {
    if !is_soak() {
        return;
    }
    for torch in torches("cost_of_marks_and_hooks_is_printed") {
        let cost = |what: &str, variable: &str, value: &str| -> [Value; 2] {
            let rank = Recorded::new(PYTHON_FILES);
            let out = rank.command(&torch, &program("cost.py"), &[what]).env(variable, value).output().unwrap();
            serde_json::from_str(&finished(out).0).unwrap()
        };
        let [abi3, abi3_off] = cost("marks", "TASKD_NATIVE", "abi3");
        let [ctypes, ctypes_off] = cost("marks", "TASKD_NATIVE", "ctypes");
        let [outside, _] = cost("marks", "TASKD_HOOKS", "0");
        println!("{}: nanoseconds: abi3, off, ctypes, off, outside of a job", torch.display());
        print_table(&[&abi3, &abi3_off, &ctypes, &ctypes_off, &outside]);
        let [on, off] = cost("hooks", "TASKD_NATIVE", "abi3");
        let [without, _] = cost("hooks", "TASKD_HOOKS", "0");
        println!("nanoseconds: hooks on, off, without hooks");
        print_table(&[&on, &off, &without]);
    }
}

fn print_table(columns: &[&Value]) {
    for name in columns[0].as_object().unwrap().keys() {
        let figures = columns.iter().map(|column| column[name].as_f64().map_or("-".into(), |ns| format!("{ns:.0}")));
        println!("  {name:30} {}", figures.map(|figure| format!("{figure:>8}")).collect::<String>());
    }
}
