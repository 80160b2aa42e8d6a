//! The identity that a peer has proved.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error};

use super::error::NotNamed;

/// Name that no certificate has (RFC 2606 reserves `.invalid`): the mismatch lists the names of the certificate.
const NAME_OF_NO_HOST: &str = "taskd.invalid";

/// Rule by which a certificate names a host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum HostPolicy {
    /// Each host has a certificate of its own: the host's name or address is among the subject alternative names,
    /// letter by letter. This is the default.
    #[default]
    Exact,
    /// A wildcard such as `*.pool.example.org` names all hosts of its domain: a process with that certificate can pose
    /// as each of them.
    Wildcard,
    /// All hosts share one certificate with this name, and peers verify this name in place of the host's: a process
    /// with that certificate can pose as each host of the job.
    Shared {
        /// The name in the certificate, such as `job.taskd.internal`.
        name: String,
    },
}

impl HostPolicy {
    /// Returns the name that the certificate of `host` has to have.
    pub(super) fn expected<'a>(&'a self, host: &'a str) -> &'a str {
        match self {
            Self::Shared { name } => name,
            Self::Exact | Self::Wildcard => host,
        }
    }

    const fn advice(&self) -> &'static str {
        match self {
            Self::Exact => {
                "; issue a certificate with this host as subjectAltName (the common name does not count, and a \
                 wildcard only with TASKD_TLS_WILDCARD=1)"
            }
            Self::Wildcard => "; issue a certificate with this host or its domain as subjectAltName",
            Self::Shared { .. } => {
                "; issue the shared certificate with the name of TASKD_TLS_SHARED_NAME as subjectAltName"
            }
        }
    }
}

/// Verifies that a certificate names `host` under a policy; `owner` describes the certificate in the error.
pub(super) fn verify_host(
    certificate: &CertificateDer<'_>,
    host: &str,
    policy: &HostPolicy,
    owner: &str,
) -> Result<(), NotNamed> {
    let expected = policy.expected(host);
    let named = ServerName::try_from(expected).is_ok_and(|name| {
        let matched =
            ParsedCertificate::try_from(certificate).is_ok_and(|parsed| verify_server_name(&parsed, &name).is_ok());
        let without_wildcard = matches!(name, ServerName::IpAddress(_)) || has_dns_name(certificate, expected);
        matched && (without_wildcard || *policy == HostPolicy::Wildcard)
    });
    if named {
        return Ok(());
    }
    Err(NotNamed {
        owner: owner.to_owned(),
        host: expected.to_owned(),
        names: names_for_reader(certificate),
        advice: policy.advice(),
    })
}

/// Returns true if `name` is among the DNS names letter by letter. It restricts a match of the TLS library, and
/// replaces none.
fn has_dns_name(certificate: &CertificateDer<'_>, name: &str) -> bool {
    webpki::EndEntityCert::try_from(certificate)
        .is_ok_and(|parsed| parsed.valid_dns_names().any(|dns| dns.eq_ignore_ascii_case(name.trim_end_matches('.'))))
}

fn names_for_reader(certificate: &CertificateDer<'_>) -> String {
    let names = names(certificate);
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(parsed) = ParsedCertificate::try_from(certificate) else { return Vec::new() };
    let Ok(name) = ServerName::try_from(NAME_OF_NO_HOST) else { return Vec::new() };
    match verify_server_name(&parsed, &name) {
        Err(Error::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. })) => presented,
        _ => Vec::new(),
    }
}

/// Identity of a peer: its verified certificate, or none on a connection in plaintext.
#[derive(Debug, Clone, Default)]
pub struct PeerIdentity {
    certificate: Option<Arc<CertificateDer<'static>>>,
    policy: HostPolicy,
}

impl PeerIdentity {
    pub(super) fn verified(certificate: CertificateDer<'static>, policy: HostPolicy) -> Self {
        Self { certificate: Some(Arc::new(certificate)), policy }
    }

    /// Returns true if the peer has proved its identity with a certificate of the job's CA.
    #[must_use]
    pub const fn is_verified(&self) -> bool {
        self.certificate.is_some()
    }

    /// Returns the subject alternative names of the peer's certificate, in the notation of the TLS library: for
    /// messages, not for decisions.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.certificate.as_deref().map(names).unwrap_or_default()
    }

    /// Verifies that the peer may act in the name of `host`, such as the host in the Hello of an agent: its certificate
    /// names the host under the server's [`HostPolicy`]. A peer in plaintext may act for every host, because the job's
    /// token is all that it proves.
    ///
    /// # Errors
    /// Returns [`NotNamed`], which is a `PermissionDenied` as a gRPC status.
    pub fn may_speak_for(&self, host: &str) -> Result<(), NotNamed> {
        let Some(certificate) = &self.certificate else { return Ok(()) };
        verify_host(certificate, host, &self.policy, "the certificate of this peer")
    }
}

/// The peer of a connection, in the extensions of each request: `request.extensions().get::<Peer>()`.
#[derive(Debug, Clone, Default)]
pub struct Peer {
    address: Option<SocketAddr>,
    identity: PeerIdentity,
}

impl Peer {
    pub(super) const fn new(address: Option<SocketAddr>, identity: PeerIdentity) -> Self {
        Self { address, identity }
    }

    /// Returns the address from which the peer has connected.
    #[must_use]
    pub const fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Returns the identity that the peer has proved.
    #[must_use]
    pub const fn identity(&self) -> &PeerIdentity {
        &self.identity
    }
}
