//! A seated interpreter beside one that was started for its rank: what of a process could tell them apart.

use std::collections::BTreeSet;

use serde_json::Value;
use taskd_core::job::WorkerSpec;

use crate::job::{Job, template};

/// Everything that one process has and another might not.
const LOOK: &str = r"
import sys
modules = sorted(sys.modules)
import atexit, json, os, random, signal, threading, gc, resource
def limits(): return {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith('RLIMIT_')}
status = dict(line.rstrip('\n').split(':\t', 1) for line in open('/proc/self/status') if ':\t' in line)
fds = {}
for fd in os.listdir('/proc/self/fd'):
    try: fds[fd] = os.readlink('/proc/self/fd/' + fd).split(':')[0]
    except OSError: pass
stat = open('/proc/self/stat').read().rsplit(')', 1)[1].split()
seen = dict(
    env={name: value for name, value in os.environ.items() if name not in (
        'TASKD_PROC', 'TASKD_LIFELINE', 'TASKD_KEEP', 'TASKD_INCARNATION', 'TASKD_ERROR_FILE', 'TASKD_GENERATION', 'PORT')},
    modules=modules,
    masks={name: status[name] for name in ('SigBlk', 'SigIgn', 'SigCgt', 'NoNewPrivs', 'Umask', 'Seccomp')},
    handlers={str(number): str(signal.getsignal(number)).split(' at ')[0] for number in signal.valid_signals()},
    atexit=atexit._ncallbacks(), fds=fds, limits=limits(), cwd=os.getcwd(), flags=list(sys.flags), argv=sys.argv, path=sys.path,
    main=sorted(vars(sys.modules['__main__'])), loader=type(__loader__).__name__, nice=os.nice(0),
    policy=os.sched_getscheduler(0), cpus=sorted(os.sched_getaffinity(0)), hooks=[sys.excepthook.__module__, str(len(sys.meta_path))],
    group=[os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()], comm=open('/proc/self/comm').read(),
    cmdline=open('/proc/self/cmdline').read(), threads=len(os.listdir('/proc/self/task')), python_threads=threading.active_count(),
    main_thread=[threading.main_thread().native_id == os.getpid(), threading.current_thread() is threading.main_thread()],
    gc=[gc.isenabled(), gc.get_threshold()], hash=hash('taskd'), recursion=sys.getrecursionlimit(),
    streams=[[stream.fileno(), stream.seekable(), stream.isatty(), stream.encoding, stream.line_buffering]
        for stream in (sys.stdin, sys.stdout, sys.stderr)],
    tracing=[sys.gettrace() is None, sys.getprofile() is None], stdin=os.readlink('/proc/self/fd/0'),
    pdeathsig=__import__('ctypes').CDLL(None).prctl and pdeathsig() if 'pdeathsig' in globals() else None)
def pdeathsig():
    import ctypes
    found = ctypes.c_int()
    assert ctypes.CDLL(None).prctl(2, ctypes.byref(found), 0, 0, 0) == 0
    return found.value
seen['pdeathsig'] = pdeathsig()
out = dict(seen=seen, random=random.random(), pid=os.getpid())
with open(sys.argv[1] + '.new', 'w') as file: json.dump(out, file)
os.rename(sys.argv[1] + '.new', sys.argv[1])
";

/// What a new process and seated ones tell, in this order.
async fn looks(spec: impl Fn(WorkerSpec) -> WorkerSpec, seated: u32) -> Vec<Value> {
    let job = Job::new(template().ahead(1)).await;
    let mut told = Vec::new();
    for incarnation in 1..=seated + 1 {
        let mut program = job.program(LOOK);
        program.argv.push(format!("look-{incarnation}"));
        assert_eq!(job.run(incarnation, spec(program)).await, "exit code 0");
        told.push(job.told(&format!("look-{incarnation}")).await);
        job.standbys(1).await;
    }
    assert_eq!(job.counters().await.standbys_seated, u64::from(seated));
    job.end().await;
    told
}

#[tokio::test]
async fn a_seated_interpreter_is_as_one_that_was_started() {
    let mut told = looks(|spec| spec.with_env("PYTHONHASHSEED", "5").with_env("OMP_NUM_THREADS", "2"), 1).await;
    let (mut seated, mut started) = (told[1]["seen"].take(), told[0]["seen"].take());
    let modules = |of: &Value| -> BTreeSet<String> {
        of["modules"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
    };
    let (more, less) = (modules(&seated), modules(&started));
    assert!(more.is_superset(&less), "missing: {:?}", less.difference(&more));
    let ours = ["_taskd_standby", "_taskd_as_new", "_taskd_warm", "_socket", "gc", "time"];
    let mine = more.difference(&less).filter(|name| !ours.contains(&name.as_str())).cloned().collect::<Vec<_>>();
    let python = "import sys, time; import decimal, random, calendar, os; [print(name) for name in sys.modules]";
    let out = std::process::Command::new(taskd_core::testing::python::system()).args(["-c", python]).output().unwrap();
    let warmed = String::from_utf8(out.stdout).unwrap();
    let strange = mine.iter().filter(|name| !warmed.lines().any(|line| line == *name)).collect::<Vec<_>>();
    assert!(strange.is_empty(), "neither the imports nor the waiting need {strange:?}");
    for of in [&mut seated, &mut started] {
        of.as_object_mut().unwrap().remove("modules");
        of["argv"][1].take();
        of["cmdline"] = of["cmdline"].as_str().unwrap().replace("look-2", "look-1").into();
    }
    assert_eq!(seated["env"], started["env"]);
    for (name, value) in started.as_object().unwrap() {
        assert_eq!(&seated[name], value, "{name}");
    }
}

#[tokio::test]
async fn random_numbers_are_new_in_each_unless_an_import_has_seeded_them() {
    let told = looks(|spec| spec, 3).await;
    let drawn: BTreeSet<String> = told.iter().map(|told| told["random"].to_string()).collect();
    assert_eq!(drawn.len(), 4, "{drawn:?}");

    let job = Job::new(template().ahead(1).import("seeding")).await;
    std::fs::write(job.path("seeding.py"), "import random; random.seed(11)").unwrap();
    let program = "import seeding, random, sys; open(sys.argv[1], 'w').write(str(random.random()))";
    for incarnation in 1..=3 {
        let mut spec = job.program(program);
        spec.argv.push(format!("drawn-{incarnation}"));
        assert_eq!(job.run(incarnation, spec).await, "exit code 0");
        job.standbys(1).await;
    }
    assert_eq!(job.counters().await.standbys_seated, 2);
    let drawn = (1..=3).map(|n| std::fs::read_to_string(job.path(&format!("drawn-{n}"))).unwrap());
    assert_eq!(drawn.collect::<BTreeSet<_>>().len(), 1, "what the step of the template drew is put back");
    job.end().await;
}
