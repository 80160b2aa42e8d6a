//! Plaintext: only on loopback or on a named network; and peers of which only one speaks TLS.

use std::ffi::OsString;
use std::net::SocketAddr;

use taskd_cluster::security::{RejectReason, Security, SecurityContext, SecurityError};

use super::service::{greet, serve};
use super::{HOST, SECRET, authority, cause, member, rejected, token};

async fn plaintext() -> SecurityContext {
    Security::Token(token()).open(HOST).await.expect("no files")
}

async fn named_insecure() -> SecurityContext {
    let variable = |name: &str| match name {
        "TASKD_JOB_TOKEN" => Some(OsString::from(SECRET)),
        "TASKD_INSECURE" => Some(OsString::from("1")),
        _ => None,
    };
    Security::from_variables(variable).expect("settings").open(HOST).await.expect("no files")
}

#[tokio::test]
async fn plaintext_on_loopback_gets_access_with_the_token() {
    let context = plaintext().await;
    assert!(!context.is_tls());
    assert_eq!(greet(&context, serve(&context), "any-host").await.expect("access"), "verified: false");
}

#[tokio::test]
async fn plaintext_beyond_loopback_is_refused_unless_named() {
    // Of TEST-NET-1, which no host has: a connection would not end at once.
    let elsewhere = "192.0.2.1";
    let everywhere: SocketAddr = ([0, 0, 0, 0], 0).into();
    let context = plaintext().await;
    for error in [
        context.listen(everywhere).expect_err("refused"),
        context.connector().connect(elsewhere, 7070).await.expect_err("refused"),
        context.connector().connect("::ffff:192.0.2.1", 7070).await.expect_err("refused"),
    ] {
        assert!(matches!(error, SecurityError::PlaintextRefused { .. }), "{error}");
        assert!(error.to_string().contains("set TASKD_INSECURE=1"), "{error}");
    }
    context.listen("[::ffff:127.0.0.1]:0".parse().expect("an address")).expect("loopback");

    let context = named_insecure().await;
    let incoming = context.listen(everywhere).expect("named");
    // On Linux the unspecified address connects to this host, and it is not a loopback address.
    context.connector().connect("0.0.0.0", incoming.local_addr().port()).await.expect("named");
}

#[tokio::test]
async fn plaintext_client_on_a_tls_port_is_refused_on_both_sides() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = member(&authority("job"), directory.path()).await;
    let status = greet(&plaintext().await, serve(&server), HOST).await.expect_err("no access");
    assert!(
        cause(&status).contains("it speaks TLS, and this process does not: set TASKD_TLS_CA"),
        "{}",
        cause(&status)
    );
    let message = rejected(server.rejections(), RejectReason::NotTls, 1).await;
    assert!(message.contains("it does not speak TLS"), "{message}");
}

#[tokio::test]
async fn tls_client_on_a_plaintext_port_is_refused_on_both_sides() {
    let directory = tempfile::tempdir().expect("a directory");
    let client = member(&authority("job"), directory.path()).await;
    let server = plaintext().await;
    let status = greet(&client, serve(&server), HOST).await.expect_err("no access");
    assert!(cause(&status).contains("it may serve without TLS"), "{}", cause(&status));
    let message = rejected(server.rejections(), RejectReason::Tls, 1).await;
    assert!(message.contains("it speaks TLS, and this server does not"), "{message}");
}

#[tokio::test]
async fn tls_client_of_a_foreign_plaintext_server_is_explained() {
    use tokio::io::AsyncWriteExt;
    let directory = tempfile::tempdir().expect("a directory");
    let client = member(&authority("job"), directory.path()).await;
    let listener = tokio::net::TcpListener::bind((HOST, 0)).await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let server = async {
        let (mut stream, _) = listener.accept().await.expect("a client");
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.expect("sent");
        stream
    };
    let connector = client.connector();
    let (_stream, connected) = tokio::join!(server, connector.connect(HOST, port));
    let error = connected.expect_err("no TLS").to_string();
    assert!(error.contains("it answers in plaintext"), "{error}");
}
