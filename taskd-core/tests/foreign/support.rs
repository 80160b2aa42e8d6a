//! What the tests share: jobs of shell processes, and waiting for what is to come of them.

use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use taskd_core::job::{Exit, ProcId, Termination};
use taskd_core::launch::{ExternalProcs, Launcher, Phase, ProcStatus};
use tokio::time::timeout;

/// How long is waited for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);
pub(crate) const KILLED: Termination = Termination::Signal { number: 9, core_dumped: false };

/// In a script: waits until the test calls [`Job::go_on`].
pub(crate) const WAIT: &str = r#"while [ ! -e "$GO" ]; do sleep 0.02; done"#;

/// A job of shell processes; ended with everything in it when dropped.
pub(crate) struct Job {
    pub(crate) root: Child,
    go: tempfile::TempDir,
}

impl Job {
    /// Runs `script`, which stands for a launcher of ranks.
    pub(crate) fn run(script: &str) -> Job {
        Job::with_output(script, Stdio::null(), Stdio::null())
    }

    pub(crate) fn with_output(script: &str, out: Stdio, err: Stdio) -> Job {
        let go = tempfile::tempdir().expect("a directory");
        let mut command = Command::new("sh");
        command.args(["-c", script]).env_remove("RANK").env("GO", go.path().join("go")).process_group(0);
        let root = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().expect("a shell");
        Job { root, go }
    }

    /// Lets those go on that [`WAIT`].
    pub(crate) fn go_on(&self) {
        File::create(self.go.path().join("go")).expect("a file");
    }

    pub(crate) async fn watched(&self) -> ExternalProcs {
        ExternalProcs::below(self.root.id()).look_every(LOOK_EVERY).attach().await.expect("it runs")
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.root);
        let _ = kill_process_group(group, Signal::KILL); // what it is has ended already
        let _ = self.root.wait();
    }
}

/// Waits until what is listed is as it should be.
pub(crate) async fn until<T>(foreign: &ExternalProcs, find: impl Fn(&[ProcStatus]) -> Option<T>) -> T {
    let mut listing = foreign.list().await.expect("it can be listed");
    let looking = async {
        loop {
            if let Some(found) = find(&listing.procs) {
                return found;
            }
            foreign.watch(listing.revision).await.expect("its history is kept");
            listing = foreign.list().await.expect("it can be listed");
        }
    };
    timeout(PATIENCE, looking).await.expect("it comes about")
}

/// The number of a process that runs.
pub(crate) async fn pid(foreign: &ExternalProcs, proc: ProcId) -> Pid {
    let runs = |status: &&ProcStatus| status.proc == proc && status.phase == Phase::Running;
    let pid = until(foreign, |procs| procs.iter().find(runs)?.pid).await;
    pid.try_into().ok().and_then(Pid::from_raw).expect("a number")
}

/// How a process has ended.
pub(crate) async fn exit(foreign: &ExternalProcs, proc: ProcId) -> Exit {
    until(foreign, |procs| {
        let status = procs.iter().find(|status| status.proc == proc)?;
        if let Phase::Exited(exit) = &status.phase { Some((**exit).clone()) } else { None }
    })
    .await
}

/// Linux keeps how a process ended for others than its parent.
pub(crate) fn kernel_keeps_ends() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("it is there");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 15)
}

/// What is to be reported of an end that the parent takes at once: the truth, or where the kernel is too old, that or
/// nothing.
pub(crate) fn assert_ended(how: Termination, truth: Termination) {
    assert!(how == truth || (how == Termination::Unknown && !kernel_keeps_ends()), "{how} is not {truth}");
}
