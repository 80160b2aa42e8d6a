//! Mutual TLS: good peers, and each kind of bad peer.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use taskd_cluster::security::{
    HostPolicy, IncomingLimits, RejectReason, TestAuthority, TestCertificate, Usage, Validity,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::service::{greet, serve, serve_incoming};
use super::{HOST, PATIENCE, authority, cause, member, open_with, rejected};

/// Connects with TLS without the checks of a `Connector`, and reads until the server's answer or alert.
async fn raw_client(
    trusted: &TestAuthority,
    certificate: Option<TestCertificate>,
    port: u16,
) -> std::io::Result<usize> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.pem().as_bytes()).expect("a CA")).expect("a CA");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    let config = config.expect("TLS 1.3").with_root_certificates(roots);
    let config = match certificate {
        None => config.with_no_client_auth(),
        Some(pem) => {
            let chain = vec![CertificateDer::from_pem_slice(pem.certificate.as_bytes()).expect("PEM")];
            let key = PrivateKeyDer::from_pem_slice(pem.key.as_bytes()).expect("PEM");
            config.with_client_auth_cert(chain, key).expect("a key")
        }
    };
    let stream = TcpStream::connect((HOST, port)).await?;
    let name = ServerName::try_from(HOST).expect("a name");
    let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    // The server has to read these, or its alert would be lost.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await?;
    stream.flush().await?;
    stream.read(&mut [0; 64]).await
}

#[tokio::test]
async fn member_of_the_job_gets_access_with_a_verified_identity() {
    let (ca, directory) = (authority("job"), tempfile::tempdir().expect("a directory"));
    let context = member(&ca, directory.path()).await;
    let port = serve(&context);
    assert_eq!(greet(&context, port, HOST).await.expect("access"), "verified: true");
    assert_eq!(context.rejections().total(), 0);
}

#[tokio::test]
async fn hello_of_another_host_is_refused_with_the_names_of_the_certificate() {
    let (ca, directory) = (authority("job"), tempfile::tempdir().expect("a directory"));
    let context = member(&ca, directory.path()).await;
    let status = greet(&context, serve(&context), "node-8").await.expect_err("another host");
    assert_eq!(status.code(), tonic::Code::PermissionDenied);
    assert!(status.message().contains("does not name the host node-8: its names are"), "{}", status.message());
    assert!(status.message().contains("127.0.0.1"), "{}", status.message());
}

#[tokio::test]
async fn clients_with_bad_certificates_are_refused_and_counted() {
    let (ca, other, directory) = (authority("job"), authority("job"), tempfile::tempdir().expect("a directory"));
    let server = member(&ca, directory.path()).await;
    let port = serve(&server);
    let issue = |ca: &TestAuthority, validity, usage| Some(ca.issue_with(&[HOST], validity, usage).expect("issued"));
    let cases = [
        (None, RejectReason::NoCertificate, "CertificateRequired"),
        (issue(&other, Validity::Valid, Usage::Both), RejectReason::UnknownAuthority, "UnknownCA"),
        (issue(&ca, Validity::Expired, Usage::Both), RejectReason::Expired, "CertificateExpired"),
        (issue(&ca, Validity::NotYetValid, Usage::Both), RejectReason::Expired, "CertificateExpired"),
        (issue(&ca, Validity::Valid, Usage::Server), RejectReason::BadCertificate, "UnsupportedCertificate"),
    ];
    let mut counted = std::collections::BTreeMap::new();
    for (certificate, reason, alert) in cases {
        let error = raw_client(&ca, certificate, port).await.expect_err("no access");
        let count = counted.entry(reason).or_insert(0);
        *count += 1;
        let message = rejected(server.rejections(), reason, *count).await;
        if reason == RejectReason::UnknownAuthority {
            // Another key under the same name shows as a bad signature or as an unknown issuer.
            assert!(error.to_string().contains("received fatal alert"), "{error}");
        } else {
            assert!(error.to_string().contains(alert), "{reason}: {error}");
        }
        if reason == RejectReason::Expired {
            assert!(message.contains("the clock of this host may be wrong: it shows 2"), "{message}");
        }
    }
    // A good peer gets access still.
    assert_eq!(greet(&server, port, HOST).await.expect("access"), "verified: true");
}

#[tokio::test]
async fn client_of_another_job_explains_the_foreign_authority() {
    let directories = [tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory")];
    let server = member(&authority("job"), directories[0].path()).await;
    let client = member(&authority("another job"), directories[1].path()).await;
    let status = greet(&client, serve(&server), HOST).await.expect_err("another CA");
    assert!(cause(&status).contains("its certificate is of another CA than"), "{}", cause(&status));
    let message = rejected(server.rejections(), RejectReason::RefusedByPeer, 1).await;
    assert!(message.contains("it refused this server"), "{message}");
}

/// A server that accepts this client's certificate, but presents one that this client's rules do not allow.
#[tokio::test]
async fn server_without_the_dialed_name_is_refused_by_the_client() {
    let (ca, directories) = (authority("job"), [(); 2].map(|()| tempfile::tempdir().expect("a directory")));
    let client = member(&ca, directories[0].path()).await;
    let files = ca.write(directories[1].path(), &["node-9"]).expect("files");
    let server = open_with(&files, HostPolicy::Exact, "node-9").await.expect("usable");
    let status = greet(&client, serve(&server), HOST).await.expect_err("another host");
    let message = cause(&status);
    assert!(
        message.contains("its certificate does not name 127.0.0.1: its names are") && message.contains("node-9"),
        "{message}"
    );
    rejected(server.rejections(), RejectReason::RefusedByPeer, 1).await;
}

#[tokio::test]
async fn refusal_after_the_handshake_is_explained_to_the_client() {
    let (ca, directories) = (authority("job"), [(); 2].map(|()| tempfile::tempdir().expect("a directory")));
    // The client trusts the server's CA, but not the other way round.
    let other = authority("old CA");
    let server = member(&ca, directories[0].path()).await;
    let both = format!("{}{}", ca.pem(), other.pem());
    let files = other.issue(&[HOST]).expect("issued").write(directories[1].path(), &both).expect("files");
    let client = super::open(&files).await;
    let status = greet(&client, serve(&server), HOST).await.expect_err("no access");
    assert!(cause(&status).contains("it does not trust the CA of"), "{}", cause(&status));
    rejected(server.rejections(), RejectReason::UnknownAuthority, 1).await;
}

#[tokio::test]
async fn wildcards_and_shared_certificates_need_their_policy() {
    let (ca, directory) = (authority("job"), tempfile::tempdir().expect("a directory"));
    let files = ca.write(directory.path(), &["*.pool.example", "job.taskd.internal", HOST]).expect("files");
    let error = open_with(&files, HostPolicy::Exact, "node-1.pool.example").await.expect_err("a wildcard").to_string();
    assert!(
        error.contains("does not name the host node-1.pool.example") && error.contains("TASKD_TLS_WILDCARD=1"),
        "{error}"
    );

    let context = open_with(&files, HostPolicy::Wildcard, "node-1.pool.example").await.expect("usable");
    let port = serve(&context);
    assert_eq!(greet(&context, port, "node-2.pool.example").await.expect("access"), "verified: true");
    greet(&context, port, "node-2.other.example").await.expect_err("another domain");

    let shared = HostPolicy::Shared { name: "job.taskd.internal".to_owned() };
    let context = open_with(&files, shared, "node-1").await.expect("usable");
    assert_eq!(greet(&context, serve(&context), "any-host").await.expect("access"), "verified: true");
    let shared = HostPolicy::Shared { name: "other.taskd.internal".to_owned() };
    open_with(&files, shared, "node-1").await.expect_err("another name");
}

#[tokio::test]
async fn slow_handshakes_are_cut_and_do_not_block_other_peers() {
    let (ca, directory) = (authority("job"), tempfile::tempdir().expect("a directory"));
    let context = member(&ca, directory.path()).await;
    let listener = TcpListener::bind((HOST, 0)).await.expect("a port");
    let timeout = Duration::from_secs(3);
    let incoming =
        context.incoming(listener, IncomingLimits::default().with_handshake_timeout(timeout)).expect("allowed");
    let port = serve_incoming(&context, incoming);
    let mut slow = Vec::new();
    for bytes in [&b""[..], &[22, 3], &[22, 3, 1, 2, 0, 1, 0]] {
        let mut stream = TcpStream::connect((HOST, port)).await.expect("connected");
        stream.write_all(bytes).await.expect("sent");
        slow.push(stream);
    }
    assert_eq!(greet(&context, port, HOST).await.expect("access"), "verified: true");
    for mut stream in slow {
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut [0; 16])).await.expect("cut");
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
    let message = rejected(context.rejections(), RejectReason::TimedOut, 3).await;
    assert!(message.contains("3s"), "{message}");
}

#[tokio::test]
async fn handshakes_at_the_bound_wait_and_are_counted() {
    let (ca, directory) = (authority("job"), tempfile::tempdir().expect("a directory"));
    let context = member(&ca, directory.path()).await;
    let listener = TcpListener::bind((HOST, 0)).await.expect("a port");
    let limits = IncomingLimits::default().with_handshakes_max(1).with_handshake_timeout(Duration::from_secs(2));
    let incoming = context.incoming(listener, limits).expect("allowed");
    let (port, counters) = (incoming.local_addr().port(), incoming.counters());
    let _idle = TcpStream::connect((HOST, port)).await.expect("connected");
    serve_incoming(&context, incoming);
    // Waits until the idle peer is cut.
    assert_eq!(greet(&context, port, HOST).await.expect("access"), "verified: true");
    assert!(counters.handshakes_at_bound() >= 1);
    assert_eq!(counters.accepted(), 1);
    rejected(context.rejections(), RejectReason::TimedOut, 1).await;
}

#[tokio::test]
async fn second_connection_resumes_the_session_of_the_first() {
    let directory = tempfile::tempdir().expect("a directory");
    use taskd_cluster::security::{HandshakeKind, handshakes_per_second};
    let rate = handshakes_per_second(HandshakeKind::Resumed, 8, 1, directory.path()).await.expect("measured");
    assert_eq!(rate.resumed, 8);
    let rate = handshakes_per_second(HandshakeKind::Full, 8, 2, directory.path()).await.expect("measured");
    assert_eq!(rate.resumed, 0);
}

#[tokio::test]
async fn dropped_incoming_closes_its_port() {
    let (ca, directory) = (authority("job"), tempfile::tempdir().expect("a directory"));
    let context = member(&ca, directory.path()).await;
    let mut incoming = context.listen(([127, 0, 0, 1], 0).into()).expect("a port");
    let address = incoming.local_addr();
    let client = context.connector();
    let (accepted, connected) = tokio::join!(incoming.next(), client.connect(HOST, address.port()));
    assert!(accepted.is_some_and(|connection| connection.is_ok()) && connected.is_ok());
    drop(incoming);
    let end = std::time::Instant::now() + PATIENCE;
    while TcpStream::connect(address).await.is_ok() {
        assert!(std::time::Instant::now() < end, "the port is open still");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let error = client.connect(HOST, address.port()).await.expect_err("closed").to_string();
    assert!(error.contains("cannot connect to 127.0.0.1:"), "{error}");
}
