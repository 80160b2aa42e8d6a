//! The simulated network below gRPC: how agents, managers and voters connect, and what a listener yields.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use futures::Stream;
use hyper_util::rt::TokioIo;
use taskd_cluster::Dial;
use taskd_cluster::consensus::ConsensusError;
use taskd_cluster::consensus::embedded::{Connect, TcpConnect};
use taskd_cluster::security::{PresentToken, SecurityContext};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::codegen::{Service, http};
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint};
use turmoil::net::{TcpListener, TcpStream};

/// Port of every process.
pub(crate) const PORT: u16 = 9601;

/// Opens connections over the simulated network.
#[derive(Clone)]
pub(crate) struct Network(pub(crate) SecurityContext);

#[async_trait]
impl Dial for Network {
    async fn dial(&self, address: &str, within: Duration) -> Result<Channel, String> {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| error.to_string())?;
        let connected = endpoint.connect_timeout(within).connect_with_connector(Connector).await;
        connected.map_err(|error| format!("{address}: {error}"))
    }
}

impl Connect for Network {
    fn connect(&self, address: &str) -> Result<Channel, ConsensusError> {
        Ok(TcpConnect::default().endpoint(address)?.connect_with_connector_lazy(Connector))
    }

    fn token(&self) -> Option<PresentToken> {
        Some(self.0.present_token())
    }
}

#[derive(Clone)]
struct Connector;

impl Service<http::Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<TcpStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: http::Uri) -> Self::Future {
        Box::pin(async move {
            let host = uri.host().unwrap_or_default().to_owned();
            Ok(TokioIo::new(TcpStream::connect((host, uri.port_u16().unwrap_or(PORT))).await?))
        })
    }
}

/// A connection that a server has accepted.
pub(crate) struct Accepted(TcpStream);

/// Returns the connections of a listener.
pub(crate) fn incoming(listener: TcpListener) -> impl Stream<Item = io::Result<Accepted>> + Send {
    futures::stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| Accepted(stream));
        Some((accepted, listener))
    })
}

impl Connected for Accepted {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Accepted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
