//! Process 1 of a container: real PID namespaces.

use crate::harness::tests;
use crate::support::*;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use taskd_core::launch::{Launcher, guard};

tests![
    process_one_reaps_strangers_and_ends_as_its_program,
    process_one_passes_signals_on,
    a_job_runs_where_the_supervisor_is_process_one,
];

/// Is the program in the namespace.
pub(crate) fn run(act: &str, dir: &str) -> ExitCode {
    if act != "job" {
        guard::run_as_init().unwrap();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        match act {
            "reap" => {
                assert_ne!(std::process::id(), 1);
                let orphan = "setsid sh -c 'while [ ! -e go ]; do sleep 0.01; done'";
                let orphans = format!("for i in 1 2 3; do ({orphan} &); done");
                Command::new("sh").args(["-c", &orphans]).current_dir(dir).status().unwrap();
                assert!(processes() > 2);
                std::fs::write(format!("{dir}/go"), "").unwrap();
                eventually("process 1 and this one are alone", || (processes() == 2).then_some(())).await;
                ExitCode::from(7)
            }
            "wait" => {
                std::fs::write(format!("{dir}/ready"), "").unwrap();
                std::future::pending().await
            }
            "job" => {
                assert_eq!(std::process::id(), 1);
                let launcher = builder(dir.as_ref()).build().await.unwrap();
                let orders = batch(1, [sh("exit 3")]);
                launcher.start(&orders).await.unwrap();
                let exit = exit_of(&launcher, &orders.starts[0].proc).await;
                launcher.shutdown(Duration::ZERO).await.unwrap();
                println!("{}", exit.how);
                ExitCode::SUCCESS
            }
            other => panic!("{other}"),
        }
    })
}

/// How many processes the namespace has, those that were not reaped included.
fn processes() -> usize {
    let names = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    names.filter(|name| name.bytes().all(|b| b.is_ascii_digit())).count()
}

/// Runs this program as process 1 of a new namespace.
fn in_namespace(act: &str, dir: &str) -> Child {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args(["--pid", "--fork", "--mount-proc"]).arg(std::env::current_exe().unwrap()).args([
        "namespace",
        act,
        dir,
    ]);
    command.stdout(Stdio::piped()).spawn().expect("unshare (of util-linux) is needed")
}

async fn process_one_reaps_strangers_and_ends_as_its_program() {
    let dir = tempfile::tempdir().unwrap();
    let output = in_namespace("reap", dir.path().to_str().unwrap()).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7));
}

async fn process_one_passes_signals_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut outside = in_namespace("wait", dir.path().to_str().unwrap());
    eventually("it is up", || dir.path().join("ready").exists().then_some(())).await;
    let [process_one] = children_of(outside.id())[..] else { panic!("one child") };
    send(process_one, rustix::process::Signal::TERM);
    assert_eq!(outside.wait().unwrap().code(), Some(128 + 15));
}

async fn a_job_runs_where_the_supervisor_is_process_one() {
    let dir = tempfile::tempdir().unwrap();
    let output = in_namespace("job", dir.path().to_str().unwrap()).wait_with_output().unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"exit code 3\n"[..]));
}
