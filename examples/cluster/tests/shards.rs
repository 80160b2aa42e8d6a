//! A job with sharded state on three hosts in namespaces of this machine: a host is lost with all its ranks, and the job
//! resumes from copies in the memory of another host.

#![allow(clippy::unwrap_used, reason = "this is a test")]

use std::process::ExitCode;
use std::time::Duration;
use taskd_cluster_example::hosts::Unavailable;
use taskd_cluster_example::run_if_role;
use taskd_cluster_example::shards::Shards;
use taskd_core::launch::guard;
use taskd_pytorch::{store, venv};
use taskd_testing::testing::guarded_test;

const NAME: &str = "ranks_of_a_lost_host_resume_from_copies_on_another_host";
/// Long, so that a machine with much other work loses no host.
const LEASE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    guard::init(); // this program is also the guard
    store::init(); // and the store
    match run_if_role() {
        Some(code) => code, // and the manager, and the agents
        None => guarded_test(NAME, ranks_of_a_lost_host_resume_from_copies_on_another_host),
    }
}

async fn ranks_of_a_lost_host_resume_from_copies_on_another_host() {
    if std::env::var("TASKD_SKIP").is_ok_and(|skip| skip.split(',').any(|part| part == "torch")) {
        return eprintln!("{NAME} is skipped: TASKD_SKIP names torch");
    }
    let python = tokio::task::spawn_blocking(|| venv::locate(&mut |line| eprintln!("{line}")));
    let python = python.await.unwrap().unwrap();
    let resumed = match (Shards { python, lease: LEASE, every: 10, cpus: 1.0 }).run().await {
        Ok(resumed) => resumed,
        Err(error) if error.downcast_ref::<Unavailable>().is_some() => {
            return eprintln!("{NAME} is skipped: {error}");
        }
        Err(error) => panic!("{error}"),
    };
    println!("{resumed:#?}");
    assert!(resumed.problems.is_empty(), "{resumed:#?}");
    // A machine with much other work may be silent meanwhile, which is an incident of its own.
    assert!(resumed.blamed.contains("node-lost in node h2 (restart)"), "{resumed:#?}");
    assert!(resumed.steps_lost <= resumed.steps_lost_max && resumed.compared > 0, "{resumed:#?}");
}
