//! The documented commands make usable certificates.

use std::process::Command;

use taskd_cluster::security::TlsFiles;

use super::service::{greet, serve};
use super::{HOST, open};

#[tokio::test]
async fn documented_openssl_commands_make_usable_certificates() {
    if Command::new("openssl").arg("version").output().is_err() {
        eprintln!("skipped: no openssl on this machine");
        return;
    }
    let page = include_str!("../../src/security/openssl.md");
    let script = page.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block of commands");
    let directory = tempfile::tempdir().expect("a directory");
    let run = Command::new("sh").args(["-euc", script]).current_dir(directory.path()).output().expect("a shell");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let path = |name: &str| directory.path().join(name);
    let context =
        open(&TlsFiles { ca: path("ca.pem"), certificate: path("node-7.pem"), key: path("node-7.key") }).await;
    let port = serve(&context);
    for host in ["node-7", HOST] {
        assert_eq!(greet(&context, port, host).await.expect("access"), "verified: true");
    }
}
