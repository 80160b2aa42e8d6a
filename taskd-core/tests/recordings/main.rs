//! Ranks that train, are killed and are stopped: what is reported of them, to the last record.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

use rustix::process::{Pid, Signal as Kill, kill_process};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use taskd_core::detect::ExitDetector;
use taskd_core::job::{Domain, Incarnation, JobSpec, Member, ProcId, Rank, Role, WorkerSpec, World};
use taskd_core::launch::*;
use taskd_core::recover::ExitStrategy;
use taskd_core::runtime::Runtime;
use taskd_core::trace::*;
use tokio::time::timeout;

/// Everything that is waited for comes in far less, or the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Takes steps as quickly as it can, each with a collective of which the last stays open: rank 0 kills itself in its
/// 2,000th step, rank 1 stops itself in its 1,000th.
const PROGRAM: &str = r#"
import ctypes, os, signal
T = ctypes.CDLL(os.environ["TASKD_LIB"])
u32, u64 = ctypes.c_uint32, ctypes.c_uint64
class What(ctypes.Structure):
    _fields_ = [(n, u32) for n in ("op", "data_type", "group", "peer")] + [(n, u64) for n in ("elements", "bytes", "sequence")]
T.taskd_begin_step.argtypes, T.taskd_begin_step.restype = [u64], u64
T.taskd_end.argtypes = [u64]
T.taskd_name.argtypes, T.taskd_name.restype = [ctypes.c_char_p, ctypes.c_size_t], u32
T.taskd_begin_communication.argtypes, T.taskd_begin_communication.restype = [u32, ctypes.c_void_p], u64
assert T.taskd_open() == 1
group, name = T.taskd_name(b"default|0-1", 11), T.taskd_name(b"allreduce", 9)
last = {"rank-0.1": 2000, "rank-1.1": 1000}[os.environ["TASKD_PROC"]]
for step in range(1, last + 1):
    begun = T.taskd_begin_step(step)
    what = What(1, 1, group, 0xffffffff, 8, 32, step - 1)
    reduce = T.taskd_begin_communication(name, ctypes.byref(what))
    if step == last:
        os.kill(os.getpid(), signal.SIGKILL if last == 2000 else signal.SIGSTOP)
    T.taskd_end(reduce)
    T.taskd_end(begun)
"#;

/// A launcher whose two ranks run the program.
async fn start(dir: &std::path::Path) -> LocalLauncher {
    let guard = GuardProgram::Path(env!("CARGO_BIN_EXE_taskd-guard").into());
    let launcher = LocalLauncher::builder(dir).guard(guard).build().await.unwrap();
    let spec = WorkerSpec::new(["python3", "-c", PROGRAM]).with_env("TASKD_TRACE_RECORDS", "16384");
    let member = || Member { incarnation: Incarnation(1), node: None, device: None };
    let world = Arc::new(World::first(BTreeMap::from([(Rank(0), member()), (Rank(1), member())])));
    let order = |rank| StartOrder::new(ProcId::rank(rank, 1), Place::anywhere(), Arc::new(spec.clone()));
    launcher.start(&StartBatch::new(world, vec![order(0), order(1)])).await.unwrap();
    launcher
}

/// What the ranks have printed, for the investigation of a failure.
fn printed(dir: &std::path::Path) -> String {
    let log = |rank| std::fs::read_to_string(dir.join(format!("procs/rank-{rank}.1/stderr.log"))).unwrap_or_default();
    [0, 1].map(log).concat()
}

fn about(rank: u32) -> Domain {
    Domain::Process(Role::Rank(Rank(rank)))
}

async fn last_call(source: &mut RecorderSource, rank: u32) -> Option<(u64, bool)> {
    let what = COLLECTIVES;
    let ask = Probe::new("test", what, vec![about(rank)], Duration::from_secs(1)).with_tag(1);
    let Ok(ProbeResult::Groups(groups)) = source.collect(&ask, &about(rank)).await else { return None };
    groups.first().and_then(|group| group.recent.last()).map(|call| (call.sequence, call.is_pending))
}

/// Records a thousand moments, and ends at once.
const BRIEF: &str = r#"
import ctypes, os, time
T = ctypes.CDLL(os.environ["TASKD_LIB"])
T.taskd_mark.argtypes = [ctypes.c_uint64]
time.sleep(0.5)
assert T.taskd_open() == 1
for _ in range(1000):
    T.taskd_mark(16)
"#;

#[tokio::test]
async fn last_records_reach_the_sinks_after_the_job_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let guard = GuardProgram::Path(env!("CARGO_BIN_EXE_taskd-guard").into());
    let launcher = Arc::new(LocalLauncher::builder(dir.path()).guard(guard).build().await.unwrap());
    let records: Arc<Mutex<usize>> = Arc::default();
    let count = Arc::clone(&records);
    let sink = move |batch: &Arc<RecordBatch>| *count.lock().unwrap() += batch.records.len();
    let runtime = Runtime::builder()
        .job(JobSpec::new("brief", 2, WorkerSpec::new(["python3", "-c", BRIEF])))
        .source(launcher.recordings().sink(sink))
        .detector(ExitDetector::new())
        .strategy(ExitStrategy::new())
        .launcher(Arc::clone(&launcher));
    let report = timeout(PATIENCE, runtime.build().unwrap().run()).await.unwrap();
    assert!(report.ok, "{}; {}", report.reason, printed(dir.path()));
    assert_eq!(*records.lock().unwrap(), 2000);
    launcher.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test]
async fn records_of_a_program_behind_a_script_have_its_own_pid() {
    let dir = tempfile::tempdir().unwrap();
    python::write_helper(&dir.path().join("python"), &[]).unwrap();
    let guard = GuardProgram::Path(env!("CARGO_BIN_EXE_taskd-guard").into());
    let launcher = Arc::new(LocalLauncher::builder(dir.path().join("run")).guard(guard).build().await.unwrap());
    let seen: Arc<Mutex<BTreeMap<u32, usize>>> = Arc::default();
    let count = Arc::clone(&seen);
    let sink = move |batch: &Arc<RecordBatch>| {
        *count.lock().unwrap().entry(batch.origin.pid).or_default() += batch.records.len()
    };
    let marks = "import os, taskd; [taskd.mark('x') for _ in range(1000)]; print(os.getpid())";
    let worker = WorkerSpec::new(["sh", "-c", &format!("python3 -c \"{marks}\"; exit $?")])
        .with_env("PYTHONPATH", dir.path().join("python").to_str().unwrap());
    let runtime = Runtime::builder()
        .job(JobSpec::new("wrapped", 1, worker))
        .source(launcher.recordings().sink(sink))
        .detector(ExitDetector::new())
        .strategy(ExitStrategy::new())
        .launcher(Arc::clone(&launcher));
    let report = timeout(PATIENCE, runtime.build().unwrap().run()).await.unwrap();
    launcher.shutdown(Duration::ZERO).await.unwrap();
    let pid = std::fs::read_to_string(dir.path().join("run/procs/rank-0.1/stdout.log")).unwrap();
    let pid: u32 = pid.trim().parse().unwrap_or_else(|_| panic!("{}", report.reason));
    assert_eq!(*seen.lock().unwrap(), BTreeMap::from([(pid, 1000)]), "{}", report.reason);
}

#[tokio::test]
async fn records_of_killed_and_stopped_ranks_are_all_delivered() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = start(dir.path()).await;
    let records: Arc<Mutex<BTreeMap<Rank, usize>>> = Arc::default();
    let count = Arc::clone(&records);
    let sink = move |batch: &Arc<RecordBatch>| {
        *count.lock().unwrap().entry(batch.origin.rank).or_default() += batch.records.len();
    };
    let mut source = launcher.recordings().every(Duration::from_millis(10)).sink(sink);
    let (mut steps, mut pending, mut lost) = ([Vec::new(), Vec::new()], Vec::new(), 0);
    while steps[0].len() < 1999 || steps[1].len() < 999 || pending.is_empty() {
        let Ok(reported) = timeout(PATIENCE, source.next()).await else {
            panic!("{} and {} steps, pending {pending:?}; {}", steps[0].len(), steps[1].len(), printed(dir.path()))
        };
        for fact in reported.unwrap().unwrap().facts {
            let Domain::Process(Role::Rank(rank)) = fact.about else { panic!("{fact:?}") };
            match fact.signal {
                Signal::Step(times) => {
                    assert!(
                        times.wait_ns <= times.wall_ns && times.communications == 1 && times.lost == 0,
                        "{times:?}"
                    );
                    steps[rank.0 as usize].push(times.step);
                }
                Signal::CollectivePending { sequence, .. } => pending.push((rank, sequence)),
                Signal::Lost { count } => lost += count,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(steps, [(1..=1999).collect::<Vec<_>>(), (1..=999).collect()]);
    assert_eq!((pending, lost), (vec![(Rank(1), 999)], 0), "the dead one waits for no rank");
    assert_eq!(last_call(&mut source, 0).await, Some((1999, true)));
    assert_eq!(last_call(&mut source, 1).await, Some((999, true)));
    assert_eq!(*records.lock().unwrap(), BTreeMap::from([(Rank(0), 7998), (Rank(1), 3998)]));

    // Goes on, and ends.
    let listing = launcher.list().await.unwrap();
    let stopped = listing.procs.iter().find(|status| status.proc == ProcId::rank(1, 1)).and_then(|status| status.pid);
    let pid = i32::try_from(stopped.unwrap()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, Kill::CONT).unwrap();
    let reported = timeout(PATIENCE, source.next()).await.unwrap().unwrap().unwrap();
    assert!(
        matches!(&reported.facts[..], [Fact { signal: Signal::Step(times), .. }] if times.step == 1000 && times.wait_ns > 0)
    );
    launcher.shutdown(Duration::ZERO).await.unwrap();
}
