//! The client's side: connects to a server of the job and verifies it.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

use super::context::{SecurityContext, Tls, Transport};
use super::error::SecurityError;
use super::explain;
use super::identity;
use super::material::Material;
use super::stream::{ClientConnection, Io, Origin};

/// Time for the resolution of a name, the TCP connection and the TLS handshake together.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connector for [`Endpoint::connect_with_connector`](tonic::transport::Endpoint::connect_with_connector) and its lazy
/// variant. The endpoint's URI has the form `http://HOST:PORT` with TLS too: tonic reserves `https` for its own TLS.
#[derive(Debug, Clone)]
pub struct Connector {
    context: SecurityContext,
    timeout: Duration,
    resumes: bool,
}

impl SecurityContext {
    /// Returns the connector of clients. Each connection takes the certificates that are in force when it begins.
    #[must_use]
    pub fn connector(&self) -> Connector {
        Connector { context: self.clone(), timeout: CONNECT_TIMEOUT, resumes: true }
    }
}

impl Connector {
    /// Sets another limit than [`CONNECT_TIMEOUT`].
    #[must_use]
    pub const fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Makes each handshake a full one: for measurements.
    #[must_use]
    pub const fn without_resumption(mut self) -> Self {
        self.resumes = false;
        self
    }

    /// Connects to a host's port and verifies the host.
    ///
    /// # Errors
    /// Returns an error if there is no connection in time, if the host's certificate is not of the job's CA, not valid
    /// now or does not name the host, or if plaintext would leave this host on an untrusted network. The server
    /// verifies this process after the handshake: its refusal is an error of the first read.
    pub async fn connect(&self, host: &str, port: u16) -> Result<ClientConnection, SecurityError> {
        let peer = format!("{host}:{port}");
        match tokio::time::timeout(self.timeout, self.connect_unlimited(host, port, &peer)).await {
            Ok(result) => result,
            Err(_) => {
                let reason = format!(
                    "not established within {:?}: the host is overloaded, or the network drops its packets",
                    self.timeout
                );
                Err(SecurityError::Handshake { peer, reason })
            }
        }
    }

    async fn connect_unlimited(&self, host: &str, port: u16, peer: &str) -> Result<ClientConnection, SecurityError> {
        let stream = self.dial(host, port, peer).await?;
        match self.context.transport() {
            Transport::Plaintext { .. } => {
                Ok(ClientConnection::new(Io::Plaintext(stream), Origin { peer: peer.to_owned(), own: None }))
            }
            Transport::Tls(tls) => {
                let material = tls.current();
                let stream = handshake(tls, &material, self.resumes, stream, host, peer).await?;
                let own = Some((tls.settings.files.clone(), material));
                let origin = Origin { peer: peer.to_owned(), own };
                Ok(ClientConnection::new(Io::Tls(Box::new(stream)), origin))
            }
        }
    }

    /// Connects to the first address of the host that accepts, among those that the security allows.
    async fn dial(&self, host: &str, port: u16, peer: &str) -> Result<TcpStream, SecurityError> {
        let failed = |source| SecurityError::Connect { peer: peer.to_owned(), source };
        let addresses: Vec<SocketAddr> = lookup_host((host, port)).await.map_err(failed)?.collect();
        // One address that does not answer leaves time for the others.
        let share = self.timeout / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
        let mut latest = failed(std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address"));
        for address in addresses {
            if let Err(refused) = self.context.allow(address) {
                latest = refused;
                continue;
            }
            match tokio::time::timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    stream.set_nodelay(true).map_err(failed)?;
                    return Ok(stream);
                }
                Ok(Err(error)) => latest = failed(error),
                Err(_) => latest = failed(std::io::ErrorKind::TimedOut.into()),
            }
        }
        Err(latest)
    }
}

async fn handshake(
    tls: &Tls,
    material: &Material,
    resumes: bool,
    stream: TcpStream,
    host: &str,
    peer: &str,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, SecurityError> {
    let policy = &tls.settings.hosts;
    let expected = policy.expected(host);
    let refused = |reason| SecurityError::Handshake { peer: peer.to_owned(), reason };
    let name = ServerName::try_from(expected.to_owned()).map_err(|_| {
        refused(format!("`{expected}` is neither a DNS name nor an address, so that no certificate can name it"))
    })?;
    let explained = |error: &std::io::Error| refused(explain::client_side(error, expected, &tls.settings.files));
    let stream = TlsConnector::from(material.client(resumes)).connect(name.clone(), stream).await;
    let stream = stream.map_err(|error| explained(&error))?;
    let session = stream.get_ref().1;
    let certificates = session.peer_certificates().unwrap_or_default();
    let resumed = session.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
    if resumed && let Err(error) = material.verify_server(certificates, &name) {
        return Err(explained(&std::io::Error::other(error)));
    }
    // The TLS library accepts wildcards, which the policy may not.
    let leaf = certificates.first().ok_or_else(|| refused("it presented no certificate".to_owned()))?;
    identity::verify_host(leaf, host, policy, &format!("the certificate of {peer}"))?;
    Ok(stream)
}

impl Service<Uri> for Connector {
    type Response = TokioIo<ClientConnection>;
    type Error = SecurityError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, SecurityError>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), SecurityError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let (Some(host), Some(port)) = (uri.host(), uri.port_u16()) else {
                return Err(SecurityError::Uri { uri: uri.to_string() });
            };
            // An IPv6 address has brackets in a URI only.
            let host = host.trim_start_matches('[').trim_end_matches(']');
            connector.connect(host, port).await.map(TokioIo::new)
        })
    }
}
