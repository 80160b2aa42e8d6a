//! A job whose ranks have standbys: its directory, its launcher, and waiting for what is to come.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use taskd_core::job::{ProcId, WorkerSpec};
use taskd_core::launch::guard::GuardCounters;
use taskd_core::launch::python::{Framework, LaunchContext, PythonFile, PythonLauncher, Standbys, WorkerRanks};
use taskd_core::launch::{Launcher, LocalLauncher};
use taskd_core::testing::python::system;

use crate::support::{batch, builder, exit_of, within};

/// Everything that is waited for comes in far less, or the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A framework with nothing but standbys. What a first step would import is `calendar`.
#[derive(Debug, Default)]
pub(crate) struct Plain;

const WARM: PythonFile = PythonFile {
    path: "_taskd_standby_framework.py",
    text: "
import os, sys
def warm():
    import calendar
    import random
    random.random()
    if os.environ.get('WARM'): exec(os.environ['WARM'])
def why_not_to_fork(): return os.environ.get('WHY_NOT')
def set_threads(count): sys.modules['os'].threads_set = count
def threads(): return 7
def hold_device(slot): sys.modules['os'].device_held = slot
",
};

impl Framework for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn files(&self) -> &[PythonFile] {
        &[WARM]
    }

    fn rank_env(&self, seat: &WorkerRanks, order: &LaunchContext<'_>) -> BTreeMap<String, String> {
        let values = [("RANK", seat.rank.to_string()), ("PORT", order.port.to_string())];
        values.map(|(name, value)| (name.to_owned(), value)).into()
    }

    fn imports(&self) -> &[&'static str] {
        &["decimal", "random"]
    }

    fn per_rank_env(&self) -> &[&'static str] {
        &["RANK", "PORT"]
    }
}

pub(crate) struct Job {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) launcher: PythonLauncher<LocalLauncher, Plain>,
}

/// From a template, as soon as can be.
pub(crate) fn template() -> Standbys {
    Standbys::template().after(Duration::ZERO)
}

impl Job {
    pub(crate) async fn new(standbys: Standbys) -> Job {
        let dir = tempfile::tempdir().unwrap();
        let local = builder(&dir.path().join("run")).build().await.unwrap();
        let launcher = PythonLauncher::<_, Plain>::new(local, dir.path().join("plain")).standbys(standbys);
        Job { dir, launcher }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a program and gives the specification that runs it.
    pub(crate) fn program(&self, text: &str) -> WorkerSpec {
        let program = self.path("program.py");
        std::fs::write(&program, text).unwrap();
        WorkerSpec::new([system(), program.to_str().unwrap()]).with_cwd(self.dir.path())
    }

    /// Starts these as ranks 0 and on.
    pub(crate) async fn start<const N: usize>(&self, incarnation: u32, specs: [WorkerSpec; N]) -> Vec<ProcId> {
        let batch = batch(incarnation, specs);
        self.launcher.start(&batch).await.unwrap();
        batch.starts.into_iter().map(|order| order.proc).collect()
    }

    /// Starts one rank of a world in which the others run.
    pub(crate) async fn start_only(&self, incarnation: u32, rank: usize, spec: WorkerSpec) -> ProcId {
        let mut batch = batch(incarnation, [spec.clone(), spec]);
        batch.starts = vec![batch.starts.swap_remove(rank)];
        self.launcher.start(&batch).await.unwrap();
        batch.starts.remove(0).proc
    }

    /// Starts rank 0 alone, waits for its exit, and acknowledges it. The exit's code.
    pub(crate) async fn run(&self, incarnation: u32, spec: WorkerSpec) -> String {
        let procs = self.start(incarnation, [spec]).await;
        let exit = exit_of(&self.launcher, &procs[0]).await;
        self.launcher.acknowledge(&procs).await.unwrap();
        format!("{} {}", exit.how, exit.stderr_tail).trim().to_owned()
    }

    pub(crate) async fn counters(&self) -> GuardCounters {
        self.launcher.inner().counters().await.unwrap().guard
    }

    /// Waits until `count` standbys wait.
    pub(crate) async fn standbys(&self, count: u64) {
        let until = tokio::time::Instant::now() + PATIENCE;
        while self.counters().await.standbys_waiting != count {
            let output = self.log();
            assert!(tokio::time::Instant::now() < until, "no {count} standbys: {:?}\n{output}", self.counters().await);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until the guard has logged this.
    pub(crate) async fn has_logged(&self, text: &str) {
        within(PATIENCE, text, || self.log().contains(text).then_some(())).await;
    }

    pub(crate) fn log(&self) -> String {
        let read = |name: &str| std::fs::read_to_string(self.path("run").join(name)).unwrap_or_default();
        read("guard.log") + &read("standby.log")
    }

    /// What a rank has written into a file of that name, as soon as it is whole.
    pub(crate) async fn report(&self, name: &str) -> serde_json::Value {
        let path = self.path(name);
        within(PATIENCE, name, || json(&path)).await
    }

    pub(crate) async fn end(self) {
        self.launcher.inner().shutdown(Duration::ZERO).await.unwrap();
    }
}

fn json(path: &Path) -> Option<serde_json::Value> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}
