//! Files that cannot be used are refused when the security is opened.

use std::os::unix::fs::PermissionsExt;

use taskd_cluster::security::{SecurityError, TestCertificate, TlsFiles, Usage, Validity};

use super::{HOST, authority, try_open};

async fn refusal(files: &TlsFiles) -> SecurityError {
    try_open(files).await.expect_err("refused")
}

#[tokio::test]
async fn missing_or_malformed_file_is_named_with_the_action() {
    let directory = tempfile::tempdir().expect("a directory");
    let ca = authority("job");
    let files = ca.write(directory.path(), &[HOST]).expect("files");
    let good = |path: &std::path::Path| std::fs::read_to_string(path).expect("a file");
    let (certificate, key) = (good(&files.certificate), good(&files.key));
    for path in [&files.ca, &files.certificate, &files.key] {
        let missing = TlsFiles {
            ca: if path == &files.ca { "/no/such/file".into() } else { files.ca.clone() },
            certificate: if path == &files.certificate { "/no/such/file".into() } else { files.certificate.clone() },
            key: if path == &files.key { "/no/such/file".into() } else { files.key.clone() },
        };
        assert!(matches!(refusal(&missing).await, SecurityError::Unreadable { .. }));
    }
    let encrypted = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    for (path, content, part) in [
        (&files.ca, "", "no section `BEGIN CERTIFICATE`"),
        (&files.ca, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "certificate 1 of the file"),
        (&files.certificate, &certificate[..certificate.len() / 2], "the file is not complete"),
        (&files.key, &certificate, "no section `BEGIN PRIVATE KEY`"),
        (&files.key, &encrypted, "it has a passphrase"),
        (&files.key, &"x".repeat((1 << 20) + 1), "longer than 1048576 bytes"),
    ] {
        let before = good(path);
        std::fs::write(path, content).expect("written");
        let error = refusal(&files).await.to_string();
        assert!(error.contains(part) && error.contains(&path.display().to_string()), "{error}");
        std::fs::write(path, before).expect("written");
    }
    try_open(&files).await.expect("usable again");
}

#[tokio::test]
async fn key_of_another_certificate_or_readable_by_others_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let ca = authority("job");
    let (one, other) = (ca.issue(&[HOST]).expect("issued"), ca.issue(&[HOST]).expect("issued"));
    let mixed = TestCertificate { key: other.key.clone(), ..one.clone() };
    let files = mixed.write(directory.path(), ca.pem()).expect("files");
    assert!(matches!(refusal(&files).await, SecurityError::KeyMismatch { .. }));

    let files = one.write(directory.path(), ca.pem()).expect("files");
    std::fs::set_permissions(&files.key, std::fs::Permissions::from_mode(0o644)).expect("set");
    let error = refusal(&files).await.to_string();
    assert!(error.contains("can be read by other users (mode 0644)"), "{error}");
}

#[tokio::test]
async fn certificate_that_peers_would_refuse_is_refused_with_the_cause() {
    let directory = tempfile::tempdir().expect("a directory");
    let (ca, other) = (authority("job"), authority("other"));
    for (certificate, parts) in [
        (
            ca.issue_with(&[HOST], Validity::Expired, Usage::Both),
            ["has expired at 2000-12-31T00:00:00Z", "the clock of this host may be wrong: it shows 2"],
        ),
        (
            ca.issue_with(&[HOST], Validity::NotYetValid, Usage::Both),
            ["is not valid before 3000-01-01T00:00:00Z", "the clock of this host may be wrong: it shows 2"],
        ),
        (ca.issue_with(&[HOST], Validity::Valid, Usage::Server), ["does not verify", "serverAuth, clientAuth"]),
        (other.issue(&[HOST]), ["does not verify against the CA", "another CA has issued it"]),
        (ca.issue(&["node-1"]), ["does not name the host 127.0.0.1: its names are", "node-1"]),
        (ca.issue(&[]), ["does not name the host 127.0.0.1: its names are none", "as subjectAltName"]),
    ] {
        let files = certificate.expect("issued").write(directory.path(), ca.pem()).expect("files");
        let error = refusal(&files).await.to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}
