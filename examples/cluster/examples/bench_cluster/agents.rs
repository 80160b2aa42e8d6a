//! A process with a part of the agents. Commands: `fault HOST INCARNATION`, `arrivals`, `state`.

use crate::job::{JOB, host, now, raise_limits, security, settings};
use clap::Args;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use taskd_cluster::security::{IncomingLimits, SecurityContext};
use taskd_cluster::{Agent, Forwarder};
use taskd_core::job::{NodeId, ProcId};
use taskd_core::launch::{LaunchError, Launcher};
use taskd_examples::program::Failure;
use taskd_testing::testing::doubles::FakeLauncher;
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::service::InterceptorLayer;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Directory with the certificates.
    #[arg(long)]
    dir: PathBuf,
    /// Number of the first host.
    #[arg(long)]
    first: u32,
    /// Number of hosts.
    #[arg(long)]
    count: u32,
    /// Number of agents of the job.
    #[arg(long)]
    of: u32,
    /// Factor of all times.
    #[arg(long)]
    slow: u32,
    /// Number of this process, from which the address of its agents follows.
    #[arg(long)]
    process: u8,
    /// Addresses of the candidates.
    #[arg(long, value_delimiter = ',')]
    managers: Vec<String>,
}

/// Times at which `stop` orders have arrived, in nanoseconds.
type Arrivals = Arc<Mutex<Vec<u64>>>;

/// A fake launcher that records the arrival of orders to stop.
struct Recorded {
    fake: FakeLauncher,
    arrivals: Arrivals,
}

#[async_trait::async_trait]
impl Launcher for Recorded {
    taskd_core::delegate!(Launcher to |this| this.fake, except stop);

    async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError> {
        lock(&self.arrivals).push(now());
        self.fake.stop(procs, grace).await
    }
}

fn lock(arrivals: &Arrivals) -> MutexGuard<'_, Vec<u64>> {
    arrivals.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs agents until stdin ends.
pub(crate) async fn run(options: Options) -> Result<(), Failure> {
    // Hosts have processors of their own: here, thousands of agents must not take that of the managers and voters.
    let _ = rustix::process::nice(10);
    raise_limits();
    let security = security(&options.dir).await?;
    let arrivals = Arrivals::default();
    let (mut fakes, mut agents, mut running) = (BTreeMap::new(), Vec::new(), JoinSet::new());
    for number in options.first..options.first + options.count {
        let fake = FakeLauncher::with_nodes([host(number).0], 1);
        fakes.insert(number, fake.attach());
        let launcher = Recorded { fake, arrivals: Arc::clone(&arrivals) };
        agents.push(serve(&options, &security, host(number), launcher, &mut running).await?);
    }
    println!("{}", json!({ "agents": options.count }));
    let mut commands = BufReader::new(stdin()).lines();
    while let Some(line) = commands.next_line().await? {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["fault", number, incarnation] => {
                let (number, incarnation) = (number.parse()?, incarnation.parse()?);
                let rank = ProcId::rank(number, incarnation);
                let at = now();
                let killed = fakes.get(&number).is_some_and(|fake| fake.kill(&rank));
                println!("{}", json!({ "fault": killed, "at": at }));
            }
            ["arrivals"] => println!("{}", json!({ "arrivals": std::mem::take(&mut *lock(&arrivals)) })),
            ["state"] => {
                let fenced = agents.iter().filter(|agent| agent.fenced() > 0).count();
                let connections: u64 = agents.iter().map(|agent| agent.connections()).sum();
                println!("{}", json!({ "fenced": fenced, "connections": connections }));
            }
            _ => return Err(format!("{line} is no command").into()),
        }
    }
    Ok(())
}

/// Starts one agent, with the service for other agents on a port of its own.
async fn serve(
    options: &Options,
    security: &SecurityContext,
    host: NodeId,
    launcher: Recorded,
    running: &mut JoinSet<Result<(), String>>,
) -> Result<Arc<Agent>, Failure> {
    // Addresses of their own, so that the ports of one suffice for all processes.
    let address = Ipv4Addr::new(127, 0, 1, options.process);
    let listener = TcpListener::bind(SocketAddr::new(address.into(), 0)).await?;
    let peer = listener.local_addr()?.to_string();
    let forwarder = Forwarder::new(JOB, security);
    let layer = InterceptorLayer::new(security.require_token());
    let server = tonic::transport::Server::builder().layer(layer);
    let mut server = server;
    let server = server.add_service(forwarder.peer_service().into_server());
    let incoming = security.incoming(listener, IncomingLimits::default())?;
    running.spawn(async move { server.serve_with_incoming(incoming).await.map_err(|error| error.to_string()) });
    let mut agent = Agent::builder(JOB, host, launcher, security).settings(settings(options.of, options.slow));
    for manager in &options.managers {
        agent = agent.manager(manager);
    }
    let agent = Arc::new(agent.forwarder(forwarder, peer).build()?);
    let runs = Arc::clone(&agent);
    running.spawn(async move {
        let ended = runs.run(CancellationToken::new()).await;
        ended.map_err(|error| {
            println!("{}", json!({ "error": format!("an agent is refused: {error}") }));
            error.to_string()
        })
    });
    Ok(agent)
}
