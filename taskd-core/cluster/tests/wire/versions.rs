//! Agents of other versions of the protocol: one version older works, without relays; others get one clear error.

use crate::cluster::{Cluster, PATIENCE, agent_with};
use crate::relay::{host, names, start_everywhere, stop_everywhere};
use crate::settings;
use taskd_cluster::AgentError;
use taskd_cluster::PROTOCOL_VERSION;
use taskd_testing::testing::doubles::FakeLauncher;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

#[tokio::test(flavor = "multi_thread")]
async fn agents_one_version_older_work_beside_others_in_a_broadcast() {
    let cluster = Cluster::new(settings().with_relay_fanout(2).with_relay_within(PATIENCE)).await;
    let mut hosts = Vec::new();
    for (number, name) in names(12).iter().enumerate() {
        let older = |agent: taskd_cluster::AgentBuilder| match number % 2 {
            0 => agent.protocol_version_max(PROTOCOL_VERSION - 1),
            _ => agent,
        };
        hosts.push(host(&cluster, name, None, older).await);
    }
    let manager = cluster.manager(hosts.len()).await;
    start_everywhere(&manager, &hosts).await;
    stop_everywhere(&manager, &hosts).await;
    let counts = manager.relay_counts();
    assert!(counts.relayed <= 12, "the six older agents are called directly, twice: {counts:?}");
    assert_eq!((counts.unreached, counts.late), (0, 0), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_too_old_gets_one_error_that_names_both_versions() {
    let cluster = Cluster::new(settings()).await;
    let _healthy = host(&cluster, "healthy", None, |agent| agent).await;
    let manager = cluster.manager(1).await;
    let old = agent_with(&cluster, "old", FakeLauncher::new(), None, |agent| agent.protocol_version_max(0));
    let refused = timeout(PATIENCE, old.agent.run(CancellationToken::new())).await.expect("it ends");
    let Err(AgentError::Refused(why)) = refused else { panic!("{refused:?}") };
    println!("{why}");
    assert!(why.contains("versions") && why.contains(&format!("to {PROTOCOL_VERSION}")), "{why}");
    assert_eq!(manager.hosts().len(), 1, "the job is unharmed");
}
