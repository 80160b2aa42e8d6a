//! Connects the ranks of every host to the rendezvous service of the job, such as torch's store.
//!
//! The clients of a framework cannot present a secret. So a rank connects to its own host over loopback; the host's agent
//! forwards the connection to the agent on the service's host, over the same kind of connection as all agents use; that
//! one connects to the service over loopback. The service accepts no connection from a network.

mod splice;

use crate::dial::{Access, Dial};
use crate::relay::Relays;
use crate::security::SecurityContext;
use crate::wire::proto::peer_client::PeerClient;
use crate::wire::proto::peer_server::{self, PeerServer};
use crate::wire::proto::{Chunk, RelayAnswers, RelayRequest};
use crate::wire::{BODY_BYTES_MAX, MESSAGE_BYTES_MORE};
use futures::stream::BoxStream;
use splice::{CHUNKS_MAX, from_stream, to_stream};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use taskd_runtime::job::Generation;
use taskd_runtime::launch::python::RendezvousForwarder;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

/// Time for which a forwarded connection waits for its generation to be served.
const SERVED_WITHIN: Duration = Duration::from_secs(30);
/// Time within which a connection to another agent must be open.
const DIAL_WITHIN: Duration = Duration::from_secs(3);
/// Maximum number of connections that one host forwards at the same time. Further ones are closed, and counted in the log.
const CONNECTIONS_MAX: usize = 16_384;

/// Forwards the connections of one host's ranks. Clones share their state.
#[derive(Clone)]
pub struct Forwarder {
    shared: Arc<Shared>,
}

struct Shared {
    job: String,
    access: Access,
    /// Address of the agent on the host of the service; `None` if the service runs here, or nowhere.
    elsewhere: watch::Sender<Option<String>>,
    /// The generation that the service of this host serves, and where.
    here: watch::Sender<Option<(Generation, SocketAddr)>>,
    /// The open channel to another agent.
    channel: tokio::sync::Mutex<Option<(String, Channel)>>,
    accepting: Mutex<JoinSet<()>>,
    relays: Arc<Relays>,
}

impl fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { job, elsewhere, here, .. } = &*self.shared;
        let (elsewhere, here) = (elsewhere.borrow().clone(), *here.borrow());
        f.debug_struct("Forwarder")
            .field("job", job)
            .field("elsewhere", &elsewhere)
            .field("here", &here)
            .finish_non_exhaustive()
    }
}

impl Forwarder {
    /// Creates the forwarder of a host. `security` is that of its agent.
    #[must_use]
    pub fn new(job: impl Into<String>, security: &SecurityContext) -> Forwarder {
        Forwarder::over(job, Access::new(security))
    }

    /// Creates the forwarder of a host in another network, such as a simulated one.
    #[must_use]
    pub fn with_dialer(job: impl Into<String>, security: &SecurityContext, dialer: impl Dial + 'static) -> Forwarder {
        Forwarder::over(job, Access::new(security).with_dialer(dialer))
    }

    fn over(job: impl Into<String>, access: Access) -> Forwarder {
        let shared = Shared {
            job: job.into(),
            relays: Relays::new(access.clone()),
            access,
            elsewhere: watch::Sender::new(None),
            here: watch::Sender::new(None),
            channel: tokio::sync::Mutex::default(),
            accepting: Mutex::default(),
        };
        Forwarder { shared: Arc::new(shared) }
    }

    /// Returns the service at which other agents connect to the rendezvous service of this host.
    #[must_use]
    pub fn peer_service(&self) -> PeerService {
        PeerService { shared: Arc::clone(&self.shared) }
    }

    /// Returns what passes the calls of broadcasts on to other agents.
    pub(crate) fn relays(&self) -> &Arc<Relays> {
        &self.shared.relays
    }

    /// Returns the number of broadcasts and calls of other agents that this one refused because as many as possible waited.
    /// The manager made these calls itself.
    #[must_use]
    pub fn relays_refused(&self) -> u64 {
        self.shared.relays.refused()
    }

    pub(crate) fn set_elsewhere(&self, address: Option<String>) {
        self.shared.elsewhere.send_if_modified(|known| {
            let changed = *known != address;
            known.clone_from(&address);
            changed
        });
    }
}

impl RendezvousForwarder for Forwarder {
    fn is_elsewhere(&self) -> bool {
        self.shared.elsewhere.borrow().is_some()
    }

    fn forward(&self, generation: Generation, listener: TcpListener) {
        let listener = listener.set_nonblocking(true).and_then(|()| tokio::net::TcpListener::from_std(listener));
        let listener = match listener {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "the connections of this host's ranks cannot be accepted"),
        };
        let mut accepting = self.shared.accepting.lock().unwrap_or_else(PoisonError::into_inner);
        accepting.abort_all(); // those of earlier generations
        accepting.spawn(accept(Arc::clone(&self.shared), generation, listener));
    }

    fn serves(&self, generation: Generation, address: SocketAddr) {
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port());
        self.shared.here.send_replace(Some((generation, address)));
    }
}

/// Accepts the connections of one generation's ranks, and forwards each.
async fn accept(shared: Arc<Shared>, generation: Generation, listener: tokio::net::TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((connection, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await; // no descriptor is free: those of ended connections will be
            continue;
        };
        while connections.try_join_next().is_some() {}
        if connections.len() >= CONNECTIONS_MAX {
            tracing::error!(%generation, "{CONNECTIONS_MAX} connections are forwarded already: another one is closed");
            continue;
        }
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            if let Err(why) = shared.forward(generation, connection).await {
                tracing::warn!(%generation, %why, "a rank's connection to the rendezvous service has failed");
            }
        });
    }
}

impl Shared {
    async fn forward(&self, generation: Generation, connection: TcpStream) -> Result<(), String> {
        let _ = connection.set_nodelay(true);
        let address = self.elsewhere.borrow().clone().ok_or("the host of the service is not known")?;
        let mut client = PeerClient::new(self.channel(&address).await?);
        let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
        let first = Chunk { job: self.job.clone(), generation: generation.0, data: Vec::new().into() };
        let _ = sender.send(first).await;
        let refused = |status: Status| format!("the agent at {address} forwards nothing: {}", status.message());
        let request = self.access.request(ReceiverStream::new(receiver)).map_err(refused)?;
        let answers = client.forward(request).await.map_err(refused)?.into_inner();
        let (from, to) = connection.into_split();
        tokio::join!(to_stream(from, sender), from_stream(answers, to));
        Ok(())
    }

    /// Returns a channel to an agent, which all connections share.
    async fn channel(&self, address: &str) -> Result<Channel, String> {
        let mut known = self.channel.lock().await;
        if let Some((_, channel)) = known.as_ref().filter(|(of, _)| of == address) {
            return Ok(channel.clone());
        }
        let channel = self.access.dial(address, DIAL_WITHIN).await?;
        *known = Some((address.to_owned(), channel.clone()));
        Ok(channel)
    }
}

/// The service at which other agents connect to the rendezvous service of this host.
#[derive(Clone)]
pub struct PeerService {
    shared: Arc<Shared>,
}

impl fmt::Debug for PeerService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerService").field("job", &self.shared.job).finish_non_exhaustive()
    }
}

impl PeerService {
    fn same_job(&self, job: &str) -> Result<(), Status> {
        if *job != self.shared.job {
            let text = format!("this is an agent of job {}, and the peer belongs to job {job}", self.shared.job);
            return Err(Status::permission_denied(text));
        }
        Ok(())
    }

    /// Returns the service for a server of tonic.
    #[must_use]
    pub fn into_server(self) -> PeerServer<impl peer_server::Peer> {
        let limit = BODY_BYTES_MAX + MESSAGE_BYTES_MORE;
        PeerServer::new(self).max_decoding_message_size(limit).max_encoding_message_size(limit)
    }
}

#[async_trait::async_trait]
impl peer_server::Peer for PeerService {
    type ForwardStream = BoxStream<'static, Result<Chunk, Status>>;
    type RelayStream = BoxStream<'static, Result<RelayAnswers, Status>>;

    async fn relay(&self, request: Request<RelayRequest>) -> Result<Response<Self::RelayStream>, Status> {
        let request = request.into_inner();
        self.same_job(&request.job)?;
        Ok(Response::new(Box::pin(self.shared.relays.run(request).map(Ok))))
    }

    async fn forward(&self, request: Request<Streaming<Chunk>>) -> Result<Response<Self::ForwardStream>, Status> {
        let mut chunks = request.into_inner();
        let first =
            chunks.message().await?.ok_or_else(|| Status::invalid_argument("the connection has no first chunk"))?;
        self.same_job(&first.job)?;
        let generation = Generation(first.generation);
        let mut here = self.shared.here.subscribe();
        let served = here.wait_for(|here| here.is_some_and(|(served, _)| served >= generation));
        let late = |_| Status::unavailable(format!("no service of this host serves {generation}"));
        let served =
            *timeout(SERVED_WITHIN, served).await.map_err(late)?.map_err(|_| Status::unavailable("it ends"))?;
        let (_, address) = served
            .filter(|(served, _)| *served == generation)
            .ok_or_else(|| Status::failed_precondition(format!("{generation} is over: a later one is served")))?;
        let unreachable = |error| Status::unavailable(format!("the service does not answer: {error}"));
        let connection = TcpStream::connect(address).await.map_err(unreachable)?;
        let _ = connection.set_nodelay(true);
        let (from, to) = connection.into_split();
        let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
        tokio::spawn(async move { tokio::join!(to_stream(from, sender), from_stream(chunks, to)) });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver).map(Ok))))
    }
}
