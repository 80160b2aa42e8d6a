//! A host without a lease starts nothing, also if the manager reaches it.

use crate::cluster::{Cluster, PATIENCE, agent};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use taskd_cluster::ClusterSettings;
use taskd_runtime::job::{ProcId, World};
use taskd_runtime::launch::{LaunchError, Launcher, Place, StartBatch, StartOrder};
use taskd_testing::testing::doubles::{FakeLauncher, FakeProgram};
use tokio::time::{sleep, timeout};

/// Time between two attempts.
const POLL: Duration = Duration::from_millis(50);

async fn start(launcher: &dyn Launcher, incarnation: u32) -> Result<ProcId, LaunchError> {
    let proc = ProcId::rank(0, incarnation);
    let starts = vec![StartOrder::new(proc.clone(), Place::anywhere(), Arc::new(FakeProgram::Runs.spec()))];
    let batch = StartBatch::new(Arc::new(World::first(BTreeMap::new())), starts);
    launcher.start(&batch).await.map(|()| proc)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_lease_starts_nothing() {
    let ms = Duration::from_millis;
    let cluster = Cluster::new(ClusterSettings::default().with_silent_after(ms(1500)).with_lease(ms(4000))).await;
    let fake = FakeLauncher::new();
    let host = agent(&cluster, "host", fake.attach(), None);
    let manager = cluster.manager(1).await;
    let launcher = manager.launcher();
    let first = start(&launcher, 1).await.expect("the host has a lease");

    cluster.consensus.set_paused(true);
    let ended = async {
        while fake.runs(&first) {
            sleep(POLL).await;
        }
    };
    timeout(PATIENCE, ended).await.expect("the lease ends, because no majority confirms the manager");
    assert_eq!(host.agent.fenced(), 1);
    // The world is in force already, so the engine is not asked again.
    let refused = start(&launcher, 2).await.expect_err("the host has no lease");
    assert!(refused.to_string().contains("host has no lease"), "{refused}");
    assert!(!fake.runs(&ProcId::rank(0, 2)));

    cluster.consensus.set_paused(false);
    let started = async {
        for incarnation in 3.. {
            if let Ok(proc) = start(&launcher, incarnation).await {
                return proc;
            }
            sleep(POLL).await;
        }
        unreachable!("the loop has no end")
    };
    let again = timeout(PATIENCE, started).await.expect("the host has a lease again");
    assert!(fake.runs(&again));
}
