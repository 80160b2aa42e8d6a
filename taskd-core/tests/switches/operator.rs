//! Switches in an operator's hand: an order of a running job, which stands in its log and outlives its supervisor.

use super::{FakeRank, STEPS};
use std::path::Path;
use std::time::{Duration, Instant};
use taskd_core::detect::ExitDetector;
use taskd_core::job::{JobSpec, ProcId, Rank};
use taskd_core::journal::{ReplayFrom, dump, replay};
use taskd_core::kernel::{JobReport, Outcome, Plugins};
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::{ControlError, Runtime, RuntimeBuilder, RuntimeHandle};
use taskd_core::testing::doubles::{FakeLauncher, FakeProgram};
use taskd_core::trace::switches::{Mode, Requested, TraceControl};
use tokio::task::JoinHandle;
use tokio::time::timeout;

fn builder(launcher: &FakeLauncher) -> RuntimeBuilder {
    Runtime::builder()
        .job(JobSpec::new("test", 1, FakeProgram::Runs.spec()))
        .detector(ExitDetector::new())
        .strategy(Restart::new())
        .strategy(ExitStrategy::new())
        .launcher(launcher.clone())
}

/// Runs it until its rank does.
async fn running(builder: RuntimeBuilder, launcher: &FakeLauncher) -> (RuntimeHandle, JoinHandle<JobReport>) {
    let runtime = builder.build().unwrap();
    let handle = runtime.handle();
    let job = tokio::spawn(runtime.run());
    let runs = async {
        while !launcher.runs(&ProcId::rank(0, 1)) || handle.status().await.unwrap().running == 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(60), runs).await.expect("it runs in the end");
    (handle, job)
}

#[tokio::test]
async fn an_operators_order_reaches_64_ranks_within_a_tenth_of_a_second() {
    let (launcher, control) = (FakeLauncher::new(), TraceControl::new(Mode::Compatible));
    let dir = tempfile::tempdir().unwrap();
    let builder = builder(&launcher).trace(control.clone()).journal(dir.path());
    let (handle, job) = running(builder, &launcher).await;
    let ranks: Vec<FakeRank> = (0..64).map(|rank| FakeRank::new(rank, 1)).collect();
    ranks.iter().for_each(|rank| rank.attach(&control));
    let mut took = Vec::new();
    for round in 0..21 {
        let on = round % 2 == 1;
        let called = Instant::now();
        let kinds = if on { Requested::USUAL } else { Requested::NONE };
        handle.switch_trace(kinds, "to see").await.unwrap();
        while !ranks.iter().all(|rank| rank.on() == [on; 5]) {
            assert!(called.elapsed() < Duration::from_secs(60), "round {round}");
            tokio::task::yield_now().await;
        }
        took.push(called.elapsed());
    }
    took.sort();
    println!("64 ranks, by an order that is logged: {:?} at the median, {:?} at most", took[10], took[20]);
    assert!(took[10] < Duration::from_millis(100), "{took:?}");
    assert_eq!(handle.trace_status().unwrap().by.unwrap().as_str(), "host");
    handle.stop_now("seen").await.unwrap();
    assert_eq!(job.await.unwrap().outcome, Outcome::Stopped);
}

/// The log's text, after a replay of it has given the same commands.
fn replayed(dir: &Path) -> String {
    let plugins = || Plugins {
        detectors: vec![Box::new(ExitDetector::new())],
        strategies: vec![Box::new(Restart::new()), Box::new(ExitStrategy::new())],
    };
    let report = replay(dir, ReplayFrom::Start, plugins).unwrap();
    assert!(report.first_difference.is_none() && report.compared > 0, "{report}");
    let mut text = Vec::new();
    dump(dir, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn switch_order_is_journaled_and_restored_by_the_next_supervisor() {
    let dir = tempfile::tempdir().unwrap();
    let (launcher, control) = (FakeLauncher::new(), TraceControl::new(Mode::Native));
    let (handle, job) = running(builder(&launcher).trace(control.clone()).journal(dir.path()), &launcher).await;
    let taken = handle.clone().with_actor("ann").switch_trace(STEPS, "rank 0 is slow").await.unwrap();
    assert_eq!(taken.text, "recorded from now on: Step");
    handle.detach(Duration::from_secs(60)).await.unwrap();
    assert_eq!(job.await.unwrap().outcome, Outcome::Detached);

    let (launcher, control) = (launcher.attach(), TraceControl::new(Mode::Native));
    let (handle, job) = running(builder(&launcher).trace(control.clone()).journal(dir.path()), &launcher).await;
    let rank = FakeRank::new(0, 1);
    rank.attach(&control);
    let restored = async {
        while control.requested().is_none() {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(60), restored).await.expect("it is ordered again");
    assert_eq!(rank.on(), [false, true, false, false, false]);
    let status = handle.trace_status().unwrap();
    assert_eq!((status.by.unwrap().as_str(), status.ranks[0].rank), ("ann", Rank(0)));
    handle.stop_now("seen").await.unwrap();
    job.await.unwrap();
    let text = replayed(dir.path());
    assert!(text.contains("order 1 of ann (rank 0 is slow): record Step"), "{text}");
    assert!(text.contains("record Step for ann, unless a newer request exists"), "{text}");
}

#[tokio::test]
async fn without_a_control_an_order_is_answered_with_what_is_missing() {
    let launcher = FakeLauncher::new();
    let (handle, job) = running(builder(&launcher), &launcher).await;
    let sentence = "this runtime has no control over recorders: give it a TraceControl with RuntimeBuilder::trace";
    let unsupported = ControlError::Unsupported(sentence.into());
    assert_eq!(handle.switch_trace(STEPS, "").await, Err(unsupported.clone()));
    assert_eq!(handle.trace_status(), Err(unsupported));
    handle.stop_now("seen").await.unwrap();
    job.await.unwrap();
}
