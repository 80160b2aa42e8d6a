//! Identity of guard and job: a file is trusted only for its own directory and job, and one guard at a time has a
//! directory.

use crate::harness::tests;
use crate::supervisor::Supervisor;
use crate::support::*;
use rustix::process::Signal;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;
use taskd_core::job::*;
use taskd_core::launch::*;

tests![
    guard_record_copied_from_elsewhere_kills_no_process,
    guard_record_with_an_invalid_job_id_kills_no_process,
    another_jobs_directory_is_refused_by_its_name,
    fifo_or_foreign_file_in_the_run_directory_is_not_used,
    a_run_directory_that_others_could_change_is_refused_in_one_sentence,
    files_that_a_cleaner_removes_are_there_again,
    no_second_guard_starts_beside_one_whose_files_are_gone,
    an_owner_that_has_given_up_changes_nothing,
];

const KEEP: Duration = Duration::from_secs(60);
const FILES: [&str; 4] = ["guard.lock", "guard.json", "guard.sock", "worker.sock"];

/// A launcher with one process that sleeps, and its pid.
async fn with_a_sleeper(dir: &Path) -> (LocalLauncher, ProcId, u32) {
    let launcher = builder(dir).build().await.unwrap();
    let orders = batch(1, [sleeper()]);
    launcher.start(&orders).await.unwrap();
    let proc = orders.starts[0].proc.clone();
    phase_of(&launcher, &proc, |phase| *phase == Phase::Running).await;
    let pid = pid_of(&launcher, &proc).await;
    (launcher, proc, pid)
}

async fn guard_record_copied_from_elsewhere_kills_no_process() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (launcher, _, pid) = with_a_sleeper(one.path()).await;
    std::fs::copy(one.path().join("guard.json"), two.path().join("guard.json")).unwrap();
    let other = builder(two.path()).build().await.unwrap();
    assert_ne!(guard_pid(two.path()), guard_pid(one.path()), "a guard of its own");
    assert!(is_alive(pid), "a copy of the record proves nothing of the job");
    other.shutdown(Duration::ZERO).await.unwrap();
    assert!(is_alive(pid));
    launcher.shutdown(Duration::ZERO).await.unwrap();
}

/// A process whose environment has this mark.
fn marked(job: &str) -> Child {
    Command::new("sleep").arg("1000").env("TASKD_JOB", job).spawn().unwrap()
}

async fn guard_record_with_an_invalid_job_id_kills_no_process() {
    use std::os::unix::fs::MetadataExt;
    for job in ["", "job", "0123456789abcdef0123456789abcdeg"] {
        let dir = tempfile::tempdir().unwrap();
        let mut bystander = marked(job);
        let here = std::fs::metadata(dir.path()).unwrap();
        let record = serde_json::json!({
            "protocol": 5, "job": job, "guard_pid": 1, "guard_start_time": 1, "dir": [here.dev(), here.ino()], "job_name": "job",
        });
        std::fs::write(dir.path().join("guard.json"), record.to_string()).unwrap();
        let launcher = builder(dir.path()).build().await.unwrap();
        let lives = bystander.try_wait().unwrap().is_none();
        bystander.kill().unwrap();
        bystander.wait().unwrap();
        assert!(lives, "{job:?}");
        launcher.shutdown(Duration::ZERO).await.unwrap();
    }
}

async fn another_jobs_directory_is_refused_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let named = |name: &'static str| builder(dir.path()).job_name(name).build();
    let refused = |built: Result<LocalLauncher, LocalError>| match built {
        Err(error @ LocalError::OtherJob { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let launcher = named("digits").await.unwrap();
    let orders = batch(1, [sh("trap '' TERM; sleep 1000")]);
    launcher.start(&orders).await.unwrap();
    let proc = orders.starts[0].proc.clone();
    phase_of(&launcher, &proc, |phase| *phase == Phase::Running).await;
    let pid = pid_of(&launcher, &proc).await;
    launcher.detach(KEEP).await.unwrap();
    drop(launcher);
    let message = refused(named("letters").await);
    assert!(message.contains("belongs to the job digits") && is_alive(pid), "{message}");
    // The same where its guard is gone and what it guarded is not.
    let guard = guard_pid(dir.path());
    let mut left = marked(
        &std::fs::read_to_string(format!("/proc/{pid}/environ"))
            .unwrap()
            .split('\0')
            .find_map(|one| one.strip_prefix("TASKD_JOB=").map(str::to_owned))
            .unwrap(),
    );
    send(guard, Signal::KILL);
    eventually("the guard is gone", || (!is_alive(guard)).then_some(())).await;
    refused(named("letters").await);
    assert!(left.try_wait().unwrap().is_none(), "another job's process is not ours to kill");
    let own = named("digits").await.unwrap();
    eventually("its own job removes it", || left.try_wait().unwrap()).await;
    own.shutdown(Duration::ZERO).await.unwrap();
    named("letters").await.unwrap().shutdown(Duration::ZERO).await.unwrap(); // which has ended in order
}

async fn fifo_or_foreign_file_in_the_run_directory_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = |name: &str| assert!(Command::new("mkfifo").arg(dir.path().join(name)).status().unwrap().success());
    fifo("guard.json");
    fifo("log");
    let built = tokio::time::timeout(PATIENCE, builder(dir.path()).build()).await;
    let launcher = built.expect("a FIFO without a writer is not waited for").unwrap();
    let spec = |script: &str, log: &str| sh(script).with_log(dir.path().join(log));
    let orders = batch(1, [spec("echo one; echo two", "log"), spec("echo three", "other.log")]);
    launcher.start(&orders).await.unwrap();
    for order in &orders.starts {
        assert!(exit_of(&launcher, &order.proc).await.how.is_success());
    }
    let text = |path: &str| std::fs::read_to_string(dir.path().join(path)).unwrap_or_default();
    eventually("the others' logs go on", || (text("other.log") == "three\n").then_some(())).await;
    eventually("its own as well", || (text("procs/rank-0.1/stdout.log") == "one\ntwo\n").then_some(())).await;
    assert!(launcher.counters().await.unwrap().guard.output_refused > 0, "what is not written is counted");
    launcher.shutdown(Duration::ZERO).await.unwrap();
}

async fn a_run_directory_that_others_could_change_is_refused_in_one_sentence() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let dir = tempfile::tempdir().unwrap();
    let (open, link) = (dir.path().join("open"), dir.path().join("link"));
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    symlink(&open, &link).unwrap();
    for path in [open.clone(), open.join("run"), link.join("run")] {
        let error = builder(&path).build().await.unwrap_err().to_string();
        assert!(error.contains("other users may write to the directory") && error.contains("chmod go-w"), "{error}");
    }
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o1777)).unwrap();
    let error = builder(&open).build().await.unwrap_err().to_string();
    assert!(
        error.contains("other users may write to the directory"),
        "a sticky one is for others' directories: {error}"
    );
    assert_eq!(std::fs::read_dir(&open).unwrap().count(), 0, "nothing is made there");
    // Whatever the umask: it is the whole program's, so a process of its own has another one.
    let run = dir.path().join("run");
    let script =
        format!("umask 000; exec {} supervisor {} keep=1", std::env::current_exe().unwrap().display(), run.display());
    std::fs::create_dir(&run).unwrap();
    let mut supervisor = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    eventually("it is up", || run.join("ready").exists().then_some(())).await;
    let is_private = |name: &str| std::fs::metadata(run.join(name)).unwrap().permissions().mode() & 0o077 == 0;
    for name in [
        "procs",
        "procs/rank-2.1",
        "procs/rank-2.1/stdout.log",
        "guard.json",
        "guard.lock",
        "guard.log",
        "guard.sock",
        "worker.sock",
    ] {
        eventually(name, || run.join(name).exists().then_some(())).await;
        assert!(is_private(name), "{name}");
    }
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    eventually("all is gone", || (!run.join("guard.json").exists()).then_some(())).await;
}

async fn files_that_a_cleaner_removes_are_there_again() {
    let dir = tempfile::tempdir().unwrap();
    let (launcher, proc, pid) = with_a_sleeper(dir.path()).await;
    let guard = guard_pid(dir.path());
    for _ in 0..3 {
        for file in FILES {
            std::fs::remove_file(dir.path().join(file)).unwrap();
        }
        eventually("all are there again", || FILES.iter().all(|file| dir.path().join(file).exists()).then_some(()))
            .await;
    }
    eventually("it is the same guard", || (guard_pid(dir.path()) == guard).then_some(())).await;
    match builder(dir.path()).build().await {
        Err(LocalError::Owned { by_pid, .. }) => assert_eq!(by_pid, std::process::id()),
        other => panic!("{other:?}"),
    }
    assert!(is_alive(pid));
    launcher.stop(std::slice::from_ref(&proc), Duration::ZERO).await.unwrap();
    exit_of(&launcher, &proc).await;
    launcher.shutdown(Duration::ZERO).await.unwrap();
    assert!(!dir.path().join("guard.json").exists(), "an orderly end takes its files along");
}

async fn no_second_guard_starts_beside_one_whose_files_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (launcher, _, pid) = with_a_sleeper(dir.path()).await;
    let guard = guard_pid(dir.path());
    send(guard, Signal::STOP);
    for file in FILES {
        std::fs::remove_file(dir.path().join(file)).unwrap();
    }
    let built = tokio::time::timeout(Duration::from_secs(2), builder(dir.path()).takeover(true).build()).await;
    assert!(!matches!(built, Ok(Ok(_))), "a second guard has the directory");
    assert!(is_alive(pid) && !dir.path().join("guard.json").exists());
    send(guard, Signal::CONT);
    eventually("its files are there again", || FILES.iter().all(|file| dir.path().join(file).exists()).then_some(()))
        .await;
    let next = builder(dir.path()).takeover(true).build().await.unwrap();
    assert_eq!(guard_pid(dir.path()), guard);
    drop(launcher);
    assert!(is_alive(pid));
    next.shutdown(Duration::ZERO).await.unwrap();
}

async fn an_owner_that_has_given_up_changes_nothing() {
    let mut supervisor = Supervisor::start("keep=60000").await;
    supervisor.kill();
    send(supervisor.guard, Signal::STOP);
    let gave_up = builder(supervisor.dir.path()).build().await; // which would have everything killed when it is gone
    assert!(
        matches!(gave_up, Err(LocalError::Silent { pid: Some(pid), .. }) if pid == supervisor.guard),
        "{gave_up:?}"
    );
    send(supervisor.guard, Signal::CONT);
    let launcher = builder(supervisor.dir.path()).build().await.unwrap();
    assert_eq!(guard_pid(supervisor.dir.path()), supervisor.guard, "it has not ended everything");
    assert!(supervisor.pids().into_iter().all(is_alive));
    launcher.shutdown(Duration::ZERO).await.unwrap();
    supervisor.all_is_gone(PATIENCE).await;
}
