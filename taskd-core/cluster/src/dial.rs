//! How connections to managers are opened.

use async_trait::async_trait;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// Opens connections to managers, in plaintext or with TLS.
#[async_trait]
pub trait Dial: Send + Sync {
    /// Opens a connection to `HOST:PORT`.
    ///
    /// # Errors
    /// Returns the reason in one sentence.
    async fn dial(&self, address: &str, within: Duration) -> Result<Channel, String>;
}

/// Opens connections in plaintext: for loopback, and for networks that are trusted by name.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlaintextDialer;

#[async_trait]
impl Dial for PlaintextDialer {
    async fn dial(&self, address: &str, within: Duration) -> Result<Channel, String> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let endpoint = endpoint.map_err(|error| format!("{address} is no address: {error}"))?;
        let connected = endpoint.connect_timeout(within).tcp_nodelay(true).connect().await;
        connected.map_err(|error| format!("{address} does not answer: {}", root_cause(&error)))
    }
}

/// Returns the text of an error's innermost cause, which names what the system reported.
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
