//! Real ranks that give no heartbeat of Python's, beside one that is stopped: only that one is blamed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use taskd_core::detect::{FaultClass, FaultDetectorExt, SilenceDetector};
use taskd_core::job::{Domain, JobSpec, Rank, Role, WorkerSpec};
use taskd_core::kernel::Event;
use taskd_core::launch::python::PythonLauncher;
use taskd_core::launch::{GuardProgram, LocalLauncher};
use taskd_core::recover;
use taskd_core::runtime::Runtime;
use taskd_core::testing::python::system;

use crate::launcher::{Met, PATIENCE};

const LIMIT: Duration = Duration::from_secs(1);
const BEAT_EVERY: Duration = Duration::from_millis(50);

/// Rank 0 sleeps in one C call, and rank 2 computes in one, without end and with the interpreter's lock held. Rank 1
/// trains for longer than the bound of silence, and is stopped then.
const RANKS: &str = "
import ctypes, os, re, signal, time
rank = os.environ['MET_RANK']
if rank == '0': ctypes.PyDLL(None).pause()
if rank == '1':
    time.sleep(4)
    os.kill(os.getpid(), signal.SIGSTOP)
re.match('(a+)+$', 'a' * 60 + 'b')
";

/// Runs the job to its first fault; returns the ranks that were reported to be busy by then.
async fn busy_until_the_first_fault(has_library: bool) -> BTreeSet<Rank> {
    let dir = tempfile::tempdir().unwrap();
    let local = LocalLauncher::builder(dir.path().join("run"))
        .guard(GuardProgram::None)
        .beat_every(BEAT_EVERY)
        .build()
        .await
        .unwrap();
    let local = Arc::new(local);
    let program = [system(), "-c", RANKS];
    let worker = match has_library {
        true => WorkerSpec::new(program),
        false => WorkerSpec::new(["env", "TASKD_LIB="].into_iter().chain(program)),
    };
    let runtime = Runtime::builder()
        .job(JobSpec::new("silent", 3, worker))
        .source(local.heartbeats(BEAT_EVERY))
        .detectors([SilenceDetector::after(LIMIT).boxed()])
        .strategies(recover::defaults())
        .launcher(PythonLauncher::with_framework(Arc::clone(&local), dir.path().join("met"), Met))
        .build()
        .unwrap();
    let handle = runtime.handle();
    let mut events = handle.events();
    let mut running = tokio::spawn(runtime.run());
    let mut busy = BTreeSet::new();
    let first = async {
        loop {
            match &events.recv().await.unwrap().event {
                Event::Noted { about: Domain::Process(Role::Rank(rank)), clue } => {
                    assert!(clue.text.contains("busy: no heartbeat for "), "{clue:?}");
                    busy.insert(*rank);
                }
                Event::Found { fault, .. } => return fault.clone(),
                _ => {}
            }
        }
    };
    let first = async {
        tokio::select! {
            fault = first => fault,
            report = &mut running => panic!("the job is over: {}", report.unwrap().reason),
        }
    };
    let fault = tokio::time::timeout(PATIENCE, first).await.expect("the stopped rank is found");
    let suspect = fault.primary_suspect();
    assert_eq!(
        (&suspect.domain, &suspect.class),
        (&Domain::Process(Role::Rank(Rank(1))), &FaultClass::Silence),
        "{fault:?}"
    );
    assert!(suspect.is_certain(), "{fault:?}");
    handle.stop_now("the test is over").await.unwrap();
    running.await.unwrap();
    local.shutdown(Duration::ZERO).await.unwrap();
    busy
}

#[tokio::test]
async fn a_rank_holding_its_interpreter_beats_and_a_stopped_rank_is_blamed() {
    assert!(busy_until_the_first_fault(true).await.is_empty(), "they beat beside Python");
}

#[tokio::test]
async fn a_rank_holding_its_interpreter_without_the_library_is_busy() {
    assert_eq!(busy_until_the_first_fault(false).await, BTreeSet::from([Rank(0), Rank(2)]));
}
