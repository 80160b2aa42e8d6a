//! A process of the job that is not on the way of a call cannot call an agent: it does not know the secret of the
//! agent's session.

use crate::cluster::{Cluster, PATIENCE};
use crate::relay::host;
use crate::settings;
use taskd_cluster::security::SecurityContext;
use taskd_runtime::job::ProcId;
use tokio::time::timeout;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

/// As `RelayRequest` of the protocol.
#[derive(Clone, PartialEq, prost::Message)]
struct RelayRequest {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    job: String,
    #[prost(uint64, tag = "3")]
    epoch: u64,
    #[prost(string, tag = "4")]
    method: String,
    #[prost(message, repeated, tag = "7")]
    calls: Vec<RelayCall>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RelayCall {
    #[prost(uint64, tag = "3")]
    session: u64,
    #[prost(string, tag = "4")]
    relay_key: String,
    #[prost(uint64, tag = "5")]
    call: u64,
    #[prost(bytes = "vec", tag = "6")]
    arguments: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RelayAnswers {
    #[prost(message, repeated, tag = "2")]
    answers: Vec<RelayAnswer>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RelayAnswer {
    #[prost(bytes = "vec", optional, tag = "2")]
    answer: Option<Vec<u8>>,
    #[prost(string, tag = "3")]
    unreached: String,
}

async fn relay(security: &SecurityContext, address: &str, request: RelayRequest) -> Result<Vec<RelayAnswer>, Status> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a URI");
    let channel = endpoint.connect_with_connector(security.connector()).await.expect("it answers");
    let mut client = tonic::client::Grpc::new(InterceptedService::new(channel, security.present_token()));
    client.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    let path = PathAndQuery::from_static("/taskd.cluster.v1.Peer/Relay");
    let codec = ProstCodec::<RelayRequest, RelayAnswers>::default();
    let mut answers = client.server_streaming(Request::new(request), path, codec).await?.into_inner();
    let mut all = Vec::new();
    while let Some(batch) = answers.message().await? {
        all.extend(batch.answers);
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_does_not_know_the_secret_cannot_call_an_agent() {
    let cluster = Cluster::new(settings()).await;
    let host = host(&cluster, "host", None, |agent| agent).await;
    let manager = cluster.manager(1).await;
    let hosts = [host];
    crate::relay::start_everywhere(&manager, &hosts).await;
    let address = hosts[0].peer.to_string();
    let epoch = manager.epoch().0;
    // `launcher.begin_shutdown` with a grace of 0 s, in every session that the agent may have.
    for (session, relay_key) in [(1, ""), (1, "0123456789abcdef"), (2, "")] {
        let call = RelayCall { session, relay_key: relay_key.into(), call: 99, arguments: vec![0x92, 0, 0] };
        let method = "launcher.begin_shutdown".to_owned();
        let request = RelayRequest { id: 1, job: "job".into(), epoch, method, calls: vec![call] };
        let answers = timeout(PATIENCE, relay(&cluster.security, &address, request)).await.expect("it answers");
        let answers = answers.expect("it is a process of the job");
        assert!(
            matches!(&answers[..], [RelayAnswer { answer: None, unreached }] if !unreached.is_empty()),
            "{answers:?}"
        );
    }
    let other = RelayRequest { id: 1, job: "another".into(), epoch, ..RelayRequest::default() };
    let refused = relay(&cluster.security, &address, other).await.expect_err("it belongs to another job");
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    assert!(hosts[0].fake.runs(&ProcId::rank(0, 1)), "no process was stopped");
}
