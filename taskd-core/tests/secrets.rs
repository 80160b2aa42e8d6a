//! Secrets of a job in a whole runtime: what the launcher is given, and what all others see.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use taskd_core::detect::ExitDetector;
use taskd_core::job::*;
use taskd_core::kernel::{JobReport, Outcome, Plugins};
use taskd_core::launch::*;
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::{Runtime, RuntimeBuilder};
use taskd_core::secrets::SecretNames;
use taskd_core::testing::doubles::{FakeLauncher, FakeProgram};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(600);

/// A launcher that notes what it is to start. One that is stuck never answers.
#[derive(Clone, Debug)]
struct Noting {
    fake: FakeLauncher,
    stuck: bool,
    started: Arc<Mutex<Vec<StartOrder>>>,
}

impl Noting {
    fn new(fake: FakeLauncher, stuck: bool) -> Noting {
        Noting { fake, stuck, started: Arc::default() }
    }

    fn started(&self) -> Vec<StartOrder> {
        self.started.lock().unwrap().clone()
    }
}

#[async_trait::async_trait]
impl Launcher for Noting {
    taskd_core::delegate!(Launcher to |this| this.fake, except start);

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        self.started.lock().unwrap().extend(batch.starts.iter().cloned());
        if self.stuck {
            std::future::pending::<()>().await;
        }
        self.fake.start(batch).await
    }
}

fn job(token: &str) -> JobSpec {
    let worker = FakeProgram::Runs.spec().with_env("HF_TOKEN", token).with_env("LICENCE", "licence-42");
    JobSpec::new("test", 2, worker).with_secrets(SecretNames::default().with("licence"))
}

fn builder(job: JobSpec, launcher: &Noting, journal: &Path) -> RuntimeBuilder {
    let builder = Runtime::builder().job(job).launcher(launcher.clone()).journal(journal);
    builder.detector(ExitDetector::new()).strategy(Restart::new()).strategy(ExitStrategy::new())
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{what}"));
}

async fn completed(fake: &FakeLauncher, job: JoinHandle<JobReport>, incarnation: u32) -> JobReport {
    (0..2).for_each(|rank| assert!(fake.finish(&ProcId::rank(rank, incarnation), 0)));
    let report = timeout(PATIENCE, job).await.unwrap().unwrap();
    assert_eq!(report.outcome, Outcome::Completed, "{}", report.reason);
    report
}

fn both_run(fake: &FakeLauncher, incarnation: u32) -> bool {
    (0..2).all(|rank| fake.runs(&ProcId::rank(rank, incarnation)))
}

fn holds(text: &[u8], secret: &str) -> bool {
    text.windows(secret.len()).any(|window| window == secret.as_bytes())
}

/// What a launcher gets of that job: the true values, and the names that the job adds to those of secrets.
fn as_ordered(token: &str) -> Arc<WorkerSpec> {
    let mut job = job(token);
    Arc::make_mut(&mut job.worker).secrets = job.secrets;
    job.worker
}

fn no_file_of(journal: &Path, secrets: &[&str]) {
    for file in std::fs::read_dir(journal).unwrap() {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        secrets.iter().for_each(|secret| assert!(!holds(&bytes, secret), "{secret} in {}", path.display()));
    }
}

#[tokio::test(start_paused = true)]
async fn the_launcher_alone_is_given_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = Noting::new(FakeLauncher::new(), false);
    let builder = builder(job("hf_secret-1"), &launcher, dir.path());
    let mut seen = format!("{builder:?}");
    let runtime = builder.build().unwrap();
    seen += &format!("{runtime:?}");
    let handle = runtime.handle();
    let mut events = handle.events();
    let run = tokio::spawn(runtime.run());
    until("both run", || both_run(&launcher.fake, 1)).await;
    launcher.fake.kill(&ProcId::rank(1, 1));
    until("both run again", || both_run(&launcher.fake, 2)).await;
    sleep(Duration::from_secs(1)).await;
    seen += &serde_json::to_string(&handle.status().await.unwrap()).unwrap();
    let report = completed(&launcher.fake, run, 2).await;
    seen += &serde_json::to_string(&report).unwrap();
    while let Ok(event) = events.try_recv() {
        seen += &format!("{event:?} {}", serde_json::to_string(&*event).unwrap());
    }
    assert!(seen.contains("<redacted:HF_TOKEN>") && seen.contains("<redacted:LICENCE>"), "decisions show the orders");
    assert!(!holds(seen.as_bytes(), "hf_secret-1") && !holds(seen.as_bytes(), "licence-42"), "{seen}");
    let orders = launcher.started();
    assert_eq!(orders.len(), 4);
    assert!(orders.iter().all(|order| order.spec == as_ordered("hf_secret-1")), "{orders:#?}");
    no_file_of(dir.path(), &["hf_secret-1", "licence-42"]);
}

/// A supervisor that has ordered the first start, and dies before the launcher has taken it.
async fn dies_in_the_middle_of_the_start(fake: &FakeLauncher, journal: &Path) {
    let stuck = Noting::new(fake.clone(), true);
    let run = tokio::spawn(builder(job("hf_secret-1"), &stuck, journal).build().unwrap().run());
    until("it is to start both", || stuck.started().len() == 2).await;
    run.abort();
    let _ = run.await; // it was aborted
}

#[tokio::test(start_paused = true)]
async fn journaled_start_order_uses_secrets_of_the_new_supervisor() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeLauncher::new();
    dies_in_the_middle_of_the_start(&fake, dir.path()).await;
    let next = Noting::new(fake.attach(), false);
    let run = tokio::spawn(builder(job("hf_renewed-2"), &next, dir.path()).build().unwrap().run());
    until("both run", || both_run(&fake, 1)).await;
    completed(&fake, run, 1).await;
    let orders = next.started();
    assert_eq!(orders.len(), 2, "the order in the log, once more");
    assert!(orders.iter().all(|order| order.spec == as_ordered("hf_renewed-2")), "{orders:#?}");
    no_file_of(dir.path(), &["hf_secret-1", "hf_renewed-2"]);
    let plugins = || Plugins {
        detectors: vec![Box::new(ExitDetector::new())],
        strategies: vec![Box::new(Restart::new()), Box::new(ExitStrategy::new())],
    };
    let report = taskd_core::journal::replay(dir.path(), taskd_core::journal::ReplayFrom::Start, plugins).unwrap();
    assert!(report.first_difference.is_none() && report.missing.is_empty() && report.compared > 4, "{report}");
}

#[tokio::test(start_paused = true)]
async fn start_order_without_secret_values_is_refused_with_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeLauncher::new();
    dies_in_the_middle_of_the_start(&fake, dir.path()).await;
    let next = Noting::new(fake.attach(), false);
    let bare = JobSpec::new("test", 2, FakeProgram::Runs.spec());
    let report = timeout(PATIENCE, builder(bare, &next, dir.path()).build().unwrap().run()).await.unwrap();
    assert_eq!(report.outcome, Outcome::Failed);
    let refusal = "the log does not keep secrets, and this supervisor's job has no value for HF_TOKEN, LICENCE: give it the \
                   variables and arguments that the job had before";
    assert!(report.reason.contains(refusal), "{}", report.reason);
    assert_eq!(next.started(), []);
}
