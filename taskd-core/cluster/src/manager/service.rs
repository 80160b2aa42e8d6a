//! The gRPC service at which agents open their sessions.

use super::Inner;
use super::host::{Introduction, Session};
use super::standby::{Candidates, Standbys, Standing};
use crate::agent::SOURCES_MAX;
use crate::clock_offset::{RoundTrip, own_nanos};
use crate::consensus::{Candidate, Consensus, Epoch, Version};
use crate::security::{Peer, SecurityContext};
use crate::session::{LinkEnd, Outgoing};
use crate::settings::ClusterSettings;
use crate::wire::proto::manager_server::{self, ManagerServer};
use crate::wire::proto::{
    Hello, LeaseGrant, LeaseRequest, OfficeAnswer, OfficeRequest, ToAgent, ToManager, frame::Body, to_agent, to_manager,
};
use crate::wire::{BODY_BYTES_MAX, MANAGER_METADATA, MESSAGE_BYTES_MORE};
use futures::StreamExt;
use futures::stream::BoxStream;
use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use taskd_runtime::job::{Name, NodeId};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status, Streaming};

/// Longest name of a job or a host, in bytes.
const NAME_BYTES_MAX: usize = 253;
/// Maximum number of a host's labels.
const LABELS_MAX: usize = 256;

/// The service of a process that is the manager, or may become it. While it is not, it refers agents to the manager.
#[derive(Clone)]
pub struct ManagerService {
    office: Arc<watch::Sender<Office>>,
    hello_within: Duration,
    standing: Arc<Standing>,
    candidates: Option<Candidates>,
}

/// Whether the process is the manager.
#[derive(Clone, Debug)]
pub(super) enum Office {
    Manager(Arc<Inner>),
    /// Another process is; its address, if it is known, and its epoch: 0 if it is not known to the engine.
    Elsewhere(Option<String>, Epoch),
}

impl ManagerService {
    /// Creates the service of a process that is not the manager yet.
    #[must_use]
    pub fn new(settings: &ClusterSettings) -> ManagerService {
        let office = Arc::new(watch::Sender::new(Office::Elsewhere(None, Epoch(0))));
        let standing = Arc::new(Standing::new(crate::agent::instance().as_str().to_owned()));
        ManagerService { office, hello_within: settings.hello_within, standing, candidates: None }
    }

    /// Sets the addresses, `HOST:PORT`, of all processes that can ever become manager, this one included: the same list
    /// on all of them. While the consensus engine does not answer, all of them together confirm the manager in force, so
    /// that no rank stops. For an engine outside of the job's hosts, such as etcd. No other process may campaign.
    #[must_use]
    pub fn with_candidates(
        mut self,
        addresses: impl IntoIterator<Item = impl Into<String>>,
        security: &SecurityContext,
    ) -> ManagerService {
        self.candidates = Some(Candidates::new(addresses.into_iter().map(Into::into), security));
        self
    }

    /// Refers agents to the manager at this address, from now on, unless this process is the manager.
    pub fn refer_to(&self, manager: Option<String>) {
        self.office.send_if_modified(|office| match office {
            Office::Manager(_) => false,
            Office::Elsewhere(known, epoch) => {
                (*known, *epoch) = (manager, Epoch(0));
                true
            }
        });
    }

    pub(super) fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Returns the candidates other than the one at `own`; `None` if no list was set.
    pub(super) fn standbys(&self, own: &str) -> Option<Standbys> {
        self.candidates.as_ref()?.others(own)
    }

    /// Refers agents to the manager that the engine stores, while this process waits to be elected.
    pub(super) async fn follow(&self, consensus: &dyn Consensus, own: &Candidate) -> Infallible {
        let mut version = Version(0);
        loop {
            match consensus.watch(version).await {
                Ok(record) => {
                    version = record.version;
                    let other = record.manager.filter(|manager| manager != own).map(|manager| manager.address);
                    self.office.send_replace(Office::Elsewhere(other, record.epoch));
                }
                Err(_) => tokio::time::sleep(self.hello_within).await, // meanwhile agents find the manager by trying
            }
        }
    }

    pub(super) fn take_office(&self, manager: Arc<Inner>) {
        self.office.send_replace(Office::Manager(manager));
    }

    /// Refers agents elsewhere if `manager` is in office here.
    pub(super) fn leave_office(&self, manager: &Arc<Inner>) {
        self.office.send_if_modified(|office| match office {
            Office::Manager(known) if Arc::ptr_eq(known, manager) => {
                *office = Office::Elsewhere(None, Epoch(0));
                true
            }
            _ => false,
        });
    }

    /// Returns the service for a server of tonic.
    #[must_use]
    pub fn into_server(self) -> ManagerServer<impl manager_server::Manager> {
        let limit = BODY_BYTES_MAX + MESSAGE_BYTES_MORE;
        ManagerServer::new(self).max_decoding_message_size(limit).max_encoding_message_size(limit)
    }

    /// Returns the manager for an agent that has seen the epoch `seen`. While no manager of a later epoch is known, it
    /// waits for one: agents that all dial again and again would take the processor time that an election needs.
    async fn manager(&self, seen: u64) -> Result<Arc<Inner>, Status> {
        let mut office = self.office.subscribe();
        let decided = office.wait_for(|office| match office {
            Office::Manager(_) => true,
            Office::Elsewhere(address, epoch) => address.is_some() && (epoch.0 == 0 || epoch.0 > seen),
        });
        let _ = timeout(self.hello_within / 2, decided).await;
        let address = match &*self.office.borrow() {
            Office::Manager(manager) => return Ok(Arc::clone(manager)),
            Office::Elsewhere(address, _) => address.clone(),
        };
        let mut status = match &address {
            Some(address) => Status::failed_precondition(format!("the manager is at {address}")),
            None => Status::unavailable("the job has no manager now: the candidates elect one"),
        };
        if let Some(value) = address.and_then(|address| MetadataValue::try_from(address).ok()) {
            status.metadata_mut().insert(MANAGER_METADATA, value);
        }
        Err(status)
    }
}

#[async_trait::async_trait]
impl manager_server::Manager for ManagerService {
    type SessionStream = BoxStream<'static, Outgoing>;

    async fn session(&self, request: Request<Streaming<ToManager>>) -> Result<Response<Self::SessionStream>, Status> {
        let peer = request.extensions().get::<Peer>().cloned();
        let mut incoming = request.into_inner();
        let late = |_| Status::deadline_exceeded("no Hello came in time");
        let first = timeout(self.hello_within, incoming.message()).await.map_err(late)??;
        let Some(ToManager { message: Some(to_manager::Message::Hello(hello)) }) = first else {
            return Err(Status::invalid_argument("the first message of a session is a Hello"));
        };
        let manager = self.manager(hello.epoch).await?;
        let greeting = read(hello, peer.as_ref())?;
        manager.check_reach(&greeting).await?;
        let (sender, receiver) = mpsc::unbounded_channel();
        let (host, session, connection) = manager.admit(greeting, sender.clone())?;
        let reader = Reader { manager, host, session, connection, sender };
        tokio::spawn(reader.run(incoming));
        Ok(Response::new(UnboundedReceiverStream::new(receiver).boxed()))
    }

    async fn office(&self, request: Request<OfficeRequest>) -> Result<Response<OfficeAnswer>, Status> {
        let candidates = self.candidates.as_ref().map(Candidates::listed).unwrap_or_default();
        self.standing.state(request.get_ref(), candidates).map(Response::new)
    }
}

impl fmt::Debug for ManagerService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagerService").field("standing", &self.standing).finish_non_exhaustive()
    }
}

/// A Hello that was checked.
pub(super) struct Greeting {
    pub(super) hello: Hello,
    pub(super) host: NodeId,
    pub(super) introduction: Introduction,
}

pub(super) fn read(hello: Hello, peer: Option<&Peer>) -> Result<Greeting, Status> {
    if let Some(peer) = peer {
        peer.identity().may_speak_for(&hello.host)?;
    }
    let address = peer.and_then(Peer::address);
    let invalid = |text: String| Err(Status::invalid_argument(text));
    for (what, name) in [("host", &hello.host), ("job", &hello.job), ("instance", &hello.instance)] {
        let is_plain = name.chars().all(|c| c.is_ascii_graphic());
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !is_plain {
            return invalid(format!(
                "the agent's {what} name {:?} must have 1 to {NAME_BYTES_MAX} bytes of visible ASCII",
                name.chars().take(NAME_BYTES_MAX).collect::<String>()
            ));
        }
    }
    if hello.labels.len() > LABELS_MAX {
        return invalid(format!("the host has {} labels, and {LABELS_MAX} are the limit", hello.labels.len()));
    }
    let info = match crate::wire::decode(&hello.launcher) {
        Ok(info) => info,
        Err(error) => return invalid(format!("the description of the agent's launcher cannot be read: {error}")),
    };
    if hello.sources.len() > SOURCES_MAX {
        return invalid(format!("the host has {} trace sources, and {SOURCES_MAX} are the limit", hello.sources.len()));
    }
    let sources = match hello.sources.iter().map(|source| crate::wire::decode(source)).collect() {
        Ok(sources) => sources,
        Err(error) => {
            return invalid(format!("the description of a trace source of the agent cannot be read: {error}"));
        }
    };
    let labels = hello.labels.clone().into_iter().collect();
    let host = NodeId(Name::from(hello.host.clone()));
    let peer_address = peer_address(&hello.peer_address, address);
    let peer = address.map_or_else(|| "an unknown address".into(), |address| address.to_string());
    Ok(Greeting { hello, host, introduction: Introduction { info, sources, labels, peer, peer_address } })
}

/// Returns the address at which other agents reach an agent. An address without a host means the host from which the
/// agent has connected.
fn peer_address(stated: &str, seen: Option<SocketAddr>) -> Option<String> {
    match stated.strip_prefix(':') {
        _ if stated.is_empty() => None,
        None => Some(stated.to_owned()),
        Some(port) => {
            let ip = seen?.ip().to_canonical();
            Some(SocketAddr::new(ip, port.parse().ok()?).to_string())
        }
    }
}

/// Reads the messages of one connection.
struct Reader {
    manager: Arc<Inner>,
    host: Arc<super::host::Host>,
    session: Arc<Session>,
    connection: u64,
    sender: mpsc::UnboundedSender<Outgoing>,
}

impl Reader {
    async fn run(mut self, mut incoming: Streaming<ToManager>) {
        let ended = loop {
            let message = tokio::select! {
                biased;
                () = self.sender.closed() => break None,
                message = incoming.message() => message,
            };
            let Ok(Some(ToManager { message })) = message else { break None };
            let now = Instant::now();
            self.host.hear(now);
            let handled = match message {
                Some(to_manager::Message::Frame(frame)) => self.session.link.take(frame).map(|body| match body {
                    Some(Body::Answer(answer)) => _ = self.session.calls.answered(answer),
                    Some(Body::Relayed(answers)) => self.manager.broadcasts.answered(answers),
                    _ => {}
                }),
                Some(to_manager::Message::Lease(request)) => {
                    self.grant(&request);
                    self.resume(request.received)
                }
                Some(to_manager::Message::Leave(_)) => {
                    let why = format!("{} has left the job: its agent was asked to end", self.host.name);
                    self.manager.lose(&self.host, &why);
                    break None; // closes the session
                }
                Some(to_manager::Message::Hello(_)) => Err(LinkEnd("the agent sent a second Hello".into())),
                None => Ok(()), // a message of a later version
            };
            if let Err(end) = handled {
                break Some(end);
            }
        };
        if let Some(end) = ended {
            tracing::warn!(host = %self.host.name, why = %end, "the session of an agent is broken: it opens another one");
            self.session.calls.end(&end.0);
        }
        self.session.link.detach(self.connection);
    }

    /// Takes a confirmation. The session uses this connection again if a newer one, which the agent has dropped, was in
    /// use.
    fn resume(&mut self, received: u64) -> Result<(), LinkEnd> {
        if !self.session.link.is_attached() {
            self.connection = self.session.link.attach(self.sender.clone(), received)?;
        }
        self.session.link.confirm(received)
    }

    /// Answers a request for a lease. The agent computes its end from the age of the anchor.
    fn grant(&self, request: &LeaseRequest) {
        let LeaseRequest { sent, granted, granted_at, unix_nanos, .. } = *request;
        let returned = own_nanos(&self.manager.begun);
        let trip = RoundTrip { sent: granted, received: granted_at, replied: sent, returned };
        self.host.take_clocks(sent, unix_nanos, (granted > 0).then_some(trip));
        let Some(anchor) = self.manager.anchor() else { return };
        let age = anchor.elapsed();
        self.host.grant(anchor.steady());
        let grant = LeaseGrant {
            sent,
            epoch: self.manager.epoch.0,
            anchor_age_nanos: u64::try_from(age.as_nanos()).unwrap_or(u64::MAX),
            received: self.session.link.taken(),
            manager_nanos: own_nanos(&self.manager.begun),
        };
        let _ = self.sender.send(Ok(ToAgent { message: Some(to_agent::Message::Lease(grant)) }));
    }
}
