//! What lifelines report, and what they must not report.

use crate::harness::tests;
use crate::missing_calls::NO_ROBUST_LOCKS;
use crate::support::*;
use crate::tracer::HeldThread;
use rustix::process::Signal;
use std::time::Duration;
use taskd_core::job::*;
use taskd_core::launch::*;
use taskd_core::trace::{Probe, ProbeResult, SourceError, TraceSource};

tests![
    a_killed_rank_is_known_dead_before_its_exit,
    every_kind_of_exit_is_reported_as_such,
    rank_that_does_not_hold_its_lifeline_is_noticed,
    exec_is_no_death,
    helpers_and_wrappers_are_not_the_rank,
    the_rank_behind_a_wrapper_is_seen_and_its_wrappers_end_is_its_own,
    a_main_thread_that_leaves_is_no_death,
    lifeline_without_robust_locks_is_unavailable,
    steps_and_heartbeats_are_reported,
];

fn rank_that(act: &str, argument: &str) -> WorkerSpec {
    WorkerSpec::new([std::env::current_exe().unwrap().to_str().unwrap(), "rank", act, argument])
}

struct Run {
    dir: tempfile::TempDir,
    launcher: LocalLauncher,
    proc: ProcId,
    pid: u32,
    from: Revision,
}

/// Starts one rank and waits until it has printed `word`.
async fn run(spec: WorkerSpec, word: &str) -> Run {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    let from = launcher.list().await.unwrap().revision;
    launcher.start(&batch(1, [spec])).await.unwrap();
    let log = dir.path().join("procs/rank-0.1/stdout.log");
    eventually(word, || std::fs::read_to_string(&log).ok().filter(|text| text.contains(word))).await;
    let proc = ProcId::rank(0, 1);
    let pid = pid_of(&launcher, &proc).await;
    Run { dir, launcher, proc, pid, from }
}

impl Run {
    /// All phases of the rank up to its exit.
    async fn phases(&self) -> Vec<Phase> {
        let mut phases = Vec::new();
        let mut from = self.from;
        while !phases.last().is_some_and(Phase::is_exited) {
            let (changes, next) = tokio::time::timeout(PATIENCE, self.launcher.watch(from)).await.unwrap().unwrap();
            from = next;
            for change in changes {
                match change {
                    Change::Proc(status) => phases.push(status.phase),
                    Change::Node(_) | Change::Link(_) | Change::Worker(_) | Change::Guard(_) => (),
                }
            }
        }
        phases
    }

    /// The same in short words.
    async fn story(&self) -> Vec<String> {
        self.phases().await.iter().map(Phase::to_string).collect()
    }

    /// Kills the rank, whose exit cannot come before its death was reported: else it may, and the death is left out.
    async fn kill_and_see_it_dead(&self) {
        let held = HeldThread::of(self.pid);
        send(self.pid, Signal::KILL);
        phase_of(&self.launcher, &self.proc, |phase| matches!(phase, Phase::Dead(_))).await;
        held.let_go();
    }

    async fn end(self) {
        self.launcher.shutdown(Duration::ZERO).await.unwrap();
    }
}

/// What is reported of a rank that was killed and seen dead.
const KILLED: [&str; 3] = ["running", "dead: signal 9 (SIGKILL)", "exited: signal 9 (SIGKILL)"];

async fn a_killed_rank_is_known_dead_before_its_exit() {
    for act in ["hold", "fill"] {
        let run = run(rank_that(act, "100"), if act == "fill" { "full" } else { "held" }).await;
        run.kill_and_see_it_dead().await;
        assert_eq!(run.story().await, KILLED);
        run.end().await;
    }
}

async fn every_kind_of_exit_is_reported_as_such() {
    let cases = [
        ("exit", "3", "dead: exit code 3", "exited: exit code 3"),
        ("_exit", "5", "dead: exit code 5", "exited: exit code 5"),
        ("abort", "", "dead: signal 6", "exited: signal 6"),
        ("exit", "0", "", "exited: exit code 0"), // nothing has to be done early about a success
    ];
    for (act, argument, dead, exited) in cases {
        let run = run(rank_that(act, argument), "held").await;
        let story = run.story().await;
        // The guard may have got to the lifeline only when all was over.
        let (last, before) = story.split_last().unwrap();
        assert!(last.starts_with(exited), "{story:?}");
        match before {
            [running] => assert_eq!(running, "running"),
            [running, end] => assert!(running == "running" && !dead.is_empty() && end.starts_with(dead), "{story:?}"),
            _ => panic!("{story:?}"),
        }
        run.end().await;
    }
}

/// Takes a lifeline by the layout of the page alone.
const QUIET_RANK: &str = r#"
import ctypes, os, threading, time
libc, pointer, word = ctypes.CDLL(None), ctypes.c_void_p, ctypes.c_uint32
libc.mmap.restype, libc.mmap.argtypes = pointer, [pointer, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
page = libc.mmap(None, 4096, 3, 1, os.open(os.environ["TASKD_LIFELINE"], os.O_RDWR), 0)
kind = ctypes.create_string_buffer(64)
libc.pthread_mutexattr_init(kind), libc.pthread_mutexattr_setpshared(kind, 1), libc.pthread_mutexattr_setrobust(kind, 1)
libc.pthread_mutex_init(pointer(page + 128), kind), libc.pthread_mutex_lock(pointer(page + 128))
word.from_address(page + 72).value, word.from_address(page + 20).value = 128, 1
threading.Thread(target=time.sleep, args=[1000]).start()
print(os.environ["TASKD_LIFELINE"], "held", flush=True)
time.sleep(1000)
"#;

async fn rank_that_does_not_hold_its_lifeline_is_noticed() {
    let run = run(WorkerSpec::new(["python3", "-c", QUIET_RANK]), "held").await;
    let log = std::fs::read_to_string(run.dir.path().join("procs/rank-0.1/stdout.log")).unwrap();
    let page = std::fs::File::open(log.split(' ').next().unwrap()).unwrap();
    let is_waited_for = || {
        let mut word = [0; 4];
        std::os::unix::fs::FileExt::read_exact_at(&page, &mut word, 128).unwrap();
        (u32::from_ne_bytes(word) & 0x8000_0000 != 0).then_some(())
    };
    eventually("the guard waits for its death", is_waited_for).await;
    run.kill_and_see_it_dead().await;
    assert_eq!(run.story().await, KILLED);
    run.end().await;
}

async fn exec_is_no_death() {
    for act in ["exec", "exec-from-thread"] {
        let run = run(rank_that(act, ""), "held").await;
        let comm = format!("/proc/{}/comm", run.pid);
        eventually("it has become another", || (std::fs::read_to_string(&comm).ok()?.trim() == "sleep").then_some(()))
            .await;
        send(run.pid, Signal::KILL);
        let mut story = run.story().await;
        story.retain(|found| found != KILLED[1]); // the kill may overtake the guard's look: that is a death
        assert_eq!(story, ["running", "exited: signal 9 (SIGKILL)"]);
        run.end().await;
    }
}

async fn helpers_and_wrappers_are_not_the_rank() {
    let helped = run(rank_that("with-helpers", ""), "helped").await;
    helped.kill_and_see_it_dead().await;
    assert_eq!(helped.story().await, KILLED);
    helped.end().await;

    let wrapped = run(wrapper("exit 4; exit $?"), "held").await;
    assert_eq!(wrapped.story().await, ["running", "exited: exit code 4"]);
    wrapped.end().await;

    let disabled = run(rank_that("exit", "4").with_env("TASKD_HOOKS", "0"), "none").await;
    assert_eq!(disabled.story().await, ["running", "exited: exit code 4"]);
    disabled.end().await;
}

/// A shell that runs the rank as a child of its own.
fn wrapper(act_and_then: &str) -> WorkerSpec {
    sh(&format!("{} rank {act_and_then}", std::env::current_exe().unwrap().display()))
}

async fn the_rank_behind_a_wrapper_is_seen_and_its_wrappers_end_is_its_own() {
    let run = run(wrapper("step 42; echo after; exec sleep 1000"), "stepped").await;
    let mut source = run.launcher.heartbeats(Duration::from_millis(5));
    let (mut beats, mut steps) = (0, Vec::new());
    while beats < 3 || steps.is_empty() {
        let facts = tokio::time::timeout(PATIENCE, source.next()).await.unwrap().unwrap().unwrap().facts;
        beats += facts.iter().filter(|fact| fact.signal == taskd_core::trace::Signal::Heartbeat).count();
        steps.extend(facts.iter().filter_map(|fact| match fact.signal {
            taskd_core::trace::Signal::Progress { step } => Some(step),
            _ => None,
        }));
    }
    assert_eq!(steps, [42]);

    let rank = children_of(run.pid)[0];
    send(rank, Signal::STOP);
    eventually("it is stopped", || (state_of(rank) == Some('T')).then_some(())).await;
    let Ok(ProbeResult::Text(text)) = state(&mut source).await else { panic!("a text") };
    assert!(text.starts_with("state=T ") && text.contains(" lifeline=never-taken "), "{text}");

    // The wrapper continues without it: that is neither a death nor silence.
    send(rank, Signal::KILL);
    let log = run.dir.path().join("procs/rank-0.1/stdout.log");
    eventually("after", || std::fs::read_to_string(&log).ok().filter(|text| text.contains("after"))).await;
    let mut beats = 0;
    while beats < 3 {
        let facts = tokio::time::timeout(PATIENCE, source.next()).await.unwrap().unwrap().unwrap().facts;
        beats += facts.iter().filter(|fact| fact.signal == taskd_core::trace::Signal::Heartbeat).count();
    }
    send(run.pid, Signal::KILL);
    assert_eq!(run.story().await, ["running", "exited: signal 9 (SIGKILL)"]);
    run.end().await;
}

async fn a_main_thread_that_leaves_is_no_death() {
    let run = run(rank_that("leave-main", "7"), "held").await;
    assert_eq!(run.story().await, ["running", "exited: exit code 7"]);
    run.end().await;
}

async fn lifeline_without_robust_locks_is_unavailable() {
    let mut spec = rank_that("hold", "");
    spec.argv.insert(1, NO_ROBUST_LOCKS.into());
    let run = run(spec, "held").await;
    let found = state(&mut run.launcher.heartbeats(Duration::from_millis(5))).await;
    let Ok(ProbeResult::Text(text)) = found else { panic!("{found:?}") };
    assert!(text.contains(" lifeline=unavailable "), "{text}");
    send(run.pid, Signal::KILL);
    assert_eq!(run.story().await, ["running", "exited: signal 9 (SIGKILL)"]);
    let counters = run.launcher.counters().await.unwrap().guard;
    assert_eq!((counters.lifelines_missing, counters.deaths), (1, 0));
    run.end().await;
}

/// Returns true if every thread of a process is stopped by a signal.
fn threads_are_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let stat = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
    threads.map(stat).all(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')))
}

/// Returns the state of rank 0 that a source reports.
async fn state(source: &mut impl TraceSource) -> Result<ProbeResult, SourceError> {
    let (about, what) = (Domain::Process(Role::Rank(Rank(0))), Name::new("process-state"));
    let ask = Probe::new("test", what, vec![about.clone()], Duration::from_secs(1)).with_tag(1);
    source.collect(&ask, &about).await
}

async fn steps_and_heartbeats_are_reported() {
    let run = run(rank_that("step", "42").with_env("A", "b"), "stepped").await;
    let mut source = run.launcher.heartbeats(Duration::from_millis(5));
    let (mut beats, mut steps) = (0, Vec::new());
    while beats < 3 || steps.is_empty() {
        for fact in tokio::time::timeout(PATIENCE, source.next()).await.unwrap().unwrap().unwrap().facts {
            assert_eq!(fact.about, Domain::Process(Role::Rank(Rank(0))));
            assert_eq!((fact.incarnation, fact.generation), (Some(Incarnation(1)), Some(Generation(1))));
            match fact.signal {
                taskd_core::trace::Signal::Heartbeat => beats += 1,
                taskd_core::trace::Signal::Progress { step } => steps.push(step),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(steps, [42]);

    send(run.pid, Signal::STOP);
    // Each thread stops by itself, a moment after the process is reported as stopped.
    eventually("every thread is stopped", || threads_are_stopped(run.pid).then_some(())).await;
    let Ok(ProbeResult::Text(text)) = state(&mut source).await else { panic!("a text") };
    let words: Vec<&str> = text.split(' ').map(|word| word.split('=').next().unwrap()).collect();
    let of_page = ["state", "wchan", "beat_age_ms", "step", "step_age_ms", "lifeline"];
    let of_activity = ["threads", "runnable", "uninterruptible", "cpu_ms", "ran_age_ms"];
    assert_eq!(words[..6], of_page, "{text}");
    assert_eq!(words[6..11], of_activity, "{text}");
    assert_eq!(words[11..], ["host_load_percent", "host_cpu_pressure_percent"], "{text}");
    assert!(text.starts_with("state=T ") && text.contains(" step=42 ") && text.contains(" lifeline=held "), "{text}");
    assert!(text.contains(" runnable=0 uninterruptible=0 "), "{text}");

    send(run.pid, Signal::KILL);
    let phases = run.phases().await;
    let Some(Phase::Exited(exit)) = phases.last() else { panic!("{phases:?}") };
    assert_eq!(exit.step, Some(42));
    let gone = state(&mut source).await;
    assert!(matches!(gone, Err(SourceError::Unavailable(_))), "{gone:?} of {}", run.proc);
    run.end().await;
}
