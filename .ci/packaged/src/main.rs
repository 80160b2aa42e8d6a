//! Runs a job of two ranks under plugins of its own: a device becomes too hot, all ranks start again, and the job ends.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use taskd_core::job::{JobSpec, WorkerSpec};
use taskd_core::launch::{LocalLauncher, guard};
use taskd_core::recover::ExitStrategy;
use taskd_core::runtime::Runtime;
use taskd_pytorch::TorchLauncher;
use uses_taskd::{Counting, Hot, StartOver, Thermometer};

/// Trains until it is stopped; after a restart it is done at once. The helper for Python has to be where it says.
const RANK: &str = r#"
[ -s "${PYTHONPATH%%:*}/sitecustomize.py" ] || exit 9
case $TASKD_PROC in *.1) exec sleep 600 ;; esac
"#;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    guard::init(); // first thing in main: the guard is this same program, started again
    let dir = tempfile::tempdir()?;
    tokio::runtime::Runtime::new()?.block_on(run(dir.path()))
}

async fn run(dir: &Path) -> Result<(), Failure> {
    let local = Arc::new(LocalLauncher::builder(dir.join("run")).build().await?);
    let (launcher, started) = Counting::new(TorchLauncher::new(Arc::clone(&local), dir.join("torch")));
    let report = Runtime::builder()
        .job(JobSpec::new("packaged", 2, WorkerSpec::new(["sh", "-c", RANK])))
        .source(Thermometer::new(Duration::from_millis(200), [40.0, 50.0, 60.0, 120.0, 40.0]))
        .detector(Hot { limit_c: 95.0 })
        .strategy(StartOver)
        .strategy(ExitStrategy::new())
        .launcher(launcher)
        .journal(dir.join("log"))
        .build()?
        .run()
        .await;
    let guard_started = local.counters().await?.guard.started;
    local.shutdown(Duration::from_secs(5)).await?;

    let [incident] = &report.incidents[..] else { return Err(format!("not one incident: {report:?}").into()) };
    let found = (incident.by.as_str(), incident.strategy.as_ref().map(|name| name.as_str()));
    let held = report.ok
        && report.restarts == 1
        && found == ("acme.hot", Some("acme.start-over"))
        && (guard_started, started.load(Ordering::Relaxed)) == (4, 4);
    if !held {
        return Err(format!("{guard_started} processes, {started:?} orders: {report:?}").into());
    }
    println!("{}: {} by {}, then {}", report.reason, incident.class, incident.by, incident.outcome);
    Ok(())
}
