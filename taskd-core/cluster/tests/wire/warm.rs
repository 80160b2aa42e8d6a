//! Connections to standbys are open before their manager is lost, and are used then.

use crate::cluster::{Cluster, PATIENCE, standby};
use crate::settings;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use taskd_cluster::consensus::{Candidate, Consensus};
use taskd_cluster::security::SecurityContext;
use taskd_cluster::{Agent, Dial, Manager};
use taskd_runtime::job::NodeId;
use taskd_testing::testing::doubles::FakeLauncher;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// Number of connections that were opened, by address.
type Opened = Arc<watch::Sender<BTreeMap<String, u32>>>;

/// Counts the connections that it opens.
struct Counted {
    security: SecurityContext,
    opened: Opened,
}

#[async_trait::async_trait]
impl Dial for Counted {
    async fn dial(&self, address: &str, within: Duration) -> Result<Channel, String> {
        let channel = self.security.dial(address, within).await?;
        self.opened.send_modify(|opened| *opened.entry(address.to_owned()).or_default() += 1);
        Ok(channel)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_manager_is_reached_over_the_connection_that_was_open_before() {
    let cluster = Cluster::new(settings()).await;
    let first = cluster.manager(0).await;
    let (service, standby, mut tasks) = standby(&cluster).await;
    let opened = Opened::default();
    let dialer = Counted { security: cluster.security.clone(), opened: Arc::clone(&opened) };
    let agent = Agent::builder("job", NodeId("host".into()), FakeLauncher::new(), &cluster.security);
    let agent = agent.manager(cluster.address.to_string()).manager(standby.clone()).dialer(dialer);
    let agent = agent.settings(cluster.settings).build().expect("complete");
    tasks.spawn(async move { agent.run(CancellationToken::new()).await.expect("it is admitted") });
    assert_eq!(first.wait_for_hosts(1, Instant::now() + PATIENCE).await, 1);
    let mut seen = opened.subscribe();
    let is_open = timeout(PATIENCE, seen.wait_for(|opened| opened.contains_key(&standby))).await;
    assert!(is_open.is_ok_and(|open| open.is_ok()), "the standby is dialled while the manager serves: {opened:?}");

    let before = opened.borrow().get(&standby).copied();
    let candidate = Candidate::new(NodeId("standby".into()), "1", standby.clone());
    let (consensus, times): (Arc<dyn Consensus>, _) = (Arc::new(cluster.consensus.clone()), cluster.settings);
    let standing = tokio::spawn(async move { Manager::campaign("job", &candidate, consensus, &service, times).await });
    first.resign().await.expect("it is in memory");
    let second = timeout(PATIENCE, standing).await.expect("it is elected").expect("no panic").expect("no error");
    assert_eq!(second.wait_for_hosts(1, Instant::now() + PATIENCE).await, 1, "the agent finds its new manager");
    assert_eq!(opened.borrow().get(&standby), before.as_ref(), "no further connection: {opened:?}");
}
