//! A rank that is seated runs its own program, as itself, with everything that a rank has.

use std::time::Duration;

use taskd_core::job::{Incarnation, Termination, WorkerSpec};
use taskd_core::launch::Launcher;
use taskd_core::launch::python::Standbys;
use taskd_core::testing::python::{system, version};
use taskd_core::trace::{Fact, Signal, TraceSource};

use crate::job::{Job, template};
use crate::support::{exit_of, pid_of, send, sh, sleeper};

/// Writes its identity into a file of its own.
const IDENTITY: &str = "
import json, os, sys
import threading
def report(**more):
    whole = 'report-%s' % os.environ['TASKD_PROC']
    with open(whole + '.new', 'w') as file:
        json.dump(dict(more, env=dict(os.environ), argv=sys.argv, name=__name__, file=__file__, path=sys.path, pid=os.getpid(),
            ppid=os.getppid(), warm='calendar' in sys.modules, threads=getattr(os, 'threads_set', None),
            device=getattr(os, 'device_held', None),
            orig=getattr(sys, 'orig_argv', None),
            marked=open('/proc/self/environ').read().split('\\0')), file)
    os.rename(whole + '.new', whole)
";

#[tokio::test]
async fn four_ranks_are_seated_and_each_is_itself() {
    let job = Job::new(template()).await;
    let spec = job.program(&format!("{IDENTITY}\nreport()\nimport time; time.sleep(600)"));
    let spec = |rank: usize| {
        let mut spec = spec.clone().with_env("OMP_NUM_THREADS", "3");
        spec.argv.extend(["--rank".into(), rank.to_string()]);
        spec
    };
    let first = job.start(1, std::array::from_fn::<_, 4, _>(spec)).await;
    job.standbys(4).await;
    job.launcher.stop(&first, Duration::ZERO).await.unwrap();
    for proc in &first {
        exit_of(&job.launcher, proc).await;
    }
    job.launcher.acknowledge(&first).await.unwrap();
    let second = job.start(2, std::array::from_fn::<_, 4, _>(spec)).await;
    assert_eq!(job.counters().await.standbys_seated, 4);
    for (rank, proc) in second.iter().enumerate() {
        let (new, old) =
            (job.report(&format!("report-rank-{rank}.2")).await, job.report(&format!("report-rank-{rank}.1")).await);
        assert_eq!(new["pid"], pid_of(&job.launcher, proc).await);
        for same in ["argv", "name", "file", "path", "ppid", "orig"] {
            assert_eq!(new[same], old[same], "{same}");
        }
        let mut variables = old["env"].clone();
        let by_number = ["TASKD_LIFELINE", "TASKD_HANDOFF"]; // of a descriptor, which may be the same again
        for changed in
            ["TASKD_PROC", "TASKD_INCARNATION", "TASKD_RANK_PID", "TASKD_ERROR_FILE"].into_iter().chain(by_number)
        {
            assert!(new["env"][changed] != old["env"][changed] || by_number.contains(&changed), "{changed}");
            variables[changed] = new["env"][changed].clone();
        }
        assert_eq!(new["env"], variables);
        assert_eq!((&new["warm"], &old["warm"]), (&true.into(), &false.into()));
        assert_eq!((&new["threads"], &new["env"]["OMP_NUM_THREADS"]), (&3.into(), &"3".into()));
        let marked = new["marked"].as_array().unwrap();
        assert!(marked.contains(&format!("TASKD_PROC=rank-{rank}.2").into()), "whatever it forks is known as its");
        for shown in ["TASKD_RANK", "TASKD_GENERATION", "TASKD_INCARNATION"] {
            let value = new["env"][shown].as_str().unwrap();
            assert!(marked.contains(&format!("{shown}={value}").into()), "{shown} is seen from outside");
        }
    }
    job.end().await;
}

#[tokio::test]
async fn a_seated_ranks_lifeline_heartbeat_and_death_are_as_those_of_any_other() {
    let job = Job::new(template().ahead(1)).await;
    let looks = "with open(os.environ['TASKD_LIFELINE'], 'rb') as page: words = page.read(4096)\n\
                 at = int.from_bytes(words[72:76], sys.byteorder)\n\
                 report(state=words[20], lock=int.from_bytes(words[at:at + 4], sys.byteorder) & 0x3fffffff)\n\
                 import time; time.sleep(600)";
    let spec = job.program(&format!("{IDENTITY}\n{looks}"));
    let first = job.start(1, [spec.clone()]).await;
    job.standbys(1).await;
    job.launcher.stop(&first, Duration::ZERO).await.unwrap();
    exit_of(&job.launcher, &first[0]).await;
    let second = job.start(2, [spec]).await;
    let mut beats = job.launcher.inner().heartbeats(Duration::from_millis(5));
    let beaten = async {
        loop {
            let facts = beats.next().await.unwrap().unwrap().facts;
            let ours = |fact: &Fact| fact.incarnation == Some(Incarnation(2)) && fact.signal == Signal::Heartbeat;
            if facts.iter().any(ours) {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), beaten).await.unwrap();
    let (report, pid) = (job.report("report-rank-0.2").await, pid_of(&job.launcher, &second[0]).await);
    assert_eq!((&report["state"], &report["lock"]), (&1.into(), &pid.into()), "its main thread holds its lifeline");
    send(pid, rustix::process::Signal::KILL);
    let exit = exit_of(&job.launcher, &second[0]).await;
    assert_eq!(exit.how, Termination::Signal { number: 9, core_dumped: false });
    let counters = job.counters().await;
    assert_eq!((counters.lifelines_missing, counters.standbys_seated), (0, 1));
    job.end().await;
}

#[tokio::test]
async fn modules_and_commands_run_as_ever() {
    let job = Job::new(template().ahead(1)).await;
    std::fs::create_dir(job.path("pkg")).unwrap();
    std::fs::write(job.path("pkg/__init__.py"), "").unwrap();
    std::fs::write(job.path("pkg/train.py"), format!("{IDENTITY}\nreport(package=__package__, spec=__spec__.name)"))
        .unwrap();
    let command = format!("{IDENTITY}\n__file__ = None\nreport()");
    let lines = [vec!["-m", "pkg.train", "x"], vec!["-u", "-c", &command, "x", "y"]];
    let mut incarnation = 0;
    for line in lines {
        let argv = std::iter::once(system()).chain(line.iter().copied());
        let spec = WorkerSpec::new(argv).with_cwd(job.dir.path());
        for _ in 0..2 {
            incarnation += 1;
            let seated = job.counters().await.standbys_seated;
            assert_eq!(job.run(incarnation, spec.clone()).await, "exit code 0", "{line:?}");
            let is_second = incarnation % 2 == 0;
            assert_eq!(job.counters().await.standbys_seated, seated + u64::from(is_second));
            if !is_second {
                job.standbys(1).await;
            }
        }
        let [old, new] = [incarnation - 1, incarnation].map(|incarnation| format!("report-rank-0.{incarnation}"));
        let (old, new) = (job.report(&old).await, job.report(&new).await);
        for same in ["argv", "name", "file", "path", "orig", "package", "spec"] {
            assert_eq!(new[same], old[same], "{same} of {line:?}");
        }
        assert_eq!(new["warm"], true);
    }
    job.end().await;
}

#[tokio::test]
async fn every_python_from_3_8_on_can_wait_and_older_ones_are_started_as_ever() {
    let mut found = 0;
    for (minor, python) in (6..=14).filter_map(|minor| Some((minor, version(minor)?))) {
        found += 1;
        let job = Job::new(template().ahead(1).import("multiprocessing")).await;
        let mut spec = job.program("import sys; sys.exit(3 if 'calendar' in sys.modules else 0)");
        spec.argv[0] = python.display().to_string();
        assert_eq!(job.run(1, spec.clone()).await, "exit code 0");
        match minor {
            ..8 => job.has_logged("is it Python 3.8 or later?").await,
            _ => job.standbys(1).await,
        }
        let expected = if minor < 8 { "exit code 0" } else { "exit code 3" };
        assert_eq!(job.run(2, spec).await, expected, "3.{minor}: {}", job.log());
        job.end().await;
    }
    println!("{found} Pythons");
    assert!(found > 0);
}

#[tokio::test]
async fn pre_started_ones_are_seated_by_their_number() {
    let job = Job::new(Standbys::pre_started(2).after(Duration::ZERO)).await;
    let spec = job.program(&format!("{IDENTITY}\nreport()\nimport time; time.sleep(600)"));
    let first = job.start(1, [spec.clone(), spec.clone()]).await;
    job.standbys(2).await;
    job.launcher.stop(&first, Duration::ZERO).await.unwrap();
    for proc in &first {
        exit_of(&job.launcher, proc).await;
    }
    job.start(2, [spec.clone(), spec]).await;
    for rank in 0..2 {
        let report = job.report(&format!("report-rank-{rank}.2")).await;
        assert_eq!((&report["device"], &report["env"]["RANK"]), (&rank.into(), &rank.to_string().into()));
    }
    assert_eq!(job.counters().await.standbys_seated, 2);
    job.standbys(2).await; // replaced
    job.end().await;
}

#[tokio::test]
async fn default_thread_count_is_detected_if_the_job_sets_none() {
    let job = Job::new(template().ahead(1)).await;
    let spec = job.program(&format!("{IDENTITY}\nreport()"));
    assert_eq!(job.run(1, spec.clone()).await, "exit code 0");
    job.standbys(1).await;
    assert_eq!(job.run(2, spec).await, "exit code 0");
    let report = job.report("report-rank-0.2").await;
    assert_eq!((&report["threads"], report["env"].get("OMP_NUM_THREADS")), (&7.into(), None));
    job.end().await;
}

#[tokio::test]
async fn a_start_waits_for_what_a_template_is_forking() {
    let job = Job::new(template().ahead(1)).await;
    let spec = job.program("pass");
    job.run(1, spec.clone()).await;
    job.standbys(1).await;
    let before = job.counters().await;
    let three = job.start(2, [spec.clone(), spec.clone(), spec]).await;
    let after = job.counters().await;
    assert_eq!((after.standbys_seated, after.standbys_missed), (3, before.standbys_missed));
    for proc in &three {
        assert_eq!(exit_of(&job.launcher, proc).await.how, Termination::Code(0));
    }
    job.end().await;
}

#[tokio::test]
async fn standbys_are_unused_without_python_or_when_disabled() {
    let job = Job::new(template()).await;
    let program = job.program("pass");
    let (none, no_hooks) = (program.clone().with_env("TASKD_STANDBYS", "none"), program.with_env("TASKD_HOOKS", "0"));
    for (incarnation, spec) in (1..).zip([sh("exit 0"), none, no_hooks]) {
        assert_eq!(job.run(incarnation, spec).await, "exit code 0");
    }
    job.start(4, [sleeper()]).await;
    let counters = job.counters().await;
    assert_eq!((counters.standbys_missed, counters.standbys_waiting, counters.started), (0, 0, 4), "{}", job.log());
    job.end().await;
}
