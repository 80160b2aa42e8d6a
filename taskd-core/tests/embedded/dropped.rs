//! What is dropped is stopped, with grace, by the guard, without a waiting process; and nothing else is a drop.

use crate::harness::tests;
use crate::host::*;
use crate::support::*;
use std::path::Path;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::{Duration, Instant};
use taskd_core::job::*;
use taskd_core::launch::*;

tests![
    ranks_of_a_dropped_launcher_can_save,
    a_rank_that_does_not_listen_has_the_grace_and_no_more,
    a_runtime_that_ends_first_loses_no_last_word,
    a_dropped_run_stops_its_ranks_and_its_launcher_is_still_there,
    a_run_that_is_dropped_with_its_launcher_gives_the_policys_grace,
    runtime_never_in_charge_leaves_the_job_unchanged,
    a_new_owner_waits_for_a_job_that_is_being_stopped,
    a_thread_of_the_host_that_ends_takes_nothing_along,
    without_a_guard_a_dropped_launcher_stops_its_ranks_too,
];

/// Agreed for the loss of the owner, which a drop is not.
const KEEP: OnOwnerLoss = OnOwnerLoss::Keep { at_most: Duration::from_secs(60) };

fn built(dir: &Path) -> LocalLauncherBuilder {
    builder(&run_dir(dir)).on_owner_loss(KEEP)
}

/// Starts one rank, and waits until it is up.
async fn train(launcher: &LocalLauncher, dir: &Path, script: &str) -> u32 {
    launcher.start(&batch(1, [sh(script).with_cwd(dir)])).await.unwrap();
    all_train(dir, 1).await[0]
}

async fn are_gone(pids: &[u32]) {
    eventually("all are gone", || (!pids.iter().any(|pid| is_alive(*pid))).then_some(())).await;
}

async fn ranks_of_a_dropped_launcher_can_save() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = built(dir.path()).build().await.unwrap();
    let (rank, guard) = (train(&launcher, dir.path(), TRAIN).await, guard_pid(&run_dir(dir.path())));
    drop(launcher);
    are_gone(&[rank, guard]).await;
    assert!(saved(dir.path(), 0));
    assert!(!run_dir(dir.path()).join("guard.json").exists(), "it is an orderly end");
}

async fn a_rank_that_does_not_listen_has_the_grace_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = built(dir.path()).drop_grace(Duration::from_millis(500)).build().await.unwrap();
    let (rank, guard) = (train(&launcher, dir.path(), STUBBORN).await, guard_pid(&run_dir(dir.path())));
    let begun = Instant::now();
    drop(launcher);
    assert!(begun.elapsed() < Duration::from_millis(400), "the caller that drops does not wait");
    are_gone(&[rank, guard]).await;
    assert!(begun.elapsed() >= Duration::from_millis(500) && dir.path().join("ordered-0").exists());
}

/// A program's end drops its tasks in no order, the one that holds the connection perhaps first.
async fn a_runtime_that_ends_first_loses_no_last_word() {
    for workers in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let program = std::thread::spawn(move || {
            let tokio =
                tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap();
            let launcher = tokio.block_on(async {
                let launcher = built(&path).build().await.unwrap();
                train(&launcher, &path, TRAIN).await;
                launcher
            });
            drop(tokio);
            drop(launcher);
        });
        eventually("the program has ended", || program.is_finished().then_some(())).await;
        let (_, rank) = rank_of(dir.path(), 0).unwrap();
        are_gone(&[rank]).await;
        assert!(saved(dir.path(), 0));
    }
}

async fn a_dropped_run_stops_its_ranks_and_its_launcher_is_still_there() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = Arc::new(built(dir.path()).build().await.unwrap());
    let run = runtime(dir.path(), TRAIN, 2, Arc::clone(&launcher)).run();
    let ranks = tokio::select! {
        report = run => panic!("{}", report.reason),
        ranks = all_train(dir.path(), 2) => ranks,
    };
    for rank in 0..2 {
        let exit = exit_of(&*launcher, &ProcId::rank(rank, 1)).await; // nothing asked for it but the drop
        assert_eq!(exit.how, Termination::Code(1));
        assert!(saved(dir.path(), rank));
    }
    are_gone(&ranks).await;
    let again = batch(2, [sleeper()]);
    launcher.start(&again).await.unwrap();
    let pid = pid_of(&*launcher, &again.starts[0].proc).await;
    launcher.shutdown(Duration::ZERO).await.unwrap();
    assert!(!is_alive(pid));
}

async fn a_run_that_is_dropped_with_its_launcher_gives_the_policys_grace() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = built(dir.path()).drop_grace(Duration::ZERO).build().await.unwrap();
    let run = runtime(dir.path(), STUBBORN, 1, launcher).run();
    let ranks = tokio::select! {
        report = run => panic!("{}", report.reason),
        ranks = all_train(dir.path(), 1) => ranks,
    };
    let begun = Instant::now();
    are_gone(&ranks).await;
    assert!(begun.elapsed() >= STOP_GRACE && dir.path().join("ordered-0").exists());
}

async fn runtime_never_in_charge_leaves_the_job_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let first = built(dir.path()).build().await.unwrap();
    train(&first, dir.path(), TRAIN).await;
    first.detach(Duration::from_secs(60)).await.unwrap();
    drop(first);
    let second = built(dir.path()).build().await.unwrap();
    second.list().await.unwrap();
    drop(second); // as when the runtime over it cannot be built
    goes_on(dir.path(), 0).await;
    let third = built(dir.path()).build().await.unwrap();
    assert!(third.list().await.unwrap().procs.iter().all(|status| status.phase == Phase::Running));
    third.shutdown(Duration::ZERO).await.unwrap();
}

async fn a_new_owner_waits_for_a_job_that_is_being_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = built(dir.path()).drop_grace(Duration::from_millis(700)).build().await.unwrap();
    let rank = train(&launcher, dir.path(), STUBBORN).await;
    let begun = Instant::now();
    drop(launcher);
    let next = built(dir.path()).build().await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(700) && !is_alive(rank));
    assert_eq!(next.list().await.unwrap().procs, []);
}

/// The parent-death signal of Linux comes when the thread ends that started a process, not its process.
async fn a_thread_of_the_host_that_ends_takes_nothing_along() {
    for program in [GuardProgram::ReexecSelf, GuardProgram::None] {
        let dir = tempfile::tempdir().unwrap();
        let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (path, handle) = (dir.path().to_owned(), tokio.handle().clone());
        let start = std::thread::spawn(move || {
            handle.block_on(async {
                let launcher = built(&path).guard(program).build().await.unwrap();
                train(&launcher, &path, TRAIN).await;
                launcher
            })
        });
        eventually("the thread has ended", || start.is_finished().then_some(())).await;
        let launcher = start.join().unwrap();
        goes_on(dir.path(), 0).await;
        let stop = async move { launcher.shutdown(Duration::ZERO).await };
        tokio.spawn(stop).await.unwrap().unwrap();
        tokio.shutdown_background();
    }
}

async fn without_a_guard_a_dropped_launcher_stops_its_ranks_too() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = LocalLauncher::builder(run_dir(dir.path())).guard(GuardProgram::None).build().await.unwrap();
    let rank = train(&launcher, dir.path(), TRAIN).await;
    drop(launcher);
    let gone = || (rustix::process::getpgid(rustix::process::Pid::from_raw(rank as i32)).is_err()).then_some(());
    eventually("it is reaped", gone).await;
    assert!(saved(dir.path(), 0));
    let next = LocalLauncher::builder(run_dir(dir.path())).guard(GuardProgram::None).build().await.unwrap();
    let orders = batch(1, [sh("exit 3")]);
    next.start(&orders).await.unwrap();
    assert_eq!(exit_of(&next, &orders.starts[0].proc).await.how, Termination::Code(3));
    next.acknowledge(from_ref(&orders.starts[0].proc)).await.unwrap();
}
