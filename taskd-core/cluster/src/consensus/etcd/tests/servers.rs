//! Real servers of etcd, each a process that can be killed and started again.

use super::{PATIENCE, install};
use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// Number of times that servers are started on other ports because another process took one.
const PORT_TRIES: u32 = 5;
/// Interval at which a server is asked whether it answers.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time limit of one request to a server.
const REQUEST: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Member {
    client: u16,
    peer: u16,
    child: Option<Child>,
}

/// Members of one etcd. Dropping it kills them.
#[derive(Debug)]
pub(super) struct Servers {
    dir: TempDir,
    program: PathBuf,
    members: Vec<Member>,
}

impl Servers {
    /// Starts this number of members, and waits until they have a leader.
    pub(super) async fn start(number: usize) -> Servers {
        let program = install::etcd();
        for _ in 0..PORT_TRIES {
            let dir = tempfile::tempdir().expect("a directory can be made");
            let mut servers = Servers { dir, program: program.clone(), members: Vec::new() };
            let held: Vec<TcpListener> =
                (0..2 * number).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free")).collect();
            let port = |at: usize| held[at].local_addr().expect("a bound socket has an address").port();
            servers.members =
                (0..number).map(|at| Member { client: port(2 * at), peer: port(2 * at + 1), child: None }).collect();
            drop(held);
            (0..number).for_each(|at| servers.spawn(at));
            if servers.ready().await {
                return servers;
            }
        }
        panic!("etcd does not start")
    }

    fn spawn(&mut self, at: usize) {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let all: Vec<String> = self.members.iter().enumerate().map(|(i, m)| format!("m{i}={}", url(m.peer))).collect();
        let log = File::options().append(true).create(true).open(self.dir.path().join(format!("m{at}.log")));
        let member = &mut self.members[at];
        let (client, peer) = (url(member.client), url(member.peer));
        let child = Command::new(&self.program)
            .args(["--name", &format!("m{at}"), "--initial-cluster", &all.join(",")])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--logger", "zap", "--log-level", "warn", "--data-dir"])
            .arg(self.dir.path().join(format!("m{at}")))
            .stdout(Stdio::null())
            .stderr(log.expect("a file can be made"))
            .spawn();
        member.child = Some(child.expect("etcd can be started"));
    }

    /// Waits until every member answers. Returns false if one has ended.
    async fn ready(&mut self) -> bool {
        let begun = Instant::now();
        for at in 0..self.members.len() {
            while self.post(at, "/v3/kv/range", r#"{"key":"Lw=="}"#).await.is_none() {
                let ended = |child: &mut Child| child.try_wait().is_ok_and(|status| status.is_some());
                if self.members.iter_mut().any(|member| member.child.as_mut().is_none_or(ended)) {
                    return false;
                }
                assert!(begun.elapsed() < PATIENCE, "etcd does not answer");
                sleep(LOOK_EVERY).await;
            }
        }
        true
    }

    pub(super) fn port(&self, at: usize) -> u16 {
        self.members[at].client
    }

    pub(super) fn uris(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("http://127.0.0.1:{}", member.client)).collect()
    }

    /// Kills a member with SIGKILL.
    pub(super) fn kill(&mut self, at: usize) {
        if let Some(mut child) = self.members[at].child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(super) fn kill_all(&mut self) {
        (0..self.members.len()).for_each(|at| self.kill(at));
    }

    /// Starts a killed member on its data and its ports.
    pub(super) async fn restart(&mut self, at: usize) {
        self.spawn(at);
        assert!(self.ready().await, "etcd does not start again");
    }

    pub(super) async fn restart_all(&mut self) {
        (0..self.members.len()).for_each(|at| self.spawn(at));
        assert!(self.ready().await, "etcd does not start again");
    }

    /// Returns the member that leads.
    pub(super) async fn leader(&self) -> usize {
        let begun = Instant::now();
        loop {
            for at in 0..self.members.len() {
                let status = self.post(at, "/v3/maintenance/status", "{}").await.unwrap_or_default();
                if status["leader"].is_string() && status["leader"] == status["header"]["member_id"] {
                    return at;
                }
            }
            assert!(begun.elapsed() < PATIENCE, "etcd elects no leader");
            sleep(LOOK_EVERY).await;
        }
    }

    /// Makes a request to a member's gateway for HTTP. Returns `None` without a successful answer.
    pub(super) async fn post(&self, at: usize, path: &str, body: &str) -> Option<serde_json::Value> {
        let request = async {
            let mut stream = TcpStream::connect(("127.0.0.1", self.members[at].client)).await.ok()?;
            let head = format!("POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            stream.write_all(head.as_bytes()).await.ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.ok()?;
            let (head, body) = answer.split_once("\r\n\r\n")?;
            head.contains(" 200 ").then(|| serde_json::from_str(body).ok()).flatten()
        };
        timeout(REQUEST, request).await.ok().flatten()
    }

    /// Writes a key as another program would: without a lease.
    pub(super) async fn put(&self, at: usize, key: &[u8], value: &[u8]) {
        let body = format!(r#"{{"key":"{}","value":"{}"}}"#, base64(key), base64(value));
        self.post(at, "/v3/kv/put", &body).await.expect("etcd writes the key");
    }

    pub(super) async fn delete(&self, at: usize, key: &[u8]) {
        self.post(at, "/v3/kv/deleterange", &format!(r#"{{"key":"{}"}}"#, base64(key))).await.expect("etcd deletes");
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.kill_all();
    }
}

/// Encodes bytes as etcd's gateway takes them.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            let shown = digit <= three.len();
            text.push(if shown { char::from(DIGITS[bits >> (18 - 6 * digit) & 63]) } else { '=' });
        }
    }
    text
}
