//! A PyTorch job on six hosts in namespaces of this machine, three of which vote on the manager: a rank is killed, then
//! the manager, then a host is lost, and the job trains on.

#![allow(clippy::unwrap_used, reason = "this is a test")]

use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use taskd_cluster_example::hosts::Hosts;
use taskd_cluster_example::run_if_role;
use taskd_cluster_example::scenarios::SIX;
use taskd_cluster_example::training::{Ended, Training, two_worlds};
use taskd_core::detect::FaultClass;
use taskd_core::kernel::Outcome;
use taskd_core::launch::guard;
use taskd_examples::recover::now;
use taskd_pytorch::{store, venv};
use taskd_testing::testing::guarded_test;

const NAME: &str = "a_job_of_six_hosts_survives_a_rank_its_manager_and_a_host";
/// Long, so that a machine with much other work loses no host.
const LEASE: Duration = Duration::from_secs(15);
/// Steps of each rank between two faults.
const STEPS: usize = 20;
/// Time within which the processes of a job that has ended must have ended.
const ENDED_WITHIN: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    guard::init(); // this program is also the guard
    store::init(); // and the store
    match run_if_role() {
        Some(code) => code, // and the manager, and the agents
        None => guarded_test(NAME, a_job_of_six_hosts_survives_a_rank_its_manager_and_a_host),
    }
}

async fn a_job_of_six_hosts_survives_a_rank_its_manager_and_a_host() {
    if std::env::var("TASKD_SKIP").is_ok_and(|skip| skip.split(',').any(|part| part == "torch")) {
        return eprintln!("{NAME} is skipped: TASKD_SKIP names torch");
    }
    let hosts = match Hosts::create(SIX.hosts, 1.0) {
        Ok(hosts) => hosts,
        Err(why) => return eprintln!("{NAME} is skipped: {why}"),
    };
    hosts.notes().iter().for_each(|note| eprintln!("{note}"));
    let python = tokio::task::spawn_blocking(|| venv::locate(&mut |line| eprintln!("{line}")));
    let python = python.await.unwrap().unwrap();
    let root = hosts.shared().parent().unwrap().to_owned();
    let mut training = Training::start(SIX.plan(python, LEASE), hosts).unwrap();
    survives(&mut training).await;
    drop(training);
    nothing_is_left(&root);
}

async fn survives(training: &mut Training) {
    training.begun(STEPS).await.unwrap();
    let first = training.steps().pids();

    let (killed, victim) = (now(), first[&2]);
    kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
    let again = training.until("rank 2 is replaced", |steps| steps.first_common(killed, 5, &[victim])).await.unwrap();
    training.steps_since(again.1, STEPS).await.unwrap();
    let second = training.steps().pids();

    // The manager is the agent of its host, too: its ranks run on under the guard, and another voter becomes the manager.
    let (manager, epoch) = training.manager().unwrap();
    let manager_lost = now();
    training.programs.remove(&manager); // SIGKILL
    training.start_program(&manager).unwrap();
    let later = |training: &Training| training.manager().filter(|(_, now)| *now > epoch);
    let next = training.wait_until("another manager is elected", later).await.unwrap();
    println!("{} is the manager in epoch {}, {:.2} s after the end of {manager}", next.0, next.1, now() - manager_lost);
    training.steps_since(now(), STEPS).await.unwrap();
    assert_eq!(training.steps().pids(), second, "the end of a manager stops no rank");

    let lost_at = now();
    let host = training.hosts.get("h4").unwrap();
    host.set_link(false).unwrap();
    assert!(host.kill_all().unwrap() >= 3, "an agent, a guard and a rank");
    let resumed =
        training.until("h6 replaces h4", |steps| steps.first_common(lost_at, 5, &[second[&3]])).await.unwrap();
    training.steps_since(resumed.1, STEPS).await.unwrap();
    let third = training.steps().pids();

    let ended = training.end().await.unwrap();
    judge(training, &ended, &[first, second, third]);
    for (at, (step, time)) in [(killed, again), (lost_at, resumed)] {
        let lost = (ended.steps.last_before(at).unwrap() + 1).saturating_sub(step);
        println!("{lost} steps lost, resumed {:.2} s after the fault", time - at);
        assert!(lost <= 1, "{lost} steps were computed again");
    }
    let left = training.left_running(ENDED_WITHIN).await;
    assert!(left.is_empty(), "{left:?}");
}

/// Checks the report, and the processes of the ranks before the faults, between them, and after them.
fn judge(training: &Training, ended: &Ended, [first, second, third]: &[BTreeMap<u32, i32>; 3]) {
    let report = &ended.report;
    assert!(ended.status.success() && report.outcome == Outcome::Completed, "{report}\n{}", training.excerpt());
    let blamed: Vec<_> = report.incidents.iter().map(|one| (one.class.clone(), one.domain.to_string())).collect();
    assert_eq!(blamed, [(FaultClass::NodeLost, "node h4".to_owned())], "the second manager saw this only: {report}");

    // The processes that were not hit are the same, and the lost rank runs on the spare host.
    let without = |pids: &BTreeMap<u32, i32>, rank| {
        pids.iter().filter(|one| *one.0 != rank).map(|one| *one.1).collect::<Vec<i32>>()
    };
    let (before, after) = (without(first, 2), without(second, 2));
    assert_eq!(before, after);
    let (before, after) = (without(second, 3), without(third, 3));
    assert_eq!(before, after);
    assert_eq!(ended.steps.pids(), *third, "no process was replaced without a fault");
    // The killed rank moves to the spare host if its own has no standby at that moment; its own host is spare then.
    let host_of = |pid: i32| ended.lives[&pid].host.as_deref();
    let spare = if host_of(second[&2]) == Some("h6") { host_of(first[&2]) } else { Some("h6") };
    assert_eq!(host_of(third[&3]), spare);
    assert_eq!(two_worlds(&ended.steps, &ended.lives), None);
}

/// Checks that neither namespaces nor mounts, control groups or files are left.
fn nothing_is_left(root: &Path) {
    let prefix = root.file_name().unwrap().to_str().unwrap();
    for dir in ["/run/netns", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup"] {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let left: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        assert!(left.iter().all(|name| !name.starts_with(prefix)), "{dir}: {left:?}");
    }
    assert!(!std::fs::read_to_string("/proc/self/mounts").unwrap().contains(prefix) && !root.exists());
}
