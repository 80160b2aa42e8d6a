//! A manager that no majority confirms: it reports nothing from which a decision could follow, and agents look for another.

use crate::cluster::{Cluster, PATIENCE, agent, agent_with};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use taskd_cluster::ClusterSettings;
use taskd_runtime::job::{ProcId, World};
use taskd_runtime::launch::{Change, Launcher, Place, StartBatch, StartOrder};
use taskd_testing::testing::doubles::{FakeLauncher, FakeProgram};
use tokio::time::timeout;

/// A lease that a busy machine does not end.
fn settings() -> ClusterSettings {
    ClusterSettings::default().with_silent_after(Duration::from_secs(20)).with_lease(Duration::from_secs(60))
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_wait_until_a_majority_confirms_the_manager() {
    let cluster = Cluster::new(settings()).await;
    let fake = FakeLauncher::new();
    let _host = agent(&cluster, "host", fake.attach(), None);
    let manager = cluster.manager(1).await;
    let (launcher, proc) = (manager.launcher(), ProcId::rank(0, 1));
    let starts = vec![StartOrder::new(proc.clone(), Place::anywhere(), Arc::new(FakeProgram::Runs.spec()))];
    let batch = StartBatch::new(Arc::new(World::first(BTreeMap::new())), starts);
    launcher.start(&batch).await.expect("the host is there");

    let revision = launcher.list().await.expect("confirmed").revision;
    cluster.consensus.set_paused(true);
    fake.kill(&proc);
    let early = timeout(Duration::from_secs(1), launcher.watch(revision)).await;
    assert!(early.is_err(), "a change was reported without a majority: {early:?}");
    cluster.consensus.set_paused(false);
    let ended = async {
        let mut at = revision;
        loop {
            let (changes, next) = launcher.watch(at).await.expect("confirmed");
            let is_end = |change: &Change| matches!(change, Change::Proc(s) if s.proc == proc && s.phase.is_exited());
            if changes.iter().any(is_end) {
                return;
            }
            at = next;
        }
    };
    timeout(PATIENCE, ended).await.expect("the change is reported with a majority");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_leaves_a_manager_that_no_majority_confirms() {
    let settings = ClusterSettings::default().with_lease(Duration::from_secs(2));
    let (first, second) = (Cluster::new(settings).await, Cluster::new(settings).await);
    drop(second.manager(0).await); // the next epoch is greater than that of the first manager
    let also = second.address.to_string();
    let _host = agent_with(&first, "host", FakeLauncher::new(), None, |agent| agent.manager(also));
    let _deposed = first.manager(1).await;

    first.consensus.set_paused(true);
    let _successor = second.manager(1).await; // returns when the agent has found it
}
