//! A system that refuses a call without which no process can be started: that call is named, and what to do about it.

use crate::harness::tests;
use crate::missing_calls::take_away;
use crate::support::*;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, ExitCode, Stdio};
use taskd_core::launch::*;

tests![
    a_call_that_a_sandbox_refuses_is_named,
    program_that_cannot_be_executed_is_reported_with_the_call,
    guard_killed_in_its_first_moments_is_reported_as_killed,
    a_run_directory_that_is_not_utf8_is_refused_in_one_sentence,
];

/// The first role of a process to which these calls are refused.
pub(crate) const ROLE: &str = "refused-calls";

/// Is such a process: it tries to start a rank, and leaves the answer that it receives.
pub(crate) fn run(calls: &str, dir: &str) -> ExitCode {
    for call in calls.split(',').map(|call| call.parse::<u32>().unwrap()) {
        take_away(call..=call);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let message = runtime.block_on(async {
        let launcher = builder(&std::path::Path::new(dir).join("run")).build().await.unwrap();
        launcher.start(&batch(1, [sleeper()])).await.unwrap_err().to_string()
    });
    std::fs::write(format!("{dir}/answer"), message).unwrap();
    ExitCode::SUCCESS
}

async fn a_call_that_a_sandbox_refuses_is_named() {
    let priority = [libc::SYS_sched_setattr, libc::SYS_setpriority];
    let cases: [(&[i64], &str); 2] =
        [(&[libc::SYS_memfd_create], "memfd_create for its page"), (&priority, "setpriority, to nice value")];
    for (calls, named) in cases {
        let dir = tempfile::tempdir().unwrap();
        let numbers: Vec<String> = calls.iter().map(ToString::to_string).collect();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([ROLE, &numbers.join(","), dir.path().to_str().unwrap()]).stdin(Stdio::null());
        assert!(command.status().unwrap().success(), "{named}");
        let message = std::fs::read_to_string(dir.path().join("answer")).unwrap();
        assert!(message.contains(named) && message.contains("seccomp"), "{message}");
    }
}

async fn program_that_cannot_be_executed_is_reported_with_the_call() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(&dir.path().join("run")).build().await.unwrap();
    let program = dir.path().join("program");
    std::fs::write(&program, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let spec = taskd_core::job::WorkerSpec::new([program.to_str().unwrap()]);
    let message = launcher.start(&batch(1, [spec])).await.unwrap_err().to_string();
    assert!(message.contains("execve failed") && message.contains("interpreter"), "{message}");
    launcher.shutdown(std::time::Duration::ZERO).await.unwrap();
}

async fn guard_killed_in_its_first_moments_is_reported_as_killed() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("guard");
    std::fs::write(&program, "#!/bin/sh\nkill -9 $$\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let launcher = LocalLauncher::builder(dir.path().join("run")).guard(GuardProgram::Path(program));
    let message = launcher.build().await.unwrap_err().to_string();
    assert!(message.contains("signal 9 (SIGKILL): it was killed right after its start"), "{message}");
}

async fn a_run_directory_that_is_not_utf8_is_refused_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(std::ffi::OsStr::from_bytes(b"run-\xff"));
    let message = builder(&path).build().await.unwrap_err().to_string();
    assert!(message.contains("its name is not UTF-8"), "{message}");
}
