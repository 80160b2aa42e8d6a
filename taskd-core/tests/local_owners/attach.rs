//! A new owner: nothing is lost, nothing is reported twice, and there is only one.

use crate::harness::tests;
use crate::supervisor::{Supervisor, rank};
use crate::support::*;
use std::slice::from_ref;
use std::time::Duration;
use taskd_core::job::*;
use taskd_core::launch::*;

const KEEP: Duration = Duration::from_secs(60);

tests![
    exit_between_two_owners_is_reported_to_the_second,
    an_owner_that_has_detached_finds_everything_again,
    newer_owner_takes_over_when_asked,
    one_of_many_simultaneous_supervisors_is_the_owner,
];

async fn exit_between_two_owners_is_reported_to_the_second() {
    let mut supervisor = Supervisor::start("keep=60000").await;
    supervisor.kill();
    std::fs::write(supervisor.path("go"), "").unwrap();
    let gone = rank(0);
    let launcher = builder(supervisor.dir.path()).build().await.unwrap();
    let exit = exit_of(&launcher, &gone).await;
    assert_eq!((exit.how, exit.stderr_tail.as_str()), (Termination::Code(3), "gone\n"));
    let listing = launcher.list().await.unwrap();
    let running = listing.procs.iter().filter(|status| status.phase == Phase::Running);
    let running: Vec<u32> = running.filter_map(|status| status.pid).collect();
    assert!(running.len() == 2 && running.iter().all(|pid| supervisor.pids().contains(pid) && is_alive(*pid)));
    launcher.acknowledge(from_ref(&gone)).await.unwrap();
    drop(launcher); // it was built with KillTree: what counts is the last owner's setting
    supervisor.all_is_gone(Duration::from_secs(1)).await;
}

async fn an_owner_that_has_detached_finds_everything_again() {
    let dir = tempfile::tempdir().unwrap();
    let build = async || builder(dir.path()).build().await.unwrap(); // with KillTree: detaching sets the time itself
    let first = build().await;
    let orders = batch(1, [sleeper(), sh("exit 9")]);
    first.start(&orders).await.unwrap();
    let ended = orders.starts[1].proc.clone();
    exit_of(&first, &ended).await;
    let before = first.list().await.unwrap();
    first.detach(KEEP).await.unwrap();
    assert!(matches!(first.start(&orders).await, Err(LaunchError::Unreachable(why)) if why.contains("detached")));

    let second = build().await;
    let after = second.list().await.unwrap();
    assert_eq!((&before.procs, &before.nodes), (&after.procs, &after.nodes));
    assert!(matches!(second.watch(before.revision).await, Err(LaunchError::Stale)));
    second.acknowledge(from_ref(&ended)).await.unwrap();
    second.detach(Duration::MAX).await.unwrap(); // for ever

    let third = build().await;
    assert_eq!(third.list().await.unwrap().procs.len(), 1);
    third.start(&orders).await.unwrap(); // one runs, one is over and acknowledged
    assert_eq!((third.list().await.unwrap().procs.len(), third.counters().await.unwrap().guard.started), (1, 2));
    third.shutdown(Duration::MAX).await.unwrap(); // as long as it takes, which is not long
}

async fn newer_owner_takes_over_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let first = builder(dir.path()).build().await.unwrap();
    let orders = batch(1, [sleeper()]);
    first.start(&orders).await.unwrap();
    match builder(dir.path()).build().await {
        Err(LocalError::Owned { by_pid, .. }) => assert_eq!(by_pid, std::process::id()),
        other => panic!("{other:?}"),
    }
    let from = first.list().await.unwrap().revision;
    let second = builder(dir.path()).takeover(true).build().await.unwrap();
    let outcomes =
        [first.watch(from).await.map(drop), first.stop(&[], Duration::ZERO).await, first.start(&orders).await];
    for outcomes in outcomes {
        assert!(matches!(&outcomes, Err(LaunchError::Superseded(why)) if why.contains("taken")), "{outcomes:?}");
    }
    drop(first); // sends nothing to the guard any more
    let proc = &orders.starts[0].proc;
    assert!(is_alive(pid_of(&second, proc).await));
    second.stop(from_ref(proc), Duration::ZERO).await.unwrap();
    exit_of(&second, proc).await;
    second.shutdown(Duration::ZERO).await.unwrap();
}

async fn one_of_many_simultaneous_supervisors_is_the_owner() {
    for _ in 0..5 {
        let dir = tempfile::tempdir().unwrap();
        let build = || tokio::spawn(builder(dir.path()).build());
        let mut owners = Vec::new();
        for built in [build(), build(), build(), build(), build(), build()] {
            match built.await.unwrap() {
                Ok(launcher) => owners.push(launcher),
                Err(error) => assert!(matches!(error, LocalError::Owned { .. }), "{error}"),
            }
        }
        let [owner] = &owners[..] else { panic!("{} owners", owners.len()) };
        owner.start(&batch(1, [sleeper()])).await.unwrap();
        // Those that came too late have been refused and are about to end, as are those of other tests.
        eventually("one guard is left", || (guards() == [guard_pid(dir.path())]).then_some(())).await;
        owner.shutdown(Duration::ZERO).await.unwrap();
    }
}

/// All guards that this program's tests have started.
fn guards() -> Vec<u32> {
    let GuardProgram::Path(program) = guard_binary() else { panic!("it has a path") };
    let program = program.canonicalize().unwrap();
    let pids =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let is_guard = |pid: &u32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program);
    pids.filter(is_guard).collect()
}
