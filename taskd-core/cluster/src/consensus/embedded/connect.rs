//! Connections to other voters.

use super::ConsensusError;
use crate::security::{PresentToken, SecurityContext};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// Opens connections to other voters: the place for TLS, or for a simulated network. A closure
/// `Fn(&str) -> Result<Channel, ConsensusError>` is one.
pub trait Connect: Send + Sync + 'static {
    /// Returns a channel to a voter's address, `HOST:PORT`, without waiting: the channel connects when it is first
    /// used, and again after it has lost its connection.
    ///
    /// # Errors
    /// Returns [`ConsensusError::Refused`] if the address cannot be one.
    fn connect(&self, address: &str) -> Result<Channel, ConsensusError>;

    /// Returns what each request presents besides the connection: the job's token, if there is one. Default: nothing.
    fn token(&self) -> Option<PresentToken> {
        None
    }
}

impl<F: Fn(&str) -> Result<Channel, ConsensusError> + Send + Sync + 'static> Connect for F {
    fn connect(&self, address: &str) -> Result<Channel, ConsensusError> {
        self(address)
    }
}

/// Plain TCP. An idle connection is probed, because a peer that lost its power closes none.
#[derive(Clone, Copy, Debug)]
pub struct TcpConnect {
    probe: Duration,
}

impl TcpConnect {
    /// Creates a connector that probes idle connections at this interval, and closes one that does not answer within
    /// the same time.
    #[must_use]
    pub fn new(probe: Duration) -> TcpConnect {
        TcpConnect { probe }
    }

    /// Returns how an address is connected to, for a connector that differs only in what lies below HTTP/2.
    ///
    /// # Errors
    /// Returns [`ConsensusError::Refused`] if the address cannot be one.
    pub fn endpoint(&self, address: &str) -> Result<Endpoint, ConsensusError> {
        let invalid = |error| ConsensusError::Refused(format!("`{address}` is no address of a voter: {error}"));
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(invalid)?;
        Ok(endpoint
            .connect_timeout(self.probe)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(self.probe)
            .keep_alive_timeout(self.probe)
            .keep_alive_while_idle(true))
    }
}

impl Default for TcpConnect {
    /// Probes every second.
    fn default() -> TcpConnect {
        TcpConnect::new(Duration::from_secs(1))
    }
}

/// Connections that prove, as the context states, that this voter belongs to the job.
impl Connect for SecurityContext {
    fn connect(&self, address: &str) -> Result<Channel, ConsensusError> {
        let endpoint = TcpConnect::default().endpoint(address)?;
        Ok(endpoint.connect_with_connector_lazy(self.connector()))
    }

    fn token(&self) -> Option<PresentToken> {
        Some(self.present_token())
    }
}

impl Connect for TcpConnect {
    fn connect(&self, address: &str) -> Result<Channel, ConsensusError> {
        Ok(self.endpoint(address)?.connect_lazy())
    }
}
