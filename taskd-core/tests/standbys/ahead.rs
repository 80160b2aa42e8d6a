//! Standbys that run their program ahead of their rank, and wait where it has to know it.

use std::time::Duration;

use rustix::process::Signal;
use taskd_core::job::{ProcId, WorkerSpec};
use taskd_core::launch::python::Standbys;
use taskd_core::launch::{JOIN_VARIABLE, Launcher, LinkStatus};

use crate::job::{Job, PATIENCE, template};
use crate::support::{exit_of, guard_pid, pid_of, send};

/// What a program does that has come to its step loop: its page shows it.
const IN_LOOP: &str = "
import os, sys
def in_loop():
    with open(os.environ['TASKD_LIFELINE'], 'r+b') as page:
        page.seek(76)
        page.write((1).to_bytes(4, sys.byteorder))
";

/// Leaves a file named after its process, then asks for its rank, and reports it.
const PROGRAM: &str = "
import json, os, sys
open('begun-%d' % os.getpid(), 'w').close()
known = os.environ['TASKD_WORLD_SIZE'], os.environ.get('TASKD_JOB_NAME'), 'OF_NOBODY' in os.environ
@ASKS
whole = 'report-%s' % os.environ['TASKD_PROC']
with open(whole + '.new', 'w') as file:
    json.dump(dict(pid=os.getpid(), rank=os.environ['RANK'], env=dict(os.environ), known=known, argv=sys.argv,
        kind=type(os.environ).__name__ + type(os.environ).__module__, device=getattr(os, 'device_held', None)), file)
os.rename(whole + '.new', whole)
in_loop()
import time; time.sleep(600)
";

pub(crate) fn asks(how: &str) -> String {
    format!("{IN_LOOP}{}", PROGRAM.replace("@ASKS", how))
}

pub(crate) fn joining(spec: &WorkerSpec) -> WorkerSpec {
    spec.clone().with_env(JOIN_VARIABLE, "2")
}

async fn is_parked(job: &Job, at: &str) {
    job.has_logged(&format!("a standby is pre-warmed: it {at}")).await;
    assert_eq!(job.counters().await.standbys_parked, 1);
}

pub(crate) async fn kill(job: &Job, procs: &[ProcId]) {
    job.launcher.stop(procs, Duration::ZERO).await.unwrap();
    for proc in procs {
        exit_of(&job.launcher, proc).await;
    }
    job.launcher.acknowledge(procs).await.unwrap();
}

#[tokio::test]
async fn a_rank_that_joins_others_goes_on_where_its_standby_has_come_to() {
    for (how, at) in [
        ("rank = os.environ['RANK']", "asks for the variable RANK"),
        ("rank = os.getenv('RANK', 'none')", "asks for the variable RANK"),
        ("rank = dict(os.environ)['RANK']", "looks at its whole environment"),
        (
            "import threading; t = threading.Thread(target=os.getenv, args=['RANK']); t.start(); os.environ['RANK']",
            "asks",
        ),
    ] {
        let job = Job::new(template().ahead(1)).await;
        let spec = job.program(&asks(how));
        let first = job.start(1, [spec.clone(), spec.clone()]).await;
        is_parked(&job, at).await;
        kill(&job, &first[1..]).await;
        let second = job.start_only(2, 1, joining(&spec)).await;
        let (new, old) = (job.report("report-rank-1.2").await, job.report("report-rank-1.1").await);
        assert!(job.path(&format!("begun-{}", new["pid"])).exists());
        assert_eq!((&new["pid"], &new["rank"]), (&pid_of(&job.launcher, &second).await.into(), &"1".into()), "{at}");
        let mut expected = old["env"].clone();
        for changed in ["TASKD_PROC", "TASKD_INCARNATION", "TASKD_GENERATION", "TASKD_RESTARTS", "TASKD_ERROR_FILE"] {
            expected[changed] = new["env"][changed].clone();
        }
        for changed in ["TASKD_LIFELINE", "TASKD_RANK_PID", "TASKD_HANDOFF", "PORT", JOIN_VARIABLE] {
            expected[changed] = new["env"][changed].clone();
        }
        assert_eq!(new["env"], expected, "{at}");
        for same in ["known", "argv", "kind"] {
            assert_eq!(new[same], old[same], "{same}");
        }
        assert_eq!(job.counters().await.standbys_seated, 1);
        job.end().await;
    }
}

#[tokio::test]
async fn rank_of_a_whole_restart_is_not_seated_in_a_parked_standby() {
    let job = Job::new(template().ahead(1)).await;
    let spec = job.program(&asks("os.environ['RANK']"));
    let first = job.start(1, [spec.clone()]).await;
    is_parked(&job, "asks for the variable RANK").await;
    job.standbys(1).await;
    kill(&job, &first).await;
    job.start(2, [spec.clone()]).await;
    job.report("report-rank-0.2").await;
    let counters = job.counters().await;
    assert_eq!((counters.standbys_parked, counters.standbys_seated), (1, 1), "in the one that has run nothing");
    job.end().await;
}

/// Reports over the control link that it is in its step loop.
const LINKED: &str = "
import socket
link = socket.socket(socket.AF_UNIX)
link.connect(os.environ['TASKD_CONTROL'])
hello = dict(version=1, proc=os.environ['TASKD_PROC'], pid=os.getpid(), generation=1, framework='plain', capabilities=[], position='in-loop')
body = json.dumps(dict(hello=hello)).encode()
link.sendall(len(body).to_bytes(4, 'little') + body)
";

/// Waits until `count` standbys have parked.
pub(crate) async fn have_parked(job: &Job, count: u64) {
    let until = tokio::time::Instant::now() + PATIENCE;
    while job.counters().await.standbys_parked != count {
        assert!(tokio::time::Instant::now() < until, "{:?}\n{}", job.counters().await, job.log());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Two ranks take their places in a world, both in standbys that had run ahead before.
async fn both_join_as_parked(job: &Job, spec: &WorkerSpec) {
    let begun =
        || std::fs::read_dir(job.dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let before: Vec<String> = begun().filter(|name| name.starts_with("begun-")).collect();
    for rank in [0, 1] {
        job.start_only(2, rank, joining(spec)).await;
        let new = job.report(&format!("report-rank-{rank}.2")).await;
        assert!(before.contains(&format!("begun-{}", new["pid"])), "rank {rank} was not seated in one of {before:?}");
    }
    assert_eq!(job.counters().await.standbys_seated, 2);
}

#[tokio::test]
async fn parked_standbys_reach_the_configured_number() {
    let job = Job::new(template().ahead(1).parked(2)).await;
    let spec = job.program(&asks("os.environ['RANK']"));
    let first = job.start(1, [spec.clone(), spec.clone()]).await;
    have_parked(&job, 2).await;
    kill(&job, &first).await;
    both_join_as_parked(&job, &spec).await;
    have_parked(&job, 2).await;
    job.end().await;
}

#[tokio::test]
async fn pre_started_standbys_run_ahead_for_the_rank_of_their_device() {
    let job = Job::new(Standbys::pre_started(2).after(Duration::ZERO).parked(2)).await;
    let spec = job.program(&asks("os.environ['RANK']"));
    let first = job.start(1, [spec.clone(), spec.clone()]).await;
    have_parked(&job, 2).await;
    kill(&job, &first).await;
    both_join_as_parked(&job, &spec).await;
    for rank in 0..2 {
        assert_eq!(job.report(&format!("report-rank-{rank}.2")).await["device"], rank);
    }
    have_parked(&job, 2).await;
    job.end().await;
}

#[tokio::test]
async fn new_guard_parks_standbys_for_all_ranks_of_the_killed_guard() {
    let job = Job::new(template().ahead(1)).await;
    let program = asks("os.environ['RANK']").replace("\nin_loop()", &format!("{LINKED}in_loop()"));
    let spec = job.program(&program);
    let first = job.start(1, [spec.clone(), spec.clone()]).await;
    have_parked(&job, 1).await;
    let linked = |links: &[LinkStatus]| links.iter().any(|link| link.link.is_some());
    while !linked(&job.launcher.list().await.unwrap().links) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    send(guard_pid(&job.path("run")), Signal::KILL);
    for proc in &first {
        exit_of(&job.launcher, proc).await;
    }
    have_parked(&job, 2).await;
    both_join_as_parked(&job, &spec).await;
    job.end().await;
}

#[tokio::test]
async fn standby_of_a_program_without_a_step_loop_is_not_run_ahead() {
    let job = Job::new(template().ahead(1)).await;
    let spec = job.program(&PROGRAM.replace("@ASKS", "").replace("in_loop()", ""));
    job.start(1, [spec]).await;
    let report = job.report("report-rank-0.1").await;
    job.standbys(1).await;
    let begun = std::fs::read_dir(job.dir.path()).unwrap().flatten();
    let begun: Vec<String> = begun.map(|entry| entry.file_name().into_string().unwrap()).collect();
    let begun: Vec<&String> = begun.iter().filter(|name| name.starts_with("begun-")).collect();
    assert_eq!(begun, [&format!("begun-{}", report["pid"])]);
    job.end().await;
}

#[tokio::test]
async fn a_program_that_fails_without_its_rank_costs_those_that_wait_nothing() {
    let job = Job::new(template().ahead(1)).await;
    let spec = job.program(&asks("if 'calendar' in sys.modules: raise KeyError('no rank')"));
    job.start(1, [spec]).await;
    job.has_logged("a pre-warmed standby has failed").await;
    job.standbys(1).await;
    assert_eq!(job.counters().await.standbys_parked, 0);
    job.end().await;
}
