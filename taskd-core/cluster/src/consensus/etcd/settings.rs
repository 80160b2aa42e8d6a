//! What a user configures.

use crate::consensus::ConsensusError;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use taskd_runtime::job::Name;
use tonic::transport::{Channel, Endpoint};

/// Lease of a manager, if the user sets none.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(5);
/// Time limit of a call, if the user sets none.
pub const LIMIT_DEFAULT: Duration = Duration::from_secs(3);
/// Longest lease. etcd accepts up to 9,000,000,000 s; a manager that is lost for a day is replaced by hand.
const LEASE_MAX: Duration = Duration::from_secs(86_400);
/// Bytes of an answer that may be under way in one call: a whole record without a round trip in between.
const WINDOW_BYTES: u32 = 2 << 20;

type Channels = dyn Fn(&str) -> Result<Channel, Box<dyn Error + Send + Sync>> + Send + Sync;

/// Configuration of the engine [`Etcd`](super::Etcd).
#[derive(Clone)]
pub struct EtcdSettings {
    pub(super) job: Name,
    pub(super) endpoints: Vec<String>,
    pub(super) lease: Duration,
    pub(super) limit: Duration,
    pub(super) channels: Arc<Channels>,
}

impl EtcdSettings {
    /// Creates settings for a job, which needs a name of its own among the jobs that use these servers, and the URIs at
    /// which etcd's members serve clients, such as `http://10.0.0.1:2379`.
    pub fn new<E: Into<String>>(job: impl Into<Name>, endpoints: impl IntoIterator<Item = E>) -> EtcdSettings {
        EtcdSettings {
            job: job.into(),
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            lease: LEASE_DEFAULT,
            limit: LIMIT_DEFAULT,
            channels: Arc::new(plain),
        }
    }

    /// Sets the lease of a manager (default: [`LEASE_DEFAULT`]): etcd ends the manager's epoch this time after the last
    /// request of its process. etcd counts in whole seconds, and grants no lease shorter than 1.5 times the election
    /// timeout of its members, which is 2 s with their default.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> EtcdSettings {
        self.lease = lease;
        self
    }

    /// Sets the time limit of one call over all endpoints (default: [`LIMIT_DEFAULT`]). Each endpoint gets an equal
    /// share before the next one is asked.
    #[must_use]
    pub fn with_limit(mut self, limit: Duration) -> EtcdSettings {
        self.limit = limit;
        self
    }

    /// Sets the function that makes the channel to an endpoint from its URI, for example with TLS
    /// ([`Endpoint::connect_with_connector_lazy`]) and the certificate by which etcd knows the client. It must return
    /// at once, and the channel must connect lazily. Without it, endpoints are connected by TCP, without TLS.
    #[must_use]
    pub fn with_channels<F>(mut self, channels: F) -> EtcdSettings
    where
        F: Fn(&str) -> Result<Channel, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    {
        self.channels = Arc::new(channels);
        self
    }

    /// Returns an error if the settings cannot work.
    pub(super) fn check(&self) -> Result<(), ConsensusError> {
        let job = self.job.as_str();
        let problem = if job.is_empty() || job.contains('/') {
            format!("the job's name {job:?} is part of the keys: it must have no '/' and not be empty")
        } else if self.endpoints.is_empty() {
            "no endpoint is given: name at least one URI such as http://10.0.0.1:2379".into()
        } else if self.limit.is_zero() {
            "the time limit of calls is 0: set a limit of seconds".into()
        } else if self.lease.is_zero() || self.lease > LEASE_MAX {
            format!("the lease is {:?}: set one from 1 s to {LEASE_MAX:?}", self.lease)
        } else {
            return Ok(());
        };
        Err(ConsensusError::Refused(format!("etcd: {problem}")))
    }

    /// Returns the lease in seconds, rounded up.
    pub(super) fn lease_seconds(&self) -> u64 {
        self.lease.as_secs() + u64::from(self.lease.subsec_nanos() > 0)
    }
}

impl fmt::Debug for EtcdSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdSettings")
            .field("job", &self.job)
            .field("endpoints", &self.endpoints)
            .field("lease", &self.lease)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// Returns a channel without TLS.
fn plain(uri: &str) -> Result<Channel, Box<dyn Error + Send + Sync>> {
    let endpoint = Endpoint::from_shared(uri.to_owned())?;
    if endpoint.uri().scheme_str() != Some("http") {
        return Err(
            "only http:// is connected without a function for channels: see `EtcdSettings::with_channels`".into()
        );
    }
    let windows = endpoint.initial_stream_window_size(WINDOW_BYTES).initial_connection_window_size(2 * WINDOW_BYTES);
    Ok(windows.connect_lazy())
}
