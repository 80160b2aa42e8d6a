//! The launcher of PyTorch ranks, over a launcher in memory and over real processes.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

#[path = "support/jobs.rs"]
mod jobs;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jobs::{batch, exits, local, restarted, world};
use taskd_core::job::{
    CommandId, Counted, Exit, Incarnation, InheritEnv, JobSpec, ProcId, Rank, Role, WorkerSpec, World,
};
use taskd_core::launch::{Directive, DirectiveBatch, LaunchError, Launcher, Phase, Place, StartOrder};
use taskd_core::runtime::Runtime;
use taskd_core::testing::conformance;
use taskd_core::testing::doubles::FakeLauncher;
use taskd_core::testing::python::system;
use taskd_core::trace::{Signal, TraceSource};
use taskd_core::{detect, recover};
use taskd_pytorch::store::StoreProgram;
use taskd_pytorch::{STORE, TorchLauncher, with_store};

fn python(program: &str) -> WorkerSpec {
    WorkerSpec::new([system(), "-c", program])
}

async fn exit(launcher: &impl Launcher, proc: &ProcId) -> Exit {
    exits(launcher, std::slice::from_ref(proc)).await.1.remove(proc).unwrap()
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn the_python_launcher_satisfies_the_launcher_contract() {
    for below in [FakeLauncher::new(), FakeLauncher::new().with_lifeline()] {
        let dir = tempfile::tempdir().unwrap();
        let make = async |_owner| TorchLauncher::new(below.attach(), dir.path());
        let report = conformance::launcher(make, below.programs()).assert().await;
        assert!(report.skipped().is_empty(), "{report}");
    }
}

#[tokio::test]
async fn a_rank_sees_torchruns_environment() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = local(dir.path()).await;
    let print = "import json, os, sys; json.dump([dict(os.environ), sys.argv], open(sys.argv[1], 'w'))";
    let out = dir.path().join("seen-${local_rank}");
    let spec = WorkerSpec::new([system(), "-c", print, out.to_str().unwrap()])
        .with_inherit(InheritEnv::Nothing)
        .with_env("MASTER_ADDR", "the-users-own")
        .with_env("PYTHONPATH", "/own");
    let world = world(2).successor(Counted::Yes, |_| ());
    let batch = batch(&world, |_| spec.clone());
    launcher.start(&batch).await.unwrap();
    let procs = [ProcId::rank(0, 1), ProcId::rank(1, 1)];
    let (_, exits) = exits(&launcher, &procs).await;
    assert!(exits.values().all(|exit| exit.how.is_success()), "{exits:?}");

    let seen = |rank: u32| -> (BTreeMap<String, String>, Vec<String>) {
        serde_json::from_slice(&std::fs::read(dir.path().join(format!("seen-{rank}"))).unwrap()).unwrap()
    };
    let ((rank_0, _), (env, argv)) = (seen(0), seen(1));
    assert!(argv[1].ends_with("seen-1"), "{argv:?}");
    let error = dir.path().join("torch/errors/rank-1.1.json");
    let expected = [
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("GROUP_RANK", "0"),
        ("GROUP_WORLD_SIZE", "1"),
        ("ROLE_RANK", "1"),
        ("ROLE_WORLD_SIZE", "2"),
        ("ROLE_NAME", "default"),
        ("MASTER_ADDR", "the-users-own"),
        ("MASTER_PORT", &rank_0["MASTER_PORT"]),
        ("TORCHELASTIC_RESTART_COUNT", "1"),
        ("TORCHELASTIC_MAX_RESTARTS", "10"),
        ("TORCHELASTIC_RUN_ID", "digits"),
        ("TORCHELASTIC_USE_AGENT_STORE", "False"),
        ("TORCHELASTIC_ERROR_FILE", error.to_str().unwrap()),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        ("OMP_NUM_THREADS", "1"),
        ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
        ("PYTHONPATH", &format!("{}:/own", dir.path().join("torch/python").display())),
    ];
    for (name, value) in expected {
        assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert_eq!(env["TASKD_DISABLED_DIRECTIVES"], "join", "no process serves the place where they would meet");
    let own = |name: &&String| !name.starts_with("TASKD_") && *name != "LC_CTYPE"; // Python sets the latter itself
    assert_eq!(env.keys().filter(own).count(), expected.len(), "nothing else: {:?}", env.keys());
}

#[tokio::test]
async fn failed_rank_exit_contains_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = local(dir.path()).await;
    let world = world(4);
    let programs = [
        "raise ValueError('recorded')",
        // Without the hook there is only stderr.
        "import sys; sys.excepthook = sys.__excepthook__; raise ConnectionResetError('printed')",
        "import sys; print('no exception here', file=sys.stderr); sys.exit(3)",
        "pass",
    ];
    launcher.start(&batch(&world, |Rank(rank)| python(programs[rank as usize]))).await.unwrap();
    let procs: Vec<ProcId> = (0..4).map(|rank| ProcId::rank(rank, 1)).collect();
    let (_, exits) = exits(&launcher, &procs).await;

    let error = |rank: u32| exits[&ProcId::rank(rank, 1)].error.as_deref();
    let recorded = error(0).unwrap();
    assert_eq!((recorded.code.as_str(), recorded.text.as_str()), ("ValueError", "ValueError: recorded"));
    assert!(!recorded.follow_up && !recorded.retry_free);
    let printed = error(1).unwrap();
    assert_eq!((printed.text.as_str(), printed.follow_up), ("ConnectionResetError: printed", true));
    assert_eq!((error(2), error(3)), (None, None));

    let listed = launcher.list().await.unwrap();
    let listed: BTreeMap<ProcId, Exit> = listed
        .procs
        .into_iter()
        .filter_map(|status| match status.phase {
            Phase::Exited(exit) => Some((status.proc, *exit)),
            _ => None,
        })
        .collect();
    assert_eq!(listed, exits, "a listing has the same");
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn rank_is_reported_dead_before_its_exit_only_if_killed() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeLauncher::new().with_lifeline();
    let launcher = TorchLauncher::new(fake.attach(), dir.path());
    launcher.start(&batch(&world(2), |_| WorkerSpec::new(["fake", "runs"]))).await.unwrap();
    let (killed, failed) = (ProcId::rank(0, 1), ProcId::rank(1, 1));
    fake.kill(&killed);
    fake.finish(&failed, 1);
    let (outcome, _) = exits(&launcher, &[killed.clone(), failed.clone()]).await;
    let dead: Vec<&ProcId> =
        outcome.iter().filter(|outcome| matches!(outcome.1, Phase::Dead(_))).map(|outcome| &outcome.0).collect();
    assert_eq!(dead, [&killed]);
}

#[tokio::test]
async fn unmodified_program_has_heartbeat_and_progress() {
    let dir = tempfile::tempdir().unwrap();
    let optimizer = dir.path().join("site/torch/optim/optimizer.py");
    std::fs::create_dir_all(optimizer.parent().unwrap()).unwrap();
    std::fs::write(&optimizer, "hooks = []\nregister_optimizer_step_post_hook = hooks.append").unwrap();
    let program = "
import time
from torch.optim import optimizer
for step in range(3): optimizer.hooks[0](optimizer, (), {})
time.sleep(600)";
    let launcher = local(dir.path()).await;
    let spec = python(program).with_env("PYTHONPATH", dir.path().join("site").to_str().unwrap());
    launcher.start(&batch(&world(1), |_| spec.clone())).await.unwrap();

    let mut source = launcher.inner().heartbeats(Duration::from_millis(20));
    let seen = async {
        let mut missing = vec![Signal::Heartbeat, Signal::Progress { step: 3 }];
        while !missing.is_empty() {
            let facts = source.next().await.unwrap().unwrap().facts;
            missing.retain(|signal| !facts.iter().any(|fact| fact.signal == *signal));
        }
    };
    tokio::time::timeout(Duration::from_secs(20), seen).await.expect("heartbeat and progress are seen");
    let proc = ProcId::rank(0, 1);
    launcher.stop(std::slice::from_ref(&proc), Duration::from_secs(10)).await.unwrap();
    assert_eq!(exit(&launcher, &proc).await.step, Some(3));
}

#[tokio::test]
async fn an_earlier_jobs_record_is_not_this_ones() {
    let dir = tempfile::tempdir().unwrap();
    let errors = dir.path().join("torch/errors");
    std::fs::create_dir_all(&errors).unwrap();
    std::fs::write(errors.join("rank-0.1.json"), r#"{"message": "of another job"}"#).unwrap();
    let launcher = local(dir.path()).await;
    launcher.start(&batch(&world(1), |_| python("import os; os._exit(1)"))).await.unwrap();
    assert_eq!(exit(&launcher, &ProcId::rank(0, 1)).await.error, None);
}

#[tokio::test]
async fn files_that_cannot_be_written_cost_only_what_is_in_them() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("torch"), "a file where the directory should be").unwrap();
    let launcher = local(dir.path()).await;
    let info = launcher.info();
    assert!(info.limitations.iter().any(|without| without.contains("torch/python cannot be written")), "{info:?}");
    let program = "import os; assert 'PYTHONPATH' not in os.environ; raise KeyError('printed only')";
    let spec = python(program).with_inherit(InheritEnv::Nothing);
    launcher.start(&batch(&world(1), |_| spec.clone())).await.unwrap();
    let error = exit(&launcher, &ProcId::rank(0, 1)).await.error.unwrap();
    assert_eq!(error.text, "KeyError: 'printed only'");
}

/// Starts a world and gives the port of its generation, as it stands in the launcher's directory.
async fn port_of(launcher: &TorchLauncher<FakeLauncher>, dir: &Path, world: &World) -> u16 {
    launcher.start(&batch(world, |_| WorkerSpec::new(["fake", "runs"]))).await.unwrap();
    let text = std::fs::read_to_string(dir.join("port")).unwrap();
    let (generation, port) = text.trim().split_once(' ').unwrap();
    assert_eq!(generation, world.generation().0.to_string());
    port.parse().unwrap()
}

#[tokio::test]
async fn generation_has_one_port_and_the_next_gets_another() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let fake = FakeLauncher::new();
    let launcher = TorchLauncher::new(fake.attach(), dir);
    let (first, second) = (world(2), restarted(&world(2)));
    let port = port_of(&launcher, dir, &first).await;
    assert_eq!(port_of(&launcher, dir, &first).await, port, "a start that is repeated");
    let other = port_of(&launcher, dir, &second).await;
    assert_ne!(other, port);

    drop(launcher);
    let next_owner = TorchLauncher::new(fake.attach(), dir);
    assert_eq!(port_of(&next_owner, dir, &second).await, other, "repeated by a new owner, while ranks run");

    // Nothing runs: what stands in the file is an earlier job's. It is taken, so that choosing again is seen.
    let _taken = std::net::TcpListener::bind(("0.0.0.0", other));
    let another_job = TorchLauncher::new(FakeLauncher::new(), dir);
    assert_ne!(port_of(&another_job, dir, &second).await, other);
}

/// The guard holds the store's socket: a process that connects there finds a listener, and waits.
#[tokio::test]
async fn join_at_a_store_that_dies_reports_that_the_store_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = local(dir.path()).await;
    let dies_when_called = "import os, select; select.select([int(os.environ['TASKD_LISTEN_FD'])], [], [])";
    let mut store = python(dies_when_called); // and takes no call
    store.listen = Some(dir.path().join("torch/meeting.sock"));
    let mut starts = batch(&world(1), |_| WorkerSpec::new(["sleep", "600"]));
    let (proc, spec) = (ProcId { role: Role::Service(STORE), incarnation: Incarnation(1) }, Arc::new(store));
    starts.starts.push(StartOrder::new(proc, Place::anywhere(), spec));
    launcher.inner().start(&starts).await.unwrap();
    let join = Directive::Join { rank: Rank(0), size: 1, members: Vec::new(), prefix: String::new(), store: None };
    let directives = vec![(ProcId::rank(0, 1), join)];
    let outcome = launcher
        .send_directives(CommandId(1), &DirectiveBatch::new(Arc::clone(&starts.world), directives))
        .await
        .unwrap_err();
    assert_eq!(outcome, LaunchError::Unreachable("service store has no rendezvous: it has ended".into()));
}

#[tokio::test]
async fn a_rank_outside_of_its_world_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = TorchLauncher::new(FakeLauncher::new(), dir.path());
    let mut batch = batch(&world(2), |_| WorkerSpec::new(["fake", "runs"]));
    batch.starts[1].proc = ProcId::rank(7, 1);
    let refused = launcher.start(&batch).await.unwrap_err();
    assert!(matches!(&refused, LaunchError::Refused(why) if why.contains("rank 7#1: it is no member")), "{refused}");
    assert!(launcher.list().await.unwrap().procs.is_empty());
}

#[tokio::test]
async fn a_rank_records_with_what_its_launcher_has_unpacked() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = local(dir.path()).await;
    let program =
        "import sys, taskd; sys.exit(0 if taskd.range_start('step 1') and taskd.native.open() == 1 else 'nothing')";
    let world = world(1);
    launcher.start(&batch(&world, |_| python(program))).await.unwrap();
    let exit = exit(&launcher, &ProcId::rank(0, 1)).await;
    assert!(exit.how.is_success(), "{exit:?}");
}

/// They are the reference's modules, which come later: nothing of ours may take their names before.
#[tokio::test]
async fn the_names_of_the_references_modules_are_free() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = local(dir.path()).await;
    let program = "
import sys, taskd
for name in ('taskd.api', 'taskd.python'):
    try: __import__(name)
    except ModuleNotFoundError as error: assert error.name == name, error
    else: sys.exit(name)
sys.exit(0 if taskd.__file__.startswith(sys.argv[1]) else taskd.__file__)";
    let ours = dir.path().join("torch/python/taskd");
    let spec = WorkerSpec::new([system(), "-c", program, ours.to_str().unwrap()]);
    launcher.start(&batch(&world(1), |_| spec.clone())).await.unwrap();
    let exit = exit(&launcher, &ProcId::rank(0, 1)).await;
    assert!(exit.how.is_success(), "{exit:?}");
}

/// This test program never calls `store::init`.
#[test]
fn a_job_whose_store_would_be_the_host_program_once_more_is_not_built() {
    let dir = tempfile::tempdir().unwrap();
    let build = |program: &StoreProgram| {
        let launcher = TorchLauncher::new(FakeLauncher::new(), dir.path());
        let job = with_store(JobSpec::new("job", 1, WorkerSpec::new(["train.py"])), program).unwrap();
        let builder = Runtime::builder().job(job).detectors(detect::defaults()).strategies(recover::defaults());
        builder.launcher(launcher).build().map(drop)
    };
    let error = build(&StoreProgram::ReexecSelf).unwrap_err().to_string();
    let sentence = "the runtime cannot be built: the service store is this program, started again, and its main does not call \
                    taskd_pytorch::store::init(): call that first in main";
    assert!(error.starts_with(sentence), "{error}");
    build(&StoreProgram::Path("/usr/bin/taskd-store".into())).unwrap();
}
