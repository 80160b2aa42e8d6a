//! How agents, managers and voters prove that they belong to the job.
//!
//! | [`Security`] | on the wire | proof | addresses |
//! |---|---|---|---|
//! | [`MutualTls`](Security::MutualTls) | TLS 1.3 | certificates of the job's CA; the token too, if set | all |
//! | [`Token`](Security::Token) | plaintext | the job's token with each request | loopback |
//! | [`Insecure`](Security::Insecure) | plaintext | the job's token with each request | all, by `TASKD_INSECURE=1` |
//!
//! [`Security::open`] checks everything that would fail later, and returns a [`SecurityContext`]. Its [`Incoming`] and
//! its [`Connector`] fit every tonic service:
//!
//! ```no_run
//! # use taskd_cluster::security::{Peer, Security, SecurityError};
//! # async fn example(routes: tonic::service::Routes) -> Result<(), Box<dyn std::error::Error>> {
//! let context = Security::from_env()?.open("node-7").await?;
//!
//! // Server: the layer requires the token of each request of all services.
//! let incoming = context.listen("0.0.0.0:7070".parse()?)?;
//! let server = tonic::transport::Server::builder()
//!     .layer(tonic::service::InterceptorLayer::new(context.require_token()))
//!     .add_routes(routes)
//!     .serve_with_incoming(incoming);
//!
//! // Client: `http`, with TLS too.
//! let endpoint = tonic::transport::Endpoint::from_static("http://node-1:7070");
//! let channel = endpoint.connect_with_connector_lazy(context.connector());
//! let service = tonic::service::interceptor::InterceptedService::new(channel, context.present_token());
//! # let _ = service;
//! # server.await?;
//! # Ok(())
//! # }
//! ```
//!
//! A handler takes the [`Peer`] from the extensions of its request, and verifies a claimed host with
//! [`PeerIdentity::may_speak_for`]. The server counts rejected peers by [`RejectReason`].
//!
#![doc = include_str!("openssl.md")]

mod clock;
mod config;
mod connector;
mod context;
mod error;
mod explain;
mod files;
mod identity;
mod incoming;
mod material;
mod rejections;
mod stream;
#[cfg(feature = "test-util")]
mod test_authority;
#[cfg(feature = "test-util")]
mod test_handshakes;
#[cfg(all(test, feature = "test-util"))]
mod tests;
mod token;

pub use clock::Utc;
pub use config::{MutualTls, Security, TlsFiles, TrustedNetwork};
pub use connector::{CONNECT_TIMEOUT, Connector};
pub use context::{EXPIRY_WARNING, FILES_CHECK_INTERVAL, ReloadStatus, SecurityContext};
pub use error::{NotNamed, SecurityError};
pub use files::SECURITY_FILE_BYTES_MAX;
pub use identity::{HostPolicy, Peer, PeerIdentity};
pub use incoming::{HANDSHAKE_TIMEOUT, HANDSHAKES_MAX, Incoming, IncomingCounters, IncomingLimits, LISTEN_BACKLOG};
pub use rejections::{REJECTION_LOG_INTERVAL, RejectReason, Rejected, Rejections};
pub use stream::{ClientConnection, ServerConnection};
#[cfg(feature = "test-util")]
pub use test_authority::{TestAuthority, TestCertificate, Usage, Validity};
#[cfg(feature = "test-util")]
pub use test_handshakes::{HandshakeKind, HandshakeRate, handshakes_per_second};
pub use token::{JobToken, PresentToken, RequireToken, TOKEN_CHARS_MAX, TOKEN_CHARS_MIN};
