//! What is reported to a job when its guard fails: the guard is blamed and not the ranks, or is waited for.

use crate::harness::tests;
use crate::support::*;
use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};
use taskd_core::job::*;
use taskd_core::kernel::{IncidentReport, JobReport, JobStatus, Outcome};
use taskd_core::launch::*;
use taskd_core::runtime::{Runtime, RuntimeHandle};
use taskd_core::{detect, recover};

tests![
    a_killed_guard_is_blamed_and_its_ranks_are_victims,
    sender_of_sigterm_to_a_guard_is_reported_and_no_rank_blamed,
    guard_that_kept_processes_for_its_time_is_not_blamed,
    stopped_guard_is_reported_in_two_seconds_and_the_job_continues,
    a_guard_that_hangs_is_killed_with_what_it_guards,
];

/// A job of two ranks that train until they are stopped, with a journal in `dir`.
async fn job(dir: &Path) -> Runtime {
    let launcher = builder(&dir.join("run")).node(NodeId(Name::new("here"))).build().await.unwrap();
    job_with(dir, launcher)
}

fn job_with(dir: &Path, launcher: LocalLauncher) -> Runtime {
    let mut spec = JobSpec::new("job", 2, sleeper());
    spec.policy.termination_grace_period = Duration::from_millis(100);
    let runtime = Runtime::builder().job(spec).launcher(launcher).journal(dir.join("journal"));
    runtime.detectors(detect::defaults()).strategies(recover::defaults()).build().unwrap()
}

/// Waits until the job has restarted so often, and trains.
async fn trains(handle: &RuntimeHandle, restarts: u32) {
    let waiting = async {
        loop {
            let status = handle.status().await.unwrap();
            if status.running == 2 && status.restarts >= restarts && status.incidents.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("it trains");
}

async fn stopped(handle: &RuntimeHandle, running: tokio::task::JoinHandle<JobReport>) -> JobReport {
    handle.stop("the test is over").await.unwrap();
    let report = running.await.unwrap();
    assert_eq!(report.outcome, Outcome::Stopped);
    report
}

fn only(report: &JobReport) -> &IncidentReport {
    let [incident] = &report.incidents[..] else { panic!("one incident, not {:#?}", report.incidents) };
    assert_eq!(incident.domain, Domain::Guard(NodeId(Name::new("here"))), "{incident:#?}");
    assert_eq!(incident.blamed, [], "{incident:#?}");
    incident
}

async fn a_killed_guard_is_blamed_and_its_ranks_are_victims() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = job(dir.path()).await;
    let handle = runtime.handle();
    let running = tokio::spawn(runtime.run());
    trains(&handle, 0).await;
    let guard = guard_pid(&dir.path().join("run"));
    send(guard, Signal::KILL);
    trains(&handle, 1).await;
    let report = stopped(&handle, running).await;
    let incident = only(&report);
    assert_eq!(incident.victims, [Rank(0), Rank(1)]);
    let how = format!("guard {guard} has ended: signal 9 (SIGKILL)");
    assert!(incident.evidence.contains(&how), "{:?}", incident.evidence);
}

async fn sender_of_sigterm_to_a_guard_is_reported_and_no_rank_blamed() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = job(dir.path()).await;
    let handle = runtime.handle();
    let running = tokio::spawn(runtime.run());
    trains(&handle, 0).await;
    let guard = guard_pid(&dir.path().join("run"));
    send(guard, Signal::TERM);
    trains(&handle, 1).await;
    let report = stopped(&handle, running).await;
    let incident = only(&report);
    let how = format!("guard {guard} received SIGTERM from process {}", std::process::id());
    assert!(incident.evidence[0].contains(&how), "{:?}", incident.evidence);
}

async fn guard_that_kept_processes_for_its_time_is_not_blamed() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = job(dir.path()).await;
    let handle = runtime.handle();
    let running = tokio::spawn(runtime.run());
    trains(&handle, 0).await;
    let guard = guard_pid(&dir.path().join("run"));
    handle.detach(Duration::from_millis(1)).await.unwrap();
    running.await.unwrap();
    eventually("the time is over", || (!is_alive(guard)).then_some(())).await;
    let runtime = job(dir.path()).await;
    let handle = runtime.handle();
    let running = tokio::spawn(runtime.run());
    let is_back = |status: &JobStatus| status.generation == Generation(2) && status.incidents.is_empty();
    let begun = eventually_status(&handle, |status| is_back(status) && status.running == 2).await;
    assert_eq!((begun.budget_left, begun.restarts), (10, 0), "it had been agreed");
    let report = stopped(&handle, running).await;
    let incident = only(&report);
    assert!(incident.evidence[0].contains("no owner attached within the time"), "{:?}", incident.evidence);
}

async fn eventually_status(handle: &RuntimeHandle, wanted: impl Fn(&JobStatus) -> bool) -> JobStatus {
    let waiting = async {
        loop {
            let status = handle.status().await.unwrap();
            if wanted(&status) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the status comes to be as wanted")
}

async fn stopped_guard_is_reported_in_two_seconds_and_the_job_continues() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = job(dir.path()).await;
    let handle = runtime.handle();
    let running = tokio::spawn(runtime.run());
    trains(&handle, 0).await;
    let guard = guard_pid(&dir.path().join("run"));
    let begun = Instant::now();
    send(guard, Signal::STOP);
    let status = eventually_status(&handle, |status| !status.incidents.is_empty()).await;
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed()); // two, and as much for a busy machine
    let incident = &status.incidents[0];
    assert_eq!(incident.domain, Domain::Guard(NodeId(Name::new("here"))));
    // A rank dies meanwhile. No process can reap it or start another: that waits.
    let rank = children_of(guard)[0];
    send(rank, Signal::KILL);
    eventually("it has died", || (!is_alive(rank)).then_some(())).await;
    let status = handle.status().await.unwrap();
    assert_eq!((status.restarts, status.life.as_str()), (0, "training"));
    send(guard, Signal::CONT);
    trains(&handle, 1).await;
    assert_eq!(guard_pid(&dir.path().join("run")), guard, "the same one");
    stopped(&handle, running).await;
}

/// A guard that welcomes its owner, and then sends nothing more.
const MUTE: &str = r#"#!/bin/sh
exec 3<&0
sh -c '
say() { printf "\\$(printf %o $((${#1} % 256)))\\0\\0\\0%s" "$1" >&0; }
say "{\"Welcome\":{\"protocol\":PROTOCOL,\"job\":\"0\",\"guard_pid\":$$}}"
say "\"Synced\""
exec sleep 1000' <&3 3<&- &
"#;

async fn a_guard_that_hangs_is_killed_with_what_it_guards() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("mute");
    // The version of the protocol is the only argument of a guard.
    let script = MUTE.replace("PROTOCOL", "'$1'");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let builder = LocalLauncher::builder(dir.path().join("run")).guard(GuardProgram::Path(program));
    let launcher = builder.silent_guard_max(Duration::from_secs(1)).build().await.unwrap();
    let mut from = Revision { seq: 0, ..launcher.list().await.unwrap().revision };
    let mut reported = Vec::new();
    let waiting = async {
        while !reported.iter().any(|guard: &GuardStatus| matches!(guard.state, GuardState::Gone(_))) {
            let (changes, next) = launcher.watch(from).await.unwrap();
            reported.extend(changes.into_iter().filter_map(|change| match change {
                Change::Guard(status) => Some(status),
                _ => None,
            }));
            from = next;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("its end is reported");
    let pid = reported[0].pid;
    eventually("it is dead", || (!is_alive(pid)).then_some(())).await; // reported from the moment of the kill
    assert!(matches!(&reported[1].state, GuardState::Silent(_)), "{reported:?}");
    let GuardState::Gone(end) = &reported[2].state else { panic!("{reported:?}") };
    assert_eq!(end.why, format!("guard {pid} had not answered for 1s, and was killed with all its processes"));
}
