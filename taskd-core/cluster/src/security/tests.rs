//! Certificates that expire while a process runs, on clocks of the tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    ClientConnection, MutualTls, RejectReason, Security, SecurityContext, SecurityError, TestAuthority, Usage, Validity,
};

const HOST: &str = "127.0.0.1";
/// Seconds since 1970, ten minutes before and after the end of `Validity::Expired` (2000-12-31T00:00:00Z): tickets of
/// the first time are usable at the second one.
const BEFORE: u64 = 978_220_200;
const AFTER: u64 = 978_221_400;

#[derive(Debug, Clone, Default)]
struct TestClock(Arc<AtomicU64>);

impl TestClock {
    fn set(&self, seconds: u64) {
        self.0.store(seconds, Ordering::SeqCst);
    }
}

impl TimeProvider for TestClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0.load(Ordering::SeqCst))))
    }
}

/// A server and an agent, each with its clock. Their certificates end with the year 2000, or much later.
struct Pair {
    server: SecurityContext,
    agent: SecurityContext,
    server_clock: TestClock,
    agent_clock: TestClock,
    port: u16,
    _directories: [tempfile::TempDir; 2],
}

impl Pair {
    async fn new(server_validity: Validity, agent_validity: Validity) -> Self {
        let directories = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let (server_clock, agent_clock) = (TestClock::default(), TestClock::default());
        server_clock.set(BEFORE);
        agent_clock.set(BEFORE);
        let ca = TestAuthority::new("job").expect("a CA");
        let issue = |validity, directory: &tempfile::TempDir| {
            let certificate = ca.issue_with(&[HOST], validity, Usage::Both).expect("issued");
            certificate.write(directory.path(), ca.pem()).expect("files")
        };
        let files = issue(server_validity, &directories[0]);
        let server = open(MutualTls::new(files), &server_clock).await;
        let files = issue(agent_validity, &directories[1]);
        let agent = open(MutualTls::new(files), &agent_clock).await;
        let mut incoming = server.listen(([127, 0, 0, 1], 0).into()).expect("a port");
        let port = incoming.local_addr().port();
        tokio::spawn(async move {
            while let Some(Ok(mut connection)) = incoming.next().await {
                let byte = connection.read_u8().await.expect("a byte");
                connection.write_u8(byte).await.expect("sent");
                connection.flush().await.expect("sent");
            }
        });
        Self { server, agent, server_clock, agent_clock, port, _directories: directories }
    }

    async fn connect(&self) -> ClientConnection {
        self.agent.connector().connect(HOST, self.port).await.expect("a handshake")
    }

    /// Sends a byte and reads one.
    async fn exchange(mut connection: ClientConnection) -> std::io::Result<u8> {
        // The server may have ended the connection already: the read gives the reason.
        let _ = connection.write_u8(7).await;
        let _ = connection.flush().await;
        connection.read_u8().await
    }
}

async fn open(settings: MutualTls, clock: &TestClock) -> SecurityContext {
    let opened = Security::MutualTls(settings).open_with_clock(HOST, Arc::new(clock.clone())).await;
    opened.expect("valid by this clock")
}

#[tokio::test]
async fn expired_agent_is_refused_with_the_reason_after_a_session() {
    let pair = Pair::new(Validity::Valid, Validity::Expired).await;
    assert_eq!(Pair::exchange(pair.connect().await).await.expect("access"), 7);
    let resumed = pair.connect().await;
    assert!(resumed.is_resumed());
    assert_eq!(Pair::exchange(resumed).await.expect("access"), 7);

    for clock in [&pair.server_clock, &pair.agent_clock] {
        clock.set(AFTER);
    }
    let error = Pair::exchange(pair.connect().await).await.expect_err("expired").to_string();
    assert!(error.contains("by its clock") && error.contains("host.pem has expired or is not yet valid"), "{error}");
    assert_eq!(pair.server.rejections().count(RejectReason::Expired), 1);
    let error = pair.agent.reload().await.expect_err("expired");
    assert!(matches!(error, SecurityError::Expired { .. }), "{error}");
}

#[tokio::test]
async fn resumed_session_of_an_expired_agent_is_refused() {
    let pair = Pair::new(Validity::Valid, Validity::Expired).await;
    assert_eq!(Pair::exchange(pair.connect().await).await.expect("access"), 7);
    // By the agent's clock its certificate is valid: it resumes its session.
    pair.server_clock.set(AFTER);
    let resumed = pair.connect().await;
    let was_resumed = resumed.is_resumed();
    let error = Pair::exchange(resumed).await.expect_err("expired").to_string();
    assert_eq!(pair.server.rejections().count(RejectReason::Expired), 1, "{error}");
    assert!(was_resumed && error.contains("it ended a resumed session"), "{error}");
    // The next handshake gives the reason.
    let next = pair.connect().await;
    assert!(!next.is_resumed());
    let error = Pair::exchange(next).await.expect_err("expired").to_string();
    assert!(error.contains("a clock may be wrong"), "{error}");
}

#[tokio::test]
async fn resumed_session_of_an_expired_server_is_refused_by_the_agent() {
    let pair = Pair::new(Validity::Expired, Validity::Valid).await;
    assert_eq!(Pair::exchange(pair.connect().await).await.expect("access"), 7);
    pair.agent_clock.set(AFTER);
    let error = pair.agent.connector().connect(HOST, pair.port).await.expect_err("expired").to_string();
    assert!(error.contains("its certificate has expired at 2000-12-31T00:00:00Z"), "{error}");
    assert!(error.contains("the clock of this host may be wrong: it shows 2000-12-31T00:10:00Z"), "{error}");
}
