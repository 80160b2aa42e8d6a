//! The launcher of MindSpore's processes, over a launcher in memory and over real processes.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use taskd_core::job::{InheritEnv, JobSpec, ProcId, Role, Termination, WorkerSpec};
use taskd_core::kernel::Outcome;
use taskd_core::launch::{GuardProgram, Launcher, LocalLauncher, Phase, Place, StartBatch, StartOrder};
use taskd_core::runtime::Runtime;
use taskd_core::testing::conformance;
use taskd_core::testing::doubles::FakeLauncher;
use taskd_core::testing::python::system;
use taskd_core::{detect, recover};
use taskd_mindspore::{MindSpore, MindSporeLauncher, SCHEDULER, with_scheduler};

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn the_python_launcher_satisfies_the_launcher_contract() {
    for below in [FakeLauncher::new(), FakeLauncher::new().with_lifeline()] {
        let dir = tempfile::tempdir().unwrap();
        let make = async |_owner| MindSporeLauncher::new(below.attach(), dir.path());
        let report = conformance::launcher(make, below.programs()).assert().await;
        assert!(report.skipped().is_empty(), "{report}");
    }
}

/// Over real processes, without a guard of their own process: a test is no program that could be one.
async fn local(dir: &Path) -> MindSporeLauncher<LocalLauncher> {
    let local = LocalLauncher::builder(dir.join("run")).guard(GuardProgram::None).build().await.unwrap();
    let mindspore = MindSpore::default().log_dir(dir.join("logs"));
    MindSporeLauncher::with_framework(local, dir.join("mindspore"), mindspore)
}

/// The first start of a job: its services and ranks.
fn batch(spec: &JobSpec) -> StartBatch {
    let world = Arc::new(spec.first_world());
    let order = |proc, program: &Arc<WorkerSpec>| StartOrder::new(proc, Place::anywhere(), Arc::clone(program));
    let services = spec.services.iter().map(|(name, program)| order(ProcId::service(name.clone(), 1), program));
    let ranks = world.members().keys().map(|rank| order(ProcId::rank(rank.0, 1), &spec.worker));
    StartBatch::new(Arc::clone(&world), services.chain(ranks).collect())
}

#[tokio::test]
async fn scheduler_and_workers_share_a_port_and_log_to_msrun_paths() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = local(dir.path()).await;
    let print = "import json, os, sys; print(json.dumps(dict(os.environ))); sys.stderr.write('bye\\n')";
    let worker = WorkerSpec::new([system(), "-c", print])
        .with_inherit(InheritEnv::Nothing)
        .with_env("MS_TOPO_TIMEOUT", "the-users-own");
    let batch = batch(&with_scheduler(JobSpec::new("test", 2, worker)));
    let procs: Vec<ProcId> = batch.starts.iter().map(|order| order.proc.clone()).collect();
    assert_eq!(procs[0], ProcId::service(SCHEDULER, 1));
    launcher.start(&batch).await.unwrap();
    let over = |phase: &Phase| phase.is_exited();
    while !launcher.list().await.unwrap().procs.iter().all(|status| over(&status.phase)) {
        tokio::task::yield_now().await;
    }
    let seen = |name: &str| -> BTreeMap<String, String> {
        let path = dir.path().join("logs").join(name);
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let line = text.split_inclusive('\n').find(|line| line.starts_with('{') && line.ends_with("}\n"));
            if let Some(line) = line.filter(|_| text.contains("bye\n")) {
                return serde_json::from_str(line).unwrap();
            }
            assert!(Instant::now() < until, "{}: {text}", path.display());
            std::thread::yield_now(); // the log's writer may still be at it
        }
    };
    let (scheduler, first, second) = (seen("scheduler.log"), seen("worker_0.log"), seen("worker_1.log"));
    assert_eq!((&*scheduler["MS_ROLE"], &*first["MS_ROLE"]), ("MS_SCHED", "MS_WORKER"));
    assert_eq!((&*first["MS_NODE_ID"], &*second["MS_NODE_ID"], &*second["DEVICE_ID"]), ("0", "1", "1"));
    assert_eq!(scheduler["MS_SCHED_PORT"], second["MS_SCHED_PORT"]);
    assert_eq!(first["MS_TOPO_TIMEOUT"], "the-users-own");
    for env in [&scheduler, &first] {
        assert!(env.contains_key("TASKD_LIB") && env["PYTHONPATH"].ends_with("python"), "{env:?}");
    }
}

#[tokio::test]
async fn worker_that_ends_after_losing_the_scheduler_is_a_victim() {
    let dir = tempfile::tempdir().unwrap();
    // A stand-in for MindSpore: the scheduler is killed, and the workers end themselves as MindSpore's do.
    let program = "if [ $MS_ROLE = MS_SCHED ]; then sleep 0.2; kill -9 $$; fi
        while [ ! -e GONE ]; do sleep 0.01; done
        echo '[init.cc:137] operator()] Kill this process with SIGTERM.' >&2; kill $$"
        .replace("GONE", dir.path().join("gone").to_str().unwrap());
    let spec = with_scheduler(JobSpec::new("test", 2, WorkerSpec::new(["sh", "-c", &program])));
    let launcher = local(dir.path()).await;
    launcher.start(&batch(&spec)).await.unwrap();
    let exit_of = async |role: Role| loop {
        let listing = launcher.list().await.unwrap();
        if let Some(Phase::Exited(exit)) = listing.procs.iter().find(|p| p.proc.role == role).map(|p| &p.phase) {
            return exit.clone();
        }
        tokio::task::yield_now().await;
    };
    let scheduler = exit_of(Role::Service(SCHEDULER)).await;
    assert_eq!(scheduler.how, Termination::Signal { number: 9, core_dumped: false });
    assert_eq!(scheduler.error, None, "a killed process reports nothing");
    std::fs::write(dir.path().join("gone"), "").unwrap();
    let worker = exit_of(Role::Rank(taskd_core::job::Rank(1))).await;
    let error = worker.error.unwrap();
    assert!(error.follow_up && error.code == "PeersLost", "{error:?}");
}

#[tokio::test]
async fn a_job_whose_workers_finish_takes_its_scheduler_along() {
    let dir = tempfile::tempdir().unwrap();
    let program = "if [ $MS_ROLE = MS_SCHED ]; then exec sleep 1000; fi";
    let spec = with_scheduler(JobSpec::new("test", 2, WorkerSpec::new(["sh", "-c", program])));
    let launcher = Arc::new(local(dir.path()).await);
    let runtime = Runtime::builder().job(spec).launcher(Arc::clone(&launcher));
    let runtime = runtime.detectors(detect::defaults()).strategies(recover::defaults()).build().unwrap();
    let report = runtime.run().await;
    assert_eq!(report.outcome, Outcome::Completed, "{}", report.reason);
    assert!(launcher.list().await.unwrap().procs.iter().all(|status| status.phase.is_exited()));
}
