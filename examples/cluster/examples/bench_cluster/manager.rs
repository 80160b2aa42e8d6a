//! A candidate, and when it is elected the manager. Commands: `react`, `hosts N`, `world N`, `start N INCARNATION
//! whole|empty`, `broadcast`, `fanout N`, `left`,
//! `counts`.

use crate::job::{JOB, PATIENCE, host, now, raise_limits, security, settings, spec};
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use taskd_cluster::consensus::embedded::{Embedded, EmbeddedConfig, EmbeddedSettings, VoterAddress};
use taskd_cluster::consensus::{Candidate, Consensus, Etcd, EtcdSettings};
use taskd_cluster::membership::{Host, Next, Policy, State, decide};
use taskd_cluster::security::{IncomingLimits, SecurityContext};
use taskd_cluster::{ClusterLauncher, Manager, ManagerService};
use taskd_core::job::{CommandId, JobTime, NodeId, ProcId, World};
use taskd_core::launch::{Change, DirectiveBatch, LaunchError, Launcher, NodeState, Place, StartBatch, StartOrder};
use taskd_examples::program::Failure;
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::Instant;
use tonic::service::InterceptorLayer;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Directory with the certificates, and for the voter's store.
    #[arg(long)]
    dir: PathBuf,
    /// Number of this voter.
    #[arg(long)]
    voter: usize,
    /// Addresses of all voters.
    #[arg(long, value_delimiter = ',')]
    voters: Vec<SocketAddr>,
    /// Number of agents of the job.
    #[arg(long)]
    agents: u32,
    /// Factor of all times.
    #[arg(long)]
    slow: u32,
    /// Longest election timeout of the voters.
    #[arg(long)]
    election_ms: Option<u64>,
    /// Address of etcd, the engine instead of the voters.
    #[arg(long)]
    etcd: Option<String>,
}

/// Handshakes at the same time: more would delay the messages of the voters, which share this process.
const HANDSHAKES_MAX: usize = 64;

/// Lease of the manager in etcd: the shortest that etcd grants with its default election timeout.
const ETCD_LEASE: Duration = Duration::from_secs(2);

/// What the manager has seen, and whether it reacts.
#[derive(Debug, Default)]
struct Seen {
    /// The hosts that were lost, each with the time.
    left: Mutex<Vec<(String, u64)>>,
    /// True if the end of a rank is followed by an order to all agents.
    reacts: AtomicBool,
}

/// Runs a candidate until stdin ends.
pub(crate) async fn run(options: Options) -> Result<(), Failure> {
    raise_limits();
    let security = security(&options.dir).await?;
    let own = *options.voters.get(options.voter).ok_or("the voter has no address")?;
    let (engine, voter) = engine(&options, &security).await?;
    let settings = settings(options.agents, options.slow);
    let mut service = ManagerService::new(&settings);
    if options.etcd.is_some() {
        service = service.with_candidates(options.voters.iter().map(SocketAddr::to_string), &security);
    }
    let layer = InterceptorLayer::new(security.require_token());
    let server = tonic::transport::Server::builder().layer(layer).add_service(service.clone().into_server());
    let incoming = security.incoming(listen(own)?, IncomingLimits::default().with_handshakes_max(HANDSHAKES_MAX))?;
    let server = server.add_optional_service(voter.as_ref().map(Embedded::service));
    let _serving = tokio::spawn(server.serve_with_incoming(incoming));
    println!("{}", json!({ "listens": own.to_string() }));
    let candidate = Candidate::new(candidate_host(options.voter), std::process::id().to_string(), own.to_string());
    let mut commands = BufReader::new(stdin()).lines();
    let manager = tokio::select! {
        elected = Manager::campaign(JOB, &candidate, engine, &service, settings) => elected?,
        _ = commands.next_line() => return Ok(()), // the run has ended
    };
    println!("{}", json!({ "elected": manager.epoch().0, "at": now() }));
    let seen = Arc::new(Seen::default());
    tokio::spawn(observe(manager.launcher(), Arc::clone(&seen)));
    while let Some(line) = commands.next_line().await? {
        // A run with another manager than at its begin would wait for it in vain.
        let answer = tokio::select! {
            answer = answer(&line, &manager, &seen) => answer?,
            why = manager.over() => return Err(format!("the manager has lost its office in the run: {why}").into()),
        };
        println!("{answer}");
    }
    Ok(())
}

/// Carries out a command.
async fn answer(line: &str, manager: &Manager, seen: &Seen) -> Result<Value, Failure> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let answer = match words[..] {
        ["fanout", number] => {
            manager.set_relay_fanout(number.parse()?);
            json!({ "fanout": number })
        }
        ["react"] => {
            seen.reacts.store(true, Ordering::Relaxed);
            json!({ "react": true })
        }
        ["left"] => json!({ "left": seen.left.lock().unwrap_or_else(PoisonError::into_inner).clone() }),
        ["counts"] => json!({ "counts": format!("{:?}", manager.relay_counts()) }),
        ["hosts", number] => {
            let hosts = manager.wait_for_hosts(number.parse()?, Instant::now() + PATIENCE).await;
            json!({ "hosts": hosts, "at": now() })
        }
        ["world", number] => world(&manager.launcher(), number.parse()?).await?,
        ["start", number, incarnation, world] => {
            start(&manager.launcher(), number.parse()?, incarnation.parse()?, world == "whole").await?
        }
        ["broadcast"] => broadcast(&manager.launcher()).await?,
        _ => return Err(format!("{line} is no command").into()),
    };
    Ok(answer)
}

fn candidate_host(number: usize) -> NodeId {
    host(u32::try_from(number).unwrap_or(u32::MAX))
}

/// Starts the consensus engine: a voter, or a client of etcd.
async fn engine(
    options: &Options,
    security: &SecurityContext,
) -> Result<(Arc<dyn Consensus>, Option<Embedded>), Failure> {
    if let Some(uri) = &options.etcd {
        let settings = EtcdSettings::new(JOB, [uri.clone()]).with_lease(ETCD_LEASE * options.slow);
        return Ok((Arc::new(Etcd::new(&settings)?), None));
    }
    let voter =
        |(number, address): (usize, &SocketAddr)| VoterAddress::new(candidate_host(number), address.to_string());
    let voters: Vec<VoterAddress> = options.voters.iter().enumerate().map(voter).collect();
    let dir = options.dir.join(format!("voter-{}", options.voter));
    let config = EmbeddedConfig::new(JOB, voters[options.voter].clone(), voters, dir);
    let times = match options.election_ms {
        Some(most) => [most / 8, most / 2, most].map(Duration::from_millis),
        None => {
            let times = EmbeddedSettings::for_lease(settings(options.agents, 1).lease);
            [times.heartbeat(), times.election_min(), times.election_max()].map(|time| time * options.slow)
        }
    };
    let times = EmbeddedSettings::new(times[0], times[1], times[2])?;
    let engine = Embedded::start(config.with_settings(times).with_connect(security.clone())).await?;
    Ok((Arc::new(engine.clone()), Some(engine)))
}

/// Listens with a backlog for the connections of all agents.
fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket.listen(taskd_cluster::security::LISTEN_BACKLOG)?)
}

/// Decides which hosts form the world, and stores it.
async fn world(launcher: &ClusterLauncher, agents: u32) -> Result<Value, Failure> {
    let begin = Instant::now();
    let mut state = State::default();
    for number in 0..agents {
        state.hosts.insert(host(number), Host::new(JobTime::from_nanos(u64::from(number)), 1));
    }
    let decided = decide(&state, &Policy::new(agents, agents), JobTime::from_nanos(1_000_000_000_000));
    let Next::World { ranks, .. } = &decided.next else { return Err(decided.next.reason().to_owned().into()) };
    let decide_s = begin.elapsed().as_secs_f64();
    let world = Arc::new(spec(u32::try_from(ranks.len())?).first_world());
    launcher.send_directives(CommandId(1), &DirectiveBatch::new(world, Vec::new())).await?; // stored before any order
    Ok(json!({ "world": begin.elapsed().as_secs_f64(), "decide": decide_s }))
}

/// Starts one rank on each host, each with the `whole` world or an empty one.
async fn start(launcher: &ClusterLauncher, agents: u32, incarnation: u32, whole: bool) -> Result<Value, Failure> {
    let world = if whole { spec(agents).first_world() } else { World::first(BTreeMap::new()) };
    let program = Arc::new(taskd_testing::testing::doubles::FakeProgram::Runs.spec());
    let order = |rank| StartOrder::new(ProcId::rank(rank, incarnation), Place::On(host(rank)), Arc::clone(&program));
    let batch = StartBatch::new(Arc::new(world), (0..agents).map(order).collect());
    let begin = Instant::now();
    launcher.start(&batch).await?;
    Ok(json!({ "start": begin.elapsed().as_secs_f64() }))
}

/// Sends one order to all agents, and waits for all answers: to stop a rank that none of them has.
async fn broadcast(launcher: &ClusterLauncher) -> Result<Value, Failure> {
    let (begin, at) = (Instant::now(), now());
    order_all(launcher).await?;
    Ok(json!({ "broadcast": begin.elapsed().as_secs_f64(), "at": at }))
}

async fn order_all(launcher: &ClusterLauncher) -> Result<(), LaunchError> {
    launcher.stop(&[ProcId::rank(u32::MAX, 1)], Duration::ZERO).await
}

/// Records the hosts that are lost, and sends an order to all agents when a rank has failed.
async fn observe(launcher: ClusterLauncher, seen: Arc<Seen>) {
    let Ok(listing) = launcher.list().await else { return };
    let mut at = listing.revision;
    loop {
        let changes = match launcher.watch(at).await {
            Ok((changes, next)) => {
                at = next;
                changes
            }
            Err(LaunchError::Stale) => match launcher.list().await {
                Ok(listing) => {
                    at = listing.revision;
                    continue;
                }
                Err(_) => return,
            },
            Err(_) => return,
        };
        for change in changes {
            match change {
                Change::Node(status) if status.state == NodeState::Left => {
                    let lost = (status.node.0.to_string(), now());
                    seen.left.lock().unwrap_or_else(PoisonError::into_inner).push(lost);
                }
                Change::Proc(status) if seen.reacts.load(Ordering::Relaxed) && status.phase.is_exited() => {
                    let launcher = launcher.clone();
                    tokio::spawn(async move {
                        let ordered = order_all(&launcher).await;
                        println!("{}", json!({ "reaction": ordered.is_ok() }));
                    });
                }
                _ => {}
            }
        }
    }
}
