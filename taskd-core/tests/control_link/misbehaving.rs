//! Whole jobs in which a process misbehaves just when a recovery needs it: the next rung of the ladder is taken, for a
//! reason that can be read, and the job ends as if nothing had been.

use super::job::{Job, job_that_uses, send};
use super::{PATIENCE, received, worker};
use rustix::process::Signal;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::job::*;
use taskd_core::kernel::{Branch, JobReport};
use taskd_core::recover::{
    self, Advance, Incident, PlanExecution, Proposal, RecoveryStrategy, RecoveryStrategyExt, RefusalError,
};
use taskd_core::state::View;

/// The stand-in, of which the processes of one rank do something wrong.
fn odd(dir: &Path, rank: u32, how: &str) -> WorkerSpec {
    worker(dir).with_env("ODD", how).with_env("ODD_PROC", format!("rank-{rank}.*"))
}

/// A job that needs all of its ranks.
async fn job_of_three(dir: &Path, strategies: Vec<Box<dyn RecoveryStrategy>>, spec: WorkerSpec) -> Job {
    job_that_uses(strategies, dir, 3, spec, |policy| policy.min_ranks = 3).await
}

/// Rank 1 is killed; what is tried first fails as often as it may, and all ranks start again; then the work is done.
/// Why it failed.
async fn killed_and_started_again(mut job: Job) -> (String, JobReport) {
    let before = job.linked().await;
    send(before[&1], Signal::KILL);
    assert_eq!(job.closed().await, "recovered by restart");
    let after = job.linked().await;
    assert!(before.iter().all(|(rank, pid)| after[rank] != *pid), "all ranks start again");
    let why = job.handle.explain(IncidentId(1)).await.expect("it was decided");
    let [(tried, reason), again] = &why.attempts[..] else { panic!("one rung above: {:?}", why.attempts) };
    assert_eq!((tried.as_str(), again), ("recover-in-place", &(tried.clone(), reason.clone())));
    after.values().for_each(|pid| send(*pid, Signal::USR2));
    let report = tokio::time::timeout(PATIENCE, job.running).await.expect("it ends").unwrap();
    assert!(report.ok, "{}", report.reason);
    assert_eq!((report.restarts, report.incidents.len()), (3, 1), "what was tried in vain counts as well");
    assert_eq!(report.incidents[0].blamed, [Rank(1)], "for what was killed, not for what misbehaved");
    (reason.clone(), report)
}

#[tokio::test]
async fn a_garbage_answer_fails_its_stage_at_once_and_is_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let job = job_of_three(dir.path(), recover::defaults(), odd(dir.path(), 0, "garbage")).await;
    let launcher = Arc::clone(&job.launcher);
    let (reason, report) = killed_and_started_again(job).await;
    let garbage =
        "rank 0: it sent an invalid message on its control link: a frame of 4294967295 bytes is beyond 1048576 bytes";
    assert_eq!(reason, format!("stage abort: 2 of 3 needed targets succeeded; {garbage}"));
    assert_eq!(report.counts.branches.get(&Branch::StageTimedOut), None, "its answers do not come any more");
    assert_eq!(launcher.counters().await.unwrap().links.refused, 2, "each time");
    assert_eq!(received(dir.path(), "rank-2.1"), ["abort"; 2], "the other one was asked each time");
}

#[tokio::test]
async fn replacements_that_answer_garbage_are_not_trained_with() {
    let dir = tempfile::tempdir().unwrap();
    let job = job_of_three(dir.path(), recover::defaults(), odd(dir.path(), 1, "garbage-to-sync-state")).await;
    let (reason, _) = killed_and_started_again(job).await;
    let garbage =
        "stage sync-state: 2 of 3 needed targets succeeded; rank 1: it sent an invalid message on its control link";
    assert!(reason.starts_with(garbage), "{reason}");
    no_rank_trained_beside(dir.path(), &["join"]);
}

#[tokio::test]
async fn replacements_with_other_buckets_are_not_trained_with() {
    let dir = tempfile::tempdir().unwrap();
    let job = job_of_three(dir.path(), recover::defaults(), odd(dir.path(), 1, "other-buckets")).await;
    let (reason, _) = killed_and_started_again(job).await;
    let other = "rank 1: the buckets of this rank ([12]) are not those of the others ([8, 4]); restart all ranks";
    assert_eq!(reason, format!("stage sync-state: 2 of 3 needed targets succeeded; {other}"));
    no_rank_trained_beside(dir.path(), &["join", "sync-state"]);
}

/// Whose copy went wrong, or is of another's state: none of the ranks resumes, and what was no replica is asked for no
/// copy again.
#[tokio::test]
async fn a_replacement_with_another_checksum_makes_all_ranks_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = job_of_three(dir.path(), recover::defaults(), odd(dir.path(), 1, "other-state")).await;
    let before = job.linked().await;
    send(before[&1], Signal::KILL);
    assert_eq!(job.closed().await, "recovered by restart");
    let why = job.handle.explain(IncidentId(1)).await.expect("it was decided");
    let [(tried, reason)] = &why.attempts[..] else { panic!("it is tried once: {:?}", why.attempts) };
    assert_eq!(tried.as_str(), "recover-in-place");
    assert!(reason.contains("rank 1 and rank ") && reason.contains(" have different checksums"), "{reason}");
    for proc in ["rank-0.1", "rank-2.1"] {
        assert_eq!(received(dir.path(), proc), ["abort", "join", "sync-state"], "{proc}");
    }
    let report = job.end().await;
    assert_eq!(report.incidents[0].blamed, [Rank(1)], "for what was killed");
}

#[tokio::test]
async fn recover_in_place_is_refused_if_no_rank_reports_a_checksum() {
    let dir = tempfile::tempdir().unwrap();
    let spec = worker(dir.path()).with_env("LIMITS", r#"{"digest": null}"#);
    let mut job = job_of_three(dir.path(), recover::defaults(), spec).await;
    let before = job.linked().await;
    send(before[&1], Signal::KILL);
    assert_eq!(job.closed().await, "recovered by restart");
    let why = job.handle.explain(IncidentId(1)).await.expect("it was decided");
    let refused = why.refused.iter().find(|refusal| refusal.strategy == Name::new("recover-in-place"));
    let reason = refused.map(|refusal| refusal.reason.as_str());
    assert_eq!(reason, Some("no replica of rank 1 is proven: it has reported no checksum of its state"));
    job.end().await;
}

/// Two replacements have come so far, and survivors took no further step with either.
fn no_rank_trained_beside(dir: &Path, replacements: &[&str]) {
    for proc in ["rank-1.2", "rank-1.3"] {
        assert_eq!(received(dir, proc), replacements, "{proc}");
    }
    for proc in ["rank-0.1", "rank-2.1"] {
        assert_eq!(received(dir, proc), ["abort", "join", "sync-state"].repeat(2), "{proc}");
    }
}

#[tokio::test]
async fn a_silent_rank_times_out_its_stage_and_all_ranks_restart() {
    let dir = tempfile::tempdir().unwrap();
    let hasty = recover::defaults().into_iter().map(|strategy| Hasty(strategy).boxed()).collect();
    let job = job_of_three(dir.path(), hasty, odd(dir.path(), 2, "silent")).await;
    let (reason, report) = killed_and_started_again(job).await;
    assert_eq!(reason, "stage abort: 2 of 3 needed targets succeeded; rank 2: no answer in time");
    assert_eq!(report.counts.branches.get(&Branch::StageTimedOut), Some(&2));
}

/// Waits less for ranks that are to give up: what is shown takes half a minute else.
struct Hasty(Box<dyn RecoveryStrategy>);

impl RecoveryStrategy for Hasty {
    fn name(&self) -> Name {
        self.0.name()
    }
    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        let mut proposal = self.0.propose(incident, view)?;
        for stage in proposal.stages.iter_mut().filter(|stage| stage.name == "abort") {
            stage.timeout = Duration::from_secs(1);
        }
        Ok(proposal)
    }
    fn advance(&self, run: &PlanExecution, view: &View) -> Advance {
        self.0.advance(run, view)
    }
}
