//! The agent of a host: its launcher with PyTorch's part, and the service at which other agents connect.

use crate::options::{AgentOptions, Common};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use taskd_core::cluster::security::{IncomingLimits, Security, SecurityContext};
use taskd_core::cluster::{Agent, Forwarder};
use taskd_core::job::{Name, NodeId};
use taskd_core::launch::{Launcher, LocalLauncher, OnOwnerLoss};
use taskd_core::trace::RecordBatch;
use taskd_core::trace::store::{StoreConfig, TraceStore};
use taskd_examples::program::Failure;
use taskd_pytorch::{Torch, TorchLauncher};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::service::InterceptorLayer;

/// Time between two readings of the ranks' heartbeats and steps.
const BEATS_EVERY: Duration = Duration::from_millis(200);

/// Bytes of records that a host keeps; the oldest files are deleted beyond that.
const RECORDS_MAX: u64 = 256 << 20;
/// Name of the directory with the records of a host's ranks.
const RECORDS: &str = "ranks";
/// Time for the ranks of a host that leaves the job to end by themselves.
const LEAVE_GRACE: Duration = Duration::from_secs(2);

/// The parts of an agent before it connects.
#[derive(Debug)]
pub struct HostAgent {
    /// Name of the host.
    pub host: NodeId,
    /// How this host proves that it belongs to the job.
    pub security: SecurityContext,
    /// What connects this host's ranks to the store on another host.
    pub forwarder: Forwarder,
    /// Labels of the host, which its managers get.
    pub labels: BTreeMap<String, String>,
    local: Arc<LocalLauncher>,
    torch: TorchLauncher<Arc<LocalLauncher>>,
    common: Common,
}

impl HostAgent {
    /// Starts the guard of this host, or attaches to it.
    ///
    /// # Errors
    /// Those of [`LocalLauncherBuilder::build`](taskd_core::launch::LocalLauncherBuilder::build).
    pub async fn new(common: &Common) -> Result<HostAgent, Failure> {
        let dir = std::path::absolute(&common.dir)?;
        let mut builder = LocalLauncher::builder(dir.join("run")).job_name(common.job.clone()).slots(common.slots);
        if let Some(host) = &common.host {
            builder = builder.node(NodeId(Name::from(host.clone())));
        }
        // A killed agent leaves its ranks to the guard, which ends them when their lease would.
        let keep = OnOwnerLoss::Keep { at_most: common.settings().lease };
        let local = Arc::new(builder.on_owner_loss(keep).build().await?);
        let nodes = local.list().await?.nodes;
        let host = nodes.first().map(|status| status.node.clone()).ok_or("the launcher of this host lists no host")?;
        let security = Security::from_env()?.open(host.0.as_str()).await?;
        let forwarder = Forwarder::new(common.job.clone(), &security);
        let torch = Torch::default().master_addr("127.0.0.1"); // the agent forwards to the store
        let torch = TorchLauncher::with_framework(Arc::clone(&local), dir.join("torch"), torch);
        let torch = torch.forwarder(Arc::new(forwarder.clone()));
        let labels = common.labels();
        Ok(HostAgent { host, security, forwarder, labels, local, torch, common: common.clone() })
    }

    /// Serves the job's managers until `stop` is cancelled; then stops the processes of this host, and leaves the job.
    ///
    /// # Errors
    /// Those of [`Agent::run`].
    pub async fn run(self, managers: &[String], peer_address: String, stop: CancellationToken) -> Result<(), Failure> {
        let HostAgent { host, security, forwarder, labels, local, torch, common } = self;
        let mut agent = Agent::builder(common.job.clone(), host, torch, &security).settings(common.settings());
        agent = agent.fence(Arc::<LocalLauncher>::clone(&local)); // for an agent that is stopped or killed
        // Records stay on this host: they are reduced here, and the manager gets facts. It can fetch records later.
        let root = std::path::absolute(&common.dir)?.join("records");
        let store = TraceStore::open(StoreConfig { bytes_max: RECORDS_MAX, ..StoreConfig::new(&root, RECORDS) })?;
        let recordings = local.recordings().sink(move |batch: &Arc<RecordBatch>| _ = store.append(Arc::clone(batch)));
        agent = agent.source(local.heartbeats(BEATS_EVERY)).source(recordings).records(root.join(RECORDS));
        for manager in managers {
            agent = agent.manager(manager);
        }
        for (name, value) in labels {
            agent = agent.label(name, value);
        }
        if let Some(node_rank) = common.node_rank {
            agent = agent.node_rank(node_rank);
        }
        let agent = agent.forwarder(forwarder, peer_address).build()?;
        let left = CancellationToken::new();
        let running = agent.run(left.clone());
        tokio::pin!(running);
        let leaves = async {
            stop.cancelled().await;
            if let Err(error) = agent.leave(LEAVE_GRACE).await {
                tracing::warn!(%error, "the job finds out at the end of this host's lease");
            }
            left.cancel();
        };
        let result = tokio::select! {
            biased;
            result = &mut running => result,
            () = leaves => running.await,
        };
        local.shutdown(Duration::from_secs(2)).await?;
        Ok(result?)
    }
}

/// Runs the agent of this host until Ctrl-C.
///
/// # Errors
/// Returns the reason why the agent was not admitted, or could not start.
pub async fn serve_agent(options: &AgentOptions) -> Result<(), Failure> {
    let agent = HostAgent::new(&options.common).await?;
    let any = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let listener = TcpListener::bind(SocketAddr::new(options.common.address.unwrap_or(any), 0)).await?;
    let port = listener.local_addr()?.port();
    let peer = options.common.address.map_or(format!(":{port}"), |ip| SocketAddr::new(ip, port).to_string());
    let layer = InterceptorLayer::new(agent.security.require_token());
    let mut server = tonic::transport::Server::builder().layer(layer);
    let server = server.add_service(agent.forwarder.peer_service().into_server());
    let serving = server.serve_with_incoming(agent.security.incoming(listener, IncomingLimits::default())?);
    println!("agent         {}, {} slots, manager {}", agent.host, options.common.slots, options.manager.join(", "));
    let stop = CancellationToken::new();
    let running = agent.run(&options.manager, peer, stop.clone());
    tokio::pin!(running);
    tokio::select! {
        biased;
        ended = &mut running => return ended,
        served = serving => served?,
        _ = tokio::signal::ctrl_c() => {}
    }
    stop.cancel();
    running.await
}
