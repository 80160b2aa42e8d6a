//! Measures the rate of handshakes, for benchmarks.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::config::{MutualTls, Security};
use super::connector::Connector;
use super::error::SecurityError;
use super::incoming::Incoming;
use super::test_authority::TestAuthority;

const HOST: &str = "127.0.0.1";

/// Kind of the measured handshakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeKind {
    /// Both sides verify certificates and sign.
    Full,
    /// The session of an earlier connection is resumed; the server verifies the peer's certificate again.
    Resumed,
}

/// Result of [`handshakes_per_second`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct HandshakeRate {
    /// Handshakes per second of wall time, with one byte in each direction after each.
    pub per_second: f64,
    /// Handshakes per second of processor time, server and client together: comparable on a loaded machine.
    pub per_cpu_second: f64,
    /// Handshakes that resumed a session.
    pub resumed: usize,
}

/// Measures `count` mutual TLS handshakes (P-256) over loopback, `concurrency` at a time. Server and clients share the
/// cores of this process. The certificates are written into `directory`. Must be called within a tokio
/// runtime.
///
/// # Errors
/// Returns an error if a file cannot be written, or if a connection fails.
pub async fn handshakes_per_second(
    kind: HandshakeKind,
    count: usize,
    concurrency: usize,
    directory: &Path,
) -> Result<HandshakeRate, SecurityError> {
    let files = TestAuthority::new("handshakes")?.write(directory, &[HOST])?;
    let context = Security::MutualTls(MutualTls::new(files)).open(HOST).await?;
    let incoming = context.listen(([127, 0, 0, 1], 0).into())?;
    let port = incoming.local_addr().port();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        echo(incoming).await;
        Ok(())
    });
    let connector = match kind {
        HandshakeKind::Full => context.connector().without_resumption(),
        HandshakeKind::Resumed => context.connector(),
    };
    // Leaves tickets for the first of the measured connections.
    for _ in 0..concurrency.min(count) {
        exchange(&connector, port).await?;
    }
    let (started, resumed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    for _ in 0..concurrency.max(1) {
        let (connector, started, resumed) = (connector.clone(), Arc::clone(&started), Arc::clone(&resumed));
        tasks.spawn(async move {
            while started.fetch_add(1, Ordering::Relaxed) < count {
                if exchange(&connector, port).await? {
                    resumed.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        });
    }
    // The server is the one task that does not end.
    while tasks.len() > 1 {
        if let Some(ended) = tasks.join_next().await {
            ended.unwrap_or_else(|error| {
                Err(SecurityError::Settings(format!("a connection was not measured: {error}")))
            })?;
        }
    }
    let per_second = count as f64 / begin.elapsed().as_secs_f64();
    let per_cpu_second = count as f64 / (cpu_seconds() - cpu).max(f64::EPSILON);
    Ok(HandshakeRate { per_second, per_cpu_second, resumed: resumed.load(Ordering::Relaxed) })
}

/// Processor time of this process, in seconds.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Connects, sends one byte and reads one. Returns true if a session was resumed.
async fn exchange(connector: &Connector, port: u16) -> Result<bool, SecurityError> {
    let mut connection = connector.connect(HOST, port).await?;
    let failed = |source| SecurityError::Connect { peer: format!("{HOST}:{port}"), source };
    connection.write_all(&[0]).await.map_err(failed)?;
    connection.flush().await.map_err(failed)?;
    // Tickets arrive before the byte.
    connection.read_u8().await.map_err(failed)?;
    Ok(connection.is_resumed())
}

async fn echo(mut incoming: Incoming) {
    let mut connections = JoinSet::new();
    while let Some(Ok(mut connection)) = incoming.next().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(async move {
            if let Ok(byte) = connection.read_u8().await {
                // A client that has left does not need the answer.
                let _ = connection.write_u8(byte).await;
                let _ = connection.flush().await;
                let _ = connection.shutdown().await;
            }
        });
    }
}
