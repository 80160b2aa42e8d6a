//! The security in force in a process: opened from the settings, and loaded again when the files change.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::time_provider::DefaultTimeProvider;
use tokio::time::MissedTickBehavior;

use super::clock::Utc;
use super::config::{MutualTls, Security};
use super::error::SecurityError;
use super::material::{self, Clock, Fingerprints, Material};
use super::rejections::Rejections;
use super::token::{JobToken, PresentToken, RequireToken};

/// The files are checked for changes this often. A changed file is loaded when two checks in a row see the same state,
/// so that a file that is still being written is left alone.
pub const FILES_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// A certificate that expires within this time is reported in the log.
pub const EXPIRY_WARNING: Duration = Duration::from_secs(3 * 24 * 3600);
/// Checks of the files between two checks of the expiry: one hour.
const CHECKS_PER_EXPIRY_CHECK: u64 = 1800;

/// The security in force in a process. Clones share one state.
#[derive(Debug, Clone)]
pub struct SecurityContext {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    transport: Transport,
    token: Option<JobToken>,
    rejections: Arc<Rejections>,
}

#[derive(Debug)]
pub(super) enum Transport {
    Tls(Box<Tls>),
    Plaintext {
        /// Plaintext is allowed beyond loopback.
        anywhere: bool,
    },
}

/// Settings of mutual TLS, and what was loaded by them.
#[derive(Debug)]
pub(super) struct Tls {
    pub(super) settings: MutualTls,
    host: String,
    clock: Clock,
    current: ArcSwap<Material>,
    status: Mutex<ReloadStatus>,
    /// Held from the first read of a file until its result is in force, so that the latest state wins.
    reloading: Mutex<()>,
}

/// Result of the reloads of a process's files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReloadStatus {
    /// Number of successful reloads.
    pub reloads: u64,
    /// Number of failed reloads; a broken file counts at each attempt.
    pub failures: u64,
    /// Error of the latest reload if it failed: the configuration before it is in force.
    pub error: Option<String>,
}

impl Security {
    /// Loads and checks the files, and begins to watch them until the last clone of the context is dropped. `host` is
    /// the name or address of this host by which its agent reports and its peers dial; plaintext does not use it.
    ///
    /// # Errors
    /// Returns an error if a file is missing or unusable, if the key or the CA does not match the certificate, if the
    /// certificate is not valid now, or if it does not name the host.
    pub async fn open(self, host: &str) -> Result<SecurityContext, SecurityError> {
        self.open_with_clock(host, Arc::new(DefaultTimeProvider)).await
    }

    pub(super) async fn open_with_clock(self, host: &str, clock: Clock) -> Result<SecurityContext, SecurityError> {
        let (transport, token) = match self {
            Self::MutualTls(settings) => {
                let (token, host) = (settings.token.clone(), host.to_owned());
                let tls = blocking(move || Tls::load(settings, host, clock)).await?;
                (Transport::Tls(Box::new(tls)), token)
            }
            Self::Token(token) => (Transport::Plaintext { anywhere: false }, Some(token)),
            Self::Insecure(trusted) => (Transport::Plaintext { anywhere: true }, Some(trusted.0)),
        };
        let context = SecurityContext { inner: Arc::new(Inner { transport, token, rejections: Arc::default() }) };
        match &context.inner.transport {
            Transport::Tls(_) => drop(tokio::spawn(watch(Arc::downgrade(&context.inner)))),
            Transport::Plaintext { anywhere: true } => {
                tracing::warn!(
                    "TASKD_INSECURE=1: plaintext beyond this host; the network can read the job's token and data"
                );
            }
            Transport::Plaintext { anywhere: false } => {}
        }
        Ok(context)
    }
}

impl SecurityContext {
    /// Returns true if peers prove their identity with certificates.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        matches!(self.inner.transport, Transport::Tls(_))
    }

    /// Returns the counters of the peers that servers of this context have rejected.
    #[must_use]
    pub fn rejections(&self) -> &Arc<Rejections> {
        &self.inner.rejections
    }

    /// Returns the interceptor with which clients present the job's token.
    #[must_use]
    pub fn present_token(&self) -> PresentToken {
        PresentToken::new(self.inner.token.as_ref())
    }

    /// Returns the interceptor with which servers require the job's token. As a layer
    /// ([`InterceptorLayer`](tonic::service::InterceptorLayer)) it covers all services of a server.
    #[must_use]
    pub fn require_token(&self) -> RequireToken {
        RequireToken::new(self.inner.token.clone(), Arc::clone(&self.inner.rejections))
    }

    /// Loads the files again at once. Existing connections continue; new ones use the new files.
    ///
    /// # Errors
    /// As [`Security::open`]. The configuration before the call stays in force.
    pub async fn reload(&self) -> Result<(), SecurityError> {
        let inner = Arc::clone(&self.inner);
        blocking(move || match &inner.transport {
            Transport::Tls(tls) => tls.reload(),
            Transport::Plaintext { .. } => Ok(()),
        })
        .await
    }

    /// Returns the result of the reloads since the context was opened.
    #[must_use]
    pub fn reload_status(&self) -> ReloadStatus {
        match &self.inner.transport {
            Transport::Tls(tls) => tls.status().clone(),
            Transport::Plaintext { .. } => ReloadStatus::default(),
        }
    }

    pub(super) fn transport(&self) -> &Transport {
        &self.inner.transport
    }

    /// Refuses plaintext on an address beyond loopback, unless the network was named as trusted.
    pub(super) fn allow(&self, address: SocketAddr) -> Result<(), SecurityError> {
        match self.inner.transport {
            Transport::Plaintext { anywhere: false } if !address.ip().to_canonical().is_loopback() => {
                Err(SecurityError::PlaintextRefused { address })
            }
            _ => Ok(()),
        }
    }
}

impl Tls {
    fn load(settings: MutualTls, host: String, clock: Clock) -> Result<Self, SecurityError> {
        let current = ArcSwap::from_pointee(Material::load(&settings, &host, Arc::clone(&clock))?);
        Ok(Self { settings, host, clock, current, status: Mutex::default(), reloading: Mutex::default() })
    }

    /// Returns the configurations in force. Each handshake takes them once.
    pub(super) fn current(&self) -> Arc<Material> {
        self.current.load_full()
    }

    fn status(&self) -> MutexGuard<'_, ReloadStatus> {
        // Each change is one assignment, so that a poisoned status is whole.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reload(&self) -> Result<(), SecurityError> {
        let _one_at_a_time = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let certificate = self.settings.files.certificate.display();
        match Material::load(&self.settings, &self.host, Arc::clone(&self.clock)) {
            Ok(material) => {
                self.current.store(Arc::new(material));
                let mut status = self.status();
                status.reloads += 1;
                status.error = None;
                tracing::info!(%certificate, "certificates loaded again: new connections use them");
                Ok(())
            }
            Err(error) => {
                let message = error.to_string();
                let mut status = self.status();
                status.failures += 1;
                // A broken file is read again at each check: one line for each error is enough.
                if status.error.as_ref() != Some(&message) {
                    tracing::error!(%certificate, "changed certificates are not used, the old ones stay: {message}");
                }
                status.error = Some(message);
                Err(error)
            }
        }
    }

    /// Loads the files again if they are others than those in force, and no other than at the check before.
    fn check(&self, before: &mut Option<Fingerprints>) {
        let found = material::fingerprints(&self.settings.files);
        if found != self.current.load().fingerprints && *before == Some(found) {
            // Reported by `reload`.
            let _ = self.reload();
        }
        *before = Some(found);
    }

    fn warn_of_expiry(&self) {
        if let Some(not_after) = self.current.load().expires_within(EXPIRY_WARNING) {
            let (certificate, not_after) = (self.settings.files.certificate.display(), Utc::from(not_after));
            tracing::warn!(
                "the certificate {certificate} expires at {not_after}: replace the file, which is loaded at once"
            );
        }
    }
}

async fn watch(inner: Weak<Inner>) {
    let mut ticks = tokio::time::interval(FILES_CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut before, mut checks) = (None, 0_u64);
    loop {
        ticks.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        let expiry = checks.is_multiple_of(CHECKS_PER_EXPIRY_CHECK);
        // Files may be on a slow or dead network file system: a blocked check must block no other task.
        let checked = tokio::task::spawn_blocking(move || {
            if let Transport::Tls(tls) = &inner.transport {
                tls.check(&mut before);
                if expiry {
                    tls.warn_of_expiry();
                }
            }
            before
        });
        before = checked.await.unwrap_or(None);
        checks += 1;
    }
}

async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, SecurityError> + Send + 'static,
) -> Result<T, SecurityError> {
    let result = tokio::task::spawn_blocking(read).await;
    result.unwrap_or_else(|error| Err(SecurityError::Settings(format!("the files of TLS were not read: {error}"))))
}
