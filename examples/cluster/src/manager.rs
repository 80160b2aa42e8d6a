//! The manager of a job: waits for hosts, then runs the job on all of them.

use crate::agent::HostAgent;
use crate::elastic;
use crate::hold;
use crate::options::{ManagerOptions, StartIs};
use crate::shown;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use taskd_core::cluster::consensus::{Candidate, Epoch, Single};
use taskd_core::cluster::security::IncomingLimits;
use taskd_core::cluster::{Manager, ManagerService};
use taskd_core::job::{InMemoryCheckpoints, JobSpec, NodeId, Ready, WorkerSpec};
use taskd_core::kernel::JobReport;
use taskd_core::launch::{Launcher, NodeStatus};
use taskd_core::recover;
use taskd_core::runtime::Runtime;
use taskd_examples::program::{self, Failure, LEAVE, completed};
use taskd_pytorch::store::StoreProgram;
use taskd_pytorch::with_store;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::service::InterceptorLayer;

/// Runs the manager and the agent of its host until the job has ended.
///
/// # Errors
/// Returns the reason why the job did not start or did not complete.
pub async fn manage(options: &ManagerOptions) -> Result<(), Failure> {
    let settings = options.common.settings();
    let agent = HostAgent::new(&options.common).await?;
    let service = ManagerService::new(&settings);
    let listener = TcpListener::bind(options.listen).await?;
    let port = listener.local_addr()?.port();
    let host = address(options)?;
    let reached_at = SocketAddr::new(host, port).to_string();
    let layer = InterceptorLayer::new(agent.security.require_token());
    let server = tonic::transport::Server::builder().layer(layer).add_service(service.clone().into_server());
    let server = server.add_service(agent.forwarder.peer_service().into_server());
    let incoming = agent.security.incoming(listener, IncomingLimits::default())?;
    let serving = tokio::spawn(server.serve_with_incoming(incoming));

    let candidate = Candidate::new(agent.host.clone(), std::process::id().to_string(), reached_at.clone());
    let consensus = Arc::new(Single::new(Epoch(0)));
    println!("manager       {reached_at}; one manager, no standby: the job ends with this host");
    let manager = Manager::campaign(options.common.job.clone(), &candidate, consensus, &service, settings).await?;
    manager.set_places(elastic::places(options)?);
    let stop = CancellationToken::new();
    let own_manager = [reached_at.clone()];
    let running = agent.run(&own_manager, reached_at, stop.clone());
    let job = async {
        let report = run(options, &manager).await;
        let reason = report.as_ref().map_or_else(ToString::to_string, |report| report.reason.clone());
        let stored = manager.finish(&reason).await; // all agents end
        stop.cancel();
        stored?;
        report
    };
    let (ran, agent_ended) = tokio::join!(job, running);
    serving.abort();
    let report = ran?;
    program::print(&report, options.json, || report.to_string());
    completed(&report)?;
    agent_ended
}

/// Waits for the hosts, unless an earlier manager has started the job, and runs the job.
pub(crate) async fn run(options: &ManagerOptions, manager: &Manager) -> Result<JobReport, Failure> {
    let resume = manager.resume();
    // The membership decides until the job has ended.
    let (spec, _membership) = match options.is_elastic() {
        true => elastic::job(options, manager, resume.is_some()).await.map(|(spec, by)| (spec, Some(by)))?,
        false => (fixed(options, manager, resume.is_some()).await?, None),
    };
    let mut spec = with_store(spec, &StoreProgram::ReexecSelf)?;
    spec.policy.ready = match options.start_is {
        StartIs::Stepping => Ready::Stepping,
        StartIs::Running => Ready::Running,
    };
    spec.policy.checkpoint_dir = options.checkpoints.clone();
    spec.policy.in_memory_checkpoints = options.memory_every.map(InMemoryCheckpoints::every);
    let runtime = Runtime::builder()
        .job(spec)
        .detectors(elastic::detectors())
        .strategies(recover::defaults())
        .launcher(manager.launcher())
        .source(manager.source())
        .resume(resume)
        .journal(options.common.dir.join(format!("log-{}", manager.epoch())))
        .build()?;
    let held = hold::while_unconfirmed(manager.engine_answers(), runtime.handle());
    let report = tokio::select! {
        biased;
        report = runtime.run_with_signals(LEAVE) => report,
        never = held => match never {},
    };
    shown::facts(&manager.hosts());
    if let Some(dir) = &options.records {
        shown::fetch_records(manager, dir).await;
    }
    Ok(report?)
}

/// Returns the job on the first hosts with room for its ranks, once the given number of hosts has registered.
async fn fixed(options: &ManagerOptions, manager: &Manager, is_resumed: bool) -> Result<JobSpec, Failure> {
    let needed = if is_resumed { 0 } else { options.hosts.max as usize };
    let deadline = Instant::now() + Duration::from_secs(options.wait_s);
    let hosts = manager.wait_for_hosts(needed, deadline).await;
    if hosts < needed {
        let text = format!("only {hosts} of {needed} hosts have registered within {} s", options.wait_s);
        return Err(text.into());
    }
    shown::hosts(&shown::measured(manager).await);
    let ranks = options.ranks.unwrap_or(1);
    let used = first_with_room(&manager.launcher().list().await?.nodes, ranks);
    let mut spec = JobSpec::new(options.common.job.clone(), ranks, WorkerSpec::new(options.command.clone()));
    spec.policy.min_ranks = options.min_ranks.unwrap_or(ranks);
    Ok(spec.with_nodes(used))
}

/// Returns the first hosts that together have room for the ranks, or all that have room.
fn first_with_room(nodes: &[NodeStatus], ranks: u32) -> Vec<NodeId> {
    let mut used = Vec::new();
    let mut left = ranks;
    for status in nodes.iter().filter(|status| status.slots > 0) {
        if left > 0 {
            left = left.saturating_sub(status.slots);
            used.push(status.node.clone());
        }
    }
    used
}

/// Returns the address at which other hosts reach this one.
fn address(options: &ManagerOptions) -> Result<IpAddr, Failure> {
    let listen = options.listen.ip();
    match options.common.address {
        Some(address) => Ok(address),
        None if !listen.is_unspecified() => Ok(listen),
        None => Err("the manager listens on all addresses: state the one at which agents reach it (--address)".into()),
    }
}
