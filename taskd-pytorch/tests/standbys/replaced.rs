//! Whole jobs under the real runtime and a real guard: a rank is killed, a standby that had parked takes its place, and
//! all train what they would have trained anyway.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use taskd_core::detect;
use taskd_core::job::{JobSpec, Name, Rank, Role, WorkerSpec};
use taskd_core::kernel::{JobReport, Outcome};
use taskd_core::launch::guard::GuardCounters;
use taskd_core::launch::python::Standbys;
use taskd_core::launch::{Launcher, LocalLauncher};
use taskd_core::recover;
use taskd_core::runtime::Runtime;
use taskd_pytorch::store::StoreProgram;
use taskd_pytorch::{TorchLauncher, with_store};

use crate::job::{Job, PATIENCE};

const RANKS: u32 = 3;
const VICTIM: u32 = 1;
/// Steps that are left from the one on in which the script holds all ranks.
const LEFT: usize = 18;

/// What became of a job.
struct Trained {
    report: JobReport,
    /// What each rank has written at its end.
    results: Vec<Value>,
    counters: GuardCounters,
    /// Processes that had begun the program before a rank was killed.
    begun: BTreeSet<u64>,
    /// What the guard has noted.
    noted: String,
}

/// One training in a directory of its own.
struct Training {
    dir: PathBuf,
    spec: JobSpec,
    local: Arc<LocalLauncher>,
}

impl Training {
    async fn new(job: &Job, name: &str, shares: &str) -> Training {
        let dir = job.path(name);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("parks.py"), include_str!("parks.py")).unwrap();
        let worker = WorkerSpec::new([job.python(), "-W", "ignore", "parks.py", shares]);
        let worker = worker.with_cwd(&dir).with_env("OMP_NUM_THREADS", "1");
        let store = StoreProgram::Path(env!("CARGO_BIN_EXE_taskd-store").into());
        let mut spec = with_store(JobSpec::new("parks", RANKS, worker), &store).unwrap();
        spec.policy.termination_grace_period = Duration::ZERO;
        let local = Arc::new(LocalLauncher::builder(dir.join("run")).build().await.unwrap());
        Training { dir, spec, local }
    }

    /// Trains to the end. `meanwhile` is done beside it, and returns what it has seen.
    async fn run(self, standbys: Standbys, meanwhile: impl AsyncFnOnce(&Training) -> BTreeSet<u64>) -> Trained {
        let launcher = TorchLauncher::new(Arc::clone(&self.local), self.dir.join("torch")).standbys(standbys);
        let runtime = Runtime::builder()
            .job(self.spec.clone())
            .source(self.local.heartbeats(Duration::from_secs(1)))
            .detectors(detect::defaults())
            .strategies(recover::defaults())
            .launcher(launcher)
            .build()
            .unwrap();
        let both = async { tokio::join!(runtime.run(), meanwhile(&self)) };
        let (report, begun) = tokio::time::timeout(PATIENCE, both).await.expect("it ends");
        let counters = self.counters().await;
        let noted = fs::read_to_string(self.dir.join("run/guard.log")).unwrap();
        self.local.shutdown(Duration::ZERO).await.unwrap();
        assert_eq!(report.outcome, Outcome::Completed, "{report:#?}\n{noted}");
        let result =
            |rank| serde_json::from_slice(&fs::read(self.dir.join(format!("result-{rank}"))).unwrap()).unwrap();
        Trained { report, results: (0..RANKS).map(result).collect(), counters, begun, noted }
    }

    async fn counters(&self) -> GuardCounters {
        self.local.counters().await.unwrap().guard
    }

    /// Kills a rank while all ranks are held in a step and `parked` standbys have parked, and lets the others continue.
    /// Returns the processes that had begun before.
    async fn lose_a_rank(&self, parked: u64) -> BTreeSet<u64> {
        let have_parked = async || self.counters().await.standbys_parked == parked;
        while self.numbers("held-").len() < RANKS as usize || !have_parked().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let begun = self.numbers("begun-");
        kill_process(self.pid_of(VICTIM).await, Signal::KILL).unwrap();
        fs::write(self.dir.join("go"), "").unwrap();
        begun
    }

    async fn pid_of(&self, rank: u32) -> Pid {
        let listing = self.local.list().await.unwrap();
        let status = listing.procs.iter().find(|status| status.proc.role == Role::Rank(Rank(rank))).unwrap();
        Pid::from_raw(status.pid.unwrap().try_into().unwrap()).unwrap()
    }

    /// Of files that are named by a process.
    fn numbers(&self, prefix: &str) -> BTreeSet<u64> {
        let names = fs::read_dir(&self.dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect()
    }
}

async fn undisturbed(job: &Job, shares: &str) -> Vec<Value> {
    let training = Training::new(job, "undisturbed", shares).await;
    fs::write(training.dir.join("go"), "").unwrap();
    training.run(Standbys::none(), async |_| BTreeSet::new()).await.results
}

/// A rank of such a job is killed: a standby takes its place that had parked before, `at` this, and every loss is the
/// undisturbed one.
async fn is_replaced(job: &Job, standbys: Standbys, parked: u32, shares: &str, at: &str) {
    let training = Training::new(job, "killed", shares).await;
    let trained = training
        .run(standbys.after(Duration::ZERO).parked(parked), async |it| it.lose_a_rank(parked.into()).await)
        .await;
    let Trained { report, results, counters, begun, noted } = trained;
    let strategies: Vec<_> = report.incidents.iter().map(|incident| incident.strategy.clone()).collect();
    assert_eq!(strategies, [Some(Name::new("recover-in-place"))], "{report:#?}");
    assert!(noted.contains(&format!("a standby is pre-warmed: it {at}")), "{noted}");
    assert_eq!((counters.standbys_seated, counters.standbys_seated_parked), (1, 1), "{counters:?}\n{noted}");
    assert_eq!(
        counters.standbys_missed,
        u64::from(RANKS),
        "no ranks but the first ones were started otherwise: {noted}"
    );
    assert!(
        begun.contains(&results[VICTIM as usize]["pid"].as_u64().unwrap()),
        "it had run the program before: {begun:?}"
    );
    let expected = undisturbed(job, shares).await;
    for (found, expected) in results.iter().zip(&expected) {
        let mut losses = expected["losses"].clone();
        if found["rank"] == VICTIM {
            // What it lost with its process, whose successor computes from the step on in which that one died.
            let known = found["losses"].as_object().unwrap();
            losses.as_object_mut().unwrap().retain(|step, _| known.contains_key(step));
            assert_eq!(known.len(), LEFT, "{found}");
        }
        assert_eq!(found["losses"], losses);
        assert_eq!((&found["state"], &found["rank"]), (&expected["state"], &expected["rank"]));
    }
}

pub(crate) async fn a_parked_standby_takes_the_place_of_a_killed_rank(job: Job) {
    is_replaced(&job, Standbys::template(), 1, "late", "has come to its step loop").await;
}

pub(crate) async fn a_sampler_made_before_the_rank_is_known_gets_its_part(job: Job) {
    is_replaced(&job, Standbys::template(), 1, "sampler", "has come to its step loop").await;
}

pub(crate) async fn a_script_that_asks_for_its_rank_early_parks_there(job: Job) {
    is_replaced(&job, Standbys::template(), 1, "early", "asks for its rank").await;
}

/// Each holds the device of one rank, and can be no other.
pub(crate) async fn a_pre_started_standby_takes_the_place_of_a_killed_rank(job: Job) {
    is_replaced(&job, Standbys::pre_started(RANKS), RANKS, "late", "has come to its step loop").await;
}
