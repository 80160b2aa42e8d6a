//! The guard dies: everything goes with it, is reported once, and the next start finds a new guard.

use crate::harness::tests;
use crate::supervisor::Supervisor;
use crate::support::*;
use rustix::process::Signal;
use std::slice::from_ref;
use std::time::Duration;
use taskd_core::job::*;
use taskd_core::launch::*;

tests![
    exits_of_a_killed_guard_are_reported_once,
    processes_of_a_lost_guard_are_removed_before_the_next_job,
    a_process_whose_first_thread_has_ended_is_removed_as_others_are,
    process_without_the_mark_is_found_by_session_or_parent,
    two_jobs_do_not_meet,
];

async fn a_process_whose_first_thread_has_ended_is_removed_as_others_are() {
    let own = std::env::current_exe().unwrap();
    for guard_dies in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let launcher = builder(dir.path()).build().await.unwrap();
        let rest = if guard_dies { "exec sleep 1000" } else { "while [ ! -e go ]; do sleep 0.01; done; exit 3" };
        let script = format!("setsid {} headless headless & {rest}", own.display());
        let orders = batch(1, [sh(&script).with_cwd(dir.path())]);
        launcher.start(&orders).await.unwrap();
        let file = dir.path().join("headless");
        let pid: u32 = eventually("it is up", || std::fs::read_to_string(&file).ok()?.parse().ok()).await;
        eventually("its first thread ends", || (state_of(pid) == Some('Z')).then_some(())).await;
        let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        assert_eq!(threads(), 2);
        if guard_dies {
            send(guard_pid(dir.path()), Signal::KILL);
        } else {
            std::fs::write(dir.path().join("go"), "").unwrap();
        }
        exit_of(&launcher, &orders.starts[0].proc).await;
        let next = batch(2, [sleeper()]);
        launcher.start(&next).await.unwrap();
        eventually("it is gone", || (threads() < 2).then_some(())).await;
        launcher.shutdown(Duration::ZERO).await.unwrap();
    }
}

async fn exits_of_a_killed_guard_are_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    let orders = batch(1, crate::supervisor::ranks(dir.path()));
    launcher.start(&orders).await.unwrap();
    let pids = || std::fs::read_to_string(dir.path().join("pids")).unwrap_or_default();
    eventually("all are up", || (pids().lines().count() == crate::supervisor::PROCESSES).then_some(())).await;
    std::fs::write(dir.path().join("go"), "").unwrap();
    let procs: Vec<ProcId> = orders.starts.iter().map(|order| order.proc.clone()).collect();
    exit_of(&launcher, &procs[0]).await;
    let from = launcher.list().await.unwrap().revision;

    let dead = guard_pid(dir.path());
    send(dead, Signal::KILL);
    for proc in &procs[1..] {
        let how = exit_of(&launcher, proc).await.how;
        let died_with_it = matches!(how, Termination::Signal { number: 9, .. } | Termination::Unknown);
        assert!(died_with_it, "{how}: as what it was seen dying, if it was seen");
    }
    for pid in pids().lines().map(|pid| pid.parse().unwrap()) {
        assert!(!is_alive(pid), "exits are reported when everything is gone");
    }
    let next = batch(2, [sleeper()]);
    launcher.start(&next).await.unwrap();
    launcher.start(&orders).await.unwrap(); // all three are over
    assert_ne!(guard_pid(dir.path()), dead);
    launcher.stop(from_ref(&next.starts[0].proc), Duration::ZERO).await.unwrap();
    exit_of(&launcher, &next.starts[0].proc).await;

    let (changes, _) = launcher.watch(from).await.unwrap();
    let exits = changes.iter().filter_map(|change| match change {
        Change::Proc(status) if status.phase.is_exited() => Some(&status.proc),
        _ => None,
    });
    assert_eq!(exits.collect::<Vec<_>>(), [&procs[1], &procs[2], &next.starts[0].proc]);
    assert_eq!(launcher.list().await.unwrap().procs.len(), 4, "nothing was acknowledged");
    launcher.shutdown(Duration::ZERO).await.unwrap();
}

async fn processes_of_a_lost_guard_are_removed_before_the_next_job() {
    let mut supervisor = Supervisor::start("keep=60000").await;
    supervisor.kill();
    send(supervisor.guard, Signal::KILL);
    let launcher = builder(supervisor.dir.path()).build().await.unwrap();
    for pid in supervisor.pids() {
        assert!(!is_alive(pid));
    }
    assert!(launcher.list().await.unwrap().procs.is_empty());
    launcher.shutdown(Duration::ZERO).await.unwrap();
}

async fn process_without_the_mark_is_found_by_session_or_parent() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    let bare = "env -i /bin/sh -c 'echo $$ >> pids; exec sleep 1000'";
    // In the rank's session, in one of its own below a process that lives, and the rank itself.
    let script = format!("{bare} & (sh -c \"setsid {bare} & wait\" &) ; echo $$ >> pids; exec env -i sleep 1000");
    let orders = batch(1, [sh(&script).with_cwd(dir.path())]);
    launcher.start(&orders).await.unwrap();
    let pids = || -> Vec<u32> {
        let text = std::fs::read_to_string(dir.path().join("pids")).unwrap_or_default();
        text.lines().filter_map(|pid| pid.parse().ok()).collect()
    };
    eventually("all are up", || (pids().len() == 3).then_some(())).await;
    let bare = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|env| !String::from_utf8_lossy(&env).contains("TASKD_JOB"))
    };
    eventually("none shows the job", || pids().iter().all(bare).then_some(())).await;
    eventually("the guard has noted it", || {
        std::fs::read_to_string(dir.path().join("guard.procs")).ok().filter(|text| text.ends_with('\n'))
    })
    .await;
    send(guard_pid(dir.path()), Signal::KILL);
    exit_of(&launcher, &orders.starts[0].proc).await;
    launcher.start(&batch(2, [sleeper()])).await.unwrap();
    assert!(!pids().into_iter().any(is_alive), "{:?}", pids());
    launcher.shutdown(Duration::ZERO).await.unwrap();
}

async fn two_jobs_do_not_meet() {
    let mut one = Supervisor::start("keep=60000").await;
    let mut other = Supervisor::start("keep=60000").await;
    one.kill();
    send(one.guard, Signal::KILL);
    let launcher = builder(one.dir.path()).build().await.unwrap();
    launcher.shutdown(Duration::ZERO).await.unwrap();
    one.all_is_gone(Duration::from_secs(1)).await;
    assert!(other.pids().into_iter().all(is_alive) && is_alive(other.guard));
    other.kill();
    send(other.guard, Signal::TERM);
    other.all_is_gone(Duration::from_secs(5)).await;
}
