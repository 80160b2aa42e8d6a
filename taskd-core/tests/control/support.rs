//! A job in memory, its control socket, and a client that knows only JSON and lines.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use taskd_core::detect::ExitDetector;
use taskd_core::job::{JobSpec, Permission, ProcId};
use taskd_core::kernel::JobReport;
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::control::{ControlSocket, SocketLimits};
use taskd_core::runtime::{Runtime, RuntimeBuilder, RuntimeHandle};
use taskd_core::testing::doubles::{FakeLauncher, FakeProgram};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longer than anything takes that works at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A running job of four ranks on two hosts, with a socket.
pub(crate) struct Served {
    pub(crate) launcher: FakeLauncher,
    pub(crate) handle: RuntimeHandle,
    pub(crate) socket: ControlSocket,
    pub(crate) job: JoinHandle<JobReport>,
    _dir: TempDir,
}

impl Served {
    pub(crate) async fn new() -> Served {
        Served::with(SocketLimits::default(), |builder| builder).await
    }

    pub(crate) async fn with(limits: SocketLimits, adjust: impl FnOnce(RuntimeBuilder) -> RuntimeBuilder) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let launcher = FakeLauncher::with_nodes(["n0", "n1"], 4);
        let mut spec = JobSpec::new("demo", 4, FakeProgram::Runs.spec());
        spec.policy.termination_grace_period = Duration::from_millis(100);
        spec.policy.default_permission = Permission::Auto;
        let builder = Runtime::builder()
            .job(spec)
            .detector(ExitDetector::new())
            .strategy(Restart::new())
            .strategy(ExitStrategy::new())
            .launcher(launcher.clone());
        let runtime = adjust(builder).build().unwrap();
        let handle = runtime.handle();
        let socket = ControlSocket::bind(dir.path().join("demo.sock"), handle.clone(), limits).unwrap();
        let job = tokio::spawn(runtime.run());
        let served = Served { launcher, handle, socket, job, _dir: dir };
        served.all_run(1).await;
        served
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.socket.path().to_owned()
    }

    pub(crate) async fn client(&self) -> Client {
        Client::of(self.socket.path()).await
    }

    /// Waits until all ranks run in this incarnation, and the kernel knows it.
    pub(crate) async fn all_run(&self, incarnation: u32) {
        let all = async {
            while !(0..4).all(|rank| self.launcher.runs(&ProcId::rank(rank, incarnation)))
                || self.handle.status().await.unwrap().life != "training"
            {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, all).await.expect("all ranks run in the end");
    }

    /// Waits until the socket has counted so.
    pub(crate) async fn counted(&self, holds: impl Fn(&taskd_core::runtime::control::SocketCounts) -> bool) {
        let counted = async {
            while !holds(&self.socket.counts()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let found = timeout(PATIENCE, counted).await;
        assert!(found.is_ok(), "{:?}", self.socket.counts());
    }
}

pub(crate) struct Client {
    from: BufReader<OwnedReadHalf>,
    pub(crate) to: OwnedWriteHalf,
}

impl Client {
    pub(crate) async fn of(path: &Path) -> Client {
        Client::over(UnixStream::connect(path).await.unwrap())
    }

    pub(crate) fn over(stream: UnixStream) -> Client {
        let (from, to) = stream.into_split();
        Client { from: BufReader::new(from), to }
    }

    pub(crate) async fn send(&mut self, line: &str) {
        self.to.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    /// The next line; `None`: the connection has ended.
    pub(crate) async fn line(&mut self) -> Option<Value> {
        let mut line = String::new();
        let read = timeout(PATIENCE, self.from.read_line(&mut line)).await.expect("an answer");
        // A connection that is closed with something unread in it ends with a reset.
        if read.unwrap_or(0) == 0 { None } else { Some(serde_json::from_str(&line).unwrap()) }
    }

    /// Asks, and waits for the answer.
    pub(crate) async fn ask(&mut self, mut request: Value) -> Value {
        request["v"] = json!(1);
        self.send(&request.to_string()).await;
        self.line().await.expect("an answer")
    }

    /// What a good answer holds.
    pub(crate) async fn ok(&mut self, request: Value) -> Value {
        let answer = self.ask(request).await;
        assert!(answer["ok"].is_object(), "{answer}");
        answer["ok"].clone()
    }

    /// Kind and text of what came to nothing.
    pub(crate) async fn error(&mut self, request: Value) -> (String, String) {
        error(&self.ask(request).await)
    }
}

pub(crate) fn error(answer: &Value) -> (String, String) {
    let field = |key: &str| answer["error"][key].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    (field("kind"), field("text"))
}

/// The fault that the documentation shows.
pub(crate) fn fault() -> Value {
    json!({"do": "report_fault", "fault": {
        "by": "dcgm", "node": "n0", "device": 3, "class": "device",
        "text": "Xid 79: GPU has fallen off the bus", "confidence": 0.9
    }})
}
