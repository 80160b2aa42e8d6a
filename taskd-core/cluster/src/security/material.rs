//! Loads certificates and the key, and checks them as a peer would.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{Ticketer, default_provider};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, Error, InconsistentKeys, RootCertStore, ServerConfig};

use super::config::{MutualTls, TlsFiles};
use super::error::SecurityError;
use super::files::{self, Access, Fingerprint};
use super::identity;

const CA: &str = "the CA file";
const CERTIFICATE: &str = "the certificate";
const KEY: &str = "the private key";
/// HTTP/2, which gRPC requires.
const PROTOCOL: &[u8] = b"h2";

/// Fingerprints of CA, certificate and key; `None` for a file that does not exist.
pub(super) type Fingerprints = [Option<Fingerprint>; 3];

pub(super) fn fingerprints(files: &TlsFiles) -> Fingerprints {
    [&files.ca, &files.certificate, &files.key].map(|path| Fingerprint::of(path))
}

/// Checked configurations of both sides, made from one state of the files.
pub(super) struct Material {
    pub(super) server: Arc<ServerConfig>,
    pub(super) fingerprints: Fingerprints,
    client: Arc<ClientConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
    server_verifier: Arc<WebPkiServerVerifier>,
    chain: Vec<CertificateDer<'static>>,
    clock: Clock,
    /// A server has ended a resumed session: the next handshakes are full ones, which give the reason.
    resumption_refused: AtomicBool,
}

/// Clock of the verification; tests use another one than the system's.
pub(super) type Clock = Arc<dyn TimeProvider>;

fn now(clock: &dyn TimeProvider) -> UnixTime {
    clock.current_time().unwrap_or_else(UnixTime::now)
}

impl fmt::Debug for Material {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Two pages of settings of the TLS library would follow.
        out.debug_struct("Material").field("fingerprints", &self.fingerprints).finish_non_exhaustive()
    }
}

impl Material {
    /// Loads and checks the files of the host `host`.
    pub(super) fn load(tls: &MutualTls, host: &str, clock: Clock) -> Result<Self, SecurityError> {
        let provider = Arc::new(default_provider());
        let files = &tls.files;
        let ca = files::read(CA, &files.ca, Access::Public)?;
        let certificate = files::read(CERTIFICATE, &files.certificate, Access::Public)?;
        let key = files::read(KEY, &files.key, Access::Secret)?;
        let fingerprints = [&ca, &certificate, &key].map(|file| Some(file.fingerprint));

        let roots = Arc::new(roots(&files.ca, &ca.content)?);
        let chain = certificates(CERTIFICATE, &files.certificate, &certificate.content)?;
        let certified = certified_key(files, chain.clone(), &key.content, &provider)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|error| malformed(CA, &files.ca, error.to_string()))?;
        let server_verifier = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|error| malformed(CA, &files.ca, error.to_string()))?;
        verify_own(files, &chain, &roots, &*verifier, &provider, now(&*clock))?;
        if let Some(leaf) = chain.first() {
            let owner = format!("the certificate {}", files.certificate.display());
            identity::verify_host(leaf, host, &tls.hosts, &owner)?;
        }

        let certified = Arc::new(SingleCertAndKey::from(certified));
        let mut server = ServerConfig::builder_with_details(Arc::clone(&provider), Arc::clone(&clock))
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(Arc::clone(&verifier))
            .with_cert_resolver(certified.clone());
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        // Tickets keep no state for thousands of agents in the server. Their key is new with each reload, so that no
        // session outlives the CA or the certificate under which it began.
        server.ticketer = Ticketer::new()?;
        let mut client = ClientConfig::builder_with_details(provider, Arc::clone(&clock))
            .with_protocol_versions(&[&TLS13])?
            .with_webpki_verifier(Arc::clone(&server_verifier))
            .with_client_cert_resolver(certified);
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Self {
            server: Arc::new(server),
            client: Arc::new(client),
            verifier,
            server_verifier,
            fingerprints,
            chain,
            clock,
            resumption_refused: AtomicBool::new(false),
        })
    }

    /// Returns the configuration of a client's next handshake. It resumes a session only if `resumes`, and if nothing
    /// suggests that the server will refuse this process: after a full handshake the server's alert gives the reason.
    pub(super) fn client(&self, resumes: bool) -> Arc<ClientConfig> {
        if resumes && !self.resumption_refused.load(Ordering::Relaxed) && self.verify_client(&self.chain).is_ok() {
            return Arc::clone(&self.client);
        }
        let mut client = (*self.client).clone();
        client.resumption = Resumption::disabled();
        Arc::new(client)
    }

    /// Makes the next handshakes of clients full ones.
    pub(super) fn refuse_resumption(&self) {
        self.resumption_refused.store(true, Ordering::Relaxed);
    }

    /// Verifies a peer's certificates against the CA in force. The TLS library does not when a session is resumed.
    pub(super) fn verify_client(&self, chain: &[CertificateDer<'_>]) -> Result<(), Error> {
        let (leaf, intermediates) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
        self.verifier.verify_client_cert(leaf, intermediates, now(&*self.clock)).map(drop)
    }

    /// Verifies a server's certificates as [`verify_client`](Self::verify_client) does a client's.
    pub(super) fn verify_server(&self, chain: &[CertificateDer<'_>], name: &ServerName<'_>) -> Result<(), Error> {
        let (leaf, intermediates) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
        self.server_verifier.verify_server_cert(leaf, intermediates, name, &[], now(&*self.clock)).map(drop)
    }

    /// Returns the end of the certificate's validity if it is within `time` from now.
    pub(super) fn expires_within(&self, time: Duration) -> Option<UnixTime> {
        let (leaf, intermediates) = self.chain.split_first()?;
        let later = UnixTime::since_unix_epoch(Duration::from_secs(now(&*self.clock).as_secs()).saturating_add(time));
        match self.verifier.verify_client_cert(leaf, intermediates, later) {
            Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => Some(not_after),
            _ => None,
        }
    }
}

fn roots(path: &Path, content: &[u8]) -> Result<RootCertStore, SecurityError> {
    let mut roots = RootCertStore::empty();
    for (index, certificate) in certificates(CA, path, content)?.into_iter().enumerate() {
        let number = index + 1;
        roots
            .add(certificate)
            .map_err(|error| malformed(CA, path, format!("certificate {number} of the file: {error}")))?;
    }
    Ok(roots)
}

fn certificates(
    what: &'static str,
    path: &Path,
    content: &[u8],
) -> Result<Vec<CertificateDer<'static>>, SecurityError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(content).collect();
    let certificates = certificates.map_err(|error| malformed(what, path, pem_reason(&error)))?;
    if certificates.is_empty() {
        return Err(malformed(what, path, "it has no section `BEGIN CERTIFICATE`: it needs the PEM format".to_owned()));
    }
    Ok(certificates)
}

fn certified_key(
    files: &TlsFiles,
    chain: Vec<CertificateDer<'static>>,
    content: &[u8],
    provider: &CryptoProvider,
) -> Result<CertifiedKey, SecurityError> {
    let key = PrivateKeyDer::from_pem_slice(content).map_err(|error| {
        let encrypted = content.windows(b"ENCRYPTED".len()).any(|window| window == b"ENCRYPTED");
        let reason = match error {
            _ if encrypted => "it has a passphrase: remove it with `openssl pkey -in KEY -out NEW_KEY`".to_owned(),
            pem::Error::NoItemsFound => "it has no section `BEGIN PRIVATE KEY`: it needs the PEM format".to_owned(),
            error => pem_reason(&error),
        };
        malformed(KEY, &files.key, reason)
    })?;
    let key = provider.key_provider.load_private_key(key);
    let key = key.map_err(|error| malformed(KEY, &files.key, error.to_string()))?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        // A key that does not show its public part: a handshake would show the mismatch.
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(Error::InconsistentKeys(_)) => {
            Err(SecurityError::KeyMismatch { certificate: files.certificate.clone(), key: files.key.clone() })
        }
        Err(error) => Err(malformed(CERTIFICATE, &files.certificate, error.to_string())),
    }
}

/// Verifies the own certificate as both a client and a server would.
fn verify_own(
    files: &TlsFiles,
    chain: &[CertificateDer<'static>],
    roots: &RootCertStore,
    verifier: &dyn ClientCertVerifier,
    provider: &CryptoProvider,
    now: UnixTime,
) -> Result<(), SecurityError> {
    let Some((leaf, intermediates)) = chain.split_first() else { return Ok(()) };
    let refused = |error| not_verified(files, now, error);
    let parsed = ParsedCertificate::try_from(leaf).map_err(refused)?;
    let algorithms = provider.signature_verification_algorithms.all;
    verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms).map_err(refused)?;
    verifier.verify_client_cert(leaf, intermediates, now).map_err(refused)?;
    Ok(())
}

fn not_verified(files: &TlsFiles, now: UnixTime, error: Error) -> SecurityError {
    let certificate = files.certificate.clone();
    let reason = match error {
        Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. }) => {
            return SecurityError::Expired { certificate, not_after: not_after.into(), now: now.into() };
        }
        Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. }) => {
            return SecurityError::NotYetValid { certificate, not_before: not_before.into(), now: now.into() };
        }
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "another CA has issued it, or an intermediate is missing: use the CA file of this job, and append the \
             intermediates to the certificate"
                .to_owned()
        }
        Error::InvalidCertificate(
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. },
        ) => {
            "each process is server and client: request a certificate with `extendedKeyUsage = serverAuth, clientAuth`"
                .to_owned()
        }
        error => error.to_string(),
    };
    SecurityError::NotVerified { certificate, ca: files.ca.clone(), reason }
}

fn pem_reason(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no end: the file is not complete".to_owned(),
        pem::Error::IllegalSectionStart { .. } => "a line that begins a section is damaged".to_owned(),
        error => error.to_string(),
    }
}

fn malformed(what: &'static str, path: &Path, reason: String) -> SecurityError {
    SecurityError::Malformed { what, path: path.to_owned(), reason }
}
