//! A TCP proxy that stops to forward, as a network does that is cut: without an error on either side.

use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Bytes that are forwarded at once.
const CHUNK: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Proxy {
    address: SocketAddr,
    open: Arc<watch::Sender<bool>>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy to a port of this machine.
    pub(super) async fn to(port: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("a bound socket has an address");
        let open = Arc::new(watch::Sender::new(true));
        let accepting = tokio::spawn(accept(listener, port, Arc::clone(&open)));
        Proxy { address, open, accepting }
    }

    pub(super) fn uri(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn cut(&self) {
        self.open.send_replace(false);
    }

    pub(super) fn reconnect(&self) {
        self.open.send_replace(true);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, port: u16, open: Arc<watch::Sender<bool>>) {
    while let Ok((client, _)) = listener.accept().await {
        let open = open.subscribe();
        tokio::spawn(async move {
            let _ = open.clone().wait_for(|open| *open).await;
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
            let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
            tokio::select! {
                () = forward(from_client, to_server, open.clone()) => {}
                () = forward(from_server, to_client, open) => {}
            }
        });
    }
}

/// Forwards bytes until one side closes. While the proxy is cut, bytes wait here, as in a kernel that sends them again.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut open: watch::Receiver<bool>) {
    let mut bytes = vec![0; CHUNK];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        if open.wait_for(|open| *open).await.is_err() || to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}
