//! A CA for tests, examples and measurements.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};

use super::config::TlsFiles;
use super::error::SecurityError;

/// Validity of a [`TestCertificate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Validity {
    /// From 1975 to 4096.
    #[default]
    Valid,
    /// It ended with the year 2000.
    Expired,
    /// It begins with the year 3000.
    NotYetValid,
}

/// Extended key usage of a [`TestCertificate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Usage {
    /// Server and client.
    #[default]
    Both,
    /// Server only.
    Server,
}

/// CA for tests. It keeps its key in memory.
#[derive(Debug)]
pub struct TestAuthority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// Certificate of a host, with its key, in PEM.
#[derive(Debug, Clone)]
pub struct TestCertificate {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl TestAuthority {
    /// Creates a CA with the common name `name` and a new P-256 key.
    ///
    /// # Errors
    /// Returns [`SecurityError::Settings`] if the certificate cannot be made.
    pub fn new(name: &str) -> Result<Self, SecurityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(failed)?;
        let pem = params.self_signed(&key).map_err(failed)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// Returns the CA's certificate in PEM.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Issues a certificate for names and addresses, valid for both usages.
    ///
    /// # Errors
    /// Returns [`SecurityError::Settings`] if a name is unusable.
    pub fn issue(&self, names: &[&str]) -> Result<TestCertificate, SecurityError> {
        self.issue_with(names, Validity::Valid, Usage::Both)
    }

    /// Issues a certificate with another validity or usage.
    ///
    /// # Errors
    /// As [`issue`](Self::issue).
    pub fn issue_with(
        &self,
        names: &[&str],
        validity: Validity,
        usage: Usage,
    ) -> Result<TestCertificate, SecurityError> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).map_err(failed)?;
        params.distinguished_name.push(DnType::CommonName, "taskd test host");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match usage {
            Usage::Both => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
            Usage::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
        };
        match validity {
            Validity::Valid => {}
            Validity::Expired => params.not_after = date_time_ymd(2000, 12, 31),
            Validity::NotYetValid => params.not_before = date_time_ymd(3000, 1, 1),
        }
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?.pem();
        Ok(TestCertificate { certificate, key: key.serialize_pem() })
    }

    /// Issues a certificate for both usages and writes it, its key and the CA into a directory.
    ///
    /// # Errors
    /// Returns an error if a name is unusable, or if a file cannot be written.
    pub fn write(&self, directory: &Path, names: &[&str]) -> Result<TlsFiles, SecurityError> {
        self.issue(names)?.write(directory, &self.pem)
    }
}

impl TestCertificate {
    /// Writes `ca.pem`, `host.pem` and `host.key` into a directory.
    ///
    /// # Errors
    /// Returns [`SecurityError::Settings`] if a file cannot be written.
    pub fn write(&self, directory: &Path, ca: &str) -> Result<TlsFiles, SecurityError> {
        let files = TlsFiles {
            ca: directory.join("ca.pem"),
            certificate: directory.join("host.pem"),
            key: directory.join("host.key"),
        };
        for (path, content) in [(&files.ca, ca), (&files.certificate, &*self.certificate), (&files.key, &*self.key)] {
            let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
            file.and_then(|mut file| file.write_all(content.as_bytes())).map_err(failed)?;
        }
        Ok(files)
    }
}

fn failed(error: impl std::fmt::Display) -> SecurityError {
    SecurityError::Settings(format!("test certificates: {error}"))
}
