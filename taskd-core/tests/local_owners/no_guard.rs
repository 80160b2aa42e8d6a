//! A host that offers no guard: direct children, and the consequences are reported.

use crate::harness::tests;
use crate::support::*;
use std::process::{Command, ExitCode, Stdio};
use std::slice::from_ref;
use std::time::Duration;
use taskd_core::job::*;
use taskd_core::launch::*;

tests![without_a_guard_processes_start_end_and_stop, without_a_guard_ranks_still_die_with_the_supervisor,];

fn without_guard(dir: &std::path::Path) -> LocalLauncherBuilder {
    LocalLauncher::builder(dir).guard(GuardProgram::None)
}

/// Is a supervisor without a guard.
pub(crate) fn run(dir: &str) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let launcher = without_guard(dir.as_ref()).build().await.unwrap();
        let orders = batch(1, [sleeper()]);
        launcher.start(&orders).await.unwrap();
        let pid = pid_of(&launcher, &orders.starts[0].proc).await;
        std::fs::write(format!("{dir}/pid"), pid.to_string()).unwrap();
        std::future::pending::<ExitCode>().await
    })
}

async fn without_a_guard_processes_start_end_and_stop() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = without_guard(dir.path()).build().await.unwrap();
    assert_eq!(launcher.info().limitations.len(), 4);
    let helper = "setsid sh -c 'echo $$ > pid; exec sleep 1000' & while [ ! -s pid ]; do sleep 0.01; done; exit 3";
    let orders = batch(1, [sh(helper).with_cwd(dir.path()), sleeper()]);
    launcher.start(&orders).await.unwrap();
    let [first, second] = [0, 1].map(|i| orders.starts[i].proc.clone());
    assert_eq!(exit_of(&launcher, &first).await.how, Termination::Code(3));
    let helper: u32 = std::fs::read_to_string(dir.path().join("pid")).unwrap().trim().parse().unwrap();
    eventually("what it left is gone", || (!is_alive(helper)).then_some(())).await;
    let refused = launcher.detach(Duration::from_secs(60)).await;
    assert!(matches!(&refused, Err(LaunchError::Refused(why)) if why.contains("no guard")), "{refused:?}");
    launcher.stop(from_ref(&second), Duration::from_secs(1000)).await.unwrap(); // and it goes on
    assert_eq!(exit_of(&launcher, &second).await.how, Termination::Signal { number: 15, core_dumped: false });
    launcher.shutdown(Duration::ZERO).await.unwrap();
}

async fn without_a_guard_ranks_still_die_with_the_supervisor() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut supervisor = command.arg("no-guard").arg(dir.path()).stdin(Stdio::null()).spawn().unwrap();
    let written = || std::fs::read_to_string(dir.path().join("pid")).ok()?.parse::<u32>().ok();
    let rank = eventually("the rank is up", written).await;
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    within(Duration::from_secs(1), "the rank is gone", || (!is_alive(rank)).then_some(())).await;
}
