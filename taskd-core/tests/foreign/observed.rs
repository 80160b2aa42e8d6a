//! A whole runtime in observe mode over processes that another launcher has started.

use crate::support::*;
use async_trait::async_trait;
use rustix::process::{Signal, kill_process};
use std::collections::BTreeSet;
use std::fs::File;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::{ExitDetector, SilenceDetector, StallDetector};
use taskd_core::job::{Domain, JobSpec, Mode, Name, Policy, ProcId, Rank, Role, WorkerSpec};
use taskd_core::kernel::{Decision, Event, HoldReason};
use taskd_core::launch::{ExternalProcs, StepPattern};
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::{Runtime, TimestampedEvent};
use taskd_core::trace::{SourceError, TraceBatch, TraceSource};
use tokio::sync::{Notify, broadcast};
use tokio::time::timeout;

/// A source that reports when it has sent a heartbeat of every rank.
struct Tapped<S> {
    inner: S,
    silent: BTreeSet<Domain>,
    all_reported: Arc<Notify>,
}

#[async_trait]
impl<S: TraceSource> TraceSource for Tapped<S> {
    taskd_core::delegate!(TraceSource to |this| this.inner, except next);

    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        let batch = self.inner.next().await;
        for fact in batch.iter().flatten().flat_map(|batch| &batch.facts) {
            self.silent.remove(&fact.about);
        }
        if self.silent.is_empty() {
            self.all_reported.notify_one();
        }
        batch
    }
}

/// A job of `ranks` that is only observed, with limits short enough for a test; and a notification when all have
/// reported.
fn observed(foreign: &Arc<ExternalProcs>, ranks: u32) -> (Runtime, Arc<Notify>) {
    let (inner, all_reported) = (foreign.states(LOOK_EVERY), Arc::new(Notify::new()));
    let silent = (0..ranks).map(|rank| Domain::Process(Role::Rank(Rank(rank)))).collect();
    let states = Tapped { inner, silent, all_reported: Arc::clone(&all_reported) };
    let mut policy = Policy::default();
    policy.mode = Mode::DryRun;
    let runtime = Runtime::builder()
        .job(JobSpec::new("observed", ranks, WorkerSpec::new(["somebody-else"])).with_policy(policy))
        .source(states)
        .source(foreign.steps(StepPattern::after("step "), LOOK_EVERY))
        .detector(ExitDetector::new())
        .detector(SilenceDetector::after(Duration::from_millis(300)))
        .detector(StallDetector::after(Duration::from_millis(1500)))
        .strategy(Restart::new())
        .strategy(ExitStrategy::new())
        .launcher(Arc::clone(foreign))
        .build();
    (runtime.expect("nothing is missing"), all_reported)
}

/// Waits for a decision; returns what is decided of which ranks.
async fn decision(events: &mut broadcast::Receiver<Arc<TimestampedEvent>>) -> Box<Decision> {
    let listening = async {
        loop {
            if let Event::Decided(decision) = events.recv().await.expect("it runs").event.clone() {
                return decision;
            }
        }
    };
    timeout(PATIENCE, listening).await.expect("it is decided")
}

#[tokio::test]
async fn an_observed_job_is_judged_and_left_alone() {
    let job = Job::run("for r in 0 1 2; do RANK=$r sleep 600 & done; wait");
    let foreign = Arc::new(job.watched().await);
    let mut pids = Vec::new();
    for rank in 0..3 {
        pids.push(pid(&foreign, ProcId::rank(rank, 1)).await);
    }
    let (runtime, all_reported) = observed(&foreign, 3);
    let (handle, mut events) = (runtime.handle(), runtime.handle().events());
    let running = tokio::spawn(runtime.run());

    timeout(PATIENCE, all_reported.notified()).await.expect("a rank that never reported is not missed");
    kill_process(pids[1], Signal::STOP).unwrap();
    let frozen = decision(&mut events).await;
    assert_eq!((frozen.held, frozen.incident.root().unwrap().by.as_str()), (Some(HoldReason::DryRun), "silence"));
    kill_process(pids[1], Signal::CONT).unwrap();
    let closed = async { while !matches!(events.recv().await.unwrap().event, Event::Closed { .. }) {} };
    timeout(PATIENCE, closed).await.expect("the rank goes on");

    kill_process(pids[2], Signal::KILL).unwrap();
    assert_eq!(decision(&mut events).await.held, Some(HoldReason::DryRun));
    handle.stop("seen enough").await.unwrap();
    let report = running.await.unwrap();
    let incidents: Vec<_> = report.incidents.iter().map(|i| (i.blamed.clone(), i.strategy.clone(), i.held)).collect();
    let would = Some(Name::new("restart"));
    let held = Some(HoldReason::DryRun);
    assert_eq!(incidents, [(vec![Rank(1)], would.clone(), held), (vec![Rank(2)], would, held)]);
    for rank in [0, 1] {
        assert_eq!(pid(&foreign, ProcId::rank(rank, 1)).await, pids[rank as usize], "still there, also after the stop");
    }
}

#[tokio::test]
async fn a_job_without_progress_is_a_stall_and_no_rank_is_blamed() {
    let dir = tempfile::tempdir().unwrap();
    let out = File::options().create(true).append(true).open(dir.path().join("out")).unwrap();
    let job = Job::with_output(
        "for r in 0 1; do RANK=$r sh -c 'echo step 3; exec sleep 600' & done; wait",
        out.into(),
        Stdio::null(),
    );
    let foreign = Arc::new(job.watched().await);
    for rank in [0, 1] {
        pid(&foreign, ProcId::rank(rank, 1)).await;
    }
    let (runtime, _) = observed(&foreign, 2);
    let (handle, mut events) = (runtime.handle(), runtime.handle().events());
    let running = tokio::spawn(runtime.run());
    decision(&mut events).await;
    handle.stop("seen enough").await.unwrap();
    let report = running.await.unwrap();
    let incidents: Vec<_> =
        report.incidents.iter().map(|i| (i.class.to_string(), i.domain.clone(), i.blamed.len())).collect();
    assert_eq!(incidents, [("stall".to_owned(), Domain::Job, 0)]);
}
