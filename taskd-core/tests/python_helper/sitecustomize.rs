//! The helper in real Python processes, with no framework but one of the test's own: which process takes the lifeline,
//! which leaves it alone, which steps are seen, what is recorded of a failure.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use taskd_core::launch::python::PythonFile;
use taskd_core::testing::python::{BEAT_TIME, Lifeline, Rank, STEP, STEP_TIME, system, text};

/// Looks at the page from inside: `held()` is true while the lock is there and its owner lives.
pub(super) const LOOK: &str = r"
import os, struct, sys, time
def words(form, at):
    with open(os.environ['PAGE'], 'rb') as page:
        page.seek(at)
        return struct.unpack(form, page.read(struct.calcsize(form)))[0]
def state(): return words('=I', 20)
def beat(): return words('=Q', 64)
def held(): return state() == 1 and not words('=I', words('=I', 72)) & 0x40000000
def beats():
    before, deadline = beat(), time.monotonic() + 20
    while beat() == before and time.monotonic() < deadline: time.sleep(0.005)
    return beat() != before
";

#[test]
fn rank_exit_releases_the_lifeline_with_unchanged_exit_status() {
    let ends: [(&str, Option<i32>, Option<i32>); 9] = [
        ("pass", Some(0), None),
        ("sys.exit(3)", Some(3), None),
        ("os._exit(3)", Some(3), None),
        ("raise ValueError('boom')", Some(1), None),
        (
            "import threading; threading.Thread(target=os._exit, args=(3,), daemon=True).start(); time.sleep(60)",
            Some(3),
            None,
        ),
        ("os.kill(os.getpid(), 9)", None, Some(9)),
        ("os.kill(os.getpid(), 15); time.sleep(60)", None, Some(15)),
        ("os.abort()", None, Some(6)),
        ("os.execvp('sh', ['sh', '-c', 'exit 5'])", Some(5), None),
    ];
    for (end, code, signal) in ends {
        let rank = Rank::new(&[]);
        let out = rank.run(&format!("{LOOK}\nassert held() and beats()\n{end}"));
        assert_eq!((out.status.code(), out.status.signal()), (code, signal), "{end}: {}", text(&out.stderr));
        assert_eq!(rank.lifeline(), Lifeline::Released, "{end}");
    }
}

/// One C call that never returns, with the interpreter's lock held: no Python code runs any more.
const HOLDS_THE_INTERPRETER: &str = "
import ctypes, os
pause = ctypes.PyDLL(None).pause
os.write(1, b'holds')
pause()";

/// Returns true if enough heartbeats arrive within a time limit from a rank that holds its interpreter's lock in one
/// call.
fn beats_while_held(library: &str, within: Duration) -> bool {
    let rank = Rank::new(&[]);
    let mut command = rank.command(&[system(), "-c", HOLDS_THE_INTERPRETER]);
    let mut child = command.env("TASKD_LIB", library).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
    let (mut beats, mut last) = (0, rank.u64(BEAT_TIME));
    let deadline = Instant::now() + within;
    while beats < 40 && Instant::now() < deadline {
        let beat = rank.u64(BEAT_TIME);
        beats += u32::from(std::mem::replace(&mut last, beat) != beat);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    beats >= 40
}

#[test]
fn the_heartbeat_goes_on_while_one_c_call_holds_the_interpreter() {
    let library = taskd_core::worker::library::unpack().unwrap();
    assert!(beats_while_held(library.to_str().unwrap(), Duration::from_secs(60)));
    assert!(!beats_while_held("", Duration::from_secs(2)), "without the library Python beats, which has to wait");
}

#[test]
fn foreign_taskd_module_is_reported_once_and_not_imported() {
    let rank = Rank::new(&[]);
    let (no_package, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let own = rank.helper().join("taskd");
    fs::create_dir(no_package.path().join("taskd")).unwrap();
    fs::write(other.path().join("taskd.py"), "raise ImportError('of another package')").unwrap();
    let installed = tempfile::tempdir().unwrap(); // this very package: the launcher's is in effect in its place
    fs::create_dir(installed.path().join("taskd")).unwrap();
    for file in ["__init__.py", "_framework.py", "_session.py"] {
        fs::write(installed.path().join("taskd").join(file), "raise ImportError('of an installation')").unwrap();
    }
    let path = [rank.helper(), no_package.path().into(), installed.path().into(), other.path().into()];
    let path = std::env::join_paths(path).unwrap();
    let stderr_of = |local_rank: &str| {
        let program = "import taskd; print(taskd.__path__[0])";
        let mut command = rank.command(&[system(), "-c", program]);
        let out = command.env("PYTHONPATH", &path).env("TASKD_LOCAL_RANK", local_rank).output().unwrap();
        assert_eq!(text(&out.stdout).trim(), own.to_str().unwrap(), "{}", text(&out.stderr));
        text(&out.stderr)
    };
    let logged = stderr_of("0");
    let reported = format!("taskd: {} is not what this program imports", other.path().join("taskd.py").display());
    assert!(
        logged.starts_with(&reported) && logged.contains(own.to_str().unwrap()) && logged.lines().count() == 1,
        "{logged}"
    );
    assert_eq!(stderr_of("1"), "", "one rank of each host is enough");
}

#[test]
fn a_wrapper_that_execs_is_the_rank_and_its_helpers_are_not() {
    let rank = Rank::new(&[]);
    let program = rank.file("program.py", &format!("{LOOK}\nassert held() and beats()\nsys.exit(4)"));
    let helper = rank.file("helper.py", &format!("{LOOK}\nassert state() == 0 and beat() == 0"));
    let wrapper = format!("set -e; $PYTHON {helper}; $PYTHON {helper} | cat; exec $PYTHON {program}");
    let out = rank.command(&["bash", "-c", &wrapper]).output().unwrap();
    assert_eq!(out.status.code(), Some(4), "{}", text(&out.stderr));
    assert_eq!(rank.lifeline(), Lifeline::Released);
    assert_eq!(text(&out.stderr), "", "helpers say nothing");
}

#[test]
fn after_an_exec_of_itself_the_rank_still_beats_but_has_no_lifeline() {
    let rank = Rank::new(&[]);
    let program = format!(
        "{LOOK}
if 'SECOND' not in os.environ:
    assert held()
    os.environ['SECOND'] = '1'
    os.execv(sys.executable, [sys.executable, __file__])
assert state() == 1 and not held() and beats()
raise ValueError('second image')"
    );
    let program = rank.file("program.py", &program);
    let out = rank.command(&[system(), &program]).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&fs::read(rank.error_file()).unwrap()).contains("second image"));
    assert_eq!(rank.lifeline(), Lifeline::Released, "released by the exec, not taken again");
}

#[test]
fn lifeline_without_robust_locks_is_unavailable() {
    let rank = Rank::new(&[]);
    let program = rank.file("program.py", &format!("{LOOK}\nassert state() == 3 and not held() and beats()"));
    let call = number_of_set_robust_list();
    let out = rank.command(&[system(), "-I", "-S", "-c", WITHOUT, call, system(), &program]).output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    assert_eq!(text(&out.stderr).matches("taskd: no lifeline: this system releases no lock").count(), 1);
}

/// Becomes the program of its arguments without the system call of its first one, as under an emulator that lacks it.
const WITHOUT: &str = r"
import ctypes, os, struct, sys
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, int(sys.argv[1])), (6, 0, 0, 0x50000 | 38), (6, 0, 0, 0x7fff0000)]
rules = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *rule) for rule in rules))
program = struct.pack('HP', 4, ctypes.addressof(rules))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[2], sys.argv[2:])
";

fn number_of_set_robust_list() -> &'static str {
    if cfg!(target_arch = "aarch64") { "99" } else { "273" }
}

#[test]
fn children_of_every_start_method_come_and_go() {
    let rank = Rank::new(&[]);
    let program = format!(
        "{LOOK}
import multiprocessing
def child(): pass
def dies(): os._exit(7)
if __name__ == '__main__':
    for method in ('fork', 'spawn', 'forkserver'):
        context = multiprocessing.get_context(method)
        for target, code in ((child, 0), (dies, 7)):
            process = context.Process(target=target)
            process.start()
            process.join()
            assert process.exitcode == code, (method, process.exitcode)
            assert held() and beats(), method
    if os.fork() == 0:
        raise SystemExit('a forked child ends in Python')
    os.wait()
    assert held() and beats()
    import subprocess
    subprocess.check_call([sys.executable, '-c', 'pass'])
    assert held() and beats()
    os._exit(0)"
    );
    let program = rank.file("program.py", &program);
    let out = rank.command(&[system(), &program]).output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    assert_eq!(rank.lifeline(), Lifeline::Released);
}

/// An engine whose steps its hooks report.
const FRAMEWORK: [PythonFile; 1] = [PythonFile {
    path: "_taskd_framework.py",
    text: "
MODULE = 'engine'
def start(steps, after_import):
    def after_step(optimizer):
        if steps.is_rank(): steps.completed_by(optimizer, lambda optimizer: getattr(optimizer, 'behind_it', 0))
    after_import('engine.optim', lambda module: module.hooks.append(after_step))
",
}];

pub(super) fn with_engine() -> Rank {
    let rank = Rank::new(&FRAMEWORK);
    rank.file("engine/__init__.py", "");
    rank.file(
        "engine/optim.py",
        "
hooks = []
class Optimizer: pass
one, other = Optimizer(), Optimizer()
def step(optimizer=one):
    for hook in hooks: hook(optimizer)
",
    );
    rank
}

#[test]
fn forked_child_of_a_dead_rank_sends_no_beats_steps_or_records() {
    let rank = with_engine();
    let program = format!(
        "{LOOK}
sys.path.insert(0, os.path.dirname(os.environ['PAGE']))
import engine.optim as optimizer
optimizer.step()
if os.fork():
    os.kill(os.getpid(), 9)
while held(): time.sleep(0.005)
last = beat()
optimizer.step()
time.sleep(0.2)
print('quiet' if beat() == last else 'beats', flush=True)
raise ValueError('of the child')"
    );
    let out = rank.run(&program); // ends when the child has closed the pipes
    assert_eq!(out.status.signal(), Some(9), "{}", text(&out.stderr));
    assert_eq!(text(&out.stdout), "quiet\n", "{}", text(&out.stderr));
    assert_eq!(rank.u64(STEP), 1);
    assert!(text(&out.stderr).contains("of the child"), "the child's exception is printed as ever");
    assert!(!rank.error_file().exists());
}

/// torch has such objects in its modules, which warn in every standby's log.
#[test]
fn looking_for_functions_asks_no_other_object_of_a_module_for_anything() {
    let rank = Rank::new(&[]);
    let program = "
import sys, types
asked = []
class Deprecated:
    def __getattribute__(self, name):
        asked.append(name)
        return object.__getattribute__(self, name)
module = sys.modules['odd'] = types.ModuleType('odd')
module.thing, module.function = Deprecated(), types.FunctionType
import _taskd_standby_reset
found = _taskd_standby_reset.Seated().places
assert (vars(module), 'function') in found[id(types.FunctionType)]
assert asked == [], asked";
    let out = rank.run(program);
    assert!(out.status.success(), "{}", text(&out.stderr));
}

#[test]
fn steps_follow_the_optimizer_that_steps_most() {
    let rank = with_engine();
    let program = format!(
        "{LOOK}
sys.path.insert(0, os.path.dirname(os.environ['PAGE']))
def steps(): return words('=Q', 48)
from engine import optim as optimizer
assert steps() == 0 and words('=Q', 56) == 0
for n in range(1, 6):
    optimizer.step(optimizer.one)
    optimizer.step(optimizer.other)
    assert steps() == n, 'two optimizers, one training step'
fresh = [optimizer.Optimizer() for _ in range(5000)]
for optimizer_ in fresh: optimizer.step(optimizer_)
for optimizer_ in fresh: optimizer.step(optimizer_)
assert 6 <= steps() <= 8, steps()
assert 0 < words('=Q', 56) <= time.monotonic() * 1e9
resumed = optimizer.Optimizer()
resumed.behind_it = 41
optimizer.step(resumed)
assert steps() == 41, 'it goes on from what it remembers'
assert not any(type(finder).__name__ == 'AfterImport' for finder in sys.meta_path)
assert 'exec_module' not in vars(optimizer.__loader__)"
    );
    let out = rank.run(&program);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(rank.u64(STEP_TIME) > 0);
}

#[test]
fn imports_and_their_errors_are_what_they_were() {
    let rank = Rank::new(&FRAMEWORK);
    rank.file("engine/__init__.py", "");
    rank.file(
        "engine/optim.py",
        "import os\nif os.environ.pop('BROKEN', 0): raise RuntimeError('half way')\nhooks = []",
    );
    let program = "
import os, sys
assert 'engine' not in sys.modules
try: import engine.optim
except ImportError as error: print(type(error).__name__, error.name, error)
sys.path.insert(0, os.path.dirname(os.environ['PAGE']))
os.environ['BROKEN'] = '1'
try: import engine.optim
except RuntimeError as error: print(error)
import engine.optim
print(engine.optim.__spec__.origin == engine.optim.__file__)";
    let with = rank.run(program);
    let without = rank.command(&[system(), "-c", program]).env("TASKD_HOOKS", "0").output().unwrap();
    assert_eq!(text(&with.stdout), text(&without.stdout));
    assert_eq!(text(&with.stdout).lines().last(), Some("True"), "{}", text(&with.stderr));
    assert_eq!(text(&with.stderr), "");
}

#[test]
fn an_uncaught_exception_is_recorded_and_printed() {
    let rank = Rank::new(&[]);
    let out = rank.run("def train(): raise ValueError('boom')\ntrain()");
    assert!(text(&out.stderr).ends_with("ValueError: boom\n"), "{}", text(&out.stderr));
    let record: Value = serde_json::from_slice(&fs::read(rank.error_file()).unwrap()).unwrap();
    let message = &record["message"];
    assert_eq!(message["message"], "ValueError: boom");
    let extra = &message["extraInfo"];
    assert!(extra["py_callstack"].as_str().unwrap().contains("in train"));
    assert!(extra["timestamp"].as_str().unwrap().parse::<u64>().unwrap() > 1_700_000_000);
    assert_eq!(extra["taskd_step"], "0");
    let names: Vec<_> = fs::read_dir(rank.dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "the page and the record, nothing half written: {names:?}");

    // An aborted step that no code has caught is reported as well, though it is no `Exception`.
    let rank = Rank::new(&[]);
    rank.run("import taskd; raise taskd.StepAborted('step 3 is given up')");
    let record: Value = serde_json::from_slice(&fs::read(rank.error_file()).unwrap()).unwrap();
    assert_eq!(record["message"]["message"], "StepAborted: step 3 is given up");
}

#[test]
fn no_record_of_what_is_no_error_and_none_over_another() {
    for end in ["raise SystemExit(3)", "raise KeyboardInterrupt", "import os; os._exit(1)"] {
        let rank = Rank::new(&[]);
        rank.run(end);
        assert!(!rank.error_file().exists(), "{end}");
    }
    let rank = Rank::new(&[]);
    rank.file("error.json", "by the framework");
    rank.run("raise ValueError('later')");
    assert_eq!(fs::read_to_string(rank.error_file()).unwrap(), "by the framework");

    // A record that cannot be written harms nothing.
    let rank = Rank::new(&[]);
    let mut command = rank.command(&[system(), "-c", "raise ValueError('boom')"]);
    let out = command.env("TASKD_ERROR_FILE", "/nonexistent/error.json").output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).ends_with("ValueError: boom\n") && text(&out.stderr).starts_with("Traceback"));
}

#[test]
fn a_shadowed_sitecustomize_runs_as_if_it_were_first() {
    let shadowed = |body: &str, hooks: &str| {
        let rank = Rank::new(&[]);
        rank.file("site/sitecustomize.py", body);
        let path = format!("{}:{}", rank.helper().display(), rank.dir().join("site").display());
        let program = "import os, sys, sitecustomize; print(sitecustomize.NAME, sys.path[1:3] == os.environ['PYTHONPATH'].split(':'))";
        let mut command = rank.command(&[system(), "-c", program]);
        let out = command.env("PYTHONPATH", path).env("TASKD_HOOKS", hooks).output().unwrap();
        (text(&out.stdout), text(&out.stderr), rank.lifeline())
    };
    assert_eq!(shadowed("NAME = 'theirs'", "1"), ("theirs True\n".into(), String::new(), Lifeline::Released));
    assert_eq!(shadowed("NAME = 'theirs'", "0"), ("theirs True\n".into(), String::new(), Lifeline::Untaken));

    let (_, stderr, lifeline) = shadowed("raise OSError('of theirs')", "1");
    assert!(stderr.contains("Error in sitecustomize") && stderr.contains("of theirs"), "{stderr}");
    assert_eq!(lifeline, Lifeline::Released, "ours was done before");
}

#[test]
fn a_page_that_is_none_is_left_alone_in_silence() {
    type Spoil = fn(&mut Vec<u8>);
    let spoil: [(&str, Spoil); 5] = [
        ("magic", |page| page[0] = b'X'),
        ("version", |page| page[8] = 2),
        ("start time", |page| page[24] ^= 1),
        ("short", |page| page.truncate(30)),
        ("empty", Vec::clear),
    ];
    for (what, spoil) in spoil {
        let rank = Rank::new(&[]);
        // The page is spoilt after the process was named in it, and before that becomes the program.
        let mut command = rank.command(&["sh", "-c", "echo named; read go; exec $PYTHON -c pass"]);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut line = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        let mut page = fs::read(rank.page()).unwrap();
        spoil(&mut page);
        fs::write(rank.page(), &page).unwrap();
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{what}");
        assert_eq!(text(&out.stderr), "", "{what}");
        assert_eq!(fs::read(rank.page()).unwrap(), page, "{what}: untouched");
    }
    let rank = Rank::new(&[]);
    let out = rank.command(&["sh", "-c", "TASKD_LIFELINE=/nonexistent exec $PYTHON -c pass"]).output().unwrap();
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()));
}

#[test]
fn sitecustomize_at_interpreter_start_imports_no_heavy_modules() {
    // -S: without this machine's other start-up files, which may import anything.
    let modules = "import sys, sitecustomize; print(' '.join(sorted(sys.modules)))";
    let rank = Rank::new(&[]);
    let out = rank.command(&[system(), "-S", "-c", modules]).output().unwrap();
    let as_rank = text(&out.stdout);
    assert_eq!(rank.lifeline(), Lifeline::Released, "{}", text(&out.stderr));
    for heavy in ["json", "traceback", "threading", "signal", "enum", "re"] {
        assert!(!as_rank.split_whitespace().any(|module| module == heavy), "{heavy}: {as_rank}");
    }
    let helper = rank.command(&["sh", "-c", &format!("$PYTHON -S -c \"{modules}\" | cat")]).output().unwrap();
    let as_helper = text(&helper.stdout);
    assert!(as_helper.contains("_taskd_rank") && !as_helper.contains("ctypes"), "{as_helper}");
}

#[test]
fn error_record_of_an_uncaught_exception_is_marked_uncaught() {
    let record = |program: &str| -> Value {
        let rank = Rank::new(&[]);
        rank.run(program);
        serde_json::from_slice(&fs::read(rank.error_file()).unwrap()).unwrap()
    };
    let reported = |record: &Value| {
        let message = &record["message"];
        (message["message"].as_str().unwrap().to_owned(), message["extraInfo"]["taskd_uncaught"].as_str() == Some("1"))
    };
    let printed = "import sys
def work(): raise KeyError('caught')
try: work()
except KeyError: sys.excepthook(*sys.exc_info())
";
    let uncaught = "raise ValueError('uncaught')";
    let thread = "import sys, threading
threading.excepthook = lambda args: sys.excepthook(args.exc_type, args.exc_value, args.exc_traceback)
def work(): raise KeyError('of a thread')
thread = threading.Thread(target=work)
thread.start()
thread.join()
";
    let library = "import ctypes, threading
def called(): ctypes.pythonapi.PyRun_SimpleString(b'import nothing_of_that_name')
called()
thread = threading.Thread(target=called)
thread.start()
thread.join()
";
    let chained = "import sys
inner = sys.excepthook
sys.excepthook = lambda *what: inner(*what)
raise ValueError('through a hook of the program')";
    let framework = "import json, os
json.dump({'message': {'message': 'the framework was first'}, 'of': 'it'}, open(os.environ['TASKD_ERROR_FILE'], 'w'))
raise ValueError('uncaught')";
    let cases = [
        (printed.to_owned(), "KeyError: 'caught'", false),
        (uncaught.to_owned(), "ValueError: uncaught", true),
        (format!("{printed}{uncaught}"), "ValueError: uncaught", true),
        (thread.to_owned(), "KeyError: 'of a thread'", false),
        (library.to_owned(), "ModuleNotFoundError: No module named 'nothing_of_that_name'", false),
        (format!("{library}{uncaught}"), "ValueError: uncaught", true),
        (chained.to_owned(), "ValueError: through a hook of the program", true),
        (framework.to_owned(), "the framework was first", true),
    ];
    for (program, message, is_uncaught) in cases {
        let record = record(&program);
        assert_eq!(reported(&record), (message.to_owned(), is_uncaught), "{program}: {record}");
        assert_eq!(record.get("of").is_some(), message.starts_with("the framework"), "what it has besides stays");
    }
}

#[test]
fn a_framework_that_fails_costs_progress_and_nothing_else() {
    let broken = PythonFile { path: "_taskd_framework.py", text: "raise OSError('of the framework')" };
    let rank = Rank::new(&[broken]);
    let out = rank.run(&format!("{LOOK}\nassert held() and beats()\nraise ValueError('boom')"));
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).starts_with("taskd: no progress: of the framework\n"), "{}", text(&out.stderr));
    assert!(rank.error_file().exists());
}
