//! Two hosts and a witness: the loss of either host leaves a majority.

use std::collections::BTreeMap;
use std::time::Duration;
use taskd_cluster::Witness;
use taskd_cluster::consensus::embedded::{Embedded, EmbeddedConfig, Membership, VoterAddress};
use taskd_cluster::consensus::{Candidate, Consensus, ConsensusError};
use taskd_cluster::security::{IncomingLimits, JobToken, Security, SecurityContext};
use taskd_runtime::job::NodeId;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::service::InterceptorLayer;

/// Bound of every wait: far more than any takes on a machine that is not overloaded.
const LONG: Duration = Duration::from_secs(60);
const HOSTS: [&str; 3] = ["h1", "h2", "witness"];

async fn security() -> SecurityContext {
    let token = JobToken::new("0123456789abcdef0123456789abcdef").expect("long enough");
    Security::Token(token).open("host").await.expect("loopback")
}

/// Starts a voter that can be the manager, until the result is dropped.
async fn voter(config: EmbeddedConfig, listener: TcpListener, security: &SecurityContext) -> (Embedded, JoinSet<()>) {
    let voter = Embedded::start(config.with_connect(security.clone())).await.expect("started");
    let incoming = security.incoming(listener, IncomingLimits::default()).expect("loopback");
    let layer = InterceptorLayer::new(security.require_token());
    let server = tonic::transport::Server::builder().layer(layer).add_service(voter.service());
    let mut serving = JoinSet::new();
    serving.spawn(async move { server.serve_with_incoming(incoming).await.expect("it serves") });
    (voter, serving)
}

fn candidate(host: &str) -> Candidate {
    Candidate::new(NodeId(host.to_owned().into()), "1", format!("{host}:9601"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_witness_keeps_the_majority_when_a_host_of_two_is_lost() {
    let (security, dir) = (security().await, tempfile::tempdir().expect("a directory"));
    let (mut listeners, mut places) = (BTreeMap::new(), Vec::new());
    for host in HOSTS {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let place = VoterAddress::new(NodeId(host.to_owned().into()), address);
        places.push(if host == "witness" { place.with_witness() } else { place });
        listeners.insert(host, listener);
    }
    let config = |at: usize| EmbeddedConfig::new("job", places[at].clone(), places.clone(), dir.path().join(HOSTS[at]));
    let mut listener = |host| listeners.remove(host).expect("bound");

    let own = VoterAddress::new(NodeId("witness".into()), places[2].address.clone());
    let wrong = EmbeddedConfig::new("job", own, places.clone(), dir.path().join("wrong"));
    let spare = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let refused = Witness::start(wrong, spare, &security).await.expect_err("it could be the manager");
    assert!(matches!(&refused, ConsensusError::Refused(why) if why.contains("list it as a witness")), "{refused}");

    let (first, serving) = voter(config(0), listener("h1"), &security).await;
    let (second, _serving) = voter(config(1), listener("h2"), &security).await;
    let witness = Witness::start(config(2), listener("witness"), &security).await.expect("started");
    let epoch = timeout(LONG, first.campaign(&candidate("h1"))).await.expect("elected").expect("a voter");
    first.confirm(epoch).await.expect("in force");
    let votes = async {
        while witness.status().membership != Membership::Voter {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, votes).await.expect("it votes");

    drop(serving);
    first.shutdown().await;
    let next = timeout(LONG, second.campaign(&candidate("h2"))).await.expect("the witness votes for it");
    let next = next.expect("a voter");
    assert!(next > epoch);
    second.confirm(next).await.expect("in force");
}
