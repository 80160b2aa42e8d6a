//! The program that owns a job until it is killed.

#![allow(unsafe_code, reason = "hands descriptors down that are not meant to be")]

use crate::support::*;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use taskd_core::job::{ProcId, WorkerSpec};
use taskd_core::launch::*;

/// Ranks 0 to 2: one that waits for the file `go` and then ends with 3, one that has helpers in sessions of their own,
/// one that prints all the time and counts.
pub(crate) fn ranks(dir: &Path) -> [WorkerSpec; 3] {
    let helper = "setsid sh -c 'echo $$ >> pids; exec sleep 1000'";
    [
        sh("echo $$ >> pids; while [ ! -e go ]; do sleep 0.01; done; echo gone >&2; exit 3"),
        sh(&format!("echo $$ >> pids; {helper} & (setsid {helper} &) ; sleep 1000")),
        sh("echo $$ >> pids; i=0; while :; do i=$((i+1)); echo line $i; echo $i > count; done"),
    ]
    .map(|spec| spec.with_cwd(dir))
}

/// Processes that write their pid when they are up.
pub(crate) const PROCESSES: usize = 5;

/// Is the supervisor.
pub(crate) fn run(dir: &Path, on_loss_word: &str) -> ExitCode {
    let on_loss = match on_loss_word.strip_prefix("keep=") {
        Some(ms) => OnOwnerLoss::Keep { at_most: Duration::from_millis(ms.parse().unwrap()) },
        None if on_loss_word == FENCED => OnOwnerLoss::Keep { at_most: Duration::from_secs(60) },
        None => OnOwnerLoss::default(),
    };
    let guard = if on_loss == OnOwnerLoss::default() { GuardProgram::ReexecSelf } else { guard_binary() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let builder = LocalLauncher::builder(dir).on_owner_loss(on_loss).guard(guard);
        let launcher = builder.build().await.unwrap();
        launcher.start(&batch(1, ranks(dir))).await.unwrap();
        if on_loss_word == WITH_HELPER {
            std::fs::write(dir.join("helper"), start_helper().to_string()).unwrap();
        }
        std::fs::write(dir.join("ready"), "").unwrap();
        if on_loss_word == FENCED {
            fence(dir, &launcher).await;
        }
        std::future::pending::<()>().await; // until it is killed
        drop(launcher);
    });
    ExitCode::SUCCESS
}

/// What the supervisor is sent so that the guard keeps its ranks, until a deadline that it sets.
pub(crate) const FENCED: &str = "fenced";

/// Sets a deadline as soon as the file `fence` has the milliseconds until then, and writes it to the file `deadline`;
/// later writes the reasons of the ranks' exits to the file `exits`.
async fn fence(dir: &Path, launcher: &LocalLauncher) {
    let wanted = || std::fs::read_to_string(dir.join("fence")).ok()?.parse().ok();
    let deadline = since_boot() + Duration::from_millis(eventually("a deadline is wanted", wanted).await);
    launcher.set_deadline(Some(deadline));
    for _ in 0..2 {
        launcher.counters().await.unwrap(); // the first may have been sent before the deadline
    }
    let write = |name: &str, text: &str| {
        std::fs::write(dir.join(name).with_extension("new"), text).unwrap();
        std::fs::rename(dir.join(name).with_extension("new"), dir.join(name)).unwrap();
    };
    write("deadline", &deadline.as_nanos().to_string());
    let mut exits = String::new();
    for number in 0..3 {
        let exit = exit_of(launcher, &rank(number)).await;
        exits += &exit.error.map_or("no error\n".into(), |error| format!("{} {}\n", error.family, error.code));
    }
    write("exits", &exits);
}

/// What the supervisor is sent so that everything goes with it, though a helper of its holds its connections open.
pub(crate) const WITH_HELPER: &str = "kill-tree-with-helper";

/// Starts a process that inherits all descriptors of this one, as a fork without exec would.
fn start_helper() -> u32 {
    for number in (3..).take(64) {
        // SAFETY: a system call without pointers; other processes with these descriptors do not notice.
        unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
    }
    Command::new("sleep").arg("1000").spawn().unwrap().id()
}

/// A supervisor in a process of its own, whose ranks are all up.
pub(crate) struct Supervisor {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) process: Child,
    pub(crate) guard: u32,
}

impl Supervisor {
    pub(crate) async fn start(on_loss: &str) -> Supervisor {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("supervisor").arg(dir.path()).arg(on_loss).stdin(Stdio::null());
        let process = command.spawn().unwrap();
        let supervisor = Supervisor { guard: 0, process, dir };
        eventually("all processes are up", || {
            let up = supervisor.path("ready").exists() && supervisor.pids().len() == PROCESSES;
            up.then_some(())
        })
        .await;
        let guard = guard_pid(supervisor.dir.path());
        Supervisor { guard, ..supervisor }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// All processes of the job.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let text = std::fs::read_to_string(self.path("pids")).unwrap_or_default();
        text.lines().filter_map(|pid| pid.parse().ok()).collect()
    }

    /// Kills the supervisor and reaps it.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Waits until everything is gone, and only the files are left.
    pub(crate) async fn all_is_gone(&self, limit: Duration) {
        let gone = || !self.pids().into_iter().chain([self.guard]).any(is_alive);
        within(limit, "every process of the job is gone", || gone().then_some(())).await;
    }
}

pub(crate) fn rank(rank: u32) -> ProcId {
    ProcId::rank(rank, 1)
}
