//! Which process ends when: exits of seated ranks, templates and guards that die, and nothing that piles up.

use std::time::Duration;

use rustix::process::Signal;
use taskd_core::job::{ProcId, Termination};
use taskd_core::launch::{Change, Launcher, Revision};

use crate::job::{Job, template};
use crate::support::{children_of, eventually, exit_of, guard_pid, is_alive, pid_of, send};

/// Those below the guard that no launcher knows: templates and those that wait.
async fn unknown(job: &Job) -> Vec<u32> {
    let known: Vec<u32> = job.launcher.list().await.unwrap().procs.iter().filter_map(|status| status.pid).collect();
    let all = children_of(guard_pid(&job.path("run")));
    all.into_iter().filter(|pid| !known.contains(pid) && is_alive(*pid)).collect()
}

fn children(pid: u32) -> usize {
    children_of(pid).len()
}

#[tokio::test]
async fn exits_come_once_and_as_they_were_while_the_template_lives_and_after_it() {
    let job = Job::new(template().ahead(3)).await;
    let acts = "import os, signal, sys\n\
                act = sys.argv[1]\n\
                if act == 'raise': raise ValueError('boom')\n\
                if act == 'exit': sys.exit(7)\n\
                os.kill(os.getpid(), signal.SIGKILL)";
    let spec = |act: &str| {
        let mut spec = job.program(acts);
        spec.argv.push(act.into());
        spec
    };
    let specs = || ["raise", "exit", "kill"].map(spec);
    let ends = ["exit code 1", "exit code 7", "signal 9 (SIGKILL)"];
    let mut expected = Vec::new();
    for incarnation in 1..=4 {
        if incarnation == 4 {
            // The template dies; those that wait already do not mind.
            let template = *unknown(&job).await.iter().min().unwrap();
            send(template, Signal::KILL);
            job.has_logged("a template has failed").await;
        }
        let procs = job.start(incarnation, specs()).await;
        for (proc, end) in procs.iter().zip(ends) {
            let exit = exit_of(&job.launcher, proc).await;
            assert_eq!(exit.how.to_string(), end, "{proc}");
            assert_eq!(exit.stderr_tail.contains("ValueError: boom"), end == ends[0]);
            expected.push(proc.clone());
        }
        if incarnation < 4 {
            job.standbys(3).await;
        }
    }
    assert_eq!(job.counters().await.standbys_seated, 9);
    let from = Revision { seq: 0, ..job.launcher.list().await.unwrap().revision };
    let (changes, _) = job.launcher.watch(from).await.unwrap();
    let exits = changes.iter().filter_map(|change| match change {
        Change::Proc(status) if status.phase.is_exited() => Some(status.proc.clone()),
        _ => None,
    });
    let mut exits: Vec<ProcId> = exits.collect();
    exits.sort();
    expected.sort();
    assert_eq!(exits, expected, "each exactly once");
    job.end().await;
}

/// Writes the pid of a daemon that has a session, an environment and a parent of its own.
const LEAVES_A_DAEMON: &str = "
import subprocess, time
say = 'echo $$ > daemon.new; mv daemon.new daemon; exec sleep 1000'
subprocess.run(['sh', '-c', 'setsid env -i sh -c \"$0\" > /dev/null 2>&1 &', say])
time.sleep(600)
";

#[tokio::test]
async fn a_daemon_of_a_seated_rank_ends_with_the_rank() {
    let job = Job::new(template().ahead(1)).await;
    if !std::fs::read_to_string(job.path("run/guard.json")).unwrap().contains("\"cgroup\":\"") {
        return println!("skipped: no control group can be made here (it takes root, or a delegated one of version 2)");
    }
    let spec = job.program(LEAVES_A_DAEMON);
    let mut last = job.start(1, [spec.clone()]).await;
    for incarnation in 2..=5 {
        let read = || std::fs::read_to_string(job.path("daemon")).ok()?.trim().parse().ok();
        let daemon: u32 = eventually("it is up", read).await;
        job.standbys(1).await;
        job.launcher.stop(&last, Duration::ZERO).await.unwrap();
        exit_of(&job.launcher, &last[0]).await;
        std::fs::remove_file(job.path("daemon")).unwrap();
        last = job.start(incarnation, [spec.clone()]).await;
        assert!(!is_alive(daemon), "{incarnation}");
    }
    assert_eq!(job.counters().await.standbys_seated, 4);
    assert_eq!(job.counters().await.cgroups_missing, 0);
    job.end().await;
}

#[tokio::test]
async fn when_the_guard_is_killed_nothing_of_it_is_left() {
    let job = Job::new(template().ahead(2)).await;
    let sleeps = job.program("import time; time.sleep(600)");
    let first = job.start(1, [sleeps.clone()]).await;
    job.standbys(2).await;
    job.launcher.stop(&first, Duration::ZERO).await.unwrap();
    exit_of(&job.launcher, &first[0]).await;
    let second = job.start(2, [sleeps]).await;
    job.standbys(2).await;
    assert_eq!(job.counters().await.standbys_seated, 1);
    let mut all = unknown(&job).await;
    assert_eq!(all.len(), 3, "a template and two that wait");
    all.push(pid_of(&job.launcher, &second[0]).await);
    send(guard_pid(&job.path("run")), Signal::KILL);
    eventually("everything is gone", || (!all.iter().any(|pid| is_alive(*pid))).then_some(())).await;
    let how = exit_of(&job.launcher, &second[0]).await.how;
    let died_with_it = matches!(how, Termination::Signal { number: 9, .. } | Termination::Unknown);
    assert!(died_with_it, "{how}: as what it was seen dying, if it was seen");
    // And the next guard has standbys of its own.
    let third = job.start(3, [job.program("import time; time.sleep(600)")]).await;
    job.standbys(2).await;
    assert!(is_alive(pid_of(&job.launcher, &third[0]).await));
    job.end().await;
}

#[tokio::test]
async fn shutting_down_ends_all_processes() {
    let job = Job::new(template().ahead(2)).await;
    job.run(1, job.program("pass")).await;
    job.standbys(2).await;
    let all = unknown(&job).await;
    job.end().await;
    assert!(!all.iter().any(|pid| is_alive(*pid)));
}

#[tokio::test]
async fn orphans_of_a_seated_rank_are_killed_when_the_rank_ends() {
    let job = Job::new(template().ahead(1)).await;
    // A forked child in a session of its own has only the environment of its start to be known by.
    let leaves = job.program(
        "import os, sys, time\n\
         if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os.setsid()\n        \
         open('left', 'w').write(str(os.getpid()))\n        os.rename('left', 'left.pid')\n        time.sleep(600)\n    os._exit(0)\n\
         while not os.path.exists('left.pid'): time.sleep(0.002)",
    );
    for incarnation in 1..=2 {
        let _ = std::fs::remove_file(job.path("left.pid"));
        assert_eq!(job.run(incarnation, leaves.clone()).await, "exit code 0");
        let left: u32 = std::fs::read_to_string(job.path("left.pid")).unwrap().parse().unwrap();
        eventually("what it left is gone", || (!is_alive(left)).then_some(())).await;
        job.standbys(1).await;
    }
    assert_eq!(job.counters().await.standbys_seated, 1);
    job.end().await;
}

#[tokio::test]
async fn many_whole_restarts_leave_nothing_behind() {
    let job = Job::new(template()).await;
    let guard = guard_pid(&job.path("run"));
    let spec = job.program("import time; time.sleep(600)");
    let count = |what: &str| std::fs::read_dir(format!("/proc/{guard}/{what}")).unwrap().count();
    let kib = || {
        let status = std::fs::read_to_string(format!("/proc/{guard}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let rounds = if std::env::var_os("TASKD_SOAK").is_some() { 500 } else { 50 };
    let mut settled = None;
    for incarnation in 1..=rounds {
        let procs = job.start(incarnation, [spec.clone(), spec.clone(), spec.clone(), spec.clone()]).await;
        if incarnation > 1 {
            assert_eq!(job.counters().await.standbys_seated, u64::from(incarnation - 1) * 4, "{}", job.log());
        }
        job.launcher.stop(&procs, Duration::ZERO).await.unwrap();
        for proc in &procs {
            exit_of(&job.launcher, proc).await;
        }
        job.launcher.acknowledge(&procs).await.unwrap();
        job.standbys(4).await;
        if incarnation == 5 {
            settled = Some((count("fd"), count("task"), children(guard), kib()));
        }
    }
    // A round may be counted with a request open. A leak of one per round would add far more than this.
    let settled = settled.unwrap();
    let few = usize::try_from(rounds / 10).unwrap();
    let is_as_before = || count("fd") <= settled.0 + few && count("task") <= settled.1 + few && children(guard) == 5;
    eventually(&format!("again {settled:?}"), || is_as_before().then_some(())).await;
    assert_eq!(settled.2, 5, "a template and four standbys");
    assert!(kib() <= settled.3 + 512, "{} KiB, and {} KiB after five rounds", kib(), settled.3);
    job.end().await;
}
