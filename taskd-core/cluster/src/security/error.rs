//! Errors of the proof of identity, each with the action that removes it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::clock::Utc;

/// Error of a job's security: of its settings, of its files, or of a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecurityError {
    /// A variable of the environment has an unusable value, or variables contradict each other.
    #[error("{0}")]
    Settings(String),
    /// No variable of the environment configures the security of the job.
    #[error(
        "nothing secures this job: set TASKD_TLS_CA, TASKD_TLS_CERTIFICATE and TASKD_TLS_KEY for mutual TLS, or \
         TASKD_JOB_TOKEN (or TASKD_JOB_TOKEN_FILE) for plaintext on this host alone"
    )]
    NotConfigured,
    /// Plaintext on an address beyond loopback, on a network that was not named as trusted.
    #[error(
        "plaintext on {address} is refused, because every host on the way can read the job's token: configure mutual \
         TLS, or set TASKD_INSECURE=1 if you trust each host of this network"
    )]
    PlaintextRefused {
        /// Address that was to be used.
        address: SocketAddr,
    },
    /// A file cannot be read.
    #[error("cannot read {what} {}: {source}", path.display())]
    Unreadable {
        /// Use of the file, such as `the certificate`.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file with a secret can be read by other users.
    #[error(
        "{what} {} can be read by other users (mode {mode:04o}): remove their access with `chmod 600`, and replace the \
         secret if they may have read it",
        path.display()
    )]
    Exposed {
        /// Use of the file.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// A file does not hold what it has to hold.
    #[error("{what} {} is not usable: {reason}", path.display())]
    Malformed {
        /// Use of the file.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// The private key belongs to another certificate.
    #[error(
        "the private key {} does not match the certificate {}: use the key with which this certificate was requested",
        key.display(), certificate.display()
    )]
    KeyMismatch {
        /// Path of the certificate.
        certificate: PathBuf,
        /// Path of the key.
        key: PathBuf,
    },
    /// The certificate has expired, by this host's clock.
    #[error(
        "the certificate {} has expired at {not_after}: renew it; or the clock of this host may be wrong: it shows \
         {now}",
        certificate.display()
    )]
    Expired {
        /// Path of the certificate.
        certificate: PathBuf,
        /// End of its validity.
        not_after: Utc,
        /// This host's clock.
        now: Utc,
    },
    /// The certificate's validity has not begun, by this host's clock.
    #[error(
        "the certificate {} is not valid before {not_before}: the clock of this host may be wrong: it shows {now}",
        certificate.display()
    )]
    NotYetValid {
        /// Path of the certificate.
        certificate: PathBuf,
        /// Begin of its validity.
        not_before: Utc,
        /// This host's clock.
        now: Utc,
    },
    /// The certificate does not verify against the job's CA, or not for the use as server and client.
    #[error("the certificate {} does not verify against the CA {}: {reason}", certificate.display(), ca.display())]
    NotVerified {
        /// Path of the certificate.
        certificate: PathBuf,
        /// Path of the CA's certificates.
        ca: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// A certificate does not name the host.
    #[error(transparent)]
    NotNamed(#[from] NotNamed),
    /// A token is not usable.
    #[error("the job's token from {origin} is not usable: {reason}")]
    Token {
        /// Origin of the token, such as a variable or a path.
        origin: String,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The URI of a peer has no host or no port.
    #[error("cannot connect to `{uri}`: it needs the form http://HOST:PORT")]
    Uri {
        /// The URI.
        uri: String,
    },
    /// No connection to a peer.
    #[error("cannot connect to {peer}: {source}")]
    Connect {
        /// Host and port of the peer.
        peer: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A peer did not prove its identity, or refused the identity of this process.
    #[error("no secure connection to {peer}: {reason}")]
    Handshake {
        /// Host and port of the peer.
        peer: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The TLS library refused a configuration.
    #[error("TLS cannot be configured: {0}")]
    Library(#[from] rustls::Error),
}

impl SecurityError {
    /// Returns the error of this module among the causes of `error`, such as a gRPC status with the message "transport
    /// error": it has the sentence for the log. `None` if security is not the cause.
    #[must_use]
    pub fn cause_of<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            // The source of an I/O error is the source of its inner error: the inner one would be left out.
            let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            let found = error.downcast_ref().or_else(|| inner.and_then(|inner| inner.downcast_ref()));
            if found.is_some() {
                return found;
            }
            next = error.source();
        }
        None
    }
}

/// Error of a host that is not among the names of a certificate.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{owner} does not name the host {host}: its names are {names}{advice}")]
pub struct NotNamed {
    /// The certificate's path, or the peer that presented it.
    pub(super) owner: String,
    /// Host that was claimed.
    pub(super) host: String,
    /// Names of the certificate, for a reader.
    pub(super) names: String,
    /// What to do.
    pub(super) advice: &'static str,
}

impl NotNamed {
    /// Returns the host that was claimed.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }
}

impl From<NotNamed> for tonic::Status {
    fn from(error: NotNamed) -> Self {
        Self::permission_denied(error.to_string())
    }
}
