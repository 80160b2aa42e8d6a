//! A Python with MindSpore, and a cluster of processes that a test starts itself.

use std::env;
use std::io::{Write, stderr};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;

use taskd_mindspore::venv;

/// A Python with MindSpore, made if need be; `None` where the user skips what needs it (`TASKD_SKIP=mindspore`).
///
/// Fails the test with one sentence where there is none.
pub(crate) fn mindspore_python(test: &str) -> Option<PathBuf> {
    if env::var("TASKD_SKIP").is_ok_and(|skip| skip.split(',').any(|word| word == "mindspore")) {
        say(&format!("skipped: {test} (TASKD_SKIP names mindspore)"));
        return None;
    }
    match venv::locate(&mut say) {
        Ok(python) => Some(python),
        Err(error) => panic!("{test} needs MindSpore: {error} (or skip it with TASKD_SKIP=mindspore)"),
    }
}

/// Past the test harness, which would show a line only of a test that fails.
pub(crate) fn say(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}

/// A port that no process has now.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port()
}

/// What makes a process the scheduler, or a worker, of a cluster.
pub(crate) fn in_cluster(command: &mut Command, port: u16, workers: u32, worker: Option<u32>) {
    command.env("MS_WORKER_NUM", workers.to_string());
    command.env("MS_SCHED_HOST", "127.0.0.1").env("MS_SCHED_PORT", port.to_string());
    command.env("MS_TOPO_TIMEOUT", "60").env("MS_NODE_TIMEOUT", "20");
    match worker {
        Some(rank) => command.env("MS_ROLE", "MS_WORKER").env("MS_NODE_ID", rank.to_string()),
        None => command.env("MS_ROLE", "MS_SCHED"),
    };
}
