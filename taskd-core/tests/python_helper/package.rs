//! The package `taskd` with the real recorder, on every Python that is here, without a framework: its marks, and that
//! it does nothing where it is not wanted.

use std::fs;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};

use taskd_core::launch::python::{NEUTRAL_FILES, PythonFile, write_helper};
use taskd_core::testing::python::{Recorded, finished, system, version};
use taskd_core::trace::recorder::{Event, Kind};

/// From 3.12 on Python warns of a fork beside the thread with the heartbeat.
const NO_WARNING: &str = "ignore::DeprecationWarning";

/// The path of a program of this directory.
fn program(name: &str) -> String {
    format!("{}/tests/python_helper/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_profiler_that_is_active_is_reported_and_recording_resumes() {
    let rank = Recorded::new(&[]);
    let python = Path::new(system());
    rank.run(python, &program("paused.py"), &[]);
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
fn marks_work_on_every_python_with_and_without_a_recorder() {
    let mut skipped = Vec::new();
    for minor in 8..=13 {
        let Some(python) = version(minor) else {
            skipped.push(format!("3.{minor}"));
            continue;
        };
        marks_are_recorded(&python, "abi3", &format!("3.{minor} module"));
        marks_are_recorded(&python, "ctypes", &format!("3.{minor} Functions"));
        // Set once the page has named the process.
        for without in ["TASKD_HOOKS=0", "TASKD_LIB=", "TASKD_LIFELINE="] {
            let rank = Recorded::new(&[]);
            let argv = ["env", without, python.to_str().unwrap(), &program("marks.py")];
            let (stdout, stderr) = finished(rank.start(&argv).env("PYTHONWARNINGS", NO_WARNING).output().unwrap());
            assert_eq!((stdout.trim(), &*stderr), (&*format!("3.{minor} Nothing"), ""), "{without}");
            assert!(rank.is_untouched(), "{without}");
        }
    }
    if !skipped.is_empty() {
        let _ = writeln!(stderr(), "skipped: marks on Python {}, which are not here", skipped.join(", "));
    }
}

#[test]
fn the_programs_of_a_wrapper_record_one_after_the_other() {
    let rank = Recorded::new(&[]);
    let wrapper = "for n in 1 2; do $PYTHON -c \"import taskd; taskd.mark('program $n')\" || exit; done; exit 0";
    let (_, stderr) = finished(rank.start(&["bash", "-c", wrapper]).output().unwrap());
    assert_eq!(stderr, "");
    let seen = rank.seen();
    let marks: Vec<&str> = seen.records.iter().map(|record| &*record.name).collect();
    assert_eq!(marks, ["program 1", "program 2"]);
}

fn marks_are_recorded(python: &Path, native: &str, expected: &str) {
    let rank = Recorded::new(&[]);
    let mut command = rank.command(python, &program("marks.py"), &[]);
    let (stdout, stderr) =
        finished(command.env("TASKD_NATIVE", native).env("PYTHONWARNINGS", NO_WARNING).output().unwrap());
    assert_eq!((stdout.trim(), &*stderr), (expected, ""));
    let seen = rank.seen();
    assert_eq!(seen.steps(), [7], "{expected}");
    assert!(["outer", "called"].iter().all(|name| seen.ranges(Kind::User(0)).contains(name)));
    assert!(seen.ranges(Kind::User(4)).contains(&"inner"), "ended by another thread");
    let is = |name: &str, event| seen.records.iter().any(|record| record.name == name && record.event == event);
    assert!(is("half way", Event::Instant) && is("loss", Event::Counter { value: 0.5 }));
    assert!(!seen.names.iter().any(|name| name == "of a forked child"));
}

#[test]
fn the_helper_imports_no_heavy_module_at_startup() {
    let rank = Recorded::new(&[]);
    // -S: without this machine's other start-up files, which may import anything.
    let argv = [system(), "-S", "-c", "import sys, sitecustomize; print(*sys.modules)"];
    let (modules, stderr) = finished(rank.start(&argv).output().unwrap());
    assert_eq!(stderr, "");
    assert!(modules.contains("taskd._install") && !rank.is_untouched(), "{modules}");
    for heavy in ["collections", "enum", "functools", "inspect", "json", "re", "threading", "traceback"] {
        assert!(!modules.split_whitespace().any(|module| module == heavy), "{heavy}: {modules}");
    }
}

#[test]
fn without_a_library_that_loads_the_program_runs_as_ever() {
    let directory = tempfile::tempdir().unwrap();
    let broken = directory.path().join("libtaskd.so");
    fs::write(&broken, "no library").unwrap();
    for library in ["/nonexistent/libtaskd.so", broken.to_str().unwrap()] {
        let rank = Recorded::new(&[]);
        let mut command = rank.command(Path::new(system()), &program("marks.py"), &[]);
        let (stdout, stderr) = finished(command.env("TASKD_LIB", library).output().unwrap());
        assert!(stdout.trim().ends_with("Nothing"), "{stdout}");
        assert_eq!(stderr, format!("taskd: nothing is recorded: {library} cannot be loaded\n"));
        assert!(rank.is_untouched());
    }
}

#[test]
fn the_single_file_works_without_the_package_and_on_old_pythons() {
    let (alone, whole) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let one_file = NEUTRAL_FILES.iter().find(|file| file.path == "sitecustomize.py").unwrap();
    fs::write(alone.path().join(one_file.path), one_file.text).unwrap();
    write_helper(whole.path(), &[]).unwrap();
    let old = [6, 7].into_iter().filter_map(version).map(|python| (python, whole.path()));
    for (python, path) in old.chain([(PathBuf::from(system()), alone.path())]) {
        let rank = Recorded::new(&[]);
        let argv = [python.to_str().unwrap(), "-c", "import sitecustomize"];
        let (_, stderr) = finished(rank.start(&argv).env("PYTHONPATH", path).output().unwrap());
        assert_eq!(stderr, "", "{python:?}");
        assert!(rank.is_untouched() && rank.has_beaten(), "{python:?}");
    }
}

/// Functions of a vendor's that a program marks its steps with: a double, which returns 0 while no profiler listens, as
/// theirs do.
const THEIRS: &str = "
ranges, listening = [], False
class marks:
    @staticmethod
    def range_start(message, stream=None, domain='default'):
        ranges.append(message)
        return len(ranges) if listening else 0
    @staticmethod
    def range_end(range_id, domain='default'): ranges.append(range_id)
    @staticmethod
    def mark(message, stream=None, domain='default'): ranges.append(message)
";

#[test]
fn a_framework_has_its_hooks_and_a_vendors_marks_put_in_place() {
    let framework = [
        PythonFile { path: "_taskd_framework.py", text: "MODULE = 'theirs'\ndef start(steps, after_import): pass\n" },
        PythonFile { path: "taskd/theirs/__init__.py", text: "" },
        PythonFile {
            path: "taskd/theirs/framework.py",
            text: "
from taskd import _kinds
HOOKS = (('theirs', 'taskd.theirs.saving', _kinds.SAVE_CHECKPOINT), ('broken', 'taskd.theirs.missing', _kinds.FORWARD))
def install(after_import, native):
    def stand_around(module):
        from taskd import _vendor_marks
        _vendor_marks.install(module.marks, native)
        _vendor_marks.install(module.marks, native)
    after_import('theirs', stand_around)
",
        },
        PythonFile {
            path: "taskd/theirs/saving.py",
            text: "
from taskd import _hooks, _kinds
def install(module, native):
    module.save = _hooks.outermost(_hooks.of(native, _kinds.SAVE_CHECKPOINT), 'theirs.save', module.save)
",
        },
    ];
    let rank = Recorded::new(&framework);
    let theirs = tempfile::tempdir().unwrap();
    fs::write(theirs.path().join("theirs.py"), format!("{THEIRS}\ndef save(): return 'saved'\n")).unwrap();
    fs::write(theirs.path().join("broken.py"), "").unwrap();
    let path = format!("{}:{}", rank.helper().display(), theirs.path().display());
    let program = "
import broken, theirs
for n in range(3):
    theirs.listening = n > 1
    step = theirs.marks.range_start(f'step {n}', 'stream')
    assert theirs.save() == 'saved'
    theirs.marks.range_end(step)
theirs.marks.mark('done')
print(*theirs.ranges, sep=', ')";
    let run = |hooks: &str| {
        let mut command = rank.start(&[system(), "-c", program]);
        finished(command.env("PYTHONPATH", &path).env("TASKD_HOOKS", hooks).output().unwrap())
    };
    let plain = run("0");
    assert_eq!(plain, ("step 0, 0, step 1, 0, step 2, 5, done\n".to_owned(), String::new()));
    let (stdout, stderr) = run("1");
    assert_eq!(stdout, plain.0);
    assert_eq!(
        stderr,
        "taskd: kind 4 is not recorded: the hook failed: ModuleNotFoundError: No module named 'taskd.theirs.missing'\n"
    );
    let seen = rank.seen();
    assert_eq!(seen.steps(), [0, 1, 2]);
    assert_eq!(seen.ranges(Kind::SaveCheckpoint), ["theirs.save"; 3]);
    assert!(seen.records.iter().any(|record| record.name == "done" && record.event == Event::Instant));
}

/// They are the reference's modules, which come later: nothing of ours may take their names before.
#[test]
fn the_names_of_the_references_modules_are_free() {
    let rank = Recorded::new(&[]);
    let program = "
import sys, taskd
for name in ('taskd.api', 'taskd.python'):
    try: __import__(name)
    except ModuleNotFoundError as error: print(error)
assert taskd.__file__.startswith(sys.argv[1]), taskd.__file__";
    let seen = finished(rank.start(&[system(), "-c", program, rank.helper().to_str().unwrap()]).output().unwrap());
    assert_eq!(seen, ("No module named 'taskd.api'\nNo module named 'taskd.python'\n".to_owned(), String::new()));
}
