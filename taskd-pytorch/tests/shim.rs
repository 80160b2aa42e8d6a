//! The hooks and marks of the Python package, in real programs with the real recorder: what is recorded, and that nothing
//! else changes.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

#[path = "support/python.rs"]
mod python;
#[path = "shim/pythons.rs"]
mod pythons;
#[path = "shim/recorded.rs"]
mod recorded;
#[path = "support/start.rs"]
mod start;
mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use recorded::{Recorded, finished, program, waited};
use serde_json::{Value, json};
use taskd_core::trace::recorder::{Communication, DataType, Detail, Event, Kind, Op, Switches};

/// From 3.12 on Python warns of a fork beside the thread with the heartbeat.
const NO_WARNING: &str = "ignore::DeprecationWarning";

/// The Pythons with torch that a test runs on: the usual one, and in a soak (`TASKD_SOAK=1`) those of `TASKD_TORCH_PYTHONS`, whose
/// paths are separated by colons.
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
    let rank = Recorded::new();
    finished(rank.command(python, program, arguments).env("TASKD_HOOKS", "0").output().unwrap())
}

#[test]
fn an_unmodified_program_is_recorded_and_computes_the_same() {
    for torch in &torches("an_unmodified_program_is_recorded_and_computes_the_same") {
        let said = |out: &str| serde_json::from_str::<Value>(out.trim()).unwrap();
        let expected = said(&plain(torch, "train.py", &["none"]).0);
        let start = |workers| {
            let rank = Recorded::new();
            let child = rank.command(torch, "train.py", &[workers]).spawn().unwrap();
            (workers, rank, child)
        };
        for (workers, rank, child) in ["none", "fork", "forkserver", "spawn"].map(start) {
            let (stdout, stderr) = waited(child);
            assert_eq!(said(&stdout), expected, "{workers}: the same bits");
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
fn nothing_else_changes() {
    for torch in &torches("nothing_else_changes") {
        let rank = Recorded::new();
        let (stdout, _) = rank.run(torch, "traps.py", &[]);
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
fn what_is_compiled_is_the_same_and_a_hidden_forward_pass_is_reported() {
    for torch in &torches("what_is_compiled_is_the_same_and_a_hidden_forward_pass_is_reported") {
        let rank = Recorded::new();
        let (stdout, _) = rank.run(torch, "compiled.py", &[]);
        assert_eq!(stdout, plain(torch, "compiled.py", &[]).0, "the same graphs");
        let seen = rank.seen();
        assert_eq!(
            seen.ranges(Kind::Forward)[seen.ranges(Kind::Forward).len() - 4..],
            ["Net", "Net", "OptimizedModule", "OptimizedModule"]
        );
        // The graphs of 2.1 call torch's own modules, which are seen then.
        let is_reported = seen.names.iter().any(|name| name.contains("inside of a compiled function"));
        assert!(is_reported || seen.ranges(Kind::Forward).contains(&"Linear"), "{:?}", seen.names);
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
        let rank = Recorded::new();
        let arguments = [rendezvous.to_str().unwrap(), &number.to_string(), "2"];
        let mut command = rank.command(&torch, "../groups/unmodified.py", &arguments);
        (command.env("GLOO_SOCKET_IFNAME", "lo").spawn().unwrap(), rank)
    };
    for (child, rank) in [0, 1].map(start) {
        let (stdout, stderr) = waited(child);
        assert!(!stderr.contains("taskd:"), "{stderr}");
        let said = stdout.lines().find(|line| line.starts_with('{')).unwrap(); // beside what gloo prints
        let said: Value = serde_json::from_str(said).unwrap();
        let seen = rank.seen();
        let begun = seen.records.iter().filter_map(|record| match (record.event, record.detail) {
            (Event::Begin { .. }, Detail::Communication(what)) => Some(what),
            _ => None,
        });
        let begun: Vec<Communication> = begun.collect();
        assert_eq!(begun.len(), said["seen"], "as many as the profiler saw");
        assert_eq!(seen.ranges(Kind::Communication).len(), begun.len(), "all of them have ended");
        assert!(begun.iter().map(|what| what.sequence).eq((0..).map(Some).take(begun.len())), "{begun:#?}");
        let last = begun.last().unwrap();
        let expected = (Op::Broadcast, DataType::Bf16, 3, 6, Some(1));
        assert_eq!((last.op, last.data_type, last.elements, last.bytes, last.peer), expected);
        assert_eq!(seen.exceptions, []);
        assert!(seen.hooked.contains(&Kind::Communication));
    }
}

#[test]
fn marks_of_torch_npu_are_steps_without_an_edit_on_a_stand_in() {
    let Some(torch) = support::torch_python("marks_of_torch_npu_are_steps_without_an_edit_on_a_stand_in") else {
        return;
    };
    let python_path = concat!(env!("CARGO_MANIFEST_DIR"), "/python:", env!("CARGO_MANIFEST_DIR"), "/tests/shim/npu");
    let rank = Recorded::new();
    let run = |command: &mut Command| finished(command.env("PYTHONPATH", python_path).output().unwrap());
    let (stdout, stderr) = run(&mut rank.command(&torch, "marked.py", &[]));
    let (plain, _) = run(rank.command(&torch, "marked.py", &[]).env("TASKD_HOOKS", "0"));
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
        let rank = Recorded::new();
        let mut child = rank.command(torch, "switched.py", &[]).stdin(Stdio::piped()).spawn().unwrap();
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
fn a_profiler_that_is_active_is_reported_and_recording_resumes() {
    let rank = Recorded::new();
    let python = Path::new(&*python::PYTHON);
    rank.run(python, "paused.py", &[]);
    let seen = rank.seen();
    assert!(seen.names.iter().any(|name| name == "another profiler is active"));
    assert_eq!(
        seen.exceptions,
        [(Kind::User(1), "another profiler is active".to_owned())],
        "of the one that still waits"
    );
    assert_eq!(seen.ranges(Kind::User(0)), ["before", "after"]);
    assert_eq!(seen.hooked, [Kind::Step, Kind::User(0), Kind::User(1)]);
}

#[test]
fn a_hook_that_fails_is_turned_off_and_the_program_goes_on() {
    for torch in &torches("a_hook_that_fails_is_turned_off_and_the_program_goes_on") {
        let rank = Recorded::new();
        let (stdout, stderr) = rank.run(torch, "failing.py", &[]);
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

#[test]
fn marks_work_on_every_python_with_and_without_a_recorder() {
    let mut skipped = Vec::new();
    for minor in 8..=13 {
        let Some(python) = pythons::version(minor) else {
            skipped.push(format!("3.{minor}"));
            continue;
        };
        marks_are_recorded(&python, "abi3", &format!("3.{minor} module"));
        marks_are_recorded(&python, "ctypes", &format!("3.{minor} Functions"));
        // Set once the page has named the process.
        for without in ["TASKD_HOOKS=0", "TASKD_LIB=", "TASKD_LIFELINE="] {
            let rank = Recorded::new();
            let argv = ["env", without, python.to_str().unwrap(), &program("marks.py")];
            let (stdout, stderr) = finished(rank.start(&argv).env("PYTHONWARNINGS", NO_WARNING).output().unwrap());
            assert_eq!((stdout.trim(), &*stderr), (&*format!("3.{minor} Nothing"), ""), "{without}");
            assert!(rank.is_untouched(), "{without}");
        }
    }
    if !skipped.is_empty() {
        support::say(&format!("skipped: marks on Python {}, which are not here", skipped.join(", ")));
    }
}

fn marks_are_recorded(python: &Path, native: &str, says: &str) {
    let rank = Recorded::new();
    let mut command = rank.command(python, "marks.py", &[]);
    let (stdout, stderr) =
        finished(command.env("TASKD_NATIVE", native).env("PYTHONWARNINGS", NO_WARNING).output().unwrap());
    assert_eq!((stdout.trim(), &*stderr), (says, ""));
    let seen = rank.seen();
    assert_eq!(seen.steps(), [7], "{says}");
    assert!(["outer", "called"].iter().all(|name| seen.ranges(Kind::User(0)).contains(name)));
    assert!(seen.ranges(Kind::User(4)).contains(&"inner"), "ended by another thread");
    let is = |name: &str, event| seen.records.iter().any(|record| record.name == name && record.event == event);
    assert!(is("half way", Event::Instant) && is("loss", Event::Counter { value: 0.5 }));
    assert!(!seen.names.iter().any(|name| name == "of a forked child"));
}

#[test]
fn nothing_heavy_is_imported_before_the_program_imports_it() {
    let rank = Recorded::new();
    // -S: without this machine's other start-up files, which may import anything.
    let argv = [&python::PYTHON, "-S", "-c", "import sys, sitecustomize; print(*sys.modules)"];
    let (modules, stderr) = finished(rank.start(&argv).output().unwrap());
    assert_eq!(stderr, "");
    assert!(modules.contains("taskd._install") && !rank.is_untouched(), "{modules}");
    for heavy in ["collections", "enum", "functools", "inspect", "json", "re", "threading", "torch", "traceback"] {
        assert!(!modules.split_whitespace().any(|module| module == heavy), "{heavy}: {modules}");
    }
}

#[test]
fn without_a_library_that_loads_the_program_runs_as_ever() {
    let directory = tempfile::tempdir().unwrap();
    let broken = directory.path().join("libtaskd.so");
    fs::write(&broken, "no library").unwrap();
    for library in ["/nonexistent/libtaskd.so", broken.to_str().unwrap()] {
        let rank = Recorded::new();
        let mut command = rank.command(Path::new(&*python::PYTHON), "marks.py", &[]);
        let (stdout, stderr) = finished(command.env("TASKD_LIB", library).output().unwrap());
        assert!(stdout.trim().ends_with("Nothing"), "{stdout}");
        assert_eq!(stderr, format!("taskd: nothing is recorded: {library} cannot be loaded\n"));
        assert!(rank.is_untouched());
    }
}

#[test]
fn the_one_file_works_without_the_package_and_on_pythons_that_are_too_old_for_it() {
    let alone = tempfile::tempdir().unwrap();
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/python/sitecustomize.py"), alone.path().join("sitecustomize.py"))
        .unwrap();
    let whole = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/python"));
    let old = [6, 7].into_iter().filter_map(pythons::version).map(|python| (python, whole));
    for (python, path) in old.chain([(PathBuf::from(&*python::PYTHON), alone.path())]) {
        let rank = Recorded::new();
        let argv = [python.to_str().unwrap(), "-c", "import sitecustomize"];
        let (_, stderr) = finished(rank.start(&argv).env("PYTHONPATH", path).output().unwrap());
        assert_eq!(stderr, "", "{python:?}");
        assert!(rank.is_untouched() && rank.has_beaten(), "{python:?}");
    }
}

/// Printed, and not judged: how fast a machine is says nothing of the hooks.
#[test]
fn what_marks_and_hooks_cost() {
    if !is_soak() {
        return;
    }
    for torch in torches("what_marks_and_hooks_cost") {
        let cost = |what: &str, variable: &str, value: &str| -> [Value; 2] {
            let rank = Recorded::new();
            let out = rank.command(&torch, "cost.py", &[what]).env(variable, value).output().unwrap();
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
