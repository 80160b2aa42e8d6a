//! A job of real ranks in a directory of its own, restarted as a whole as often as a test likes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Pid;
use serde_json::Value;
use taskd_core::job::{Incarnation, Member, ProcId, Rank, WorkerSpec, World};
use taskd_core::launch::guard::GuardCounters;
use taskd_core::launch::python::Standbys;
use taskd_core::launch::{Launcher, LocalLauncher, Place, StartBatch, StartOrder};
use taskd_core::trace::{Signal, TraceSource};
use taskd_pytorch::TorchLauncher;

/// Everything that is waited for comes in far less, or the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Job {
    dir: tempfile::TempDir,
    python: PathBuf,
}

pub(crate) struct Launched {
    launcher: TorchLauncher<LocalLauncher>,
    procs: Vec<ProcId>,
    pub(crate) program: &'static str,
    /// How many threads the job wants, by the variables that say so.
    pub(crate) threads: Vec<(&'static str, &'static str)>,
}

impl Job {
    pub(crate) fn new(python: PathBuf) -> Job {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("train.py"), include_str!("train.py")).unwrap();
        Job { dir, python }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn python(&self) -> &str {
        self.python.to_str().unwrap()
    }

    pub(crate) async fn launch(&self, standbys: Standbys) -> Launched {
        let local = LocalLauncher::builder(self.dir.path().join("run")).build().await.unwrap();
        let launcher = TorchLauncher::new(local, self.dir.path().join("torch")).standbys(standbys);
        Launched { launcher, procs: Vec::new(), program: "train.py", threads: vec![("OMP_NUM_THREADS", "1")] }
    }

    /// What a rank has written.
    pub(crate) async fn report(&self, rank: u32, incarnation: u32) -> Value {
        let path = self.dir.path().join(format!("report-rank-{rank}.{incarnation}"));
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            if let Some(reports) = std::fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok()) {
                return reports;
            }
            let failed = || self.stderr(rank, incarnation);
            assert!(tokio::time::Instant::now() < until, "rank {rank} reports nothing: {}", failed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn stderr(&self, rank: u32, incarnation: u32) -> String {
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let run = self.dir.path().join("run");
        read(&run.join(format!("procs/rank-{rank}.{incarnation}/stderr.log"))) + &read(&run.join("guard.log"))
    }

    /// Removes the reports.
    pub(crate) fn clear(&self) {
        for entry in std::fs::read_dir(self.dir.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap().to_str().unwrap().starts_with("report-") {
                std::fs::remove_file(path).unwrap();
            }
        }
    }
}

impl Launched {
    /// Starts `ranks` ranks; returns the time of the order.
    pub(crate) async fn start(&mut self, job: &Job, incarnation: u32, ranks: u32, steps: u32) -> u64 {
        let mut spec = WorkerSpec::new([job.python(), self.program, &steps.to_string()]).with_cwd(job.dir.path());
        spec = self.threads.iter().fold(spec, |spec, (name, value)| spec.with_env(*name, *value));
        let spec = Arc::new(spec);
        let member = |_| Member { incarnation: Incarnation(incarnation), node: None, device: None };
        let mut world = World::first((0..ranks).map(|rank| (Rank(rank), member(rank))).collect());
        for _ in 1..incarnation {
            world = world.successor(taskd_core::job::Counted::Yes, |_| ());
        }
        let order = |rank| StartOrder::new(ProcId::rank(rank, incarnation), Place::anywhere(), Arc::clone(&spec));
        let batch = StartBatch::new(Arc::new(world), (0..ranks).map(order).collect());
        self.procs = batch.starts.iter().map(|order| order.proc.clone()).collect();
        let ordered = now();
        self.launcher.start(&batch).await.unwrap();
        ordered
    }

    pub(crate) async fn all_reports(&self, job: &Job, incarnation: u32, ranks: u32) -> Vec<Value> {
        let mut reports = Vec::new();
        for rank in 0..ranks {
            reports.push(job.report(rank, incarnation).await);
        }
        reports
    }

    /// Waits until the page of every rank has step `steps`.
    pub(crate) async fn has_stepped(&self, steps: u64) {
        let mut source = self.launcher.inner().heartbeats(Duration::from_millis(5));
        let mut stepped = std::collections::BTreeSet::new();
        let all = async {
            while stepped.len() < self.procs.len() {
                for fact in source.next().await.unwrap().unwrap().facts {
                    if fact.signal == (Signal::Progress { step: steps }) {
                        stepped.insert(fact.about.to_string());
                    }
                }
            }
        };
        tokio::time::timeout(PATIENCE, all).await.expect("all ranks have stepped");
    }

    /// Waits until `count` standbys wait.
    pub(crate) async fn standbys(&self, count: u64) {
        let until = tokio::time::Instant::now() + PATIENCE;
        while self.counters().await.standbys_waiting < count {
            assert!(tokio::time::Instant::now() < until, "no standbys: {:?}", self.counters().await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn counters(&self) -> GuardCounters {
        self.launcher.inner().counters().await.unwrap().guard
    }

    pub(crate) async fn stop_all(&self) {
        self.launcher.stop(&self.procs, Duration::ZERO).await.unwrap();
        self.exits().await;
    }

    /// Kills all ranks at once and waits for their exits; when they were killed.
    pub(crate) async fn kill_all(&self) -> u64 {
        let listing = self.launcher.list().await.unwrap();
        let killed = now();
        for pid in listing.procs.iter().filter_map(|status| status.pid?.try_into().ok()) {
            rustix::process::kill_process(Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL).unwrap();
        }
        self.exits().await;
        killed
    }

    async fn exits(&self) {
        let all = async {
            let mut listing = self.launcher.list().await.unwrap();
            while listing.procs.iter().any(|status| !status.phase.is_exited()) {
                self.launcher.watch(listing.revision).await.unwrap();
                listing = self.launcher.list().await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, all).await.expect("all exits are reported");
        self.launcher.acknowledge(&self.procs).await.unwrap();
    }

    pub(crate) async fn end(self) {
        self.launcher.inner().shutdown(Duration::ZERO).await.unwrap();
    }
}

/// The clock that ranks have as `time.monotonic_ns`.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// The middle and the largest.
pub(crate) fn median(times: &mut [u64]) -> (u64, u64) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() - 1])
}
