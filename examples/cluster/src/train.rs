//! A host of a job without a fixed manager: its agent, and on hosts that can become manager an engine and a candidate.

use crate::agent::HostAgent;
use crate::elastic;
use crate::engine::{Engine, Plan, listen};
use crate::manager::run;
use crate::options::TrainOptions;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use taskd_core::cluster::consensus::Candidate;
use taskd_core::cluster::security::IncomingLimits;
use taskd_core::cluster::{Manager, ManagerError, ManagerService, Places, VOTER_LABEL};
use taskd_core::kernel::Outcome;
use taskd_examples::program::{self, Failure, completed};
use tokio_util::sync::CancellationToken;
use tonic::service::InterceptorLayer;

/// Runs this host until the job has ended.
///
/// # Errors
/// Returns the reason why the host was not admitted, or the job did not complete.
pub async fn train(options: &TrainOptions) -> Result<(), Failure> {
    let settings = options.job.common.settings();
    let places = elastic::places(&options.job)?;
    let plan = Plan::of(&options.engine, &places)?;
    let mut agent = HostAgent::new(&options.job.common).await?;
    let reached = reached_at(options);
    let own = plan.own(&agent.host, reached);
    let listener = listen(options.job.listen, own.as_ref().filter(|own| plan.lists(&own.host))).await?;
    let port = listener.local_addr()?.port();
    let service = plan.service(ManagerService::new(&settings), &agent.security);
    let layer = InterceptorLayer::new(agent.security.require_token());
    let server = tonic::transport::Server::builder().layer(layer).add_service(service.clone().into_server());
    let server = server.add_service(agent.forwarder.peer_service().into_server());
    let incoming = agent.security.incoming(listener, IncomingLimits::default())?;
    let engine = plan.start(options, own.as_ref(), &agent.security).await?;
    let voter = engine.as_ref().and_then(|engine| engine.voter.clone());
    let serving = match &voter {
        Some(voter) => tokio::spawn(server.add_service(voter.service()).serve_with_incoming(incoming)),
        None => tokio::spawn(server.serve_with_incoming(incoming)),
    };
    let managers = plan.managers();
    println!("host          {}; managers {}", agent.host, managers.join(", "));
    println!("engine        {}", plan.line(engine.as_ref()));
    if let (Some(_), Some(own)) = (&voter, &own) {
        agent.labels.insert(VOTER_LABEL.into(), own.address.clone());
    }
    let candidate = own.map(|own| Candidate::new(agent.host.clone(), std::process::id().to_string(), own.address));
    let peer = options.job.common.address.map_or(format!(":{port}"), |ip| SocketAddr::new(ip, port).to_string());
    let stop = CancellationToken::new();
    let running = agent.run(&managers, peer, stop.clone());
    let in_office = AtomicBool::new(false);
    let leading = async {
        match (&engine, &candidate) {
            (Some(engine), Some(candidate)) => lead((options, &places), candidate, engine, &service, &in_office).await,
            _ => pending().await,
        }
    };
    let admitted = async {
        match &voter {
            Some(voter) => match voter.keep_admitted().await {},
            None => pending::<()>().await,
        }
    };
    tokio::pin!(running);
    let result = tokio::select! {
        biased;
        ended = &mut running => ended,
        ended = leading => ended,
        () = admitted => Ok(()),
        interrupted = interrupted(&in_office) => {
            stop.cancel();
            interrupted?;
            running.await
        }
    };
    serving.abort();
    result
}

/// Waits until Ctrl-C ends this host. While it has the manager, Ctrl-C ends the job instead.
async fn interrupted(in_office: &AtomicBool) -> std::io::Result<()> {
    loop {
        tokio::signal::ctrl_c().await?;
        if !in_office.load(Relaxed) {
            return Ok(());
        }
    }
}

/// Returns the address at which other hosts reach this one, if it is stated.
fn reached_at(options: &TrainOptions) -> Option<SocketAddr> {
    let listen = options.job.listen;
    let ip = options.job.common.address.or((!listen.ip().is_unspecified()).then(|| listen.ip()))?;
    (listen.port() != 0).then(|| SocketAddr::new(ip, listen.port()))
}

/// Stands for manager, and runs the job whenever elected, until the job has ended.
async fn lead(
    (options, places): (&TrainOptions, &Places),
    candidate: &Candidate,
    engine: &Engine,
    service: &ManagerService,
    in_office: &AtomicBool,
) -> Result<(), Failure> {
    loop {
        let (job, settings) = (options.job.common.job.clone(), options.job.common.settings());
        let consensus = Arc::clone(&engine.consensus);
        let manager = match Manager::campaign(job, candidate, consensus, service, settings).await {
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
        manager.set_places(places.clone());
        let voters = async {
            if let Some(voter) = &engine.voter {
                manager.keep_voters(voter).await;
            }
            pending::<()>().await // the epoch is over
        };
        in_office.store(true, Relaxed);
        let report = tokio::select! {
            biased;
            report = run(&options.job, &manager) => report?,
            () = voters => continue,
        };
        in_office.store(false, Relaxed);
        if report.outcome == Outcome::Superseded {
            tracing::warn!(reason = %report.reason, "another host is the manager");
            continue;
        }
        program::print(&report, options.job.json, || report.to_string());
        manager.finish(&report.reason).await?;
        return Ok(completed(&report)?);
    }
}
