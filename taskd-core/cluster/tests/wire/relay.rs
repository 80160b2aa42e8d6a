//! Calls to many agents go through relays, reach each agent once, and do not depend on any relay.

use crate::cluster::{Cluster, PATIENCE, RunningAgent, agent_with};
use crate::settings;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use taskd_cluster::security::IncomingLimits;
use taskd_cluster::{AgentBuilder, ClusterSettings, Forwarder, Manager};
use taskd_runtime::job::{JobSpec, NodeId, ProcId};
use taskd_runtime::launch::{LaunchError, Launcher, Place, StartBatch, StartOrder};
use taskd_testing::testing::doubles::{FakeLauncher, FakeProgram};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::service::InterceptorLayer;

/// The start orders that a host's launcher got, each with the number of its world's members.
type Started = Arc<Mutex<Vec<(ProcId, usize)>>>;

/// A launcher that records its start orders: the fake one would not start a process twice.
struct Recorded {
    fake: FakeLauncher,
    started: Started,
}

#[async_trait::async_trait]
impl Launcher for Recorded {
    taskd_runtime::delegate!(Launcher to |this| this.fake, except start);

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        let members = batch.world.members().len();
        let procs = batch.starts.iter().map(|order| (order.proc.clone(), members));
        self.started.lock().expect("no panic").extend(procs);
        self.fake.start(batch).await
    }
}

/// A host with an agent that other agents can reach.
pub(crate) struct Host {
    pub(crate) name: NodeId,
    pub(crate) fake: FakeLauncher,
    /// Address at which its agent serves other agents.
    pub(crate) peer: SocketAddr,
    started: Started,
    _agent: RunningAgent,
    _server: JoinSet<()>,
}

/// Starts the agent of a host. `peer` replaces the address at which other agents reach it.
pub(crate) async fn host(
    cluster: &Cluster,
    name: &str,
    peer: Option<SocketAddr>,
    more: impl FnOnce(AgentBuilder) -> AgentBuilder,
) -> Host {
    let forwarder = Forwarder::new("job", &cluster.security);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let incoming = cluster.security.incoming(listener, IncomingLimits::default()).expect("loopback");
    let layer = InterceptorLayer::new(cluster.security.require_token());
    let router = tonic::transport::Server::builder().layer(layer).add_service(forwarder.peer_service().into_server());
    let mut server = JoinSet::new();
    server.spawn(async move { router.serve_with_incoming(incoming).await.expect("it serves") });
    let (fake, started) = (FakeLauncher::with_nodes([name.to_owned()], 4), Started::default());
    let launcher = Recorded { fake: fake.attach(), started: Arc::clone(&started) };
    let peer = peer.unwrap_or(address).to_string();
    let agent = agent_with(cluster, name, launcher, None, |agent| more(agent.forwarder(forwarder, peer)));
    Host { name: NodeId(name.to_owned().into()), fake, peer: address, started, _agent: agent, _server: server }
}

pub(crate) fn names(number: usize) -> Vec<String> {
    (0..number).map(|host| format!("host-{host:02}")).collect()
}

/// Starts one rank on each host, and checks that each host has got its start order once.
pub(crate) async fn start_everywhere(manager: &Manager, hosts: &[Host]) {
    let ranks = u32::try_from(hosts.len()).expect("few");
    let spec = JobSpec::new("job", ranks, FakeProgram::Runs.spec()).with_nodes(hosts.iter().map(|h| h.name.clone()));
    let program = Arc::new(FakeProgram::Runs.spec());
    let proc = |rank: usize| ProcId::rank(u32::try_from(rank).expect("few"), 1);
    let order =
        |(rank, host): (usize, &Host)| StartOrder::new(proc(rank), Place::On(host.name.clone()), Arc::clone(&program));
    let starts = hosts.iter().enumerate().map(order).collect();
    let batch = StartBatch::new(Arc::new(spec.first_world()), starts);
    manager.launcher().start(&batch).await.expect("all hosts are there");
    for (rank, host) in hosts.iter().enumerate() {
        assert!(host.fake.runs(&proc(rank)), "rank {rank} runs on {}", host.name);
        assert_eq!(*host.started.lock().expect("no panic"), [(proc(rank), hosts.len())], "once, and no other");
    }
}

/// Stops all ranks, and checks that they end.
pub(crate) async fn stop_everywhere(manager: &Manager, hosts: &[Host]) {
    let procs: Vec<ProcId> = (0..hosts.len()).map(|rank| ProcId::rank(u32::try_from(rank).expect("few"), 1)).collect();
    manager.launcher().stop(&procs, Duration::ZERO).await.expect("all hosts are there");
    for (proc, host) in procs.iter().zip(hosts) {
        assert!(!host.fake.runs(proc), "{proc} was stopped");
    }
}

fn relaying(fanout: u32, within: Duration) -> ClusterSettings {
    settings().with_relay_fanout(fanout).with_relay_within(within)
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_to_many_agents_reach_each_once_through_relays() {
    let cluster = Cluster::new(relaying(2, PATIENCE)).await;
    let mut hosts = Vec::new();
    for name in names(13) {
        hosts.push(host(&cluster, &name, None, |agent| agent).await);
    }
    let manager = cluster.manager(hosts.len()).await;
    start_everywhere(&manager, &hosts).await;
    stop_everywhere(&manager, &hosts).await;
    let counts = manager.relay_counts();
    assert!(counts.relayed >= 13, "{counts:?}: most calls of a broadcast leave at once");
    assert_eq!((counts.unreached, counts.late), (0, 0), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_to_few_agents_use_no_relays() {
    let cluster = Cluster::new(relaying(32, PATIENCE)).await;
    let hosts = [host(&cluster, "host-00", None, |agent| agent).await, host(&cluster, "host-01", None, |a| a).await];
    let manager = cluster.manager(hosts.len()).await;
    start_everywhere(&manager, &hosts).await;
    assert_eq!(manager.relay_counts(), taskd_cluster::RelayCounts::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_behind_a_lost_relay_are_called_directly_and_once() {
    let cluster = Cluster::new(relaying(2, PATIENCE)).await;
    // The manager connects to the address of a new host once: it is lost after that.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let gone = listener.local_addr().expect("bound");
    let mut hosts = Vec::new();
    for (number, name) in names(13).iter().enumerate() {
        hosts.push(host(&cluster, name, (number % 3 == 1).then_some(gone), |agent| agent).await);
    }
    let manager = cluster.manager(hosts.len()).await;
    drop(listener);
    start_everywhere(&manager, &hosts).await;
    stop_everywhere(&manager, &hosts).await;
    let counts = manager.relay_counts();
    assert!(counts.unreached > 0, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_behind_a_silent_relay_are_called_directly_and_once() {
    let within = Duration::from_millis(300);
    let cluster = Cluster::new(relaying(2, within)).await;
    // Accepts connections, and answers nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = silent.local_addr().expect("bound");
    let mut accepting = JoinSet::new();
    accepting.spawn(async move {
        let mut open = JoinSet::new();
        while let Ok((mut connection, _)) = silent.accept().await {
            open.spawn(async move { while connection.read_u8().await.is_ok() {} });
        }
    });
    let mut hosts = Vec::new();
    for (number, name) in names(13).iter().enumerate() {
        hosts.push(host(&cluster, name, (number % 3 == 1).then_some(address), |agent| agent).await);
    }
    let manager = cluster.manager(hosts.len()).await;
    let begin = Instant::now();
    start_everywhere(&manager, &hosts).await;
    assert!(begin.elapsed() >= within, "the relays were given their time");
    stop_everywhere(&manager, &hosts).await;
    assert!(manager.relay_counts().late > 0, "{:?}", manager.relay_counts());
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_to_one_agent_begin_in_order_although_one_was_relayed() {
    let cluster = Cluster::new(relaying(2, PATIENCE)).await;
    let mut hosts = Vec::new();
    for name in names(7) {
        hosts.push(host(&cluster, &name, None, |agent| agent).await);
    }
    let manager = cluster.manager(hosts.len()).await;
    let launcher = manager.launcher();
    let program = Arc::new(FakeProgram::Runs.spec());
    for round in 1..=20 {
        let proc = |rank: usize| ProcId::rank(u32::try_from(rank).expect("few"), round);
        let order = |(rank, host): (usize, &Host)| {
            StartOrder::new(proc(rank), Place::On(host.name.clone()), Arc::clone(&program))
        };
        let starts = hosts.iter().enumerate().map(order).collect();
        let world = Arc::new(taskd_runtime::job::World::first(BTreeMap::new()));
        let batch = StartBatch::new(world, starts);
        let procs: Vec<ProcId> = (0..hosts.len()).map(proc).collect();
        launcher.start(&batch).await.expect("all hosts are there");
        launcher.stop(&procs, Duration::ZERO).await.expect("all hosts are there");
        assert!(hosts.iter().zip(&procs).all(|(host, proc)| !host.fake.runs(proc)), "no stop overtakes its start");
    }
}
