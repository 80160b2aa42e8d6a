//! Whole jobs: a rank is killed or a step fails, and the live ranks keep their processes.

use super::job::{Job, job, job_with, send};
use super::{PATIENCE, received, worker};
use rustix::process::Signal;
use std::path::Path;
use std::time::Duration;
use taskd_core::job::*;
use taskd_core::kernel::{Event, JobReport, Outcome};
use taskd_core::runtime::ShutdownMode;

#[tokio::test]
async fn a_killed_rank_is_replaced_in_place_and_survivors_run_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = job(dir.path(), 3, worker(dir.path())).await;
    let before = job.linked().await;
    send(before[&1], Signal::KILL);
    assert_eq!(job.closed().await, "recovered by recover-in-place");
    let after = job.linked().await;
    assert_eq!((after[&0], after[&2]), (before[&0], before[&2]), "survivors are not started again");
    assert_ne!(after[&1], before[&1]);
    assert_eq!(received(dir.path(), "rank-0.1"), ["abort", "join", "sync-state", "resume"]);
    assert_eq!(received(dir.path(), "rank-1.2"), ["join", "sync-state", "resume"]);
    let report = job.end().await;
    assert_eq!((report.restarts, report.incidents.len()), (1, 1));
    assert_eq!(report.incidents[0].blamed, [Rank(1)]);
}

#[tokio::test]
async fn an_unsupported_rank_gets_no_abort_and_is_the_refusal_reason() {
    let dir = tempfile::tempdir().unwrap();
    let limits = r#"{"unsupported_reason": "the model is in pieces", "sharded": ["model"]}"#;
    let mut job = job(dir.path(), 2, worker(dir.path()).with_env("LIMITS", limits)).await;
    let before = job.linked().await;
    send(before[&1], Signal::KILL);
    let refused = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Event::Decided(decision) = &job.events.recv().await.unwrap().event {
                return decision.refused.clone();
            }
        }
    });
    let refused = refused.await.expect("a decision");
    let of = |name| refused.iter().find(|refusal| refusal.strategy == Name::new(name)).map(|r| r.reason.as_str());
    assert_eq!(of("recover-in-place"), Some("rank 0 cannot be kept: the model is in pieces"));
    assert_eq!(job.closed().await, "recovered by restart");
    assert_eq!(received(dir.path(), "rank-0.1"), [] as [&str; 0], "no rank is asked to give up in vain");
    job.end().await;
}

#[tokio::test]
async fn a_frozen_rank_is_stopped_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = job(dir.path(), 2, worker(dir.path())).await;
    let before = job.linked().await;
    send(before[&0], Signal::STOP);
    job.handle.report_fault(frozen(0)).await.unwrap();
    assert_eq!(job.closed().await, "recovered by recover-in-place");
    assert_eq!(job.linked().await[&1], before[&1]);
    assert_eq!(received(dir.path(), "rank-0.2"), ["join", "sync-state", "resume"]);
    job.end().await;
}

fn frozen(rank: u32) -> taskd_core::detect::Fault {
    use taskd_core::detect::{Damage, Fault, FaultClass, Suspect};
    let domain = Domain::Process(Role::Rank(Rank(rank)));
    Fault::new(Name::new("test"), JobTime::START, Suspect::certain(domain, FaultClass::Silence, Damage::PROCESS_GONE))
}

#[tokio::test]
async fn a_failed_step_of_live_ranks_is_retried_by_the_same_processes() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = job(dir.path(), 3, worker(dir.path())).await;
    let before = job.linked().await;
    send(before[&2], Signal::USR1);
    assert_eq!(job.closed().await, "recovered by retry");
    assert_eq!(job.linked().await, before);
    let report = job.end().await;
    assert_eq!(
        (report.incidents[0].blamed.len(), report.restarts),
        (0, 1),
        "no rank is blamed for a broken connection"
    );
}

/// Rung 0 is the vendor's: its library tries an operation again by itself, and meanwhile it reports nothing. What it
/// reports when it has given that up is injected here.
#[tokio::test]
async fn the_vendors_own_retry_that_has_failed_is_followed_by_ours() {
    let dir = tempfile::tempdir().unwrap();
    let words = "injected: HCCL OP RETRY FAILED, error code 507904";
    let mut job = job(dir.path(), 3, worker(dir.path()).with_env("FAILURE", words)).await;
    let before = job.linked().await;
    send(before[&1], Signal::USR1);
    assert_eq!(job.closed().await, "recovered by retry");
    assert_eq!(job.linked().await, before);
    let why = job.handle.explain(IncidentId(1)).await.expect("it was decided");
    let clues = why.faults.iter().flat_map(|fault| &fault.evidence);
    assert!(clues.into_iter().any(|clue| clue.text.contains(words)), "{:?}", why.faults);
    job.end().await;
}

#[tokio::test]
async fn when_a_survivor_cannot_join_all_ranks_are_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = job(dir.path(), 2, worker(dir.path()).with_env("ODD", "refuses-join")).await;
    let before = job.linked().await;
    send(before[&1], Signal::KILL);
    assert_eq!(job.closed().await, "recovered by restart");
    let after = job.linked().await;
    assert!(after[&0] != before[&0] && after[&1] != before[&1]);
    let report = job.end().await;
    assert!(report.incidents[0].reason.contains("restart"), "{}", report.incidents[0].reason);
}

/// A job that has a directory for checkpoints; no rank is replaced in it.
async fn dumping(dir: &Path, ranks: u32, spec: WorkerSpec) -> Job {
    let dumps = dir.join("dumps");
    job_with(dir, ranks, spec, |policy| {
        policy.checkpoint_dir = Some(dumps);
        let never = ["recover-in-place", "recover", "shrink"].map(|name| (Name::new(name), Permission::Never));
        policy.strategies.extend(never);
    })
    .await
}

/// The ranks that had the newest step (stand-ins wait for no rank, and may be at different ones) wrote, and one of them
/// sealed.
fn saved(dir: &Path, procs: &[&str], then: &[&str]) {
    let received: Vec<Vec<String>> = procs.iter().map(|proc| received(dir, proc)).collect();
    let is = |received: &Vec<String>, saves: &[&str]| *received == [&["abort"], saves, then].concat();
    let sealed = received.iter().filter(|received| is(received, &["write-shard", "write-manifest"])).count();
    let others = received.iter().filter(|received| is(received, &["write-shard"]) || is(received, &[])).count();
    assert_eq!((sealed, others), (1, procs.len() - 1), "{received:?}");
}

#[tokio::test]
async fn survivors_save_a_checkpoint_before_all_ranks_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = dumping(dir.path(), 3, worker(dir.path())).await;
    let before = job.linked().await;
    send(before[&1], Signal::KILL);
    assert_eq!(job.closed().await, "recovered by dump");
    let after = job.linked().await;
    assert!(before.iter().all(|(rank, pid)| after[rank] != *pid), "all ranks start again");
    saved(dir.path(), &["rank-0.1", "rank-2.1"], &[]);
    let report = job.end().await;
    assert_eq!((report.restarts, report.incidents.len()), (1, 1));
}

#[tokio::test]
async fn when_a_second_rank_dies_as_it_saves_the_others_save_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = dumping(dir.path(), 4, worker(dir.path()).with_env("ODD", "one-dies-in-write-shard")).await;
    let before = job.linked().await;
    send(before[&3], Signal::KILL);
    assert_eq!(job.closed().await, "recovered by dump");
    let received: Vec<Vec<String>> = (0..3).map(|rank| received(dir.path(), &format!("rank-{rank}.1"))).collect();
    let times = |name: &str| received.iter().flatten().filter(|what| *what == name).count();
    assert_eq!((times("abort"), times("write-manifest")), (5, 1), "{received:?}");
    assert_eq!(job.end().await.restarts, 2, "what was tried and has failed counts as well");
}

#[tokio::test]
async fn when_nothing_can_be_saved_the_last_checkpoint_has_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = dumping(dir.path(), 2, worker(dir.path()).with_env("ODD", "refuses-write-shard")).await;
    let before = job.linked().await;
    send(before[&1], Signal::KILL);
    assert_eq!(job.closed().await, "recovered by restart");
    let report = job.end().await;
    let reason = &report.incidents[0].reason;
    assert!(reason.contains("restart"), "{reason}");
}

#[tokio::test]
async fn an_operators_checkpoint_is_saved_while_all_processes_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = dumping(dir.path(), 2, worker(dir.path())).await;
    let before = job.linked().await;
    job.handle.checkpoint_now("before the maintenance").await.unwrap();
    assert_eq!(job.closed().await, "recovered by dump");
    assert_eq!(job.linked().await, before);
    saved(dir.path(), &["rank-0.1", "rank-1.1"], &["join", "sync-state", "resume"]);
    assert_eq!(job.end().await.restarts, 0, "no budget is used for it");
}

#[tokio::test]
async fn a_supervisor_that_leaves_has_the_ranks_save_first() {
    let dir = tempfile::tempdir().unwrap();
    let job = dumping(dir.path(), 2, worker(dir.path())).await;
    job.linked().await;
    let report = left_after_saving(job, PATIENCE).await;
    assert_eq!((report.outcome, report.restarts), (Outcome::Stopped, 0), "{report:#?}");
    assert_eq!(report.reason, "stopped: the supervisor was asked to leave");
    saved(dir.path(), &["rank-0.1", "rank-1.1"], &["join", "sync-state", "resume"]);
}

#[tokio::test]
async fn a_supervisor_that_leaves_stops_also_what_cannot_save() {
    for odd in ["refuses-write-shard", "waits-in-write-shard"] {
        let dir = tempfile::tempdir().unwrap();
        let job = dumping(dir.path(), 2, worker(dir.path()).with_env("ODD", odd)).await;
        job.linked().await;
        let within = if odd == "waits-in-write-shard" { Duration::from_millis(300) } else { PATIENCE };
        let report = left_after_saving(job, within).await;
        assert_eq!(report.outcome, Outcome::Stopped, "{odd}: {report:#?}");
    }
    let dir = tempfile::tempdir().unwrap();
    let nowhere = job(dir.path(), 2, worker(dir.path())).await;
    nowhere.linked().await;
    let report = left_after_saving(nowhere, PATIENCE).await;
    assert_eq!(report.outcome, Outcome::Stopped, "without a directory: {report:#?}");
}

async fn left_after_saving(job: Job, within: Duration) -> JobReport {
    job.handle.shutdown(ShutdownMode::CheckpointThenTerminate { within, grace: Duration::ZERO }).await.unwrap();
    tokio::time::timeout(PATIENCE, job.running).await.expect("it ends").unwrap()
}

#[tokio::test]
async fn an_operators_checkpoint_that_fails_ends_nothing() {
    for fails in ["write-shard", "write-manifest"] {
        let dir = tempfile::tempdir().unwrap();
        let spec = worker(dir.path()).with_env("ODD", format!("refuses-{fails}"));
        let mut job = dumping(dir.path(), 2, spec).await;
        let before = job.linked().await;
        job.handle.checkpoint_now("before the maintenance").await.unwrap();
        let how = job.closed().await;
        assert!(how.starts_with("not done: ") && how.contains("it does not want to"), "{how}");
        assert_eq!(job.linked().await, before, "all train on");
        let received = received(dir.path(), "rank-1.1");
        assert_eq!(received.last().map(String::as_str), Some("resume"));
        job.end().await;
    }
}
