//! What a host that comes back, or a new manager, finds: exits that were reported for the host, and completed ranks.

use crate::cluster::{Cluster, PATIENCE, Proxy, agent};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use taskd_cluster::ClusterSettings;
use taskd_runtime::job::{Incarnation, Member, NodeId, ProcId, Rank, Termination, World};
use taskd_runtime::launch::{Launcher, Place, StartBatch, StartOrder};
use taskd_testing::testing::doubles::{FakeLauncher, FakeProgram};
use tokio::time::{sleep, timeout};

/// Time between two looks.
const POLL: Duration = Duration::from_millis(10);

/// Starts rank 0 in a world in which it is the only one.
async fn start_one(launcher: &dyn Launcher) -> ProcId {
    let proc = ProcId::rank(0, 1);
    let member = Member { incarnation: Incarnation(1), node: Some(NodeId("host".into())), device: None };
    let world = World::first(BTreeMap::from([(Rank(0), member)]));
    let starts = vec![StartOrder::new(proc.clone(), Place::anywhere(), Arc::new(FakeProgram::Runs.spec()))];
    launcher.start(&StartBatch::new(Arc::new(world), starts)).await.expect("the host is there");
    proc
}

/// Waits until a launcher lists the exit of a process, and returns how it ended.
async fn exit(launcher: &dyn Launcher, proc: &ProcId) -> Termination {
    let listed = async {
        loop {
            let listing = launcher.list().await.expect("it lists");
            let status = listing.procs.into_iter().find(|status| status.proc == *proc);
            if let Some(how) = status.filter(|status| status.phase.is_exited()).and_then(|s| s.phase.termination()) {
                return how;
            }
            sleep(POLL).await;
        }
    };
    timeout(PATIENCE, listed).await.expect("the process ends")
}

/// Waits until a launcher lists no process.
async fn lists_none(launcher: &dyn Launcher) {
    let none = async {
        while !launcher.list().await.expect("it lists").procs.is_empty() {
            sleep(POLL).await;
        }
    };
    timeout(PATIENCE, none).await.expect("the exit is acknowledged");
}

#[tokio::test(flavor = "multi_thread")]
async fn exits_reported_for_a_lost_host_are_acknowledged_when_it_is_back() {
    let settings = ClusterSettings::default().with_silent_after(Duration::from_millis(1500));
    let cluster = Cluster::new(settings.with_lease(Duration::from_secs(4))).await;
    let fake = FakeLauncher::with_nodes(["host"], 1);
    let proxy = Proxy::new(cluster.address, |_| None).await;
    let _agent = agent(&cluster, "host", fake.attach(), Some(&proxy));
    let manager = cluster.manager(1).await;
    let launcher = manager.launcher();
    let proc = start_one(&launcher).await;

    proxy.set_open(false);
    assert_eq!(exit(&launcher, &proc).await, Termination::Unknown, "the host is lost");
    launcher.acknowledge(std::slice::from_ref(&proc)).await.expect("the manager keeps the exit");
    assert!(!fake.runs(&proc), "its host has stopped it");
    let host = fake.attach();
    let kept = host.list().await.expect("it lists").procs;
    assert!(kept.iter().any(|status| status.proc == proc), "the host keeps the exit: {kept:?}");

    proxy.set_open(true);
    lists_none(&host).await;
    assert!(launcher.list().await.expect("it lists").procs.is_empty(), "it is not reported again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_manager_knows_the_completed_ranks() {
    let cluster = Cluster::new(crate::settings()).await;
    let fake = FakeLauncher::new();
    let _agent = agent(&cluster, "host", fake.attach(), None);
    let first = cluster.manager(1).await;
    let proc = start_one(&first.launcher()).await;
    assert!(fake.finish(&proc, 0));
    assert_eq!(exit(&first.launcher(), &proc).await, Termination::Code(0));
    first.launcher().acknowledge(std::slice::from_ref(&proc)).await.expect("the engine answers");
    lists_none(&fake.attach()).await;
    drop(first);

    let second = cluster.manager(1).await;
    let left = second.resume().expect("the job has begun");
    assert_eq!(left.completed, BTreeSet::from([Rank(0)]));
    assert!(second.launcher().list().await.expect("it lists").procs.is_empty(), "no process is expected");
}
