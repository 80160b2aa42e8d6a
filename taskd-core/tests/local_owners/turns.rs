//! How long the turns of processes on a core are: the guard's short, so that it has its turn soon, and no other
//! process's.

use crate::harness::tests;
use crate::support::*;
use std::path::{Path, PathBuf};
use std::time::Duration;
use taskd_core::launch::*;

tests![the_guard_has_short_turns_and_its_processes_do_not,];

/// The first Linux on which a thread can ask for another length of its turns.
const SINCE: (u32, u32) = (6, 12);

fn linux() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// The length of a thread's turns in nanoseconds, where the kernel shows it.
fn turn_of(task: &Path) -> Option<u64> {
    let shown = std::fs::read_to_string(task.join("sched")).ok()?;
    let line = shown.lines().find(|line| line.starts_with("se.slice "))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// All threads of a process, and their names.
fn threads_of(pid: u32) -> Vec<(PathBuf, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| task.unwrap().path());
    tasks.map(|task| (task.clone(), std::fs::read_to_string(task.join("comm")).unwrap().trim().to_owned())).collect()
}

async fn the_guard_has_short_turns_and_its_processes_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    let orders = batch(1, [sleeper(), sleeper().with_nice(5)]);
    launcher.start(&orders).await.unwrap();
    let ours = turn_of(Path::new("/proc/self"));
    for (order, nice) in orders.starts.iter().zip([0, 5]) {
        let pid = pid_of(&launcher, &order.proc).await;
        assert_eq!(turn_of(format!("/proc/{pid}").as_ref()), ours);
        let own = rustix::process::getpriority_process(None).unwrap();
        let its = rustix::process::getpriority_process(rustix::process::Pid::from_raw(pid as i32)).unwrap();
        assert_eq!(its, (own + nice).min(19)); // Linux knows no nicer one
    }
    let threads = eventually("its threads have their names", || {
        let threads = threads_of(guard_pid(dir.path()));
        let named = |wanted: &str| threads.iter().filter(|(_, name)| name == wanted).count();
        ((named("taskd-guard"), named("taskd-lifeline")) == (1, 2)).then_some(threads)
    })
    .await;
    for (task, name) in threads {
        let reports_ends = matches!(&*name, "taskd-guard" | "taskd-lifeline");
        let is_short = turn_of(&task) < ours;
        assert_eq!(is_short, reports_ends && ours.is_some() && linux() >= SINCE, "{name}");
    }
    launcher.shutdown(Duration::ZERO).await.unwrap();
}
