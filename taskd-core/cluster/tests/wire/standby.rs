//! Candidates that are not the manager refer agents to it, and keep agents waiting while there is none.

use crate::cluster::{Cluster, PATIENCE, standby};
use crate::settings;
use std::sync::Arc;
use taskd_cluster::consensus::{Candidate, Consensus};
use taskd_cluster::{Agent, Manager};
use taskd_runtime::job::NodeId;
use taskd_testing::testing::doubles::FakeLauncher;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_refers_agents_to_the_manager_and_takes_them_when_elected() {
    let cluster = Cluster::new(settings()).await;
    let first = cluster.manager(0).await;

    // A second candidate, which waits for the first one's end.
    let (service, address, mut tasks) = standby(&cluster).await;
    let candidate = Candidate::new(NodeId("standby".into()), "1", address.clone());
    let (consensus, times): (Arc<dyn Consensus>, _) = (Arc::new(cluster.consensus.clone()), cluster.settings);
    let standing = tokio::spawn(async move { Manager::campaign("job", &candidate, consensus, &service, times).await });

    // An agent that knows only the standby is referred to the manager.
    let agent = Agent::builder("job", NodeId("host".into()), FakeLauncher::new(), &cluster.security).manager(address);
    let agent = agent.settings(cluster.settings).build().expect("complete");
    tasks.spawn(async move {
        agent.run(CancellationToken::new()).await.expect("it is admitted");
    });
    assert_eq!(first.wait_for_hosts(1, Instant::now() + PATIENCE).await, 1, "the standby names the manager");

    first.resign().await.expect("it is in memory");
    let second = timeout(PATIENCE, standing).await.expect("it is elected").expect("no panic").expect("no error");
    assert_eq!(second.wait_for_hosts(1, Instant::now() + PATIENCE).await, 1, "the agent finds its new manager");
}
