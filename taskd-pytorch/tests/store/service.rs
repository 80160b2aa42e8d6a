//! A store's process of its own for a test, and what is asked of it.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use taskd_core::job::Generation;
use taskd_pytorch::store::{Stats, StoreControl, StoreProgram};

/// Everything that is waited for comes in far less, or the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The program, built by cargo.
pub(crate) fn program() -> StoreProgram {
    StoreProgram::Path(PathBuf::from(env!("CARGO_BIN_EXE_taskd-store")))
}

/// A running store; its process ends with this.
pub(crate) struct Store {
    pub(crate) child: Child,
    pub(crate) control: StoreControl,
    pub(crate) path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Store {
    pub(crate) async fn start() -> Store {
        Store::with(&[], None).await
    }

    /// Starts a store with these limits (`NAME=NUMBER`), and with at most `open_files` open files.
    pub(crate) async fn with(limits: &[&str], open_files: Option<u32>) -> Store {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let mut command = program().command(Some(&path)).unwrap();
        command.extend(limits.iter().flat_map(|limit| ["--limit".to_owned(), (*limit).to_owned()]));
        let mut shell = Command::new("sh");
        let files = open_files.map_or(String::new(), |files| format!("ulimit -n {files}; "));
        shell.args(["-c", &format!(r#"{files}exec "$@""#), "sh"]).args(&command);
        let child = shell.spawn().unwrap();
        let control = connect(&path).await;
        Store { child, control, path, _dir: dir }
    }

    /// Serves a generation at a port of this machine.
    pub(crate) async fn serve(&mut self, generation: u64) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        self.control.serve(Generation(generation), listener).await.unwrap();
        address
    }

    /// What it reports of itself once this holds.
    pub(crate) async fn until(&mut self, what: &str, holds: impl Fn(&Stats) -> bool) -> Stats {
        let begun = Instant::now();
        loop {
            let stats = self.control.stats().await.unwrap();
            if holds(&stats) {
                return stats;
            }
            assert!(begun.elapsed() < PATIENCE, "never {what}: {stats:#?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Resident memory, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().trim();
        kib.trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Processor time that it has used, in clock ticks of 10 ms.
    pub(crate) fn ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Connects to a store that has just been started.
pub(crate) async fn connect(path: &PathBuf) -> StoreControl {
    let begun = Instant::now();
    loop {
        match StoreControl::connect(path).await {
            Ok(control) => return control,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
