//! How connections to managers and agents are opened.

use crate::security::{PresentToken, SecurityContext, SecurityError};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::service::Interceptor;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

/// Opens connections to managers and agents.
#[async_trait]
pub trait Dial: Send + Sync {
    /// Opens a connection to `HOST:PORT`.
    ///
    /// # Errors
    /// Returns the reason in one sentence.
    async fn dial(&self, address: &str, within: Duration) -> Result<Channel, String>;

    /// Checks that `HOST:PORT` can be reached now, without keeping a connection. The default opens one as
    /// [`dial`](Dial::dial) does.
    ///
    /// # Errors
    /// Returns the reason in one sentence.
    async fn reach(&self, address: &str, within: Duration) -> Result<(), String> {
        self.dial(address, within).await.map(drop)
    }
}

#[async_trait]
impl Dial for SecurityContext {
    async fn dial(&self, address: &str, within: Duration) -> Result<Channel, String> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let endpoint = endpoint.map_err(|error| format!("{address} is no address: {error}"))?;
        let connector = self.connector().with_timeout(within);
        let connected = endpoint.connect_timeout(within).connect_with_connector(connector).await;
        connected.map_err(|error| match SecurityError::cause_of(&error) {
            Some(cause) => cause.to_string(),
            None => format!("{address} does not answer: {}", root_cause(&error)),
        })
    }

    /// The operating systems of both hosts do this, so that a busy agent counts as reached: it is the network that is
    /// checked.
    async fn reach(&self, address: &str, within: Duration) -> Result<(), String> {
        match timeout(within, TcpStream::connect(address)).await {
            Ok(connected) => connected.map(drop).map_err(|error| format!("{address} does not answer: {error}")),
            Err(_) => Err(format!("{address} does not answer within {within:?}")),
        }
    }
}

/// How this process opens connections, and what it presents over them.
#[derive(Clone)]
pub(crate) struct Access {
    dialer: Arc<dyn Dial>,
    token: Option<PresentToken>,
}

impl Access {
    /// Opens connections as `security` states.
    pub(crate) fn new(security: &SecurityContext) -> Access {
        Access { dialer: Arc::new(security.clone()), token: Some(security.present_token()) }
    }

    /// Opens connections with another dialer.
    pub(crate) fn with_dialer(mut self, dialer: impl Dial + 'static) -> Access {
        self.dialer = Arc::new(dialer);
        self
    }

    /// Opens a connection within a time.
    pub(crate) async fn dial(&self, address: &str, within: Duration) -> Result<Channel, String> {
        let dialled = timeout(within, self.dialer.dial(address, within)).await;
        dialled.unwrap_or_else(|_| Err(format!("{address} does not answer within {within:?}")))
    }

    /// Checks that an address can be reached within a time.
    pub(crate) async fn reach(&self, address: &str, within: Duration) -> Result<(), String> {
        self.dialer.reach(address, within).await
    }

    /// Returns a request that presents the job's token.
    pub(crate) fn request<T>(&self, message: T) -> Result<Request<T>, Status> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            let bare = token.clone().call(Request::new(()))?;
            *request.metadata_mut() = bare.metadata().clone();
        }
        Ok(request)
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
