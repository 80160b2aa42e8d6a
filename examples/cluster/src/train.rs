//! A host of a job without a fixed manager: its agent, and on the listed hosts a voter and a candidate.

use crate::agent::HostAgent;
use crate::manager::run;
use crate::options::TrainOptions;
use std::net::SocketAddr;
use std::sync::Arc;
use taskd_core::cluster::consensus::embedded::{Embedded, EmbeddedConfig, EmbeddedSettings, VoterAddress};
use taskd_core::cluster::consensus::{Candidate, Consensus};
use taskd_core::cluster::security::IncomingLimits;
use taskd_core::cluster::{Manager, ManagerError, ManagerService};
use taskd_core::job::{Name, NodeId};
use taskd_core::kernel::Outcome;
use taskd_examples::program::{self, Failure, completed};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::service::InterceptorLayer;

/// Runs this host until the job has ended.
///
/// # Errors
/// Returns the reason why the host was not admitted, or the job did not complete.
pub async fn train(options: &TrainOptions) -> Result<(), Failure> {
    let settings = options.job.common.settings();
    let agent = HostAgent::new(&options.job.common).await?;
    let voters = voters(&options.voters)?;
    let own = voters.iter().find(|voter| voter.host == agent.host);
    let service = ManagerService::new(&settings);
    let port = own.and_then(|own| own.address.parse::<SocketAddr>().ok()).map_or(0, |own| own.port());
    let listener = TcpListener::bind(SocketAddr::new(options.job.listen.ip(), port)).await?;
    let port = listener.local_addr()?.port();
    let layer = InterceptorLayer::new(agent.security.require_token());
    let server = tonic::transport::Server::builder().layer(layer).add_service(service.clone().into_server());
    let server = server.add_service(agent.forwarder.peer_service().into_server());
    let incoming = agent.security.incoming(listener, IncomingLimits::default())?;
    let engine = match own {
        Some(own) => {
            let config = EmbeddedConfig::new(options.job.common.job.clone(), own.clone(), voters.clone(), {
                options.job.common.dir.join("voter")
            });
            let config =
                config.with_settings(EmbeddedSettings::for_lease(settings.lease)).with_connect(agent.security.clone());
            Some(Embedded::start(config).await?)
        }
        None => None,
    };
    let serving = match &engine {
        Some(engine) => tokio::spawn(server.add_service(engine.service()).serve_with_incoming(incoming)),
        None => tokio::spawn(server.serve_with_incoming(incoming)),
    };
    let addresses: Vec<String> = voters.iter().map(|voter| voter.address.clone()).collect();
    println!("host          {}; voters {}", agent.host, addresses.join(", "));
    let candidate = own.map(|own| Candidate::new(agent.host.clone(), std::process::id().to_string(), &*own.address));
    let peer = options.job.common.address.map_or(format!(":{port}"), |ip| SocketAddr::new(ip, port).to_string());
    let stop = CancellationToken::new();
    let running = agent.run(&addresses, peer, stop.clone());
    let result = match (engine, candidate) {
        (Some(engine), Some(candidate)) => tokio::select! {
            biased;
            ended = running => ended,
            ended = lead(options, &candidate, Arc::new(engine), &service) => ended,
        },
        _ => tokio::select! {
            biased;
            ended = running => ended,
            _ = tokio::signal::ctrl_c() => {
                stop.cancel();
                Ok(())
            }
        },
    };
    serving.abort();
    result
}

/// Stands for manager, and runs the job whenever elected, until the job has ended.
async fn lead(
    options: &TrainOptions,
    candidate: &Candidate,
    engine: Arc<dyn Consensus>,
    service: &ManagerService,
) -> Result<(), Failure> {
    loop {
        let (job, settings) = (options.job.common.job.clone(), options.job.common.settings());
        let manager = match Manager::campaign(job, candidate, Arc::clone(&engine), service, settings).await {
            Ok(manager) => manager,
            Err(ManagerError::Ended(result)) => {
                println!("the job has ended: {result}");
                return Ok(());
            }
            Err(ManagerError::Consensus(error)) => {
                tracing::warn!(%error, "the election has failed: this host stands again");
                tokio::time::sleep(settings.silent_after).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        println!("manager       {} in epoch {}", candidate.host, manager.epoch());
        let report = run(&options.job, &manager).await?;
        if report.outcome == Outcome::Superseded {
            tracing::warn!(reason = %report.reason, "another host is the manager");
            continue;
        }
        program::print(&report, options.job.json, || report.to_string());
        manager.finish(&report.reason).await?;
        return Ok(completed(&report)?);
    }
}

/// Reads the list of voters, `HOST=ADDRESS:PORT` each.
fn voters(texts: &[String]) -> Result<Vec<VoterAddress>, Failure> {
    let voter = |text: &String| {
        let (host, address) = text.split_once('=').ok_or_else(|| format!("{text} is not HOST=ADDRESS:PORT"))?;
        Ok(VoterAddress::new(NodeId(Name::from(host.to_owned())), address))
    };
    texts.iter().map(voter).collect()
}
