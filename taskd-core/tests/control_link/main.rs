//! Control links to real processes, and recoveries that keep them: over a stand-in for a training program.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod job;
mod links;
mod misbehaving;
mod recoveries;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use taskd_core::job::*;
use taskd_core::launch::*;
use taskd_core::testing::python::system;

/// Everything that is waited for comes in far less, or the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn local(dir: &Path) -> LocalLauncherBuilder {
    let guard = GuardProgram::Path(env!("CARGO_BIN_EXE_taskd-guard").into());
    LocalLauncher::builder(dir.join("run")).guard(guard)
}

/// The stand-in, with what it receives in `dir/received`.
fn worker(dir: &Path) -> WorkerSpec {
    std::fs::create_dir_all(received_dir(dir)).unwrap();
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/control_link/worker.py");
    WorkerSpec::new([system(), program.to_str().unwrap()]).with_env("RECEIVED", received_dir(dir).display().to_string())
}

fn received_dir(dir: &Path) -> PathBuf {
    dir.join("received")
}

/// The names of the directives that a process was given, in order.
fn received(dir: &Path, proc: &str) -> Vec<String> {
    let text = std::fs::read_to_string(received_dir(dir).join(proc)).unwrap_or_default();
    let names = text.lines().map(|line| {
        let order: BTreeMap<String, serde_json::Value> = serde_json::from_str(line).unwrap();
        order.into_keys().find(|key| key != "id" && key != "generation").unwrap()
    });
    names.collect()
}

/// Waits until the launcher has reported what is wanted, from what it has reported before on.
async fn until<T>(launcher: &dyn Launcher, what: &str, mut wanted: impl FnMut(&Change) -> Option<T>) -> T {
    let looking = async {
        let listing = launcher.list().await.unwrap();
        let mut from = listing.revision;
        let procs = listing.procs.into_iter().map(Change::Proc);
        let mut changes: Vec<Change> = procs.chain(listing.links.into_iter().map(Change::Link)).collect();
        loop {
            if let Some(found) = changes.iter().find_map(&mut wanted) {
                return found;
            }
            (changes, from) = launcher.watch(from).await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}
