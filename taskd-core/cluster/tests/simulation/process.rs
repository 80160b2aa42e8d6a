//! The process of a host: its agent, and on the first hosts a voter and a candidate with the real runtime.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use taskd_cluster::consensus::embedded::{Embedded, EmbeddedConfig, EmbeddedSettings, Membership, VoterAddress};
use taskd_cluster::consensus::{Candidate, Consensus};
use taskd_cluster::security::SecurityContext;
use taskd_cluster::{Agent, Manager, ManagerError, ManagerService};
use taskd_runtime::detect::ExitDetector;
use taskd_runtime::job::{BudgetSpec, JobSpec, NodeId, Ready, RemovalCap, WorkerSpec};
use taskd_runtime::kernel::Outcome;
use taskd_runtime::recover::Restart;
use taskd_runtime::runtime::Runtime;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tonic::service::InterceptorLayer;
use tonic::transport::Server;
use turmoil::net::TcpListener;

use crate::cluster::{Cluster, HOSTS, RANKS, VOTERS, host};
use crate::engine::Witnessed;
use crate::launcher::{MachineFence, MachineLauncher};
use crate::ledger::Property;
use crate::network::{Network, PORT, incoming};
use crate::orders::{Orders, probe};
use crate::unreliable::Unreliable;

const JOB: &str = "job";
/// Time after which a failed part of a process starts again.
const AGAIN: Duration = Duration::from_millis(500);
/// Time between two probes of idle connections.
const PROBE: Duration = Duration::from_secs(1);

type Failure = Box<dyn std::error::Error>;

/// Runs the process of a host until the host crashes.
pub(crate) async fn run(cluster: Arc<Cluster>, security: SecurityContext, index: usize) -> Result<(), Failure> {
    let service = ManagerService::new(&cluster.settings());
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    let unreliable = Unreliable { inner: service.clone().into_server(), cluster: Arc::clone(&cluster) };
    let layer = InterceptorLayer::new(security.require_token());
    let server = Server::builder().http2_keepalive_interval(Some(PROBE)).http2_keepalive_timeout(Some(PROBE));
    let mut server = server.layer(layer).add_service(unreliable);
    if index < VOTERS {
        let engine = voter(&cluster, &security, index).await?;
        server = server.add_service(Unreliable { inner: engine.service(), cluster: Arc::clone(&cluster) });
        tokio::spawn(stay_admitted(Arc::clone(&cluster), engine.clone(), index));
        tokio::spawn(lead(Arc::clone(&cluster), engine, service, index));
    }
    tokio::spawn(agent(cluster, security, index));
    server.serve_with_incoming(incoming(listener)).await?;
    Ok(())
}

fn address(index: usize) -> String {
    format!("{}:{PORT}", host(index))
}

async fn voter(cluster: &Arc<Cluster>, security: &SecurityContext, index: usize) -> Result<Embedded, Failure> {
    let place = |index| VoterAddress::new(NodeId(host(index).into()), address(index));
    let boot = cluster.lock().machines[index].boot;
    let dir = cluster.dir.path().join(host(index));
    let disk = Arc::clone(cluster);
    let takes = move || {
        let mut state = disk.lock();
        let longest = state.machines[index].disk_max.as_micros();
        let micros = state.dice.random_range(0..=longest);
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    };
    let config = EmbeddedConfig::new(JOB, place(index), (0..VOTERS).map(place), dir)
        .with_settings(EmbeddedSettings::default().with_checks(cluster.checks))
        .with_connect(Network(security.clone()))
        .with_boot(boot.to_string())
        .with_simulated_disk(takes);
    Ok(Embedded::start(config).await?)
}

/// Requests the admission of a voter that has lost its store.
async fn stay_admitted(cluster: Arc<Cluster>, engine: Embedded, index: usize) {
    loop {
        let status = engine.status();
        let votes = status.membership == Membership::Voter;
        if votes {
            cluster.lock().machines[index].needs_admission = false;
        } else if cluster.lock().machines[index].needs_admission {
            let _ = engine.request_admission(None).await; // no leader answers: again
        }
        let standing = format!("{:?}, leader {:?}, term {}", status.membership, status.leader, status.term);
        let logs = format!("log {:?}, applied {:?}, forming {:?}", status.last_log, status.applied, status.forming);
        cluster.lock().machines[index].voter = format!("{standing}, {logs}");
        if let Some(why) = status.stopped {
            let now = cluster.now();
            return cluster.lock().ledger.violate(
                now,
                Property::Progress,
                format!("the voter of {} has stopped: {why}", host(index)),
            );
        }
        sleep(AGAIN).await;
    }
}

async fn agent(cluster: Arc<Cluster>, security: SecurityContext, index: usize) {
    let slow_ppm = cluster.lock().machines[index].slow_ppm;
    loop {
        let launcher = MachineLauncher::new(&cluster, index);
        let fence = Arc::new(MachineFence { cluster: Arc::clone(&cluster), index });
        let mut agent = Agent::builder(JOB, NodeId(host(index).into()), launcher, &security)
            .dialer(Network(security.clone()))
            .settings(cluster.settings().with_slow_clock(slow_ppm))
            .fence(fence);
        for voter in 0..VOTERS {
            agent = agent.manager(address(voter));
        }
        let ended = match agent.build() {
            Ok(agent) => agent.run(CancellationToken::new()).await,
            Err(error) => Err(error),
        };
        let now = cluster.now();
        cluster.lock().ledger.note(now, format!("the agent of {} has ended: {ended:?}", host(index)));
        sleep(AGAIN).await;
    }
}

/// Stands for manager, and runs the job whenever elected.
async fn lead(cluster: Arc<Cluster>, engine: Embedded, service: ManagerService, index: usize) {
    let instance = format!("{}-{}", host(index), cluster.now().as_millis());
    let candidate = Candidate::new(NodeId(host(index).into()), instance, address(index));
    let engine: Arc<dyn Consensus> = Arc::new(Witnessed { inner: engine, cluster: Arc::clone(&cluster), index });
    loop {
        let campaign = Manager::campaign(JOB, &candidate, Arc::clone(&engine), &service, cluster.settings());
        match campaign.await {
            Ok(manager) => manage(&cluster, manager, index).await,
            Err(ManagerError::Consensus(_)) => {}
            Err(error) => {
                let now = cluster.now();
                cluster.lock().ledger.violate(
                    now,
                    Property::Progress,
                    format!("{} cannot be the manager: {error}", host(index)),
                );
            }
        }
        sleep(AGAIN).await;
    }
}

/// Runs the job under one manager until the epoch is over.
async fn manage(cluster: &Arc<Cluster>, manager: Manager, index: usize) {
    let resume = manager.resume();
    let world = resume.as_ref().map(|resume| Arc::clone(&resume.world));
    if resume.is_none() {
        manager.wait_for_hosts(HOSTS, Instant::now() + Duration::from_secs(30)).await;
    }
    let nodes = cluster.first_hosts(index, manager.hosts().into_iter().map(|host| host.host).collect());
    let mut spec =
        JobSpec::new(JOB, RANKS, WorkerSpec::new(["train".to_owned(), manager.epoch().to_string()])).with_nodes(nodes);
    spec.policy.ready = Ready::Running;
    spec.policy.budget = BudgetSpec::fixed(1_000_000);
    spec.policy.max_attempts = 1_000;
    spec.policy.node_removals = RemovalCap { nodes_max: 1_000, within: Duration::from_secs(3600) };
    spec.policy.termination_grace_period = Duration::from_millis(200);
    spec.policy.start_timeout = Duration::from_secs(5);
    let orders = Arc::new(Orders::new(manager.launcher(), manager.epoch(), world));
    let runtime = Runtime::builder()
        .job(spec)
        .detector(ExitDetector::new())
        .strategy(Restart::new())
        .launcher(Arc::clone(&orders))
        .resume(resume)
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            let now = cluster.now();
            return cluster.lock().ledger.note(now, format!("no runtime: {error}"));
        }
    };
    let report = tokio::select! {
        report = runtime.run() => report,
        () = probe(cluster, &orders) => return,
    };
    let now = cluster.now();
    let what = format!("epoch {}: {:?}: {}", manager.epoch(), report.outcome, report.reason);
    cluster.lock().ledger.note(now, what);
    if report.outcome != Outcome::Superseded {
        cluster.lock().ledger.count("gave_up");
    }
    let _ = manager.resign().await; // else the epoch ends by itself
}
