//! What a killed guard leaves, and what a rank leaves, is ended by its control group, whatever it has made of itself. Real control groups, where they can be made.

use crate::harness::tests;
use crate::support::*;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::time::Duration;
use taskd_core::job::WorkerSpec;
use taskd_core::launch::*;

tests![
    daemon_without_session_and_parent_is_killed_with_its_group,
    a_chain_of_processes_of_a_few_milliseconds_is_killed_with_the_group,
    a_daemon_of_a_rank_ends_with_the_rank,
    a_chain_of_processes_of_a_rank_ends_with_the_rank,
    each_process_has_a_group_of_its_own_which_goes_with_it,
    a_guard_that_ends_in_order_leaves_no_group,
    guard_reports_what_contains_its_processes,
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

async fn daemon_without_session_and_parent_is_killed_with_its_group() {
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
    exit_of(&launcher, &orders.starts[0].proc).await;
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
    let orders = batch(1, [leaves_a_chain(dir.path())]);
    launcher.start(&orders).await.unwrap();
    chain_runs(dir.path()).await;
    send(guard_pid(dir.path()), Signal::KILL);
    exit_of(&launcher, &orders.starts[0].proc).await;
    launcher.start(&batch(2, [sleeper()])).await.unwrap();
    assert_is_over(dir.path());
    launcher.shutdown(Duration::ZERO).await.unwrap();
}

/// A rank that leaves a chain behind: scripts that only live to start the next one, in a session and an environment of its own, and to
/// write a line.
fn leaves_a_chain(dir: &Path) -> WorkerSpec {
    let chain = "echo x >> beats; /bin/sleep 0.002; setsid env -i /bin/sh chain & exit 0";
    std::fs::write(dir.join("chain"), chain).unwrap();
    sh("(setsid env -i /bin/sh chain &); exec sleep 1000").with_cwd(dir)
}

fn beats(dir: &Path) -> u64 {
    std::fs::metadata(dir.join("beats")).map_or(0, |file| file.len())
}

async fn chain_runs(dir: &Path) {
    eventually("the chain runs", || (beats(dir) > 20).then_some(())).await;
}

/// A chain that lived would have written many lines by the time at which three processes have run one after the other.
fn assert_is_over(dir: &Path) {
    let then = beats(dir);
    for _ in 0..3 {
        std::process::Command::new("sleep").arg("0.02").status().unwrap();
    }
    assert_eq!(beats(dir), then);
}

async fn a_daemon_of_a_rank_ends_with_the_rank() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    if group(dir.path()).is_none() {
        return;
    }
    let daemon = "echo $$ > pid.new; mv pid.new pid; exec sleep 1000";
    let of_another_user = format!("setpriv --reuid 65534 --clear-groups sh -c 'exec 3>&1; {daemon}'");
    let kinds = [
        format!("setsid env -i sh -c '{daemon}'"),
        format!("setsid env -i sh -c '(setsid sh -c \"{}\" &) &'", daemon.replace('$', "\\$")),
        format!("setsid env -i {of_another_user}"),
    ];
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let shared = tempfile::tempdir().unwrap();
    std::fs::set_permissions(shared.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let mut incarnation = 0;
    for kind in &kinds {
        for ends_by in ["exec sleep 1000", "kill -9 $$", "exit 1"] {
            incarnation += 1;
            let _ = std::fs::remove_file(shared.path().join("pid"));
            let rank = format!("({kind} > /dev/null 2>&1 &); while ! test -s pid; do sleep 0.01; done; {ends_by}");
            let orders = batch(incarnation, [sh(&rank).with_cwd(shared.path())]);
            launcher.start(&orders).await.unwrap();
            let read = || std::fs::read_to_string(shared.path().join("pid")).ok()?.trim().parse().ok();
            let pid: u32 = eventually("it is up", read).await;
            if ends_by.starts_with("exec") {
                launcher.stop(&[orders.starts[0].proc.clone()], Duration::ZERO).await.unwrap();
            }
            exit_of(&launcher, &orders.starts[0].proc).await;
            incarnation += 1;
            let next = batch(incarnation, [sleeper()]);
            launcher.start(&next).await.unwrap(); // its successor waits until all of it is gone
            assert!(!is_alive(pid), "{kind}, {ends_by}");
            launcher.stop(&[next.starts[0].proc.clone()], Duration::ZERO).await.unwrap();
            exit_of(&launcher, &next.starts[0].proc).await;
        }
    }
    launcher.shutdown(Duration::ZERO).await.unwrap();
}

async fn a_chain_of_processes_of_a_rank_ends_with_the_rank() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    if group(dir.path()).is_none() {
        return;
    }
    let orders = batch(1, [leaves_a_chain(dir.path()), sleeper()]);
    launcher.start(&orders).await.unwrap();
    chain_runs(dir.path()).await;
    let [chained, other] = [0, 1].map(|rank: usize| orders.starts[rank].proc.clone());
    send(pid_of(&launcher, &chained).await, Signal::KILL);
    exit_of(&launcher, &chained).await;
    let mut next = batch(2, [sleeper(), sleeper()]);
    next.starts.truncate(1);
    launcher.start(&next).await.unwrap();
    assert_is_over(dir.path());
    assert!(is_alive(pid_of(&launcher, &other).await), "what is another rank's lives");
    launcher.shutdown(Duration::ZERO).await.unwrap();
}

async fn each_process_has_a_group_of_its_own_which_goes_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    let Some(group) = group(dir.path()) else { return };
    let orders = batch(1, [sleeper(), sleeper()]);
    launcher.start(&orders).await.unwrap();
    let groups = || {
        let below = std::fs::read_dir(&group).unwrap().flatten().filter(|entry| entry.path().is_dir());
        let of = |group: PathBuf| std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        let mut held: Vec<String> = below.map(|entry| of(entry.path()).trim().to_owned()).collect();
        held.sort();
        held
    };
    let mut pids = Vec::new();
    for order in &orders.starts {
        pids.push(pid_of(&launcher, &order.proc).await.to_string());
    }
    pids.sort();
    assert_eq!(groups(), pids);
    assert_eq!(launcher.counters().await.unwrap().guard.cgroups_missing, 0);
    launcher.stop(&[orders.starts[0].proc.clone()], Duration::ZERO).await.unwrap();
    exit_of(&launcher, &orders.starts[0].proc).await;
    eventually("its group is gone", || (groups().len() == 1).then_some(())).await;
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
    assert!(inside.lines().any(|pid| pid == guard.to_string()), "{inside}");
    launcher.shutdown(Duration::ZERO).await.unwrap();
    eventually("the group is gone", || (!group.exists()).then_some(())).await;
}

async fn guard_reports_what_contains_its_processes() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    let log = || std::fs::read_to_string(dir.path().join("guard.log")).unwrap_or_default();
    let line =
        eventually("it is logged", || log().lines().find(|line| line.contains("control group")).map(str::to_owned))
            .await;
    let guard = guard_pid(dir.path());
    let expected = match group(dir.path()) {
        Some(group) => {
            format!(
                "control group {} holds all processes of guard {guard}: none is left when a rank ends",
                group.display()
            )
        }
        None => format!("no control group holds the processes of guard {guard} ("),
    };
    assert!(line.contains(&expected), "{line}");
    launcher.shutdown(Duration::ZERO).await.unwrap();
}
