//! SIGTERM and SIGINT to a host program that asked for our handlers, and the code that it ends with.

use crate::harness::tests;
use crate::host::*;
use crate::support::*;
use rustix::process::Signal;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use taskd_core::detect::ExitDetector;
use taskd_core::job::{JobSpec, WorkerSpec};
use taskd_core::launch::*;
use taskd_core::recover;
use taskd_core::runtime::{Runtime, ShutdownMode};
use taskd_core::testing::python::system;

tests![
    ranks_save_when_the_host_program_is_asked_to_end,
    successor_of_a_handover_continues_the_job,
    a_second_signal_hurries,
    a_second_signal_ends_the_saving_of_a_checkpoint,
    job_that_cannot_be_handed_over_is_stopped,
];

const RANKS: u32 = 2;

/// Is the host program.
pub(crate) fn run(leave: &str, dir: &Path) -> ExitCode {
    if leave == "save-stubborn" {
        return save(dir);
    }
    let (hand_over, stop) = (
        ShutdownMode::Detach { keep: Duration::from_secs(60) },
        ShutdownMode::Terminate { grace: Duration::from_secs(60) },
    );
    let (leave, script, guard) = match leave {
        "stop" => (stop, TRAIN, GuardProgram::ReexecSelf),
        "stop-stubborn" => (stop, STUBBORN, GuardProgram::ReexecSelf),
        "hand-over" => (hand_over, TRAIN, GuardProgram::ReexecSelf),
        "hand-over-without-guard" => (hand_over, TRAIN, GuardProgram::None),
        other => panic!("{other}"),
    };
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = tokio.block_on(async {
        let launcher = LocalLauncher::builder(run_dir(dir)).guard(guard).build().await.unwrap();
        runtime(dir, script, RANKS, launcher).run_with_signals(leave).await.unwrap()
    });
    std::fs::write(dir.join("report"), format!("{} {}", report.restarts, report.reason)).unwrap();
    report.outcome.into()
}

/// Is the host program of a job whose ranks do not come to the end of saving.
fn save(dir: &Path) -> ExitCode {
    std::fs::create_dir(dir.join("received")).unwrap();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/control_link/worker.py");
    let worker = WorkerSpec::new([system(), program]).with_env("ODD", "waits-in-write-shard");
    let mut spec =
        JobSpec::new("saving", RANKS, worker.with_env("RECEIVED", dir.join("received").display().to_string()));
    spec.policy.checkpoint_dir = Some(dir.join("dumps"));
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = tokio.block_on(async {
        let launcher = LocalLauncher::builder(run_dir(dir)).build().await.unwrap();
        let builder = Runtime::builder().job(spec).launcher(launcher).detector(ExitDetector::new());
        let runtime = builder.strategies(recover::defaults()).build().unwrap();
        let (handle, linked) = (runtime.handle(), dir.join("linked"));
        tokio::spawn(async move {
            while handle.status().await.is_ok_and(|status| status.in_loop < RANKS) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            std::fs::write(linked, "").unwrap();
        });
        let leave =
            ShutdownMode::CheckpointThenTerminate { within: Duration::from_secs(60), grace: Duration::from_secs(60) };
        runtime.run_with_signals(leave).await.unwrap()
    });
    std::fs::write(dir.join("report"), &report.reason).unwrap();
    report.outcome.into()
}

async fn host(dir: &Path, leave: &str) -> (Host, Vec<u32>) {
    let host = Host::start(&["signals", leave, dir.to_str().unwrap()]);
    let ranks = all_train(dir, RANKS).await;
    eventually("the job is logged", || dir.join("journal").exists().then_some(())).await;
    (host, ranks)
}

fn report(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("report")).unwrap()
}

async fn ranks_save_when_the_host_program_is_asked_to_end() {
    let dir = tempfile::tempdir().unwrap();
    let (host, ranks) = host(dir.path(), "stop").await;
    host.send(Signal::TERM);
    assert_eq!(host.code(PATIENCE).await, Some(143));
    assert!((0..RANKS).all(|rank| saved(dir.path(), rank)) && !ranks.into_iter().any(is_alive));
    assert_eq!(report(dir.path()), "0 stopped: the supervisor was asked to leave", "no budget is used");
}

async fn successor_of_a_handover_continues_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let (first, ranks) = host(dir.path(), "hand-over").await;
    first.send(Signal::INT);
    assert_eq!(first.code(PATIENCE).await, Some(75));
    goes_on(dir.path(), 0).await;
    let (second, same) = host(dir.path(), "hand-over").await;
    assert_eq!(same, ranks);
    goes_on(dir.path(), 1).await;
    std::fs::write(dir.path().join("finish"), "").unwrap();
    assert_eq!(second.code(PATIENCE).await, Some(0));
    assert!(report(dir.path()).starts_with("0 "), "{}", report(dir.path()));
}

async fn a_second_signal_hurries() {
    let dir = tempfile::tempdir().unwrap();
    let (host, ranks) = host(dir.path(), "stop-stubborn").await;
    host.send(Signal::TERM);
    eventually("the ranks were ordered to end", || dir.path().join("ordered-1").exists().then_some(())).await;
    assert!(ranks.iter().all(|pid| is_alive(*pid)));
    host.send(Signal::TERM);
    assert_eq!(host.code(PATIENCE).await, Some(143));
    assert!(!ranks.into_iter().any(is_alive));
}

async fn a_second_signal_ends_the_saving_of_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&["signals", "save-stubborn", dir.path().to_str().unwrap()]);
    eventually("the ranks are linked", || dir.path().join("linked").exists().then_some(())).await;
    host.send(Signal::TERM);
    let received =
        |rank| std::fs::read_to_string(dir.path().join(format!("received/rank-{rank}.1"))).unwrap_or_default();
    let saves = || (0..RANKS).any(|rank| received(rank).contains("\"write-shard\"")); // a rank with the newest step
    eventually("a rank is to save", || saves().then_some(())).await;
    host.send(Signal::TERM);
    assert_eq!(host.code(PATIENCE).await, Some(143));
    assert_eq!(report(dir.path()), "stopped: the supervisor received SIGTERM again");
}

async fn job_that_cannot_be_handed_over_is_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let (host, ranks) = host(dir.path(), "hand-over-without-guard").await;
    host.send(Signal::TERM);
    assert_eq!(host.code(PATIENCE).await, Some(143));
    assert!((0..RANKS).all(|rank| saved(dir.path(), rank)) && !ranks.into_iter().any(is_alive));
}
