//! The settings of a job's security.

use std::ffi::OsString;
use std::path::PathBuf;

use super::error::SecurityError;
use super::identity::HostPolicy;
use super::token::JobToken;

const CA: &str = "TASKD_TLS_CA";
const CERTIFICATE: &str = "TASKD_TLS_CERTIFICATE";
const KEY: &str = "TASKD_TLS_KEY";
const WILDCARD: &str = "TASKD_TLS_WILDCARD";
const SHARED_NAME: &str = "TASKD_TLS_SHARED_NAME";
const TOKEN: &str = "TASKD_JOB_TOKEN";
const TOKEN_FILE: &str = "TASKD_JOB_TOKEN_FILE";
const INSECURE: &str = "TASKD_INSECURE";

/// How the processes of a job prove that they belong to it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Security {
    /// TLS 1.3, in which each side presents a certificate of the job's CA.
    MutualTls(MutualTls),
    /// Plaintext, in which each request presents the job's token: on loopback addresses only.
    Token(JobToken),
    /// Plaintext with the job's token on every address. `TASKD_INSECURE=1` names the network as trusted.
    Insecure(TrustedNetwork),
}

/// Paths of the PEM files of a process. A changed file is loaded without a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the job's CA. During a rotation the old and the new one are in this file.
    pub ca: PathBuf,
    /// Certificate of this process, then its intermediates.
    pub certificate: PathBuf,
    /// Private key of the certificate, without a passphrase. Only its owner can read it.
    pub key: PathBuf,
}

/// Settings of mutual TLS.
#[derive(Debug, Clone)]
pub struct MutualTls {
    pub(super) files: TlsFiles,
    pub(super) hosts: HostPolicy,
    pub(super) token: Option<JobToken>,
}

impl MutualTls {
    /// Creates the settings for the files of a process, with [`HostPolicy::Exact`] and without a token.
    #[must_use]
    pub fn new(files: TlsFiles) -> Self {
        Self { files, hosts: HostPolicy::default(), token: None }
    }

    /// Sets the rule by which a certificate names a host. All processes of a job need the same.
    #[must_use]
    pub fn with_hosts(mut self, hosts: HostPolicy) -> Self {
        self.hosts = hosts;
        self
    }

    /// Requires the job's token too: for a CA that issues the certificates of several jobs.
    #[must_use]
    pub fn with_token(mut self, token: JobToken) -> Self {
        self.token = Some(token);
        self
    }
}

/// A job's token, for plaintext on a network that the environment names as trusted.
#[derive(Debug, Clone)]
pub struct TrustedNetwork(pub(super) JobToken);

impl Security {
    /// Reads the settings from the environment:
    /// - `TASKD_TLS_CA`, `TASKD_TLS_CERTIFICATE` and `TASKD_TLS_KEY` (paths) select mutual TLS.
    ///   `TASKD_TLS_WILDCARD=1` or
    ///   `TASKD_TLS_SHARED_NAME` select another [`HostPolicy`] than the default.
    /// - `TASKD_JOB_TOKEN` or `TASKD_JOB_TOKEN_FILE` is the job's token; it is required without TLS. Child processes,
    ///   ranks among them, inherit the variable; a file that they cannot read keeps the token from them.
    /// - `TASKD_INSECURE=1` allows plaintext beyond loopback. It does not turn off TLS.
    ///
    /// # Errors
    /// Returns an error if a setting is missing, unusable or contradicts another, or if the token's file is not
    /// usable.
    pub fn from_env() -> Result<Self, SecurityError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// Reads the settings as [`from_env`](Self::from_env) does, from other variables than the environment's.
    ///
    /// # Errors
    /// As `from_env`.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, SecurityError> {
        let variables = Variables(&variable);
        let insecure = variables.flag(INSECURE)?;
        let token = variables.token()?;
        if let Some(files) = variables.tls_files()? {
            return Ok(Self::MutualTls(MutualTls { files, hosts: variables.hosts()?, token }));
        }
        match (token, insecure) {
            (Some(token), false) => Ok(Self::Token(token)),
            (Some(token), true) => Ok(Self::Insecure(TrustedNetwork(token))),
            (None, true) => Err(SecurityError::Settings(format!(
                "{INSECURE}=1 allows plaintext, but each connection still presents the job's token: set {TOKEN} or \
                 {TOKEN_FILE}"
            ))),
            (None, false) => Err(SecurityError::NotConfigured),
        }
    }
}

struct Variables<'a>(&'a dyn Fn(&str) -> Option<OsString>);

impl Variables<'_> {
    fn value(&self, name: &str) -> Option<OsString> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    fn text(&self, name: &str) -> Result<Option<String>, SecurityError> {
        let value = self.value(name).map(OsString::into_string).transpose();
        value.map_err(|_| SecurityError::Settings(format!("{name} is not UTF-8 text")))
    }

    fn flag(&self, name: &str) -> Result<bool, SecurityError> {
        match self.text(name)?.as_deref() {
            None | Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(other) => Err(SecurityError::Settings(format!("{name}={other} is not understood: set it to 1 or 0"))),
        }
    }

    fn token(&self) -> Result<Option<JobToken>, SecurityError> {
        match (self.text(TOKEN)?, self.value(TOKEN_FILE)) {
            (Some(_), Some(_)) => {
                Err(SecurityError::Settings(format!("{TOKEN} and {TOKEN_FILE} are both set: remove one of them")))
            }
            (Some(secret), None) => JobToken::checked(&secret, TOKEN).map(Some),
            (None, Some(path)) => JobToken::read(&PathBuf::from(path)).map(Some),
            (None, None) => Ok(None),
        }
    }

    fn tls_files(&self) -> Result<Option<TlsFiles>, SecurityError> {
        let paths = [CA, CERTIFICATE, KEY].map(|name| self.value(name).map(PathBuf::from));
        match paths {
            [None, None, None] => Ok(None),
            [Some(ca), Some(certificate), Some(key)] => Ok(Some(TlsFiles { ca, certificate, key })),
            paths => {
                let missing: Vec<_> = [CA, CERTIFICATE, KEY]
                    .iter()
                    .zip(&paths)
                    .filter(|(_, path)| path.is_none())
                    .map(|(name, _)| *name)
                    .collect();
                Err(SecurityError::Settings(format!(
                    "mutual TLS needs {} too: set it, or none of the three",
                    missing.join(" and ")
                )))
            }
        }
    }

    fn hosts(&self) -> Result<HostPolicy, SecurityError> {
        match (self.flag(WILDCARD)?, self.text(SHARED_NAME)?) {
            (false, None) => Ok(HostPolicy::Exact),
            (true, None) => Ok(HostPolicy::Wildcard),
            (false, Some(name)) => Ok(HostPolicy::Shared { name }),
            (true, Some(_)) => {
                Err(SecurityError::Settings(format!("{WILDCARD} and {SHARED_NAME} are both set: remove one of them")))
            }
        }
    }
}
