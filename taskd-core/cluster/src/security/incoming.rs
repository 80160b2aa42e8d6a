//! The server's side: accepts connections and verifies peers.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use super::context::{SecurityContext, Tls, Transport};
use super::error::SecurityError;
use super::explain;
use super::identity::{Peer, PeerIdentity};
use super::rejections::RejectReason;
use super::stream::{Io, ServerConnection, TLS_HANDSHAKE};

/// Time in which a peer completes the handshake, or sends its first byte in plaintext.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Handshakes at the same time. Further peers wait in the backlog of the operating system, and
/// [`IncomingCounters::handshakes_at_bound`] counts them.
pub const HANDSHAKES_MAX: usize = 512;
/// Connections in the backlog of the operating system (which may have a smaller bound, `net.core.somaxconn`).
pub const LISTEN_BACKLOG: u32 = 4096;
/// Verified connections that the server has not taken so far.
const READY_MAX: usize = 64;
/// Pause after a failure to accept, such as too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// A rejected peer's data are read and dropped for this time and length: closing a socket with unread data would drop
/// the alert that explains the rejection.
const LINGER: Duration = Duration::from_millis(500);
const LINGER_BYTES: u64 = 64 << 10;

/// Limits of an [`Incoming`].
#[derive(Debug, Clone, Copy)]
pub struct IncomingLimits {
    handshake_timeout: Duration,
    handshakes_max: usize,
}

impl Default for IncomingLimits {
    fn default() -> Self {
        Self { handshake_timeout: HANDSHAKE_TIMEOUT, handshakes_max: HANDSHAKES_MAX }
    }
}

impl IncomingLimits {
    /// Sets another limit than [`HANDSHAKE_TIMEOUT`].
    #[must_use]
    pub const fn with_handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = timeout;
        self
    }

    /// Sets another limit than [`HANDSHAKES_MAX`]; at least 1.
    #[must_use]
    pub const fn with_handshakes_max(mut self, handshakes: usize) -> Self {
        self.handshakes_max = if handshakes == 0 { 1 } else { handshakes };
        self
    }
}

/// Counters of an [`Incoming`]; rejected peers are in [`SecurityContext::rejections`].
#[derive(Debug, Default)]
pub struct IncomingCounters {
    accepted: AtomicU64,
    at_bound: AtomicU64,
    accept_failures: AtomicU64,
}

impl IncomingCounters {
    /// Returns the number of connections with a verified peer.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Returns the number of times that a peer waited because all handshakes were in use.
    #[must_use]
    pub fn handshakes_at_bound(&self) -> u64 {
        self.at_bound.load(Ordering::Relaxed)
    }

    /// Returns the number of failures to accept a connection, such as too many open files.
    #[must_use]
    pub fn accept_failures(&self) -> u64 {
        self.accept_failures.load(Ordering::Relaxed)
    }
}

/// Stream of the connections with verified peers, for `serve_with_incoming` of a tonic server. It does not end, and has
/// no errors: rejected peers are counted. Dropping it closes the listener and ends all handshakes.
#[derive(Debug)]
pub struct Incoming {
    ready: mpsc::Receiver<ServerConnection>,
    address: SocketAddr,
    counters: Arc<IncomingCounters>,
    accepting: AbortHandle,
}

impl SecurityContext {
    /// Listens on an address (port 0 lets the operating system choose) with the default limits.
    ///
    /// # Errors
    /// Returns an error if the address cannot be used, or if plaintext is not allowed on it.
    pub fn listen(&self, address: SocketAddr) -> Result<Incoming, SecurityError> {
        self.allow(address)?;
        let failed = |source| SecurityError::Listen { address, source };
        let listener = (|| {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            // Connections of a process that has ended do not block its successor.
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            socket.listen(LISTEN_BACKLOG)
        })();
        self.incoming(listener.map_err(failed)?, IncomingLimits::default())
    }

    /// Accepts connections of an existing listener. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Returns an error if plaintext is not allowed on the listener's address.
    pub fn incoming(&self, listener: TcpListener, limits: IncomingLimits) -> Result<Incoming, SecurityError> {
        let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
        let address = listener.local_addr().map_err(|source| SecurityError::Listen { address: unspecified, source })?;
        self.allow(address)?;
        let counters = Arc::new(IncomingCounters::default());
        let (sender, ready) = mpsc::channel(READY_MAX);
        let acceptor = Acceptor { context: self.clone(), limits, counters: Arc::clone(&counters), ready: sender };
        let accepting = tokio::spawn(acceptor.accept(listener)).abort_handle();
        Ok(Incoming { ready, address, counters, accepting })
    }
}

impl Incoming {
    /// Returns the address of the listener.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the counters, which stay readable after a server has taken the stream.
    #[must_use]
    pub fn counters(&self) -> Arc<IncomingCounters> {
        Arc::clone(&self.counters)
    }
}

impl Stream for Incoming {
    type Item = io::Result<ServerConnection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.ready.poll_recv(cx).map(|connection| connection.map(Ok))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

#[derive(Clone)]
struct Acceptor {
    context: SecurityContext,
    limits: IncomingLimits,
    counters: Arc<IncomingCounters>,
    ready: mpsc::Sender<ServerConnection>,
}

/// Rejection of a peer: its reason with an explanation, and the connection if the peer may still read an answer.
struct Rejection {
    reason: RejectReason,
    message: String,
    stream: Option<TcpStream>,
}

impl Rejection {
    fn new(reason: RejectReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), stream: None }
    }

    fn of_error(error: &io::Error) -> Self {
        let (reason, message) = explain::server_side(error);
        Self { reason, message, stream: None }
    }

    fn with_stream(mut self, stream: TcpStream) -> Self {
        self.stream = Some(stream);
        self
    }
}

impl Acceptor {
    async fn accept(self, listener: TcpListener) {
        let permits = Arc::new(Semaphore::new(self.limits.handshakes_max.min(Semaphore::MAX_PERMITS)));
        // Dropped with this task, which ends all handshakes.
        let mut handshakes = JoinSet::new();
        let mut failing = false;
        loop {
            while handshakes.try_join_next().is_some() {}
            let Some(permit) = self.permit(&permits).await else { return };
            match listener.accept().await {
                Ok((stream, address)) => {
                    failing = false;
                    handshakes.spawn(self.clone().handshake(stream, address, permit));
                }
                Err(error) => {
                    self.counters.accept_failures.fetch_add(1, Ordering::Relaxed);
                    if !failing {
                        tracing::error!("no connection can be accepted, which is tried again: {error}");
                    }
                    failing = true;
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    async fn permit(&self, permits: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = Arc::clone(permits).try_acquire_owned() {
            return Some(permit);
        }
        let before = self.counters.at_bound.fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            tracing::warn!(
                "{} handshakes at the same time: further peers wait; if no storm of reconnections explains it, a peer \
                 may hold handshakes open",
                self.limits.handshakes_max
            );
        }
        Arc::clone(permits).acquire_owned().await.ok()
    }

    async fn handshake(self, stream: TcpStream, address: SocketAddr, permit: OwnedSemaphorePermit) {
        let limit = self.limits.handshake_timeout;
        let result = match tokio::time::timeout(limit, self.verify(stream, address)).await {
            Ok(result) => result,
            Err(_) => {
                let message = format!("it did not complete the handshake within {limit:?}");
                Err(Rejection::new(RejectReason::TimedOut, message))
            }
        };
        match result {
            Ok(connection) => {
                self.counters.accepted.fetch_add(1, Ordering::Relaxed);
                // Fails only after the stream was dropped.
                let _ = self.ready.send(connection).await;
            }
            Err(rejection) => {
                self.context.rejections().record(rejection.reason, Some(address), &rejection.message);
                if let Some(stream) = rejection.stream {
                    linger(stream).await;
                }
            }
        }
        drop(permit);
    }

    async fn verify(&self, stream: TcpStream, address: SocketAddr) -> Result<ServerConnection, Rejection> {
        let disconnected = |error: io::Error| Rejection::of_error(&error);
        stream.set_nodelay(true).map_err(disconnected)?;
        match self.context.transport() {
            Transport::Plaintext { .. } => {
                let mut first = [0];
                let length = stream.peek(&mut first).await.map_err(disconnected)?;
                if length == 0 {
                    let message = "it closed the connection before its first byte";
                    return Err(Rejection::new(RejectReason::Disconnected, message));
                }
                if first == [TLS_HANDSHAKE] {
                    let message = "it speaks TLS, and this server does not: configure both with TASKD_TLS_*, or none";
                    return Err(Rejection::new(RejectReason::Tls, message).with_stream(stream));
                }
                let peer = Peer::new(Some(address), PeerIdentity::default());
                Ok(ServerConnection::new(Io::Plaintext(stream), peer))
            }
            Transport::Tls(tls) => verify_tls(tls, stream, address).await,
        }
    }
}

async fn verify_tls(tls: &Tls, stream: TcpStream, address: SocketAddr) -> Result<ServerConnection, Rejection> {
    let material = tls.current();
    let accept = TlsAcceptor::from(Arc::clone(&material.server)).accept(stream).into_fallible();
    let stream = match accept.await {
        Ok(stream) => stream,
        Err((error, stream)) => return Err(Rejection::of_error(&error).with_stream(stream)),
    };
    let session = stream.get_ref().1;
    let chain = session.peer_certificates().unwrap_or_default();
    let resumed = session.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
    if resumed && let Err(error) = material.verify_client(chain) {
        return Err(Rejection::of_error(&io::Error::other(error)));
    }
    let Some(leaf) = chain.first() else {
        return Err(Rejection::new(RejectReason::NoCertificate, "it presented no certificate"));
    };
    let identity = PeerIdentity::verified(leaf.clone(), tls.settings.hosts.clone());
    Ok(ServerConnection::new(Io::Tls(Box::new(stream)), Peer::new(Some(address), identity)))
}

/// Closes a connection so that the peer can read the alert.
async fn linger(mut stream: TcpStream) {
    let drained = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(LINGER_BYTES), &mut tokio::io::sink()).await
    };
    // The peer is rejected in any case.
    let _ = tokio::time::timeout(LINGER, drained).await;
}
