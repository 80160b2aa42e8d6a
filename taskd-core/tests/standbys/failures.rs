//! Standbys that cannot be, that break and that hang: the rank is started in the usual way, and the reason is logged.

use std::time::Duration;

use rustix::process::Signal;
use taskd_core::launch::Launcher;

use crate::job::{Job, template};
use crate::support::{children_of, exit_of, guard_pid, is_alive, pid_of, send};

/// Runs the first start, and returns what is logged of its standbys.
async fn refused(warm: &str, standbys: taskd_core::launch::python::Standbys, files: &[(&str, &str)]) -> String {
    let job = Job::new(standbys).await;
    for (name, text) in files {
        std::fs::write(job.path(name), text).unwrap();
    }
    let spec = job.program("import sys; sys.exit(3 if 'calendar' in sys.modules else 0)").with_env("WARM", warm);
    assert_eq!(job.run(1, spec.clone()).await, "exit code 0");
    job.has_logged("no standbys for").await;
    let output = job.log();
    assert_eq!(job.run(2, spec).await, "exit code 0", "started in the usual way");
    let counters = job.counters().await;
    assert_eq!((counters.standbys_seated, counters.standbys_missed, counters.panics), (0, 2, 0));
    let guard = guard_pid(&job.path("run"));
    crate::support::eventually("no template is left", || children_of(guard).is_empty().then_some(())).await;
    job.end().await;
    let line = output.lines().find(|line| line.contains("no standbys for")).unwrap();
    line.split_once("usual way: ").unwrap().1.to_owned()
}

#[tokio::test]
async fn a_template_that_could_not_be_forked_is_refused_with_the_reason() {
    let warm = "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()";
    let why = refused(warm, template(), &[]).await;
    assert!(why.contains("it has 2 threads (") && why.contains("a forked child would have one of them"), "{why}");
    let why = refused("import socket; socket.kept = socket.socketpair()", template(), &[]).await;
    assert!(why.contains("an imported module has opened socket:["), "{why}");
    let why = refused("os.environ['WHY_NOT'] = 'it holds device 0'", template(), &[]).await;
    assert_eq!(why, "it holds device 0");
}

#[tokio::test]
async fn a_module_that_cannot_be_imported_without_a_rank_is_named() {
    let asks = ("asks.py", "import os; os.environ['RANK']");
    let why = refused("", template().import("asks"), &[asks]).await;
    assert!(why.contains("import of asks: KeyError: 'RANK'"), "{why}");
    let exits = ("exits.py", "import sys; sys.exit(0)");
    let why = refused("", template().import("exits"), &[exits]).await;
    assert!(why.contains("import of exits: SystemExit: 0"), "{why}");
}

#[tokio::test]
async fn an_interpreter_that_does_not_wait_never_runs_the_program_for_it() {
    let job = Job::new(template()).await;
    // Whatever stands in front of Python and does not become it, or takes the path away.
    let wrapper = job.path("python3");
    let python = taskd_core::testing::python::system();
    std::fs::write(&wrapper, format!("#!/bin/sh\nunset PYTHONPATH\n{python} \"$@\"\n")).unwrap();
    std::fs::set_permissions(&wrapper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = job.program("open('ran', 'a').write('x')");
    let mut spec = program;
    spec.argv[0] = wrapper.display().to_string();
    assert_eq!(job.run(1, spec.clone()).await, "exit code 0");
    job.has_logged("no standbys for").await;
    assert!(job.log().contains("does not answer as a standby"), "{}", job.log());
    assert_eq!(job.run(2, spec).await, "exit code 0");
    assert_eq!(std::fs::read_to_string(job.path("ran")).unwrap(), "xx", "two ranks, and no other process");
    job.end().await;
}

#[tokio::test]
async fn any_other_difference_ends_the_standbys_and_makes_others() {
    let job = Job::new(template().ahead(1)).await;
    let spec = job.program("import sys; sys.exit(3 if 'calendar' in sys.modules else 0)");
    assert_eq!(job.run(1, spec.clone()).await, "exit code 0");
    job.standbys(1).await;
    let guard = guard_pid(&job.path("run"));
    let before = children_of(guard);
    let other = spec.with_env("DATA", "/elsewhere");
    assert_eq!(job.run(2, other.clone()).await, "exit code 0", "in the usual way");
    job.standbys(1).await;
    assert!(!before.iter().any(|pid| is_alive(*pid)));
    assert_eq!(job.run(3, other).await, "exit code 3", "seated");
    let counters = job.counters().await;
    assert_eq!((counters.standbys_seated, counters.standbys_missed), (1, 2));
    assert!(counters.standbys_discarded >= 2);
    job.end().await;
}

#[tokio::test]
async fn a_standby_that_was_stopped_or_killed_is_passed_over() {
    for signal in [Signal::STOP, Signal::KILL] {
        let job = Job::new(template().ahead(1)).await;
        let spec = job.program("import time; time.sleep(600)");
        let first = job.start(1, [spec.clone()]).await;
        job.standbys(1).await;
        let rank = pid_of(&job.launcher, &first[0]).await;
        let guard = guard_pid(&job.path("run"));
        // The template first: its child that waits is the last of the two.
        let mut others: Vec<u32> = children_of(guard).into_iter().filter(|pid| *pid != rank).collect();
        others.sort_by_key(|pid| start_time(*pid));
        assert_eq!(others.len(), 2);
        send(others[0], Signal::STOP); // it cannot fork another in time
        send(others[1], signal);
        crate::support::eventually("the signals have struck", || {
            others.iter().all(|pid| is_struck(*pid)).then_some(())
        })
        .await;
        job.launcher.stop(&first, Duration::ZERO).await.unwrap();
        exit_of(&job.launcher, &first[0]).await;
        let second = job.start(2, [spec]).await;
        assert!(!others.contains(&pid_of(&job.launcher, &second[0]).await));
        let counters = job.counters().await;
        assert_eq!((counters.standbys_seated, counters.standbys_missed), (0, 2), "{}", job.log());
        job.end().await;
    }
}

#[tokio::test]
async fn a_template_that_stops_in_the_middle_of_a_request_is_ended_and_replaced() {
    let job = Job::new(template().ahead(1)).await;
    job.run(1, job.program("pass")).await;
    let spec = job.program("import time; time.sleep(600)");
    job.standbys(1).await;
    let guard = guard_pid(&job.path("run"));
    let mut others = children_of(guard);
    others.sort_by_key(|pid| start_time(*pid));
    send(others[0], Signal::STOP);
    crate::support::eventually("the signal has struck", || is_struck(others[0]).then_some(())).await;
    let two = job.start(2, [spec.clone(), spec]).await; // one waits, the other would have to be forked
    let counters = job.counters().await;
    assert_eq!((counters.standbys_seated, counters.standbys_missed), (1, 2), "{}", job.log());
    for proc in &two {
        let is_alive = is_alive(pid_of(&job.launcher, proc).await);
        assert!(is_alive, "{proc}: {:?}\n{}", job.launcher.list().await.unwrap().procs, job.log());
    }
    job.has_logged("a template has failed: it has not answered in time").await;
    crate::support::eventually("it is gone", || (!is_alive(others[0])).then_some(())).await;
    job.standbys(1).await;
    job.end().await;
}

#[tokio::test]
async fn a_template_that_answers_garbage_is_ended() {
    // The framework's file finds the seat among the descriptors and sends what was not asked for.
    let garbage = "import _socket\n\
                   for fd in os.listdir('/proc/self/fd'):\n    \
                       if os.path.exists('/proc/self/fd/' + fd) and os.readlink('/proc/self/fd/' + fd).startswith('socket'):\n        \
                           _socket.socket(fileno=os.dup(int(fd))).send(GARBAGE)";
    for (bytes, why) in [
        ("b'\\xff\\xfe'", "its answer is not UTF-8"),
        ("b'forked' * 30000", "its answer is too long"),
        ("b'welcome'", "it sent an unexpected \"welcome\""),
    ] {
        let job = Job::new(template()).await;
        let spec = job.program("pass").with_env("WARM", garbage.replace("GARBAGE", bytes));
        assert_eq!(job.run(1, spec.clone()).await, "exit code 0");
        job.has_logged("no standbys for").await; // after three templates
        assert!(job.log().contains(why), "{bytes}: {}", job.log());
        assert_eq!(job.run(2, spec).await, "exit code 0");
        assert_eq!(job.counters().await.panics, 0);
        job.end().await;
    }
}

#[tokio::test]
async fn standbys_adopted_too_late_fail_alone_and_are_replaced() {
    let job = Job::new(template().ahead(4)).await;
    let spec = job.program("import sys; sys.exit(3 if 'calendar' in sys.modules else 0)").with_env("WARM", late(4));
    assert_eq!(job.run(1, spec.clone()).await, "exit code 0");
    job.standbys(4).await;
    let output = job.log();
    let failed = "a standby has failed: RuntimeError: the guard has not become our parent";
    assert!(output.contains(failed) && !output.contains("no standbys for"), "{output}");
    assert_eq!(job.run(2, spec).await, "exit code 3", "seated");
    job.end().await;
}

#[tokio::test]
async fn children_that_never_come_are_given_up() {
    let why = refused(&late(1000), template().ahead(4), &[]).await;
    assert_eq!(why, "a standby has failed: RuntimeError: the guard has not become our parent");
}

/// Returns a template whose first `children` children wait without success for the guard to become their parent, as on
/// an overloaded host.
fn late(children: usize) -> String {
    let wait = "import _taskd_standby
_taskd_standby.usual = _taskd_standby.await_parent
def await_parent(guard):
    import _taskd_standby
    for number in range(CHILDREN):
        try:
            os.close(os.open('late-%d' % number, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        raise RuntimeError('the guard has not become our parent')
    _taskd_standby.usual(guard)
_taskd_standby.await_parent = await_parent";
    wait.replace("CHILDREN", &children.to_string())
}

/// Stopped, or dead: a signal that was sent is not there at once on a busy machine.
fn is_struck(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).is_none_or(|state| "TtZX".contains(state))
}

fn start_time(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse().unwrap()
}
