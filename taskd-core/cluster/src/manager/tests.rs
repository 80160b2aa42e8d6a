//! Agents of other releases and with wrong clocks, as their first messages show them.

use super::{Manager, ManagerService};
use crate::consensus::{Candidate, Single};
use crate::security::{IncomingLimits, JobToken, Security, SecurityContext};
use crate::settings::ClusterSettings;
use crate::wire::proto::manager_client::ManagerClient;
use crate::wire::proto::{Hello, ToManager, to_agent, to_manager};
use crate::wire::{VERSION, VERSION_MIN, encode};
use std::sync::Arc;
use taskd_runtime::job::NodeId;
use taskd_runtime::launch::LauncherInfo;
use tokio::net::TcpListener;
use tonic::service::InterceptorLayer;
use tonic::{Code, Status};

async fn security() -> SecurityContext {
    let token = JobToken::new("0123456789abcdef0123456789abcdef").expect("long enough");
    Security::Token(token).open("host").await.expect("loopback")
}

async fn manager(security: &SecurityContext) -> (Manager, String) {
    let settings = ClusterSettings::default();
    let service = ManagerService::new(&settings);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let incoming = security.incoming(listener, IncomingLimits::default()).expect("loopback");
    let layer = InterceptorLayer::new(security.require_token());
    let router = tonic::transport::Server::builder().layer(layer).add_service(service.clone().into_server());
    tokio::spawn(router.serve_with_incoming(incoming));
    let candidate = Candidate::new(NodeId("manager".into()), "1", address.clone());
    let engine = Arc::new(Single::default());
    let manager = Manager::campaign("job", &candidate, engine, &service, settings).await;
    (manager.expect("no other candidate"), address)
}

fn hello(host: &str) -> Hello {
    Hello {
        version_min: VERSION_MIN,
        version_max: VERSION,
        job: "job".into(),
        host: host.into(),
        instance: format!("{host}-1"),
        launcher: encode(&LauncherInfo::new("fake")).expect("it has a form"),
        ..Hello::default()
    }
}

/// Opens a session, and returns the version of the protocol that it uses.
async fn open(hello: Hello, address: &str, security: &SecurityContext) -> Result<u32, Status> {
    let access = crate::dial::Access::new(security);
    let channel = access.dial(address, ClusterSettings::default().connect_within).await.expect("it listens");
    let first = ToManager { message: Some(to_manager::Message::Hello(hello)) };
    let opened = ManagerClient::new(channel).session(access.request(tokio_stream::once(first))?).await?;
    match opened.into_inner().message().await?.and_then(|message| message.message) {
        Some(to_agent::Message::Welcome(welcome)) => Ok(welcome.version),
        other => Err(Status::internal(format!("no Welcome, but {other:?}"))),
    }
}

#[tokio::test]
async fn agents_of_other_releases_are_refused_with_both_versions() {
    let security = security().await;
    let (_manager, address) = manager(&security).await;
    let too_old = Hello { version_min: 0, version_max: VERSION_MIN - 1, ..hello("old") };
    let too_new = Hello { version_min: VERSION + 1, version_max: VERSION + 2, ..hello("new") };
    for other in [too_old, too_new] {
        let refused = open(other, &address, &security).await.expect_err("another release");
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains("install the same release of taskd on both"), "{refused:?}");
    }
    let newer = Hello { version_max: VERSION + 1, ..hello("newer") };
    assert_eq!(open(newer, &address, &security).await.expect("a common version"), VERSION);
}

#[tokio::test]
async fn an_agent_with_a_wrong_clock_is_admitted() {
    let security = security().await;
    let (_manager, address) = manager(&security).await;
    for (host, unix_nanos) in [("behind", 1), ("ahead", u64::MAX)] {
        let wrong = Hello { unix_nanos, ..hello(host) };
        assert_eq!(open(wrong, &address, &security).await.expect("no rule depends on it"), VERSION);
    }
}
