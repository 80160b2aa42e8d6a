//! What a killed guard leaves is ended by its control group, whatever it has made of itself. Real control groups, where they can be made.

use crate::harness::tests;
use crate::support::*;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::time::Duration;
use taskd_core::launch::*;

tests![
    what_has_left_its_session_environment_and_parent_is_killed_with_the_group,
    a_chain_of_processes_of_a_few_milliseconds_is_killed_with_the_group,
    a_guard_that_ends_in_order_leaves_no_group,
    the_guard_says_what_contains_its_processes,
];

/// The control group that the guard of a run directory is in, as its record has it. `None`, with one sentence: none can be made here.
fn group(run_dir: &Path) -> Option<PathBuf> {
    let record = std::fs::read(run_dir.join("guard.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let group = record["cgroup"].as_str().map(PathBuf::from);
    if group.is_none() {
        println!("skipped: no control group can be made here (it takes root, or a delegated one of version 2)");
    }
    group
}

async fn what_has_left_its_session_environment_and_parent_is_killed_with_the_group() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    let Some(group) = group(dir.path()) else { return };
    let orders = batch(
        1,
        [sh("(setsid env -i sh -c 'echo $$ > pid; exec sleep 1000' &); exec sleep 1000").with_cwd(dir.path())],
    );
    launcher.start(&orders).await.unwrap();
    let pid: u32 =
        eventually("it is up", || std::fs::read_to_string(dir.path().join("pid")).ok()?.trim().parse().ok()).await;
    send(guard_pid(dir.path()), Signal::KILL);
    exit_of(&launcher, &orders.orders[0].proc).await;
    launcher.start(&batch(2, [sleeper()])).await.unwrap();
    assert!(!is_alive(pid) && !group.exists(), "{}", group.display());
    launcher.shutdown(Duration::ZERO).await.unwrap();
}

async fn a_chain_of_processes_of_a_few_milliseconds_is_killed_with_the_group() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    if group(dir.path()).is_none() {
        return;
    }
    let chain = "echo x >> beats; /bin/sleep 0.002; setsid env -i /bin/sh chain & exit 0";
    std::fs::write(dir.path().join("chain"), chain).unwrap();
    let orders = batch(1, [sh("(setsid env -i /bin/sh chain &); exec sleep 1000").with_cwd(dir.path())]);
    launcher.start(&orders).await.unwrap();
    let beats = || std::fs::metadata(dir.path().join("beats")).map_or(0, |file| file.len());
    eventually("the chain runs", || (beats() > 20).then_some(())).await;
    send(guard_pid(dir.path()), Signal::KILL);
    exit_of(&launcher, &orders.orders[0].proc).await;
    launcher.start(&batch(2, [sleeper()])).await.unwrap();
    let then = beats();
    // One that lived would have written many lines by the time at which three processes have run one after the other.
    for _ in 0..3 {
        std::process::Command::new("sleep").arg("0.02").status().unwrap();
    }
    assert_eq!(beats(), then);
    launcher.shutdown(Duration::ZERO).await.unwrap();
}

async fn a_guard_that_ends_in_order_leaves_no_group() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    let Some(group) = group(dir.path()) else { return };
    let guard = guard_pid(dir.path());
    let orders = batch(1, [sleeper()]);
    launcher.start(&orders).await.unwrap();
    let inside = std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
    assert!(inside.lines().count() >= 2 && inside.lines().any(|pid| pid == guard.to_string()), "{inside}");
    launcher.shutdown(Duration::ZERO).await.unwrap();
    eventually("the group is gone", || (!group.exists()).then_some(())).await;
}

async fn the_guard_says_what_contains_its_processes() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    let log = || std::fs::read_to_string(dir.path().join("guard.log")).unwrap_or_default();
    let line =
        eventually("it is said", || log().lines().find(|line| line.contains("control group")).map(str::to_owned)).await;
    let guard = guard_pid(dir.path());
    let expected = match group(dir.path()) {
        Some(group) => {
            format!("control group {} holds what guard {guard} starts: nothing is left of it", group.display())
        }
        None => format!("no control group holds what guard {guard} starts ("),
    };
    assert!(line.contains(&expected), "{line}");
    launcher.shutdown(Duration::ZERO).await.unwrap();
}
