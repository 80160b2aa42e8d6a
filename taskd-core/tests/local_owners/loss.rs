//! The supervisor dies: what was agreed for that happens.

use crate::harness::tests;
use crate::supervisor::{Supervisor, WITH_HELPER};
use crate::support::*;
use std::time::Duration;

tests![
    a_killed_supervisor_takes_everything_along,
    a_killed_supervisor_is_missed_though_its_helper_holds_its_connection,
    supervisor_without_successor_takes_its_job_along,
    a_rank_that_prints_is_not_harmed_by_the_loss_of_its_owner,
    a_guard_that_is_asked_to_end_stops_everything,
];

async fn a_killed_supervisor_takes_everything_along() {
    let mut supervisor = Supervisor::start("kill-tree").await;
    supervisor.kill();
    supervisor.all_is_gone(Duration::from_secs(1)).await;
    for name in ["guard.json", "guard.sock"] {
        assert!(!supervisor.path(name).exists(), "{name}");
    }
}

async fn a_killed_supervisor_is_missed_though_its_helper_holds_its_connection() {
    let mut supervisor = Supervisor::start(WITH_HELPER).await;
    supervisor.kill();
    supervisor.all_is_gone(Duration::from_secs(5)).await; // at once with a pidfd, within a second without
    let helper = std::fs::read_to_string(supervisor.path("helper")).unwrap().parse().unwrap();
    assert!(is_alive(helper), "it is no process of the job");
    send(helper, rustix::process::Signal::KILL);
}

async fn supervisor_without_successor_takes_its_job_along() {
    let mut supervisor = Supervisor::start("keep=300").await;
    let begun = std::time::Instant::now();
    supervisor.kill();
    supervisor.all_is_gone(Duration::from_secs(2)).await;
    assert!(begun.elapsed() >= Duration::from_millis(300));
}

async fn a_rank_that_prints_is_not_harmed_by_the_loss_of_its_owner() {
    let mut supervisor = Supervisor::start("keep=60000").await;
    supervisor.kill();
    let count = || std::fs::read_to_string(supervisor.path("count")).ok()?.trim().parse::<u64>().ok();
    let before = eventually("it counts", count).await;
    eventually("it goes on", || count().filter(|now| *now > before + 1000)).await;
    let log = supervisor.path("procs/rank-2.1/stdout.log");
    let printed =
        || std::fs::read_to_string(&log).ok().filter(|text| text.contains(&format!("line {}\n", before + 500)));
    eventually("and what it prints is kept", printed).await;
    send(supervisor.guard, rustix::process::Signal::TERM);
    supervisor.all_is_gone(Duration::from_secs(5)).await;
}

async fn a_guard_that_is_asked_to_end_stops_everything() {
    let mut supervisor = Supervisor::start("keep=60000").await;
    supervisor.kill();
    send(supervisor.guard, rustix::process::Signal::TERM);
    supervisor.all_is_gone(Duration::from_secs(5)).await;
    assert!(!supervisor.path("guard.json").exists());
}
