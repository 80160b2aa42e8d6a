//! Agents of other releases and with wrong clocks, as their first messages show them.

use super::voters::{VOTER_LABEL, replacement};
use super::{Manager, ManagerService, Places};
use crate::consensus::{Candidate, Single};
use crate::security::{IncomingLimits, JobToken, Security, SecurityContext};
use crate::settings::ClusterSettings;
use crate::topology::Topology;
use crate::wire::proto::manager_client::ManagerClient;
use crate::wire::proto::{Hello, ToManager, to_agent, to_manager};
use crate::wire::{VERSION, VERSION_MIN, encode};
use std::collections::{BTreeMap, BTreeSet};
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

/// The file of the topology places d under the switch of b, whatever its label says; the label of e counts, which the file
/// does not contain.
#[tokio::test]
async fn a_lost_voter_is_replaced_in_another_domain_of_the_file_and_the_labels() {
    let security = security().await;
    let (manager, address) = manager(&security).await;
    for (host, leaf) in [("d", "l3"), ("e", "l3")] {
        let labels = [(VOTER_LABEL, format!("{host}:1")), ("leaf", leaf.to_owned())];
        let labels: BTreeMap<String, String> = labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let hello = Hello { labels: labels.into_iter().collect(), ..hello(host) };
        open(hello, &address, &security).await.expect("admitted");
    }
    let name = |host: &str| host.parse::<NodeId>().expect("a name");
    let voters: BTreeSet<NodeId> = ["a", "b", "c"].map(name).into();
    let new = |manager: &Manager| replacement(&manager.inner, &voters, &name("c")).expect("two can").host;
    assert_eq!(new(&manager), name("d"), "by the labels alone, both are equally good");
    let file = "levels: leaf\n a: leaf=l1\n b: leaf=l2\n c: leaf=l3\n d: leaf=l2";
    manager.set_places(Places::Tree(Topology::parse(file).expect("a topology")));
    assert_eq!(new(&manager), name("e"));
}

/// What the manager sends over a session.
type Incoming = tonic::Streaming<crate::wire::proto::ToAgent>;

/// Opens a session that stays open with the results, and never answers.
async fn silent_session(
    address: &str,
    security: &SecurityContext,
) -> (tokio::sync::mpsc::UnboundedSender<ToManager>, Incoming) {
    let access = crate::dial::Access::new(security);
    let channel = access.dial(address, ClusterSettings::default().connect_within).await.expect("it listens");
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    let first = ToManager { message: Some(to_manager::Message::Hello(hello("silent"))) };
    sender.send(first).expect("open");
    let request = access.request(tokio_stream::wrappers::UnboundedReceiverStream::new(receiver)).expect("a token");
    let mut incoming = ManagerClient::new(channel).session(request).await.expect("admitted").into_inner();
    let welcome = incoming.message().await.expect("open").and_then(|message| message.message);
    assert!(matches!(welcome, Some(to_agent::Message::Welcome(_))), "{welcome:?}");
    (sender, incoming)
}

/// Returns true if the manager asks for the processes of the host over a session; false if it ends the session.
async fn is_listed(incoming: &mut Incoming) -> bool {
    while let Ok(Some(message)) = incoming.message().await {
        if let Some(to_agent::Message::Frame(frame)) = message.message
            && let Some(crate::wire::proto::frame::Body::Call(call)) = frame.body
            && call.method == crate::wire::method::LIST
        {
            return true;
        }
    }
    false
}

/// Its lease may run: if it were forgotten, its ranks would be replaced while they run.
#[tokio::test]
async fn a_host_that_opens_another_session_before_its_processes_are_listed_stays() {
    let security = security().await;
    let (manager, address) = manager(&security).await;
    let (_first, mut incoming) = silent_session(&address, &security).await;
    assert!(is_listed(&mut incoming).await);
    let (_second, mut incoming) = silent_session(&address, &security).await;
    let again = is_listed(&mut incoming);
    let again = tokio::time::timeout(std::time::Duration::from_secs(30), again).await;
    assert_eq!(again, Ok(true), "over the new session");
    assert_eq!(manager.hosts().len(), 1);
}

#[tokio::test]
async fn a_host_that_dies_before_its_processes_are_listed_is_lost_at_the_end_of_its_lease() {
    let security = security().await;
    let (manager, address) = manager(&security).await;
    let since = tokio::time::Instant::now();
    drop(silent_session(&address, &security).await);
    assert_eq!(manager.hosts().len(), 1);
    let lost = async {
        while !manager.hosts().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), lost).await.expect("it is lost");
    assert!(since.elapsed() >= ClusterSettings::default().replace_after(), "{:?}", since.elapsed());
}
