//! Jobs that were configured for MindCluster, with real processes: what ranks find in their environment, and what is decided when
//! one is killed.
//!
//! This program is also the guard of its own test, so it has a `main` of its own.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use taskd_core::job::{JobSpec, WorkerSpec};
use taskd_core::kernel::{Decision, Event};
use taskd_core::launch::LocalLauncher;
use taskd_core::recover;
use taskd_core::runtime::Runtime;
use taskd_core::testing::guarded_test;
use taskd_hw_ascend::mindcluster::{Framework, Sources};

/// Dies the first time, and then prints its environment to a file.
const PROGRAM: &str = "if [ ! -e was-here ]; then : > was-here; kill -9 $$; fi; env > environment";

fn main() -> ExitCode {
    guarded_test(
        "killed_rank_is_recovered_as_its_mindcluster_job_allows",
        killed_rank_is_recovered_as_its_mindcluster_job_allows,
    )
}

async fn killed_rank_is_recovered_as_its_mindcluster_job_allows() {
    let (decision, environment) = run(&[]).await;
    assert_eq!(decision.chosen.as_ref().unwrap().strategy, "restart");
    let why = "there is no other rank from which a lost rank could copy its state";
    assert_eq!(refusal(&decision, "recover"), why, "it is allowed, and says why not");
    let named = "not in the allowed set: recover-strategy is \"recover,dump\" in the job file job.yaml ($.metadata.annotations)";
    assert_eq!(refusal(&decision, "retry"), named);
    for line in ["PROCESS_RECOVER=on", "HIGH_AVAILABILITY=dump,recover", "HCCL_ASYNC_ERROR_HANDLING=0"] {
        assert!(environment.lines().any(|found| found == line), "{line} is missing in {environment}");
    }
    let (decision, environment) = run(&[("TASKD_PROCESS_ENABLE", "off")]).await;
    assert_eq!(decision.chosen.as_ref().unwrap().strategy, "restart");
    let off = "not in the allowed set: whole restarts only: TASKD_PROCESS_ENABLE is \"off\" in the environment";
    assert_eq!([refusal(&decision, "recover"), refusal(&decision, "retry")], [off, off]);
    assert!(!environment.contains("HIGH_AVAILABILITY"), "{environment}");
}

fn refusal<'a>(decision: &'a Decision, strategy: &str) -> &'a str {
    let refused = decision.refused.iter().find(|refusal| refusal.strategy == *strategy);
    refused.map_or("", |refusal| refusal.reason.as_str())
}

/// Runs a job to its end: the decision about the killed rank, and what the next one found.
async fn run(environment: &[(&'static str, &'static str)]) -> (Decision, String) {
    let dir = tempfile::tempdir().unwrap();
    let mut job = JobSpec::new("configured", 1, WorkerSpec::new(["/bin/sh", "-c", PROGRAM]).with_cwd(dir.path()));
    let yaml = "metadata: {labels: {framework: pytorch}, annotations: {recover-strategy: \"recover,dump\"}}";
    let strategies = recover::defaults();
    let sources = Sources::of(&job, &strategies).environment(environment.iter().copied());
    let configured = sources.framework(Framework::PyTorch).job_text("job.yaml", yaml).unwrap().configured();
    configured.apply(&mut job);
    let launcher = Arc::new(LocalLauncher::builder(dir.path().join("run")).build().await.unwrap());
    let builder = Runtime::builder().job(job).detectors(configured.detectors()).strategies(strategies);
    let runtime = builder.launcher(Arc::clone(&launcher)).build().unwrap();
    let mut events = runtime.handle().events();
    let report = tokio::time::timeout(Duration::from_secs(60), runtime.run()).await.expect("the job ends");
    assert!(report.ok, "{}", report.reason);
    launcher.shutdown(Duration::from_secs(5)).await.unwrap();
    let decision = loop {
        if let Event::Decided(decision) = &events.recv().await.expect("a decision").event {
            break (**decision).clone();
        }
    };
    (decision, environment_of(dir.path()))
}

fn environment_of(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("environment")).unwrap()
}
