//! A launcher in a directory of its own, and what a test does with it.

use crate::support::*;
use std::time::Duration;
use taskd_core::job::*;
use taskd_core::launch::*;

/// A launcher in its own run directory.
pub(crate) struct Job {
    pub dir: tempfile::TempDir,
    pub launcher: LocalLauncher,
}

impl Job {
    pub(crate) async fn new() -> Job {
        Job::with(|builder| builder).await
    }

    pub(crate) async fn with(edit: impl FnOnce(LocalLauncherBuilder) -> LocalLauncherBuilder) -> Job {
        let dir = tempfile::tempdir().unwrap();
        let launcher = edit(builder(dir.path())).build().await.unwrap();
        Job { dir, launcher }
    }

    /// Starts ranks 0 to n-1, each with its specification.
    pub(crate) async fn start<const N: usize>(&self, specs: [WorkerSpec; N]) -> [ProcId; N] {
        let batch = batch(1, specs);
        self.launcher.start(&batch).await.unwrap();
        std::array::from_fn(|i| batch.starts[i].proc.clone())
    }

    /// Starts one rank.
    pub(crate) async fn start_one(&self, spec: WorkerSpec) -> ProcId {
        let [proc] = self.start([spec]).await;
        proc
    }

    /// Waits for the exit of a process.
    pub(crate) async fn exit_of(&self, proc: &ProcId) -> Exit {
        exit_of(&self.launcher, proc).await
    }

    pub(crate) fn guard_pid(&self) -> u32 {
        guard_pid(self.dir.path())
    }

    /// What a process printed, when it contains `text`.
    pub(crate) async fn printed(&self, file: &str, text: &str) -> String {
        let path = self.dir.path().join("procs").join(file);
        eventually(&format!("{text:?} in {}", path.display()), || {
            std::fs::read_to_string(&path).ok().filter(|printed| printed.contains(text))
        })
        .await
    }

    pub(crate) async fn end(self) {
        self.launcher.shutdown(Duration::ZERO).await.unwrap();
    }
}
