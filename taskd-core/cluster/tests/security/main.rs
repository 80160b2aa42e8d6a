//! Real connections over loopback: which peers get access, which do not, and why.

mod files;
mod openssl;
mod plaintext;
mod reload;
mod service;
mod settings;
mod tls;
mod tokens;

use std::path::Path;
use std::time::{Duration, Instant};

use taskd_cluster::security::{
    HostPolicy, JobToken, MutualTls, RejectReason, Rejections, Security, SecurityContext, SecurityError, TestAuthority,
    TlsFiles,
};

/// Name of this host in the certificates.
const HOST: &str = "127.0.0.1";
const SECRET: &str = "0123456789abcdef0123456789abcdef";
/// Longest wait for an event that occurs within milliseconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn authority(name: &str) -> TestAuthority {
    TestAuthority::new(name).expect("a CA")
}

fn token() -> JobToken {
    JobToken::new(SECRET).expect("a token")
}

async fn open(files: &TlsFiles) -> SecurityContext {
    try_open(files).await.expect("usable files")
}

async fn try_open(files: &TlsFiles) -> Result<SecurityContext, SecurityError> {
    Security::MutualTls(MutualTls::new(files.clone())).open(HOST).await
}

async fn open_with(files: &TlsFiles, hosts: HostPolicy, host: &str) -> Result<SecurityContext, SecurityError> {
    Security::MutualTls(MutualTls::new(files.clone()).with_hosts(hosts)).open(host).await
}

/// Security of a host with a certificate of `authority`; its files lie in `directory`.
async fn member(authority: &TestAuthority, directory: &Path) -> SecurityContext {
    open(&authority.write(directory, &[HOST]).expect("files")).await
}

/// Waits until the server has counted `count` rejections, and returns the explanation of the latest.
async fn rejected(rejections: &Rejections, reason: RejectReason, count: u64) -> String {
    let end = Instant::now() + PATIENCE;
    while rejections.count(reason) < count {
        assert!(Instant::now() < end, "no rejection ({reason}): {:?}", rejections.by_reason());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(rejections.count(reason), count);
    rejections.by_reason().remove(&reason).expect("counted").message
}

/// The sentence for the log of a client.
fn cause(status: &tonic::Status) -> String {
    SecurityError::cause_of(status).map_or_else(|| format!("another cause: {status:?}"), ToString::to_string)
}
