//! A seated interpreter with torch beside one that was started for its rank: what of a process could distinguish them.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use taskd_core::launch::python::Standbys;

use crate::job::Job;

/// What is reported where there is nothing but Python, and what is reported of torch.
const LOOK: &str =
    concat!("import numpy, torch, torch.distributed\n", include_str!("../../../taskd-core/tests/standbys/look.py"));

/// What a first step leaves behind, and a number of threads that is set after the import, in an interpreter that is no
/// standby.
const WARM: &str = "
import atexit, compileall, ctypes, gc, json, os, socket, sys, time, numpy, torch, torch.distributed
counts = lambda: dict(atexit=atexit._ncallbacks(), path=len(sys.path))
threads = lambda: len(os.listdir('/proc/self/task'))
import _taskd_standby_framework
before = counts()
assert _taskd_standby_framework.warm() is None
more = {name: count - before[name] for name, count in counts().items()}
one = threads()
torch.set_num_threads(2)
print(json.dumps(dict(more, threads=threads() - one, modules=list(sys.modules))))";

/// Modules of the waiting itself.
const OURS: [&str; 3] = ["_taskd_standby", "_taskd_standby_reset", "_socket"];

fn names(of: &Value) -> BTreeSet<&str> {
    of["modules"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
}

/// What differs, and must: a first step is behind a standby. What that imports, what of it wants to be called at the
/// exit, and the directory that `torch.distributed.nn` makes when DDP is used first. And torch makes the threads of its
/// second pool (XNNPACK's) when it receives the number, where one that has read the variable makes them at their first
/// use.
pub(crate) async fn a_seated_interpreter_with_torch_is_as_one_that_was_started(job: Job) {
    let mut launched = job.launch(Standbys::template().after(Duration::ZERO).ahead(1)).await;
    launched.program = "look.py";
    launched.threads = vec![("PYTHONHASHSEED", "5"), ("OMP_NUM_THREADS", "2")];
    std::fs::write(job.path("look.py"), LOOK).unwrap();
    let mut reports = Vec::new();
    for incarnation in 1..=3 {
        launched.start(&job, incarnation, 1, 1).await;
        reports.push(job.report(0, incarnation).await);
        launched.standbys(1).await;
        launched.stop_all().await;
    }
    assert_eq!(launched.counters().await.standbys_seated, 2);
    launched.end().await;
    for generator in ["random", "numpy", "torch"] {
        let drawn: BTreeSet<String> = reports.iter().map(|of| of["drawn"][generator].to_string()).collect();
        assert_eq!(drawn.len(), 3, "{generator} is new in each: {drawn:?}");
    }

    let mut warm = Command::new(job.python());
    warm.args(["-W", "ignore", "-c", WARM]).env("OMP_NUM_THREADS", "2");
    let warm = warm.env("PYTHONPATH", job.path("torch/python")).output().unwrap();
    assert!(warm.status.success(), "{}", String::from_utf8_lossy(&warm.stderr));
    let stdout = String::from_utf8(warm.stdout).unwrap();
    let warm: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap(); // gloo prints a line of its own
    let mut reports: Vec<Value> = reports.iter_mut().map(|of| without_link(of["seen"].take())).collect();
    let started = reports.remove(0);
    for mut seated in reports {
        let (more, less) = (names(&seated), names(&started));
        assert!(more.is_superset(&less), "missing: {:?}", less.difference(&more));
        let known: BTreeSet<&str> = names(&warm).into_iter().chain(OURS).collect();
        let strange: Vec<_> = more.difference(&less).filter(|name| !known.contains(*name)).collect();
        assert!(strange.is_empty(), "neither the first step nor the waiting need {strange:?}");
        for count in ["atexit", "threads"] {
            let expected = started[count].as_u64().unwrap() + warm[count].as_u64().unwrap();
            assert_eq!(seated[count], expected, "{count}: {} were there, and {} come", started[count], warm[count]);
            seated[count] = started[count].clone();
        }
        let (path, added) = (seated["path"].as_array_mut().unwrap(), warm["path"].as_u64().unwrap());
        path.truncate(path.len() - usize::try_from(added).unwrap());
        println!(
            "more: {} modules, {} exit calls, {} threads, {added} in the path",
            more_than(&seated, &started),
            warm["atexit"],
            warm["threads"]
        );
        seated["modules"] = started["modules"].clone();
        // The first step of torch 2.15 sets it, to what it would be.
        seated["env"].as_object_mut().unwrap().remove("TORCHINDUCTOR_CACHE_DIR");
        for (name, value) in started.as_object().unwrap() {
            assert_eq!(&seated[name], value, "{name}");
        }
    }
}

/// The control link is dialled beside the program, so its socket's number may be any, or none yet.
fn without_link(mut seen: Value) -> Value {
    let descriptors = seen["fds"].as_object_mut().unwrap();
    let all = descriptors.len();
    descriptors.retain(|_, target| target != "socket");
    assert!(all - descriptors.len() <= 1, "{all} descriptors, and but for sockets {descriptors:?}");
    seen
}

fn more_than(seated: &Value, started: &Value) -> usize {
    names(seated).len() - names(started).len()
}
