//! A manager and agents of one job in this process, connected over loopback through proxies that can cut connections.

use crate::pausable::Pausable;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use taskd_cluster::consensus::{Candidate, Consensus, Epoch};
use taskd_cluster::security::{IncomingLimits, JobToken, Security, SecurityContext};
use taskd_cluster::{Agent, AgentBuilder, ClusterLauncher, ClusterSettings, Manager, ManagerService};
use taskd_runtime::job::NodeId;
use taskd_runtime::launch::Launcher;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::service::InterceptorLayer;

/// Time within which hosts register, on a machine that is busy with other tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A job with one process that can be manager, over and over again.
pub(crate) struct Cluster {
    pub(crate) service: ManagerService,
    pub(crate) consensus: Pausable,
    pub(crate) settings: ClusterSettings,
    pub(crate) address: SocketAddr,
    pub(crate) security: SecurityContext,
    last: Mutex<Option<Epoch>>,
    _server: JoinSet<()>,
}

impl Cluster {
    pub(crate) async fn new(settings: ClusterSettings) -> Cluster {
        Cluster::with_candidates(settings, None).await
    }

    /// As [`Cluster::new`]; with the candidate at another address, which confirms this manager.
    pub(crate) async fn with_candidates(settings: ClusterSettings, other: Option<SocketAddr>) -> Cluster {
        let (listener, address) = listen().await;
        let security = security().await;
        let service = ManagerService::new(&settings);
        let service = match other {
            Some(other) => service.with_candidates([address.to_string(), other.to_string()], &security),
            None => service,
        };
        let server = serve(&service, listener, &security);
        let (consensus, last) = (Pausable::default(), Mutex::new(None));
        Cluster { service, consensus, settings, address, security, last, _server: server }
    }

    /// Returns how the processes of the job prove that they belong to it.
    pub(crate) fn security(&self) -> &SecurityContext {
        &self.security
    }

    /// Makes a new manager, after the epoch of the last one was ended. Returns when `hosts` hosts are listed.
    pub(crate) async fn manager(&self, hosts: usize) -> Manager {
        let last = self.last.lock().expect("no panic").take();
        if let Some(epoch) = last {
            self.consensus.resign(epoch).await.expect("it is in memory");
        }
        let candidate = Candidate::new(NodeId("manager".into()), "1", self.address.to_string());
        let consensus: Arc<dyn Consensus> = Arc::new(self.consensus.clone());
        let manager = Manager::campaign("job", &candidate, consensus, &self.service, self.settings).await;
        let manager = manager.expect("no other candidate");
        *self.last.lock().expect("no panic") = Some(manager.epoch());
        assert_eq!(manager.wait_for_hosts(hosts, Instant::now() + PATIENCE).await, hosts, "the hosts register");
        manager
    }
}

/// Runs an agent until the result is dropped.
pub(crate) fn agent(
    cluster: &Cluster,
    host: &str,
    launcher: impl Launcher + 'static,
    through: Option<&Proxy>,
) -> RunningAgent {
    agent_with(cluster, host, launcher, through, |agent| agent)
}

/// Runs the agent of a host under this leaf switch until the result is dropped.
pub(crate) fn labelled(
    cluster: &Cluster,
    host: &str,
    launcher: impl Launcher + 'static,
    through: Option<&Proxy>,
    leaf: &str,
) -> RunningAgent {
    agent_with(cluster, host, launcher, through, |agent| agent.label("leaf", leaf))
}

/// Runs an agent with further settings until the result is dropped.
pub(crate) fn agent_with(
    cluster: &Cluster,
    host: &str,
    launcher: impl Launcher + 'static,
    through: Option<&Proxy>,
    more: impl FnOnce(AgentBuilder) -> AgentBuilder,
) -> RunningAgent {
    let address = through.map_or(cluster.address, |proxy| proxy.address);
    let agent =
        Agent::builder("job", NodeId(host.to_owned().into()), launcher, &cluster.security).manager(address.to_string());
    let agent = Arc::new(more(agent.settings(cluster.settings)).build().expect("complete"));
    let mut task = JoinSet::new();
    let runs = Arc::clone(&agent);
    task.spawn(async move {
        let ended = runs.run(CancellationToken::new()).await;
        ended.unwrap_or_else(|error| println!("the agent has ended: {error}"));
    });
    RunningAgent { agent, _task: task }
}

pub(crate) struct RunningAgent {
    pub(crate) agent: Arc<Agent>,
    _task: JoinSet<()>,
}

/// The processes of a job on loopback prove that they belong to it with a token.
pub(crate) async fn security() -> SecurityContext {
    let token = JobToken::new("0123456789abcdef0123456789abcdef").expect("long enough");
    Security::Token(token).open("host").await.expect("loopback")
}

/// A launcher together with the manager that it belongs to.
pub(crate) struct Owner {
    pub(crate) launcher: ClusterLauncher,
    _manager: Manager,
}

impl Owner {
    pub(crate) fn new(manager: Manager) -> Owner {
        Owner { launcher: manager.launcher(), _manager: manager }
    }
}

#[async_trait::async_trait]
impl Launcher for Owner {
    taskd_runtime::delegate!(Launcher to |this| this.launcher);
}

/// Forwards connections, and cuts them: on request, or each after a number of bytes.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    /// Number of connections that were cut.
    pub(crate) cuts: Arc<AtomicU64>,
    passes: Arc<watch::Sender<Passes>>,
    _tasks: JoinSet<()>,
}

/// What a proxy lets pass.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passes {
    All,
    /// Connections that are open stay open.
    NoNewConnection,
    /// As before, and what open connections carry waits.
    NoData,
    Nothing,
}

impl Proxy {
    /// `cut_after` returns the number of bytes after which the connection with that number is cut.
    pub(crate) async fn new(to: SocketAddr, cut_after: impl Fn(u64) -> Option<u64> + Send + 'static) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (cuts, passes) = (Arc::new(AtomicU64::new(0)), Arc::new(watch::Sender::new(Passes::All)));
        let mut tasks = JoinSet::new();
        let (counted, passing) = (Arc::clone(&cuts), Arc::clone(&passes));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            for number in 0.. {
                let Ok((from, _)) = listener.accept().await else { return };
                let (cuts, mut passes, left) = (Arc::clone(&counted), passing.subscribe(), cut_after(number));
                connections.spawn(async move {
                    if *passes.borrow() == Passes::All
                        && let Ok(to) = TcpStream::connect(to).await
                    {
                        tokio::select! {
                            () = forward(from, to, left, passes.clone()) => {}
                            _ = passes.wait_for(|passes| *passes == Passes::Nothing) => {}
                        }
                    }
                    cuts.fetch_add(1, Ordering::Relaxed);
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Proxy { address, cuts, passes, _tasks: tasks }
    }

    /// Accepts connections, and never answers: as a process that is stopped.
    pub(crate) async fn silent() -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _held = listener;
            std::future::pending::<()>().await;
        });
        Proxy { address, cuts: Arc::default(), passes: Arc::new(watch::Sender::new(Passes::All)), _tasks: tasks }
    }

    /// Cuts all connections and refuses new ones, or accepts them again.
    pub(crate) fn set_open(&self, open: bool) {
        self.set(if open { Passes::All } else { Passes::Nothing });
    }

    pub(crate) fn set(&self, passes: Passes) {
        self.passes.send_replace(passes);
    }
}

async fn forward(mut a: TcpStream, mut b: TcpStream, mut left: Option<u64>, mut passes: watch::Receiver<Passes>) {
    let (mut from_a, mut from_b) = ([0_u8; 1024], [0_u8; 1024]);
    loop {
        let (read, data, to) = tokio::select! {
            read = a.read(&mut from_a) => (read, &from_a, &mut b),
            read = b.read(&mut from_b) => (read, &from_b, &mut a),
        };
        let Ok(bytes @ 1..) = read else { return };
        let _ = passes.wait_for(|passes| *passes != Passes::NoData).await;
        let passed = left.map_or(bytes, |left| bytes.min(usize::try_from(left).unwrap_or(bytes)));
        if to.write_all(&data[..passed]).await.is_err() || passed < bytes {
            return;
        }
        left = left.map(|left| left - passed as u64);
    }
}

/// Starts a second process that can become manager. Returns its service, its address, and its server's task.
pub(crate) async fn standby(cluster: &Cluster) -> (ManagerService, String, JoinSet<()>) {
    let service = ManagerService::new(&cluster.settings);
    let (listener, address) = listen().await;
    let server = serve(&service, listener, &cluster.security);
    (service, address.to_string(), server)
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

fn serve(service: &ManagerService, listener: TcpListener, security: &SecurityContext) -> JoinSet<()> {
    let incoming = security.incoming(listener, IncomingLimits::default()).expect("loopback");
    let layer = InterceptorLayer::new(security.require_token());
    let router = tonic::transport::Server::builder().layer(layer).add_service(service.clone().into_server());
    let mut server = JoinSet::new();
    server.spawn(async move {
        router.serve_with_incoming(incoming).await.expect("it serves");
    });
    server
}
