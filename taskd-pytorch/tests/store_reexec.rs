//! A program that is its own store: it starts itself again, and becomes one before its `main` does anything else.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use taskd_core::job::Generation;
use taskd_pytorch::store::{self, StoreControl, StoreProgram};

const PATIENCE: Duration = Duration::from_secs(60);

/// Ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    store::init();
    // A listing of tests needs names; there is one.
    if std::env::args().any(|argument| argument == "--list") {
        return println!("a_program_can_be_its_own_store: test");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(a_program_can_be_its_own_store());
    println!("test a_program_can_be_its_own_store ... ok");
}

async fn a_program_can_be_its_own_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control");
    let command = StoreProgram::ReexecSelf.command(Some(&path)).unwrap();
    let mut running = Running(Command::new(&command[0]).args(&command[1..]).spawn().unwrap());
    let begun = Instant::now();
    let mut control = loop {
        match StoreControl::connect(&path).await {
            Ok(control) => break control,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(control.pid(), running.0.id());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    control.serve(Generation(1), listener).await.unwrap();
    TcpStream::connect(address).unwrap();

    // One thread, and memory for little more than its input.
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.0.id())).unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_eq!((field("Threads:"), field("Name:")), ("1".to_owned(), "taskd-store".to_owned()));
    let own: u64 = field("RssAnon:").trim_end_matches(" kB").parse().unwrap();
    assert!(own < 4096, "{own} KiB of its own");

    let pid = rustix::process::Pid::from_child(&running.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(running.0.wait().unwrap().code(), None, "SIGTERM ends it");
}
