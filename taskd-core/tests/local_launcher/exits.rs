//! How processes end, and what is reported of it.

use crate::job::*;
use crate::support::*;
use std::time::Duration;
use taskd_core::job::*;
use taskd_core::launch::*;
use taskd_core::secrets::SecretNames;

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
async fn the_stderr_tail_has_no_terminal_controls_and_the_file_has_all() {
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
async fn a_batch_with_an_unstartable_program_is_refused_as_a_whole() {
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

/// Runs a program in the background, and waits until it has become that.
const BEGIN: &str =
    r#"begin() { "$@" & until [ "$(cat /proc/$!/comm)" = sleep ]; do sleep 0.01; done; }; echo here >&2; "#;

#[tokio::test]
async fn leftover_processes_of_an_exited_rank_are_named_and_killed() {
    let job = Job::new().await;
    let cases = [
        ("begin sleep 611; begin sleep 612; exit 0", "exit code 0", vec!["(sleep 611)", "(sleep 612)"]),
        ("begin setsid sleep 613; exit 3", "exit code 3", vec!["(sleep 613)"]),
        ("begin sleep 614; kill -KILL $$", "signal 9 (SIGKILL)", vec!["(sleep 614)"]),
    ];
    let procs = job.start(cases.clone().map(|(script, ..)| sh(&format!("{BEGIN}{script}")))).await;
    for (proc, (script, how, left)) in procs.iter().zip(cases) {
        let exit = job.exit_of(proc).await;
        assert_eq!((exit.how.to_string().as_str(), exit.stderr_tail.as_str()), (how, "here\n"), "{script}");
        let rank = proc.role.rank().unwrap().0;
        let printed = job.printed(&format!("rank-{rank}.1/stderr.log"), " killed: ").await;
        let last = printed.lines().last().unwrap();
        assert!(last.starts_with(&format!("taskd: {proc} has ended ({how}), but ")), "{script}: {last}");
        for command in &left {
            let before = last.split(&format!(" {command}")).next().filter(|before| before.len() < last.len());
            let pid = before.and_then(|before| before.rsplit(' ').next()?.parse::<u32>().ok());
            let pid = pid.unwrap_or_else(|| panic!("{script}: {last}"));
            eventually("it is gone", || state_of(pid).is_none_or(|state| state == 'Z').then_some(())).await;
        }
        let is_advised = last.ends_with("; start the program with exec, or have the script wait for it");
        assert_eq!(is_advised, how.starts_with("exit code"), "{last}");
        assert!(last.contains(if left.len() == 1 {
            " still runs and is killed: "
        } else {
            " still run and are killed: "
        }));
    }
    job.end().await;
}

#[tokio::test]
async fn leftover_processes_are_named_with_secrets_redacted() {
    let job = Job::new().await;
    let script = "sh -c 'while :; do sleep 9; done' x --licence hunter2 --token hunter3 & \
                  until tr '\\0' ' ' < /proc/$!/cmdline | grep -q '^sh -c while'; do sleep 0.01; done; exit 0";
    let mut spec = sh(script);
    spec.secrets = SecretNames::default().with("licence"); // as a runtime puts those of its job there
    let proc = job.start_one(spec).await;
    job.exit_of(&proc).await;
    let printed = job.printed("rank-0.1/stderr.log", " killed: ").await;
    assert!(printed.contains("x --licence <redacted> --token <redacted>"), "{printed}");
    job.end().await;
}

#[tokio::test]
async fn multiprocessing_helpers_are_not_reported_as_leftovers() {
    let job = Job::new().await;
    let helper = "begin bash -c 'exec -a multiprocessing.resource_tracker sleep 616'; begin sleep 617; exit 0";
    let proc = job.start_one(sh(&format!("{BEGIN}{helper}"))).await;
    job.exit_of(&proc).await;
    let printed = job.printed("rank-0.1/stderr.log", " killed: ").await;
    assert!(printed.contains(" still runs and is killed: ") && !printed.contains("resource_tracker"), "{printed}");
    job.end().await;
}

#[tokio::test]
async fn processes_stopped_with_their_rank_are_not_leftovers() {
    let job = Job::new().await;
    let script = format!("{BEGIN}trap 'exit 0' TERM; begin sleep 615; echo ready >&2; wait");
    let proc = job.start_one(sh(&script)).await;
    job.printed("rank-0.1/stderr.log", "ready").await;
    job.launcher.stop(std::slice::from_ref(&proc), PATIENCE).await.unwrap();
    job.exit_of(&proc).await;
    job.launcher.shutdown(Duration::ZERO).await.unwrap(); // and all is written
    let printed = std::fs::read_to_string(job.dir.path().join("procs/rank-0.1/stderr.log")).unwrap();
    assert_eq!(printed, "here\nready\n");
}
