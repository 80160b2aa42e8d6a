//! How processes end, and what is told of it.

use crate::job::*;
use crate::support::*;
use std::time::Duration;
use taskd_core::job::*;
use taskd_core::launch::*;

fn signal(number: i32) -> Termination {
    Termination::Signal { number, core_dumped: false }
}

#[tokio::test]
async fn an_exit_code_comes_back_with_the_last_lines_of_stderr() {
    let job = Job::new().await;
    let proc = job.start_one(sh("echo out; echo first >&2; echo last >&2; exit 7")).await;
    let exit = job.exit_of(&proc).await;
    assert_eq!((exit.how, exit.stderr_tail.as_str()), (Termination::Code(7), "first\nlast\n"));
    assert_eq!(job.printed("rank-0.1/stdout.log", "out").await, "out\n");
    job.end().await;
}

#[tokio::test]
async fn last_lines_hold_nothing_that_a_terminal_would_obey_and_the_file_has_all() {
    let job = Job::new().await;
    let script = r"printf '\033]0;owned\007\033[31mloss is NaN\033[0m\007 10%%\r20%%\n' >&2; exit 1";
    let proc = job.start_one(sh(script)).await;
    let exit = job.exit_of(&proc).await;
    assert_eq!(exit.stderr_tail, "loss is NaN^G 10%\n20%\n");
    assert!(job.printed("rank-0.1/stderr.log", "20%").await.contains("\u{1b}]0;owned\u{7}"));
    job.end().await;
}

#[tokio::test]
async fn a_signal_comes_back_by_its_number() {
    let job = Job::new().await;
    let procs = job.start([sh("kill -KILL $$"), sh("kill -SEGV $$"), sh("exit 0")]).await;
    assert_eq!(job.exit_of(&procs[0]).await.how, signal(9));
    assert!(matches!(job.exit_of(&procs[1]).await.how, Termination::Signal { number: 11, .. }));
    assert_eq!(job.exit_of(&procs[2]).await.how, Termination::Code(0));
    job.end().await;
}

#[tokio::test]
async fn what_cannot_be_started_is_refused_by_name_and_nothing_of_its_batch_runs() {
    let job = Job::new().await;
    let cases = [
        (WorkerSpec::new(["no-such-program"]), "no-such-program"),
        (WorkerSpec::new(["/no/such/program"]), "/no/such/program"),
        (WorkerSpec::new(["/etc/passwd"]), "/etc/passwd"),
        (sleeper().with_cwd("/no/such/directory"), "/no/such/directory"),
        (sleeper().with_inherit(InheritEnv::Nothing).with_env("PATH", "/nowhere"), "/nowhere"),
        (sleeper().with_env("TASKD_JOB", "mine"), "TASKD_JOB"),
    ];
    for (spec, named) in cases {
        let refused = job.launcher.start(&batch(1, [sleeper(), spec])).await;
        assert!(matches!(&refused, Err(LaunchError::Refused(why)) if why.contains(named)), "{named}: {refused:?}");
        assert!(job.launcher.list().await.unwrap().procs.is_empty());
    }
    assert_eq!(children_of(job.guard_pid()), [] as [u32; 0]);
    let [first, _] = job.start([sleeper(), sleeper()]).await; // none of it was used up
    job.launcher.stop(std::slice::from_ref(&first), Duration::ZERO).await.unwrap();
    assert_eq!(job.exit_of(&first).await.how, signal(9));
    job.end().await;
}
