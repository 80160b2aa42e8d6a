//! Stops: whatever a process does with a signal, and whatever it has started.

use crate::job::*;
use crate::support::*;
use rustix::process::Signal;
use std::slice::from_ref;
use std::time::Duration;
use taskd_core::job::*;
use taskd_core::launch::*;

const LONG: Duration = Duration::from_secs(1000);

fn signal(number: i32) -> Termination {
    Termination::Signal { number, core_dumped: false }
}

#[tokio::test]
async fn a_process_that_handles_sigterm_ends_as_it_likes() {
    let job = Job::new().await;
    let proc = job.start_one(sh("trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done")).await;
    job.printed("rank-0.1/stdout.log", "ready").await;
    job.launcher.stop(from_ref(&proc), LONG).await.unwrap();
    assert_eq!(job.exit_of(&proc).await.how, Termination::Code(5));
    job.end().await;
}

#[tokio::test]
async fn a_process_that_ignores_sigterm_is_killed_after_the_grace() {
    let job = Job::new().await;
    let proc = job.start_one(sh("trap '' TERM; echo ready; while :; do sleep 0.01; done")).await;
    job.printed("rank-0.1/stdout.log", "ready").await;
    let begun = std::time::Instant::now();
    job.launcher.stop(from_ref(&proc), Duration::from_millis(300)).await.unwrap();
    assert_eq!(job.exit_of(&proc).await.how, signal(9));
    assert!(begun.elapsed() >= Duration::from_millis(300));
    job.end().await;
}

#[tokio::test]
async fn a_second_stop_can_only_shorten_the_grace() {
    let job = Job::new().await;
    let procs = job.start([sh("trap '' TERM; echo ready; while :; do sleep 0.01; done"), sleeper()]).await;
    job.printed("rank-0.1/stdout.log", "ready").await;
    for grace in [LONG, Duration::from_millis(50), LONG] {
        job.launcher.stop(&procs[..1], grace).await.unwrap();
    }
    assert_eq!(job.exit_of(&procs[0]).await.how, signal(9));
    job.launcher.stop(&procs, Duration::ZERO).await.unwrap(); // one is over already
    assert_eq!(job.exit_of(&procs[1]).await.how, signal(9));
    job.launcher.stop(&[ProcId::rank(7, 7)], Duration::ZERO).await.unwrap(); // one was never there
    job.end().await;
}

#[tokio::test]
async fn a_stopped_process_gets_its_sigterm() {
    let job = Job::new().await;
    let proc = job.start_one(sleeper()).await;
    let pid = pid_of(&job.launcher, &proc).await;
    send(pid, Signal::STOP);
    eventually("it is stopped", || (state_of(pid) == Some('T')).then_some(())).await;
    job.launcher.stop(from_ref(&proc), LONG).await.unwrap();
    assert_eq!(job.exit_of(&proc).await.how, signal(15));
    job.end().await;
}

/// Starts helpers of every kind, writes their pids, and then does `then`.
fn with_helpers(then: &str) -> String {
    let helper = "sh -c 'echo $$ >> pids; exec sleep 1000'";
    format!(
        "{helper} & setsid {helper} & (setsid {helper} &) ; setsid sh -c '{} & wait' & \
         while [ $(cat pids | wc -l) -lt 4 ]; do sleep 0.01; done; echo ready; {then}",
        helper.replace('\'', "'\\''")
    )
}

fn helpers(job: &Job) -> Vec<u32> {
    let pids = std::fs::read_to_string(job.dir.path().join("pids")).unwrap();
    pids.lines().map(|pid| pid.parse().unwrap()).collect()
}

#[tokio::test]
async fn everything_that_a_rank_has_started_goes_with_it() {
    for (then, stop) in [("exit 1", None), ("kill -KILL $$", None), ("sleep 1000", Some(Duration::ZERO))] {
        let job = Job::new().await;
        std::fs::write(job.dir.path().join("pids"), "").unwrap();
        let procs = job.start([sh(&with_helpers(then)).with_cwd(job.dir.path()), sleeper()]).await;
        job.printed("rank-0.1/stdout.log", "ready").await;
        if let Some(grace) = stop {
            job.launcher.stop(&procs[..1], grace).await.unwrap();
        }
        job.exit_of(&procs[0]).await;
        let helpers = helpers(&job);
        assert_eq!(helpers.len(), 4);
        eventually("all helpers are gone", || (!helpers.iter().any(|pid| is_alive(*pid))).then_some(())).await;
        let other = pid_of(&job.launcher, &procs[1]).await;
        assert!(is_alive(other), "the other rank has nothing to do with it");
        eventually("no zombie is left", || (children_of(job.guard_pid()) == [other]).then_some(())).await;
        job.end().await;
    }
}

#[tokio::test]
async fn a_helper_that_hides_goes_at_the_latest_with_the_job() {
    let job = Job::new().await;
    std::fs::write(job.dir.path().join("pids"), "").unwrap();
    let script = "(env -i setsid sh -c 'echo $$ >> pids; exec sleep 1000' &); \
                  while [ ! -s pids ]; do sleep 0.01; done; exit 0";
    let proc = job.start_one(sh(script).with_cwd(job.dir.path())).await;
    job.exit_of(&proc).await;
    let [hidden] = helpers(&job)[..] else { panic!("one helper") };
    job.launcher.shutdown(Duration::ZERO).await.unwrap();
    assert!(!is_alive(hidden));
}

#[tokio::test]
async fn shutdown_stops_everything_with_grace_and_leaves_no_record() {
    let job = Job::new().await;
    job.start([sh("trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.01; done"), sleeper()]).await;
    job.printed("rank-0.1/stdout.log", "ready").await;
    let guard = job.guard_pid();
    job.launcher.shutdown(LONG).await.unwrap();
    assert_eq!(job.printed("rank-0.1/stdout.log", "saved").await, "ready\nsaved\n");
    eventually("the guard is gone", || (!is_alive(guard)).then_some(())).await;
    let mut left: Vec<_> = std::fs::read_dir(job.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["guard.lock", "guard.log", "procs"]);
    let after = job.launcher.list().await;
    assert!(matches!(&after, Err(LaunchError::Unreachable(why)) if why.contains("shut down")), "{after:?}");
}
