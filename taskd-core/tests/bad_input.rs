//! Bad input, from the first to the last of what a supervisor can be given: each gets one sentence that names the thing
//! and the way out, and the job is not harmed by what it can do without.
//!
//! The sentences are compared as a whole: they are what an operator reads at three in the morning. A checkpoint that is
//! cut short, and a full disk under checkpoints, are the training program's: see the tests of the examples.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

#[path = "journal_logs/edit.rs"]
mod edit;
#[path = "journal_logs/elsewhere.rs"]
mod elsewhere;
mod messages;

use elsewhere::elsewhere;
use messages::Messages;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use taskd_core::detect::{ExitDetector, SilenceDetector, detector_fn};
use taskd_core::job::*;
use taskd_core::kernel::JobReport;
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::{Runtime, RuntimeBuilder};
use taskd_core::testing::doubles::{FakeLauncher, FakeProgram, ScriptedSource};
use tokio::time::{sleep, timeout};
use tracing::Level;

// ---- What is wrong before the job runs ------------------------------------------------------------------------------

#[test]
fn an_unknown_strategy_name() {
    let mut spec = spec(1);
    spec.policy.strategies.insert(Name::new("restrat"), Permission::Never);
    let expected = "the runtime cannot be built: the policy names the strategy restrat, which was not added (added: \
                    restart, exit): correct the name or add the strategy";
    assert_eq!(refusal(builder(&FakeLauncher::new(), 1).job(spec)), expected);
}

#[test]
fn a_count_that_is_none() {
    // A negative one is no count in Rust; the command lines of the examples have a test of their own.
    let expected = "the runtime cannot be built: ranks must be 1 to 1048576";
    assert_eq!(refusal(builder(&FakeLauncher::new(), 0)), expected);
    assert_eq!(refusal(builder(&FakeLauncher::new(), u32::MAX)), expected);
}

#[test]
fn two_plugins_with_one_name() {
    let twins = builder(&FakeLauncher::new(), 1)
        .detector(detector_fn("hot", |_, _, _| ()))
        .detector(detector_fn("hot", |_, _, _| ()))
        .source(ScriptedSource::new([]))
        .source(ScriptedSource::new([]));
    let expected = "the runtime cannot be built: two plugins of kind source are named double.scripted: give one of them \
                    another name; two plugins of kind detector are named hot: give one of them another name";
    assert_eq!(refusal(twins), expected);
}

#[test]
fn an_empty_runtime_builder_is_refused_with_each_missing_part() {
    let expected = "the runtime cannot be built: no job was given: add one with job(..); no launcher was given: add one \
                    with launcher(..); no detector was given: add one with detector(..); no strategy was given: add \
                    one with strategy(..)";
    assert_eq!(refusal(Runtime::builder()), expected);
}

#[test]
fn a_log_directory_that_is_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = refusal(builder(&FakeLauncher::new(), 1).journal(file.path()));
    let expected = "the runtime cannot be built: the log directory DIR cannot be used: DIR is no directory; make it \
                    accessible or name another";
    assert_eq!(output.replace(&file.path().display().to_string(), "DIR"), expected);
}

#[test]
fn a_log_directory_that_another_supervisor_uses() {
    let dir = tempfile::tempdir().unwrap();
    let _first = builder(&FakeLauncher::new(), 1).journal(dir.path()).build().unwrap();
    let output = refusal(builder(&FakeLauncher::new(), 1).journal(dir.path()));
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let expected = format!(
        "the runtime cannot be built: the log directory {} is in use by the supervisor with process id {} on {}: stop \
         that one first, or give this job a directory of its own",
        dir.path().display(),
        std::process::id(),
        host.trim(),
    );
    assert_eq!(output, expected);
}

// ---- An old log that is of no use: the job starts again from its checkpoint, which is always sound -------------------

#[tokio::test(start_paused = true)]
async fn an_unreadable_log() {
    let Some(dir) = unprivileged("an_unreadable_log") else { return };
    let launcher = left_behind(&dir).await;
    for file in log_files(&dir) {
        fs::set_permissions(file, fs::Permissions::from_mode(0o000)).unwrap();
    }
    let denied = "cannot be read: Permission denied (os error 13); make it readable, or move it away";
    let expected = [
        format!("the log of an earlier supervisor: DIR/snapshot-000001-00000000000000000001.log {denied}"),
        format!("the log of an earlier supervisor: DIR/decisions-000001-00000000000000000001.log {denied}"),
        "the job restarts from its checkpoint, not from the log: no state can be read from it".into(),
    ];
    assert_eq!(starts_again(&dir, &launcher, |builder| builder).await, expected);
}

/// The decisions behind the snapshot may have been carried out: a state without them is none to go on from.
#[tokio::test(start_paused = true)]
async fn a_log_of_which_one_file_is_unreadable() {
    let Some(dir) = unprivileged("a_log_of_which_one_file_is_unreadable") else { return };
    let launcher = left_behind(&dir).await;
    let [.., decisions] = &log_files(&dir)[..] else { panic!("no log") };
    fs::set_permissions(decisions, fs::Permissions::from_mode(0o000)).unwrap();
    let problem = "DIR/decisions-000001-00000000000000000001.log cannot be read: Permission denied (os error 13); make \
                   it readable, or move it away";
    let expected = [
        format!("the log of an earlier supervisor: {problem}"),
        format!("the job restarts from its checkpoint, not from the log: input 2 is missing: {problem}"),
    ];
    assert_eq!(starts_again(&dir, &launcher, |builder| builder).await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_log_of_another_version() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = left_behind(dir.path()).await;
    for file in log_files(dir.path()) {
        let mut bytes = fs::read(&file).unwrap();
        bytes[8] = 11;
        fs::write(file, bytes).unwrap();
    }
    let version = "has version 11 of the log format, this program reads up to 10: use the version of this program that \
                   wrote it or a newer one, or move it away";
    let expected = [
        format!("the log of an earlier supervisor: DIR/snapshot-000001-00000000000000000001.log {version}"),
        format!("the log of an earlier supervisor: DIR/decisions-000001-00000000000000000001.log {version}"),
        "the job restarts from its checkpoint, not from the log: no state can be read from it".into(),
    ];
    assert_eq!(starts_again(dir.path(), &launcher, |builder| builder).await, expected);
}

/// An order whose answer is not understood may have been carried out, too.
#[tokio::test(start_paused = true)]
async fn an_unknown_log_record_starts_the_job_from_its_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = left_behind(dir.path()).await;
    let [.., decisions] = &log_files(dir.path())[..] else { panic!("no log") };
    let mut bytes = fs::read(decisions).unwrap();
    edit::replace(&mut bytes, b"\xa6listed", b"\xa6kissed");
    fs::write(decisions, bytes).unwrap();
    let expected = ["the job restarts from its checkpoint, not from the log: input 3 is unknown to this program"];
    assert_eq!(starts_again(dir.path(), &launcher, |builder| builder).await, expected);
}

#[tokio::test(start_paused = true)]
async fn garbage_in_every_file_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = left_behind(dir.path()).await;
    for (i, file) in log_files(dir.path()).into_iter().enumerate() {
        fs::write(file, vec![b'x'; 10_000 * i]).unwrap(); // an empty one, too
    }
    let expected = [
        "the log of an earlier supervisor: DIR/snapshot-000001-00000000000000000001.log was cut off within its header: \
         it has no records",
        "the log of an earlier supervisor: DIR/decisions-000001-00000000000000000001.log is not a log of this program, \
         or its header is damaged: move it away",
        "the job restarts from its checkpoint, not from the log: no state can be read from it",
    ];
    assert_eq!(starts_again(dir.path(), &launcher, |builder| builder).await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_log_of_other_plugins() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = left_behind(dir.path()).await;
    let exactly = "restore this setting to continue from the log or replay it exactly";
    let expected = [format!(
        "the job restarts from its checkpoint, not from the log: the log was written without detector hot version 1: \
         {exactly}"
    )];
    let others = |builder: RuntimeBuilder| builder.detector(detector_fn("hot", |_, _, _| ()));
    assert_eq!(starts_again(dir.path(), &launcher, others).await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_log_of_another_job() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = left_behind(dir.path()).await;
    let expected = [
        "the job restarts from its checkpoint, not from the log: the log belongs to job letters, not to digits: give \
         each job a directory of its own",
    ];
    let other = |builder: RuntimeBuilder| builder.job(JobSpec::new("digits", 2, FakeProgram::Runs.spec()));
    assert_eq!(starts_again(dir.path(), &launcher, other).await, expected);
}

/// No decision in the log depends on a source: therefore the job continues.
#[tokio::test(start_paused = true)]
async fn a_log_of_other_sources() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = left_behind(dir.path()).await;
    Messages::listen();
    let runtime = builder(&launcher, 2).source(ScriptedSource::new([])).journal(dir.path()).build().unwrap();
    let job = tokio::spawn(runtime.run());
    sleep(Duration::from_secs(1)).await;
    let report = finish(&launcher, job, 1).await;
    assert_eq!((report.ok, report.restarts), (true, 0), "{}", report.reason);
    let expected = ["continuing the job: the log was written without source double.scripted version 1 (queue_max=64 \
         when_full=Wait): no decision in the log depends on it"];
    assert_eq!(logged(dir.path()), expected);
}

// ---- Disks that take nothing: the job and its recovery go on without a log ------------------------------------------

#[tokio::test]
async fn a_full_disk_under_the_logs() {
    let Some(disk) = small_disk("a_full_disk_under_the_logs") else { return };
    let mut ballast = fs::File::create(disk.join("somebody-elses")).unwrap();
    while std::io::Write::write_all(&mut ballast, &[0; 512]).is_ok() {}
    let full = "DIR: No space left on device (os error 28); free some space on this disk";
    let expected = [format!("the logs cannot be written completely, and the job continues without them: {full}")];
    recovers_without_logs(&disk.join("logs"), &expected).await;
}

#[tokio::test]
async fn a_read_only_log_directory() {
    let Some(dir) = unprivileged("a_read_only_log_directory") else { return };
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o555)).unwrap();
    let expected = [
        "the log directory DIR cannot be locked: Permission denied (os error 13); make sure that no other supervisor \
         runs this job"
            .to_owned(),
        "the logs cannot be written completely, and the job continues without them: DIR: Permission denied (os error \
         13); make it writable again"
            .to_owned(),
    ];
    recovers_without_logs(&dir, &expected).await;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap(); // so that it can be removed
}

/// A rank dies while no log can be written: it is found and started again, and what is missing is logged.
async fn recovers_without_logs(dir: &Path, expected: &[String]) {
    Messages::listen();
    let launcher = FakeLauncher::new();
    let runtime = builder(&launcher, 2).journal(dir).build().unwrap();
    let logs = runtime.handle().logs().cloned().unwrap();
    let job = tokio::spawn(runtime.run());
    launcher.all_run(2, 1).await;
    let mut health = logs.health();
    let degraded = health.wait_for(|health| health.trouble().is_some());
    drop(timeout(Duration::from_secs(60), degraded).await.expect("the journal notices"));
    launcher.kill(&ProcId::rank(1, 1));
    launcher.all_run(2, 2).await;
    let report = finish(&launcher, job, 2).await;
    assert_eq!((report.ok, report.restarts), (true, 1), "{}", report.reason);

    let counts = logs.counts();
    assert_eq!(counts.records, 0);
    let mut lines = logged(dir);
    lines.retain(|line| !line.starts_with("incident 1 ")); // the kill, as every fault is reported
    let last = lines.pop().unwrap();
    assert_eq!(last, format!("{0} of the {0} records of this job's logs are lost", counts.lost));
    assert_eq!(lines, expected);
}

// ---- The ground that they stand on ----------------------------------------------------------------------------------

fn small_disk(test: &str) -> Option<PathBuf> {
    let mount = "mount -t tmpfs -o size=64k tmpfs \"$0\" && exec \"$@\"";
    elsewhere(test, &["--mount", "--map-root-user"], mount)
}

/// A user that is not root: permissions count.
fn unprivileged(test: &str) -> Option<PathBuf> {
    elsewhere(test, &["--map-user=1000"], "exec \"$@\"")
}

fn spec(ranks: u32) -> JobSpec {
    let mut spec = JobSpec::new("letters", ranks, FakeProgram::Runs.spec());
    spec.policy.suspend_threshold = Duration::from_secs(3600); // a machine that is busy may let this one wait, and it would say so
    spec
}

fn builder(launcher: &FakeLauncher, ranks: u32) -> RuntimeBuilder {
    Runtime::builder()
        .job(spec(ranks))
        .detector(ExitDetector::new())
        .detector(SilenceDetector::after(Duration::from_secs(3600)))
        .strategy(Restart::new())
        .strategy(ExitStrategy::new())
        .launcher(launcher.clone())
}

fn refusal(builder: RuntimeBuilder) -> String {
    builder.build().expect_err("it cannot be built").to_string()
}

/// Waits until both ranks run in this incarnation.
async fn finish(launcher: &FakeLauncher, job: tokio::task::JoinHandle<JobReport>, incarnation: u32) -> JobReport {
    assert!((0..2).all(|rank| launcher.finish(&ProcId::rank(rank, incarnation), 0)), "both ranks run");
    timeout(Duration::from_secs(600), job).await.expect("the job ends").expect("nothing panics")
}

/// Two ranks, left running as a killed supervisor leaves them, with its log.
async fn left_behind(dir: &Path) -> FakeLauncher {
    let launcher = FakeLauncher::new();
    let job = tokio::spawn(builder(&launcher, 2).journal(dir).build().unwrap().run());
    launcher.all_run(2, 1).await;
    sleep(Duration::from_secs(1)).await;
    job.abort();
    assert!(job.await.unwrap_err().is_cancelled());
    let lock = fs::File::open(dir.join("lock")).unwrap();
    rustix::fs::flock(lock, rustix::fs::FlockOperation::LockExclusive).unwrap(); // its last record is written
    launcher.attach()
}

/// A new supervisor stops what still runs, starts it again, and ends well. Returns what it logged meanwhile.
async fn starts_again(
    dir: &Path,
    launcher: &FakeLauncher,
    change: impl FnOnce(RuntimeBuilder) -> RuntimeBuilder,
) -> Vec<String> {
    Messages::listen();
    let job = tokio::spawn(change(builder(launcher, 2)).journal(dir).build().unwrap().run());
    launcher.all_run(2, 2).await;
    assert!(!launcher.runs(&ProcId::rank(0, 1)), "an old one beside it would share its world");
    assert!(finish(launcher, job, 2).await.ok);
    logged(dir)
}

/// The files of the logs, in order.
fn log_files(dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut logs: Vec<PathBuf> = all.filter(|path| path.extension().is_some_and(|e| e == "log")).collect();
    logs.sort_by_key(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("decisions")));
    logs
}

/// What the runtime has logged on this thread from warnings on, without the directory's name.
fn logged(dir: &Path) -> Vec<String> {
    let lines = Messages::here(Level::WARN);
    lines.iter().map(|line| line.replace(&dir.display().to_string(), "DIR")).collect()
}
