//! The launcher of Python processes, for a framework of the test's own that has ranks and a service.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use taskd_core::job::{
    ErrorReport, Exit, Incarnation, InheritEnv, Member, Name, ProcId, Rank, Role, WorkerSpec, World,
};
use taskd_core::launch::python::{
    Failure, Framework, LaunchContext, PythonFile, PythonLauncher, WorkerRanks, report_of,
};
use taskd_core::launch::{
    Change, GuardProgram, Launcher, LocalLauncher, Phase, Place, Revision, StartBatch, StartOrder, WorkerEvent,
    WorkerMessage,
};
use taskd_core::testing::conformance;
use taskd_core::testing::doubles::FakeLauncher;
use taskd_core::testing::python::system;

const STORE: Name = Name::new("the store");
const OTHER: Name = Name::new("other");

/// Everything that is waited for comes in far less, or the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A framework whose ranks meet at a store, which is a Python process as well.
#[derive(Debug)]
pub(crate) struct Met;

impl Framework for Met {
    fn name(&self) -> &'static str {
        "met"
    }

    fn files(&self) -> &[PythonFile] {
        &[PythonFile { path: "met_own.py", text: "who = 'met'\n" }]
    }

    fn rank_env(&self, seat: &WorkerRanks, order: &LaunchContext<'_>) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("MET_RANK".into(), seat.rank.to_string()),
            ("MET_AT".into(), format!("{}:{}", order.host(), order.port)),
        ])
    }

    fn manages_service(&self, service: &Name) -> bool {
        *service == STORE
    }

    fn service_env(&self, order: &LaunchContext<'_>) -> BTreeMap<String, String> {
        BTreeMap::from([("MET_LISTENS_AT".into(), order.port.to_string())])
    }

    fn report(&self, failure: &Failure<'_>) -> Option<ErrorReport> {
        let exception = failure.exception()?;
        Some(report_of(&exception).with_follow_up(exception.contains("peer")))
    }
}

fn service(name: Name) -> ProcId {
    ProcId { role: Role::Service(name), incarnation: Incarnation(1) }
}

fn order(proc: ProcId, spec: WorkerSpec) -> StartOrder {
    StartOrder::new(proc, Place::anywhere(), Arc::new(spec))
}

fn batch(orders: Vec<StartOrder>) -> StartBatch {
    let member = Member { incarnation: Incarnation(1), node: None, device: None };
    StartBatch::new(Arc::new(World::first([(Rank(0), member)].into())), orders)
}

async fn local(dir: &Path) -> PythonLauncher<LocalLauncher, Met> {
    let local = LocalLauncher::builder(dir.join("run")).guard(GuardProgram::None).build().await.unwrap();
    PythonLauncher::with_framework(local, dir.join("met"), Met)
}

/// Waits until these have exited; every phase that was reported of them, and the exits.
async fn exits(launcher: &impl Launcher, procs: &[ProcId]) -> (Vec<(ProcId, Phase)>, BTreeMap<ProcId, Exit>) {
    let (mut reported, mut exits) = (Vec::new(), BTreeMap::new());
    let mut from = Revision { seq: 0, ..launcher.list().await.unwrap().revision };
    let all = async {
        while !procs.iter().all(|proc| exits.contains_key(proc)) {
            let (changes, next) = launcher.watch(from).await.unwrap();
            from = next;
            for change in changes {
                let Change::Proc(status) = change else { continue };
                if let Phase::Exited(exit) = &status.phase {
                    exits.insert(status.proc.clone(), (**exit).clone());
                }
                reported.push((status.proc, status.phase));
            }
        }
    };
    tokio::time::timeout(PATIENCE, all).await.expect("all exits are reported");
    (reported, exits)
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn the_python_launcher_satisfies_the_launcher_contract() {
    for below in [FakeLauncher::new(), FakeLauncher::new().with_lifeline()] {
        let dir = tempfile::tempdir().unwrap();
        let make = async |_owner| PythonLauncher::with_framework(below.attach(), dir.path(), Met);
        let report = conformance::launcher(make, below.programs()).assert().await;
        assert!(report.skipped().is_empty(), "{report}");
    }
}

#[tokio::test]
async fn ranks_and_owned_services_are_completed_and_others_pass_through() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = local(dir.path()).await;
    let print = "import json, os, sys; json.dump([dict(os.environ), sys.argv], open(sys.argv[1], 'w'))";
    let spec = |out: &str| {
        let out = dir.path().join(out);
        WorkerSpec::new([system(), "-c", print, out.to_str().unwrap(), "${local_rank}"])
            .with_inherit(InheritEnv::Nothing)
            .with_env("PYTHONPATH", "/own")
    };
    let procs = [ProcId::rank(0, 1), service(STORE), service(OTHER)];
    let orders = procs.iter().cloned().zip(["rank", "store", "other"].map(spec));
    launcher.start(&batch(orders.map(|(proc, spec)| order(proc, spec)).collect())).await.unwrap();
    let (_, exits) = exits(&launcher, &procs).await;
    assert!(exits.values().all(|exit| exit.how.is_success()), "{exits:?}");

    let seen = |out: &str| -> (BTreeMap<String, String>, Vec<String>) {
        serde_json::from_slice(&std::fs::read(dir.path().join(out)).unwrap()).unwrap()
    };
    let met = dir.path().join("met");
    let helped = format!("{}:/own", met.join("python").display());
    let ((rank, argv), (store, store_argv), (other, _)) = (seen("rank"), seen("store"), seen("other"));
    assert_eq!((&*argv[2], &*store_argv[2]), ("0", "${local_rank}"));
    assert_eq!((&*rank["MET_RANK"], &rank["PYTHONPATH"], &store["PYTHONPATH"]), ("0", &helped, &helped));
    assert_eq!(rank["MET_AT"], format!("127.0.0.1:{}", store["MET_LISTENS_AT"]));
    assert_eq!(rank["TASKD_ERROR_FILE"], met.join("errors/rank-0.1.json").display().to_string());
    assert_eq!(store["TASKD_ERROR_FILE"], met.join("errors/service-the%20store.1.json").display().to_string());
    assert_eq!((&*other["PYTHONPATH"], other.get("TASKD_ERROR_FILE")), ("/own", None));
    assert!(met.join("python/met_own.py").exists());
    assert_eq!(launcher.info().name.as_str(), "met over local");
}

#[tokio::test]
async fn a_failed_process_is_explained_if_the_framework_owns_it() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = local(dir.path()).await;
    let python = |program: &str| WorkerSpec::new([system(), "-c", program]);
    let procs = [ProcId::rank(0, 1), service(STORE), service(OTHER)];
    // Without the helper's hook there is only stderr.
    let printed = "import sys; sys.excepthook = sys.__excepthook__; raise OSError('no room')";
    let programs = ["raise KeyError('a peer')", printed, "raise OSError('not ours')"].map(python);
    let orders = procs.iter().cloned().zip(programs).map(|(proc, spec)| order(proc, spec));
    launcher.start(&batch(orders.collect())).await.unwrap();
    let (_, exits) = exits(&launcher, &procs).await;
    let reported = |proc: &ProcId| exits[proc].error.as_deref().map(|error| (error.text.clone(), error.follow_up));
    assert_eq!(reported(&procs[0]), Some(("KeyError: 'a peer'".into(), true)));
    assert_eq!(reported(&procs[1]), Some(("OSError: no room".into(), false)));
    assert_eq!(reported(&procs[2]), None);
}

/// Programs that fail, and then block indefinitely at exit.
const HANGS_AT_EXIT: [&str; 3] = [
    "import atexit, threading; atexit.register(threading.Event().wait); raise KeyError('image_00031.jpg')",
    "import threading; threading.Thread(target=threading.Event().wait).start(); raise KeyError('image_00031.jpg')",
    // As a framework that records its own failures does it.
    "import atexit, json, os, threading
atexit.register(threading.Event().wait)
json.dump({'message': {'message': 'KeyError: image_00031.jpg', 'extraInfo': {}}}, open(os.environ['TASKD_ERROR_FILE'], 'w'))
raise KeyError('image_00031.jpg')",
];

#[tokio::test]
async fn an_error_record_is_reported_while_a_process_hangs_at_exit() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = local(dir.path()).await;
    // The last one prints its exception, and continues.
    let caught = "import sys, time
try: raise KeyError('which is caught')
except KeyError: sys.excepthook(*sys.exc_info())
time.sleep(600)";
    let programs: Vec<&str> = HANGS_AT_EXIT.into_iter().chain([caught]).collect();
    let procs: Vec<ProcId> = (0..).zip(&programs).map(|(rank, _)| ProcId::rank(rank, 1)).collect();
    let orders = procs.iter().zip(programs);
    let orders = orders.map(|(proc, program)| order(proc.clone(), WorkerSpec::new([system(), "-c", program])));
    let member = Member { incarnation: Incarnation(1), node: None, device: None };
    let members = procs.iter().filter_map(|proc| Some((proc.role.rank()?, member.clone())));
    let world = Arc::new(World::first(members.collect()));
    launcher.start(&StartBatch::new(world, orders.collect())).await.unwrap();
    // Every watcher is notified, however many there are.
    let watch = async || {
        let mut outputs = BTreeMap::new();
        let mut from = launcher.list().await.unwrap().revision;
        while outputs.len() < HANGS_AT_EXIT.len() {
            let (changes, next) = launcher.watch(from).await.unwrap();
            from = next;
            for change in changes {
                match change {
                    Change::Worker(WorkerEvent { proc, message: WorkerMessage::ErrorRecorded(error), .. }) => {
                        outputs.insert(proc, error.code.to_string());
                    }
                    Change::Proc(status) => assert!(!status.phase.is_over(), "{status:?}"),
                    _ => {}
                }
            }
        }
        outputs
    };
    let both = async { tokio::join!(watch(), watch()) };
    let both = tokio::time::timeout(PATIENCE, both).await.expect("all records are reported");
    let expected = procs[..HANGS_AT_EXIT.len()].iter().map(|proc| (proc.clone(), "KeyError".to_owned()));
    let expected: BTreeMap<_, _> = expected.collect();
    assert_eq!(both, (expected.clone(), expected));
    launcher.stop(&procs, Duration::ZERO).await.unwrap();
    let (_, exits) = exits(&launcher, &procs).await;
    let reported: Vec<bool> = procs.iter().map(|proc| exits[proc].error.is_some()).collect();
    assert_eq!(reported, [true, true, true, false], "what a process has had printed is not why a signal ended it");
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn the_death_of_an_owned_service_is_withheld_until_its_exit() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeLauncher::new().with_lifeline();
    let launcher = PythonLauncher::with_framework(fake.attach(), dir.path(), Met);
    let procs = [service(STORE), service(OTHER)];
    let orders = procs.iter().map(|proc| order(proc.clone(), WorkerSpec::new(["fake", "runs"])));
    launcher.start(&batch(orders.collect())).await.unwrap();
    for proc in &procs {
        fake.finish(proc, 1);
    }
    let (reported, _) = exits(&launcher, &procs).await;
    let dead: Vec<&ProcId> =
        reported.iter().filter(|reported| matches!(reported.1, Phase::Dead(_))).map(|reported| &reported.0).collect();
    assert_eq!(dead, [&procs[1]]);
}
