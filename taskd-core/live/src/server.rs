//! The server of a live report: configuration, address, end.

use crate::access::Token;
use crate::connections;
use crate::limits::{Counts, LiveLimits};
use crate::reading::{Board, EVERY_DEFAULT, EVERY_MIN, ReadError, RunSource, read_while_wanted};
use crate::routes::Served;
use axum::http::HeaderValue;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use taskd_analysis::document::Analysis;
use taskd_analysis::report::{self, LiveStatus};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Configuration of a live report. [`serve`](LiveReport::serve) starts it.
pub struct LiveReport {
    source: Box<dyn RunSource>,
    every: Duration,
    address: IpAddr,
    port: u16,
    limits: LiveLimits,
}

impl LiveReport {
    /// Returns a report of what `source` reads, for example a [`RunDirectory`](crate::RunDirectory).
    #[must_use]
    pub fn new(source: impl RunSource) -> LiveReport {
        LiveReport {
            source: Box::new(source),
            every: EVERY_DEFAULT,
            address: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            limits: LiveLimits::default(),
        }
    }

    /// Returns a report of what a closure reads.
    #[must_use]
    pub fn from_fn(read: impl FnMut() -> Result<Analysis, ReadError> + Send + 'static) -> LiveReport {
        LiveReport::new(read)
    }

    /// Sets the shortest time from one reading to the next, at least [`EVERY_MIN`]. Default: [`EVERY_DEFAULT`].
    #[must_use]
    pub fn every(mut self, every: Duration) -> LiveReport {
        self.every = every.max(EVERY_MIN);
        self
    }

    /// Sets the address: `127.0.0.1`, which is the default, or `::1`.
    #[must_use]
    pub fn with_address(mut self, address: IpAddr) -> LiveReport {
        self.address = address;
        self
    }

    /// Sets the port. Default: 0, a free port that the system chooses.
    #[must_use]
    pub fn with_port(mut self, port: u16) -> LiveReport {
        self.port = port;
        self
    }

    /// Sets the bounds of the server.
    #[must_use]
    pub fn with_limits(mut self, limits: LiveLimits) -> LiveReport {
        self.limits = limits;
        self
    }

    /// Listens, and serves the report until the returned server ends. Needs a tokio runtime with time and I/O.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the address is not `127.0.0.1` or `::1`; the error of the system
    /// call if there are no random numbers, or the port cannot be listened at.
    pub async fn serve(self) -> io::Result<LiveServer> {
        if ![IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()].contains(&self.address) {
            let why = format!("{} is not 127.0.0.1 or ::1: a live report is served to this host alone", self.address);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let token = Token::new()?;
        let listener = TcpListener::bind((self.address, self.port)).await?;
        let address = listener.local_addr()?;
        let board = Arc::new(Board::default());
        let closing = CancellationToken::new();
        let policy = format!("{}; frame-ancestors 'none'", report::live_policy());
        let served = Arc::new(Served {
            board: Arc::clone(&board),
            counts: Counts::default(),
            limits: self.limits,
            closing: closing.clone(),
            token,
            port: address.port(),
            policy: HeaderValue::from_str(&policy).map_err(io::Error::other)?,
            rendering: Semaphore::new(1),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(read_while_wanted(self.source, self.every, board, closing.clone()));
        tasks.spawn(connections::serve(listener, Arc::clone(&served)));
        Ok(LiveServer { address, served, tasks })
    }
}

impl fmt::Debug for LiveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LiveReport { source: _, every, address, port, limits } = self;
        let mut all = f.debug_struct("LiveReport");
        all.field("every", every).field("address", address).field("port", port).field("limits", limits);
        all.finish_non_exhaustive()
    }
}

/// A live report that is being served. Dropping it ends the server and its tasks; a reading that has begun ends by itself.
pub struct LiveServer {
    address: SocketAddr,
    served: Arc<Served>,
    tasks: JoinSet<()>,
}

impl LiveServer {
    /// Returns the address of the page. It contains the token: print it to the operator, not into a log that others read.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/{}/", self.address, self.served.token.as_str())
    }

    /// Returns the address at which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns how the reading of the run stands, and what was refused.
    #[must_use]
    pub fn status(&self) -> LiveStatus {
        let reading = self.served.board.state.borrow().clone();
        self.served.status_of(&reading)
    }

    /// Reads the run a last time. Pages show these figures, and that the run has ended; they are served from memory until
    /// the server ends.
    pub async fn end(&self) {
        let mut state = self.served.board.state.subscribe();
        self.served.board.ended.send_replace(true);
        let _ = state.wait_for(|state| state.has_ended).await; // error: never, the board has the sender
    }

    /// Ends the server: closes its port and its connections, and waits for its tasks and for a reading that has begun.
    pub async fn shutdown(mut self) {
        self.served.closing.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Drop for LiveServer {
    fn drop(&mut self) {
        self.served.closing.cancel();
    }
}

impl fmt::Debug for LiveServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveServer").field("address", &self.address).finish_non_exhaustive() // not the token
    }
}
