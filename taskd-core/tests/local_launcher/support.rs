//! What the tests share: a launcher in a directory of its own, orders, and waiting for what is to come.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::job::*;
use taskd_core::launch::*;

/// Everything that is waited for comes in far less, or the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn builder(dir: &Path) -> LocalLauncherBuilder {
    LocalLauncher::builder(dir).guard(guard_binary())
}

pub(crate) fn guard_binary() -> GuardProgram {
    GuardProgram::Path(env!("CARGO_BIN_EXE_taskd-guard").into())
}

/// Waits for a process's exit.
pub(crate) async fn exit_of(launcher: &dyn Launcher, proc: &ProcId) -> Exit {
    let phase = phase_of(launcher, proc, |phase| phase.is_exited()).await;
    match phase {
        Phase::Exited(exit) => *exit,
        other => panic!("{other}"),
    }
}

/// Waits until a process's phase is as wanted.
pub(crate) async fn phase_of(launcher: &dyn Launcher, proc: &ProcId, wanted: impl Fn(&Phase) -> bool) -> Phase {
    let waiting = async {
        let listing = launcher.list().await.unwrap();
        let mut from = listing.revision;
        let mut changes: Vec<Change> = listing.procs.into_iter().map(Change::Proc).collect();
        loop {
            for change in changes {
                match change {
                    Change::Proc(status) if status.proc == *proc && wanted(&status.phase) => return status.phase,
                    _ => (),
                }
            }
            (changes, from) = launcher.watch(from).await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{proc} did not get there"))
}

/// For what the file system or `/proc` shows and no event reports.
pub(crate) async fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, what, look).await
}

pub(crate) async fn within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = tokio::time::Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(tokio::time::Instant::now() < until, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Ranks 0 to n-1 in the given incarnation.
pub(crate) fn batch<const N: usize>(incarnation: u32, specs: [WorkerSpec; N]) -> StartBatch {
    let member = |_| Member { incarnation: Incarnation(incarnation), node: None, device: None };
    let members: BTreeMap<Rank, Member> = (0..N as u32).map(|rank| (Rank(rank), member(rank))).collect();
    let orders = specs
        .into_iter()
        .zip(0..)
        .map(|(spec, rank)| StartOrder::new(ProcId::rank(rank, incarnation), Place::anywhere(), Arc::new(spec)));
    StartBatch::new(Arc::new(World::first(members)), orders.collect())
}

pub(crate) fn sh(script: &str) -> WorkerSpec {
    WorkerSpec::new(["sh", "-c", script])
}

/// Sleeps until it is killed.
pub(crate) fn sleeper() -> WorkerSpec {
    WorkerSpec::new(["sleep", "1000"])
}

/// The guard that runs in a directory.
pub(crate) fn guard_pid(dir: &Path) -> u32 {
    let record = std::fs::read_to_string(dir.join("guard.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    record["guard_pid"].as_u64().unwrap() as u32
}

/// Whether a process is there and has not ended.
pub(crate) fn is_alive(pid: u32) -> bool {
    state_of(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// The state letter of `/proc/PID/stat`.
pub(crate) fn state_of(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// The pid of a process that runs.
pub(crate) async fn pid_of(launcher: &dyn Launcher, proc: &ProcId) -> u32 {
    let listing = launcher.list().await.unwrap();
    listing.procs.iter().find(|status| status.proc == *proc).and_then(|status| status.pid).unwrap()
}

pub(crate) fn send(pid: u32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Children of a process that have not ended, and those that were not reaped.
pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    let parent_of = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|e| e.unwrap().file_name().to_str()?.parse().ok());
    pids.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}
