//! Linux kills a process for lack of memory: that is reported as such, with the limit. Real control groups, where
//! they can be made.

use crate::harness::tests;
use crate::support::*;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use taskd_core::detect::ExitDetector;
use taskd_core::job::*;
use taskd_core::kernel::Outcome;
use taskd_core::launch::*;
use taskd_core::recover::ExitStrategy;
use taskd_core::runtime::Runtime;

tests![
    rank_killed_out_of_memory_is_reported_with_the_limit,
    guard_killed_out_of_memory_is_reported_as_such,
    killed_rank_is_not_reported_as_out_of_memory,
];

/// A control group with a limit of 64 MiB of memory, gone when it is dropped.
struct Group(PathBuf);

impl Group {
    /// `None`, with one sentence: no such group can be made here.
    fn new(name: &str) -> Option<Group> {
        let name = format!("taskd-test-{name}-{}", std::process::id());
        let v1 =
            (Path::new("/sys/fs/cgroup/memory").join(&name), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes");
        let v2 = (Path::new("/sys/fs/cgroup").join(&name), "memory.max", "memory.swap.max");
        for (path, limit, swap) in [v1, v2] {
            let is_hierarchy = path.parent().is_some_and(|parent| parent.join("cgroup.procs").exists());
            if !is_hierarchy || std::fs::create_dir(&path).is_err() {
                continue;
            }
            let group = Group(path);
            if std::fs::write(group.0.join(limit), "67108864").is_ok() {
                let _ = std::fs::write(group.0.join(swap), if swap == "memory.swap.max" { "0" } else { "67108864" });
                return Some(group);
            }
        }
        println!(
            "skipped: a control group with a limit of memory cannot be made here (it takes root and the memory controller)"
        );
        None
    }

    fn take(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let until = std::time::Instant::now() + PATIENCE; // until the last process is gone from it
        while std::fs::remove_dir(&self.0).is_err() && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
    }
}

/// Takes all memory that it gets.
fn glutton() -> WorkerSpec {
    sh("exec tail /dev/zero")
}

async fn rank_killed_out_of_memory_is_reported_with_the_limit() {
    let Some(group) = Group::new("rank") else { return };
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(&dir.path().join("run")).build().await.unwrap();
    let guard = guard_pid(&dir.path().join("run"));
    group.take(guard); // and with it all that it starts
    let runtime = Runtime::builder().job(JobSpec::new("job", 1, glutton())).launcher(launcher);
    let runtime = runtime.detector(ExitDetector::new()).strategy(ExitStrategy::new()).build().unwrap();
    let report = runtime.run().await;
    eventually("the guard has left the group", || (!is_alive(guard)).then_some(())).await;
    assert_eq!(report.outcome, Outcome::Failed);
    let incident = &report.incidents[0];
    assert_eq!(incident.blamed, [Rank(0)]);
    let reported = incident.evidence.iter().find(|line| line.contains("the kernel killed it for lack of memory"));
    let reported = reported.unwrap_or_else(|| panic!("{incident:?}"));
    assert!(reported.contains("the limit of 64 MiB of control group /taskd-test-rank-"), "{reported}");
}

async fn guard_killed_out_of_memory_is_reported_as_such() {
    let Some(group) = Group::new("guard") else { return };
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    let orders = batch(1, [sleeper()]);
    let guard = guard_pid(dir.path());
    group.take(guard);
    // A new owner looks where the guard is when it attaches.
    let launcher2 = builder(dir.path()).takeover(true).build().await.unwrap();
    launcher2.start(&orders).await.unwrap();
    // Of all in the group the guard is to be taken, and there is a glutton.
    std::fs::write(format!("/proc/{guard}/oom_score_adj"), "1000").unwrap();
    let from = launcher2.list().await.unwrap().revision;
    let mut shell = std::process::Command::new("sh");
    let script = format!("echo $$ > {}/cgroup.procs; exec tail /dev/zero", group.0.display());
    let mut child = shell.args(["-c", &script]).spawn().unwrap();
    let end = gone(&launcher2, from).await;
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        end.why.contains("signal 9 (SIGKILL), the kernel killed it for lack of memory: the limit of 64 MiB"),
        "{}",
        end.why
    );
    drop(launcher);
    launcher2.shutdown(std::time::Duration::ZERO).await.unwrap();
}

async fn gone(launcher: &LocalLauncher, mut from: Revision) -> GuardEnd {
    let waiting = async {
        loop {
            let (changes, next) = launcher.watch(from).await.unwrap();
            for change in changes {
                if let Change::Guard(GuardStatus { state: GuardState::Gone(end), .. }) = change {
                    return end;
                }
            }
            from = next;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("its end is reported")
}

async fn killed_rank_is_not_reported_as_out_of_memory() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    let orders = batch(1, [sleeper()]);
    launcher.start(&orders).await.unwrap();
    let proc = &orders.starts[0].proc;
    send(pid_of(&launcher, proc).await, Signal::KILL);
    let exit = exit_of(&launcher, proc).await;
    assert_eq!((exit.how, exit.error), (Termination::Signal { number: 9, core_dumped: false }, None));
    launcher.shutdown(std::time::Duration::ZERO).await.unwrap();
}
