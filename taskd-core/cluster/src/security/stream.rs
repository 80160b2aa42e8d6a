//! Connections of both sides, in TLS or in plaintext.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{client, server};
use tonic::transport::server::Connected;

use super::config::TlsFiles;
use super::error::SecurityError;
use super::explain;
use super::identity::Peer;
use super::material::Material;

/// First byte of a TLS record with an alert, and with a handshake (RFC 8446, section 5.1). No HTTP/2 connection begins
/// with one: a client's first byte is `P`, a server's is the high byte of a short length, 0 (RFC 9113, sections 3.4 and
/// 4.1).
const TLS_ALERT: u8 = 21;
pub(super) const TLS_HANDSHAKE: u8 = 22;

/// Accepted connection. Requests of a tonic server have its [`Peer`] in their extensions.
#[derive(Debug)]
pub struct ServerConnection {
    io: Io<server::TlsStream<TcpStream>>,
    peer: Peer,
}

/// Connection to a server. An error of its first reads explains the server's refusal of this process.
#[derive(Debug)]
pub struct ClientConnection {
    io: Io<client::TlsStream<TcpStream>>,
    origin: Arc<Origin>,
    /// Nothing was read so far.
    unread: bool,
}

/// What an error of a client's connection names.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) peer: String,
    /// Files of this process, and what was loaded from them; none in plaintext.
    pub(super) own: Option<(TlsFiles, Arc<Material>)>,
}

#[derive(Debug)]
pub(super) enum Io<T> {
    Plaintext(TcpStream),
    Tls(Box<T>),
}

impl ServerConnection {
    pub(super) const fn new(io: Io<server::TlsStream<TcpStream>>, peer: Peer) -> Self {
        Self { io, peer }
    }

    /// Returns the peer.
    #[must_use]
    pub const fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl Connected for ServerConnection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl ClientConnection {
    pub(super) fn new(io: Io<client::TlsStream<TcpStream>>, origin: Origin) -> Self {
        Self { io, origin: Arc::new(origin), unread: true }
    }

    /// Returns true if the handshake resumed an earlier session.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        match &self.io {
            Io::Plaintext(_) => false,
            Io::Tls(stream) => stream.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed),
        }
    }

    /// Replaces an alert of the server, and the end of a resumed session before its first byte, by the sentence that
    /// explains it.
    fn explained(&self, error: io::Error) -> io::Error {
        let Some((files, material)) = &self.origin.own else { return error };
        match explain::tls_error(&error) {
            Some(rustls::Error::AlertReceived(alert)) => self.refusal(explain::refused(*alert, files)),
            None if self.unread && self.is_resumed() => {
                material.refuse_resumption();
                self.refusal(format!("it ended a resumed session ({error}): the next handshake is a full one"))
            }
            _ => error,
        }
    }

    fn refusal(&self, reason: String) -> io::Error {
        io::Error::new(
            io::ErrorKind::PermissionDenied,
            SecurityError::Handshake { peer: self.origin.peer.clone(), reason },
        )
    }
}

impl AsyncRead for ClientConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let filled = buf.filled().len();
        if let Err(error) = ready!(self.io.poll_read(cx, buf)) {
            return Poll::Ready(Err(self.explained(error)));
        }
        if self.unread && buf.filled().len() == filled && buf.remaining() > 0 && self.is_resumed() {
            return Poll::Ready(Err(self.explained(io::ErrorKind::UnexpectedEof.into())));
        }
        if let (true, Some(first)) = (self.unread, buf.filled().get(filled)) {
            if *first == TLS_ALERT && matches!(self.io, Io::Plaintext(_)) {
                let reason = "it speaks TLS, and this process does not: set TASKD_TLS_CA, TASKD_TLS_CERTIFICATE and \
                              TASKD_TLS_KEY";
                return Poll::Ready(Err(self.refusal(reason.to_owned())));
            }
            self.unread = false;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for ServerConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.io.poll_read(cx, buf)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Io<T> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plaintext(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, buffers: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plaintext(stream) => Pin::new(stream).poll_write_vectored(cx, buffers),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, buffers),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plaintext(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plaintext(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plaintext(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }
}

/// Both connections write in the same way.
macro_rules! writes {
    ($connection:ty) => {
        impl AsyncWrite for $connection {
            fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
                self.io.poll_write(cx, &[io::IoSlice::new(buffer)])
            }

            fn poll_write_vectored(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buffers: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.io.poll_write(cx, buffers)
            }

            fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.io.poll_flush(cx)
            }

            fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.io.poll_shutdown(cx)
            }

            fn is_write_vectored(&self) -> bool {
                self.io.is_write_vectored()
            }
        }
    };
}

writes!(ServerConnection);
writes!(ClientConnection);
