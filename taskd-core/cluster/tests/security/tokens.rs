//! The job's token, with and without TLS.

use taskd_cluster::security::{JobToken, MutualTls, RejectReason, Security, SecurityContext, SecurityError};
use tonic::Code;

use super::service::{greet, serve};
use super::{HOST, authority, member, rejected, token};

async fn with_token(token: JobToken) -> SecurityContext {
    Security::Token(token).open(HOST).await.expect("no files")
}

#[tokio::test]
async fn request_with_the_token_of_another_job_is_unauthenticated() {
    let server = with_token(token()).await;
    let port = serve(&server);
    for other in [JobToken::generate().expect("random"), JobToken::new("0123456789abcdef").expect("a prefix")] {
        let status = greet(&with_token(other).await, port, HOST).await.expect_err("another job");
        assert_eq!(status.code(), Code::Unauthenticated);
        assert!(status.message().contains("the token of another job"), "{}", status.message());
    }
    let message = rejected(server.rejections(), RejectReason::WrongToken, 2).await;
    assert!(!message.contains("0123456789abcdef"), "{message}");
    assert!(server.rejections().by_reason()[&RejectReason::WrongToken].address.is_some());
}

#[tokio::test]
async fn request_without_a_token_is_unauthenticated_in_tls_too() {
    let (ca, directory) = (authority("the CA of two jobs"), tempfile::tempdir().expect("a directory"));
    let files = ca.write(directory.path(), &[HOST]).expect("files");
    let settings = MutualTls::new(files).with_token(token());
    let server = Security::MutualTls(settings).open(HOST).await.expect("usable");
    let port = serve(&server);
    assert_eq!(greet(&server, port, HOST).await.expect("access"), "verified: true");

    let status = greet(&member(&ca, directory.path()).await, port, HOST).await.expect_err("no token");
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(status.message().contains("set TASKD_JOB_TOKEN"), "{}", status.message());
    rejected(server.rejections(), RejectReason::MissingToken, 1).await;
}

#[test]
fn token_file_readable_by_others_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("token");
    std::fs::write(&path, "0123456789abcdef\n").expect("written");
    let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
    mode(0o604);
    let error = JobToken::read(&path).expect_err("exposed");
    assert!(matches!(error, SecurityError::Exposed { mode: 0o604, .. }), "{error}");
    assert!(error.to_string().contains("chmod 600"), "{error}");
    mode(0o600);
    assert_eq!(JobToken::read(&path).expect("usable").secret(), "0123456789abcdef");
    let error = JobToken::read(directory.path()).expect_err("a directory").to_string();
    assert!(error.contains("not a regular file"), "{error}");
}
