//! What ranks print: it is never in their way.

use crate::job::*;
use crate::support::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use taskd_core::job::*;
use taskd_core::launch::Launcher;

/// The directory of rank 0's output, before the rank is there.
fn output_dir(job: &Job) -> PathBuf {
    let dir = job.dir.path().join("procs/rank-0.1");
    fs::create_dir_all(&dir).unwrap();
    dir
}

#[tokio::test]
async fn a_disk_that_refuses_everything_harms_no_rank() {
    let job = Job::new().await;
    symlink("/dev/full", output_dir(&job).join("stdout.log")).unwrap();
    let proc = job.start_one(sh("head -c 3000000 /dev/zero; echo well >&2")).await;
    let exit = job.exit_of(&proc).await;
    assert_eq!((exit.how, exit.stderr_tail.as_str()), (Termination::Code(0), "well\n"));
    // Some wait for the writer when the exit is reported already.
    let counters = async || job.launcher.counters().await.unwrap();
    while counters().await.guard.output_bytes_dropped < 3_000_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(counters().await.guard.output_bytes_dropped, 3_000_000);
    assert!(counters().await.guard.output_refused > 0);
    job.end().await;
}

#[tokio::test]
async fn a_disk_that_hangs_harms_no_rank_and_delays_no_exit() {
    let job = Job::new().await;
    let pipe = output_dir(&job).join("stdout.log");
    // Opening a pipe without a reader blocks indefinitely.
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let procs = job.start([sh("head -c 3000000 /dev/zero; exit 4"), sh("echo well >&2; exit 5")]).await;
    assert_eq!(job.exit_of(&procs[0]).await.how, Termination::Code(4));
    assert_eq!(job.exit_of(&procs[1]).await.stderr_tail, "well\n");
    assert!(job.launcher.counters().await.unwrap().guard.output_bytes_dropped > 2_000_000);
    job.end().await;
}

#[tokio::test]
async fn a_log_at_its_bound_is_rotated_to_one_older_file() {
    let job = Job::with(|builder| builder.log_bytes_max(4096)).await;
    let proc = job.start_one(sh("i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; echo end")).await;
    job.exit_of(&proc).await;
    let newest = job.printed("rank-0.1/stdout.log", "end\n").await;
    let older = fs::read_to_string(job.dir.path().join("procs/rank-0.1/stdout.log.1")).unwrap();
    assert!(newest.len() <= 4096 && older.len() == 4096);
    assert!(format!("{older}{newest}").ends_with("line 1998\nline 1999\nend\n"));
    assert!(job.launcher.counters().await.unwrap().guard.logs_rotated >= 4);
    assert_eq!(fs::read_dir(job.dir.path().join("procs/rank-0.1")).unwrap().count(), 3);
    job.end().await;
}

#[tokio::test]
async fn of_much_stderr_the_last_lines_travel() {
    let job = Job::new().await;
    let script = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done >&2; printf '\\377 end' >&2; exit 1";
    let proc = job.start_one(sh(script)).await;
    let tail = job.exit_of(&proc).await.stderr_tail;
    assert!(tail.len() <= Exit::STDERR_TAIL_BYTES_MAX && tail.len() > Exit::STDERR_TAIL_BYTES_MAX - 100);
    assert!(tail.starts_with("line ") && tail.ends_with("line 2999\n\u{fffd} end"), "{tail}");
    job.end().await;
}

#[tokio::test]
async fn a_file_of_the_users_has_both_streams_and_the_last_life_beside_it() {
    let job = Job::new().await;
    let file = job.dir.path().join("logs/worker_0.log");
    let spec = |script| sh(script).with_log(&file);
    let first = job.start_one(spec("echo out; sleep 0.1; echo err >&2")).await;
    job.exit_of(&first).await;
    assert_eq!(job.printed("../logs/worker_0.log", "err\n").await, "out\nerr\n");
    assert_eq!(job.printed("rank-0.1/stderr.log", "err\n").await, "err\n", "the launcher's own files are as ever");
    let both = batch(2, [spec("echo one; sleep 0.2"), spec("sleep 0.1; echo two")]);
    job.launcher.start(&both).await.unwrap();
    for order in &both.starts {
        job.exit_of(&order.proc).await;
    }
    assert_eq!(job.printed("../logs/worker_0.log", "two\n").await, "one\ntwo\n");
    assert_eq!(fs::read_to_string(job.dir.path().join("logs/worker_0.log.1")).unwrap(), "out\nerr\n");
    job.end().await;
}
