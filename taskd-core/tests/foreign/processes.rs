//! Which processes are watched, how their ends are reported, and that nothing is done to them.

use crate::support::*;
use rustix::process::{Signal, kill_process};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;
use taskd_core::job::{JobSpec, ProcId, Rank, Termination, WorkerSpec};
use taskd_core::launch::{
    ExternalCounts, ExternalError, ExternalProcs, LaunchError, Launcher, Place, StartBatch, StartOrder,
};
use tokio::time::timeout;

#[tokio::test]
async fn the_topmost_carrier_of_a_rank_is_the_rank() {
    let job = Job::run("RANK=1 sh -c 'sleep 600 & sleep 600 & wait' & (RANK=0 sleep 600) & sleep 600 & wait");
    let foreign = job.watched().await;
    let (zero, one) = (pid(&foreign, ProcId::rank(0, 1)).await, pid(&foreign, ProcId::rank(1, 1)).await);
    let name = |pid: rustix::process::Pid| fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).unwrap();
    assert_eq!((name(zero).trim(), name(one).trim()), ("sleep", "sh"));
    assert_eq!(foreign.list().await.unwrap().procs.len(), 2);
    assert_eq!(foreign.counts().doubles, 0);
}

#[tokio::test]
async fn exits_are_reported_with_their_code_or_signal() {
    let job = Job::run(&format!("RANK=0 sh -c '{WAIT}; exit 7' & RANK=1 sleep 600 & wait; sleep 600"));
    let foreign = job.watched().await;
    pid(&foreign, ProcId::rank(0, 1)).await;
    job.go_on();
    kill_process(pid(&foreign, ProcId::rank(1, 1)).await, Signal::KILL).unwrap();
    assert_ended(exit(&foreign, ProcId::rank(1, 1)).await.how, KILLED);
    assert_ended(exit(&foreign, ProcId::rank(0, 1)).await.how, Termination::Code(7));
    foreign.acknowledge(&[ProcId::rank(0, 1), ProcId::rank(1, 1)]).await.unwrap();
    assert_eq!(foreign.list().await.unwrap().procs, []);
}

#[tokio::test]
async fn the_exit_of_an_unreaped_process_is_reported() {
    let job = Job::run("RANK=3 sleep 600 & exec sleep 601"); // its parent does not wait for it
    let foreign = job.watched().await;
    kill_process(pid(&foreign, ProcId::rank(3, 1)).await, Signal::KILL).unwrap();
    assert_eq!(exit(&foreign, ProcId::rank(3, 1)).await.how, KILLED);
}

#[tokio::test]
async fn another_process_of_a_rank_is_its_next_incarnation() {
    let job = Job::run("while :; do RANK=0 sleep 600; done");
    let foreign = job.watched().await;
    for incarnation in 1..4 {
        let proc = ProcId::rank(0, incarnation);
        kill_process(pid(&foreign, proc.clone()).await, Signal::KILL).unwrap();
        assert_ended(exit(&foreign, proc).await.how, KILLED);
    }
    assert_eq!(foreign.counts().doubles, 0);
}

#[tokio::test]
async fn a_rank_stopped_after_a_failure_is_a_consequence_of_it() {
    let job = Job::run("for r in 0 1 2; do RANK=$r sleep 600 & done; exec sleep 601");
    let foreign = job.watched().await;
    let mut pids = Vec::new();
    for rank in 0..3 {
        pids.push(pid(&foreign, ProcId::rank(rank, 1)).await);
    }
    kill_process(pids[1], Signal::TERM).unwrap(); // the fault itself may be a SIGTERM, too
    assert_eq!(exit(&foreign, ProcId::rank(1, 1)).await.error, None);
    kill_process(pids[0], Signal::TERM).unwrap();
    kill_process(pids[2], Signal::KILL).unwrap();
    for rank in [0, 2] {
        let error = exit(&foreign, ProcId::rank(rank, 1)).await.error.expect("an explanation");
        assert!(error.follow_up && error.text.contains("after rank 1 had failed"), "{error:?}");
    }
}

#[tokio::test]
async fn given_processes_are_watched_and_no_others() {
    let mut sleepers: Vec<Child> = (0..2).map(|_| Command::new("sleep").arg("600").spawn().unwrap()).collect();
    let given = sleepers.iter().enumerate().map(|(rank, child)| (Rank(rank.try_into().unwrap()), child.id()));
    let foreign = ExternalProcs::of(given).look_every(LOOK_EVERY).attach().await.unwrap();
    assert_eq!(foreign.list().await.unwrap().procs.len(), 2);
    for (rank, child) in sleepers.iter_mut().enumerate() {
        child.kill().unwrap();
        let proc = ProcId::rank(rank.try_into().unwrap(), 1);
        assert_eq!(exit(&foreign, proc).await.how, KILLED);
        child.wait().unwrap();
    }
    timeout(PATIENCE, foreign.ended()).await.expect("all of them are gone");
}

/// A cgroup of its own; `None` where this user may make none.
struct Cgroup(PathBuf);

impl Cgroup {
    fn make() -> Option<Cgroup> {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/freezer"];
        let made = roots.iter().map(|root| PathBuf::from(root).join(format!("taskd-test-{}", std::process::id())));
        made.into_iter().find(|dir| fs::create_dir(dir).is_ok() && dir.join("cgroup.procs").exists()).map(Cgroup)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0); // fails only while something of the test still runs in it
    }
}

#[tokio::test]
async fn the_ranks_of_a_cgroup_are_watched_until_it_is_empty() {
    let Some(cgroup) = Cgroup::make() else {
        return eprintln!("left out: this user may make no cgroup");
    };
    let enter = format!("echo $$ > {}/cgroup.procs", cgroup.0.display());
    let job = Job::run(&format!("{enter}; RANK=0 sh -c 'sleep 600 & wait' & RANK=1 sleep 600 & wait"));
    let foreign = ExternalProcs::in_cgroup(&cgroup.0).look_every(LOOK_EVERY).attach().await.unwrap();
    kill_process(pid(&foreign, ProcId::rank(1, 1)).await, Signal::KILL).unwrap();
    assert_ended(exit(&foreign, ProcId::rank(1, 1)).await.how, KILLED);
    assert!(timeout(3 * LOOK_EVERY, foreign.ended()).await.is_err(), "rank 0 is still there");
    drop(job);
    timeout(PATIENCE, foreign.ended()).await.expect("nothing is left in it");
    assert_ended(exit(&foreign, ProcId::rank(0, 1)).await.how, KILLED);
}

#[tokio::test]
async fn a_job_ends_with_its_root_process_and_all_exits_are_listed() {
    let job = Job::run(&format!("RANK=0 sh -c '{WAIT}'; exit 3"));
    let foreign = job.watched().await;
    pid(&foreign, ProcId::rank(0, 1)).await;
    job.go_on();
    timeout(PATIENCE, foreign.ended()).await.expect("the shell has ended");
    let listed = foreign.list().await.unwrap().procs;
    assert!(listed.iter().all(|status| status.phase.is_exited()) && listed.len() == 1, "{listed:?}");
}

#[tokio::test]
async fn a_foreign_launcher_refuses_to_start_or_stop_processes() {
    let job = Job::run("RANK=0 sleep 600 & wait");
    let foreign = job.watched().await;
    let running = pid(&foreign, ProcId::rank(0, 1)).await;
    let refusal = |error: LaunchError| if let LaunchError::Refused(why) = error { why } else { panic!("{error}") };
    let stop = foreign.stop(&[ProcId::rank(0, 1)], Duration::ZERO).await.map_err(refusal);
    assert_eq!(stop, Err("rank 0#1 is not stopped: this launcher only watches existing processes".into()));
    assert_eq!(foreign.stop(&[ProcId::rank(7, 1)], Duration::ZERO).await, Ok(()));

    let spec = JobSpec::new("job", 1, WorkerSpec::new(["true"]));
    let order = StartOrder::new(ProcId::rank(0, 2), Place::anywhere(), Arc::clone(&spec.worker));
    let start = foreign.start(&StartBatch::new(Arc::new(spec.first_world()), vec![order])).await;
    let why = "rank 0#2 is not started: this launcher only watches existing processes";
    assert_eq!(start.map_err(refusal), Err(why.into()));
    assert_eq!(pid(&foreign, ProcId::rank(0, 1)).await, running);
}

#[tokio::test]
async fn a_target_that_cannot_be_watched_is_named_in_the_error() {
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    for pid in [gone.id(), 0, u32::MAX] {
        let error = ExternalProcs::below(pid).attach().await.unwrap_err();
        assert!(matches!(error, ExternalError::NoProcess { pid: named } if named == pid), "{error}");
    }
    let error = ExternalProcs::of([]).attach().await.unwrap_err();
    assert_eq!(error.to_string(), "no process was given: name at least one rank with its process");
    let error = ExternalProcs::below(1).rank_variable("A=B").attach().await.unwrap_err();
    assert!(error.to_string().starts_with("\"A=B\" cannot be the name of an environment variable"), "{error}");
    let error = ExternalProcs::in_cgroup("/nonexistent").attach().await.unwrap_err();
    assert!(error.to_string().starts_with("the processes to be watched cannot be listed"), "{error}");
}

#[tokio::test]
async fn bounds_hold_and_are_counted() {
    let job = Job::run("for r in 0 1 2 3; do RANK=$r sleep 600 & done; wait");
    let foreign = ExternalProcs::below(job.root.id()).look_every(LOOK_EVERY).ranks_max(2).attach().await.unwrap();
    pid(&foreign, ProcId::rank(0, 1)).await;
    pid(&foreign, ProcId::rank(1, 1)).await;
    counted(&foreign, |counts| counts.ranks_out_of_bounds == 2).await;
    let foreign = ExternalProcs::below(job.root.id()).look_every(LOOK_EVERY).processes_max(2).attach().await.unwrap();
    until(&foreign, |procs| (!procs.is_empty()).then_some(())).await;
    assert!(foreign.list().await.unwrap().procs.len() < 4);
    counted(&foreign, |counts| counts.passed_over > 0).await;
}

/// Waits until it was counted.
async fn counted(foreign: &ExternalProcs, enough: impl Fn(ExternalCounts) -> bool) {
    let counting = async {
        while !enough(foreign.counts()) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    timeout(PATIENCE, counting).await.expect("it is counted");
}
