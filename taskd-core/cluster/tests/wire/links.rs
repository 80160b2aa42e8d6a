//! Agents check whether their hosts reach each other when the manager asks; one that cannot gives no information.

use crate::cluster::{Cluster, PATIENCE, Proxy, RunningAgent, agent_with};
use crate::settings;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use taskd_cluster::security::SecurityContext;
use taskd_cluster::{Dial, Forwarder, Manager};
use taskd_runtime::job::{Domain, Name, NodeId};
use taskd_runtime::trace::{LINKS, Probe, ProbeResult, SourceError, TraceSource, read_links};
use taskd_testing::testing::doubles::FakeLauncher;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tonic::transport::Channel;

fn node(host: &str) -> NodeId {
    NodeId(Name::from(host.to_owned()))
}

/// A network in which the packets from a host to these addresses are lost.
#[derive(Clone)]
struct Cut {
    security: SecurityContext,
    addresses: Vec<SocketAddr>,
}

#[async_trait::async_trait]
impl Dial for Cut {
    async fn dial(&self, address: &str, within: Duration) -> Result<Channel, String> {
        self.security.dial(address, within).await
    }

    async fn reach(&self, address: &str, within: Duration) -> Result<(), String> {
        if self.addresses.iter().any(|cut| cut.to_string() == address) {
            tokio::time::sleep(within).await;
            return Err(format!("{address} does not answer within {within:?}"));
        }
        self.security.reach(address, within).await
    }
}

/// Starts a host. Other hosts reach its agent at a listener; it cannot reach the listeners in `cut`.
fn host(
    cluster: &Cluster,
    name: &str,
    at: &TcpListener,
    cut: &[&TcpListener],
    through: Option<&Proxy>,
) -> RunningAgent {
    let address = |listener: &TcpListener| listener.local_addr().expect("bound");
    let network =
        Cut { security: cluster.security().clone(), addresses: cut.iter().map(|listener| address(listener)).collect() };
    let launcher = FakeLauncher::with_nodes([Name::from(name.to_owned())], 4);
    let forwarder = Forwarder::new("job", cluster.security());
    let address = address(at).to_string();
    agent_with(cluster, name, launcher, through, |agent| agent.dialer(network).forwarder(forwarder, address))
}

async fn listeners() -> [TcpListener; 3] {
    let bind = async || TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    [bind().await, bind().await, bind().await]
}

/// Asks all three hosts for their links.
async fn ask(manager: &Manager) -> BTreeMap<&'static str, Result<BTreeMap<NodeId, bool>, SourceError>> {
    let mut source = manager.source();
    let hosts = ["h1", "h2", "h3"];
    let about = hosts.iter().map(|host| Domain::Node(node(host))).collect();
    let probe = Probe::new("test", LINKS, about, Duration::from_secs(2));
    let mut replies = BTreeMap::new();
    for host in hosts {
        let reply = source.collect(&probe, &Domain::Node(node(host))).await;
        replies.insert(host, reply.map(|reply: ProbeResult| read_links(&reply)));
    }
    replies
}

fn links(links: [(&str, bool); 2]) -> Result<BTreeMap<NodeId, bool>, SourceError> {
    Ok(links.into_iter().map(|(host, reached)| (node(host), reached)).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ends_of_a_link_that_is_cut_report_it_and_other_links_are_reached() {
    let cluster = Cluster::new(settings()).await;
    let [one, two, three] = listeners().await;
    let _one = host(&cluster, "h1", &one, &[], None);
    let _two = host(&cluster, "h2", &two, &[&three], None);
    let _three = host(&cluster, "h3", &three, &[&two], None);
    let manager = cluster.manager(3).await;
    let (begun, replies) = (Instant::now(), ask(&manager).await);
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!(replies["h1"], links([("h2", true), ("h3", true)]));
    assert_eq!(replies["h2"], links([("h1", true), ("h3", false)]));
    assert_eq!(replies["h3"], links([("h1", true), ("h2", false)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_cut_off_or_unknown_gives_no_information_and_delays_no_other() {
    let cluster = Cluster::new(settings()).await;
    let [one, two, three] = listeners().await;
    let proxy = Proxy::new(cluster.address, |_| None).await;
    let _one = host(&cluster, "h1", &one, &[], None);
    let _two = host(&cluster, "h2", &two, &[], Some(&proxy));
    let manager = cluster.manager(2).await;
    proxy.set_open(false);
    drop(three);
    let replies = ask(&manager).await;
    assert_eq!(
        replies["h1"].as_ref().map(|links| links.get(&node("h2")).copied()),
        Ok(Some(true)),
        "its address is open"
    );
    for host in ["h2", "h3"] {
        let Err(SourceError::Unavailable(why)) = &replies[host] else { panic!("{host}: {:?}", replies[host]) };
        assert!(!why.is_empty());
    }
}
