//! A good guest: the host program's children, signal handlers, tracing subscriber and panic hook stay its own, and when
//! the runtime is gone nothing is left of it.

#![allow(unsafe_code, reason = "ignores SIGCHLD, as some programs do")]

use crate::harness::{soak, tests};
use crate::host::*;
use crate::process::Process;
use crate::support::*;
use rustix::process::{Signal, WaitOptions};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::slice::from_ref;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use taskd_core::job::Termination;
use taskd_core::kernel::Outcome;
use taskd_core::launch::*;
use tokio::signal::unix::{SignalKind, signal};

tests![
    a_guest_of_one_thread_leaves_nothing,
    a_guest_of_many_threads_leaves_nothing_of_two_jobs,
    a_host_that_reaps_every_child_is_no_trouble,
    a_host_that_reaps_every_child_with_many_threads_is_no_trouble,
    a_host_that_ignores_its_childrens_ends_is_no_trouble,
    rank_reaped_by_the_host_program_is_reported_as_ended,
];

const RANKS: u32 = 2;
/// More than this between an early round and the last one is a leak, in KiB.
const GROWTH_KIB_MAX: u64 = 2048;

async fn a_guest_of_one_thread_leaves_nothing() {
    in_a_host("one-thread", "own", 1).await;
}

async fn a_guest_of_many_threads_leaves_nothing_of_two_jobs() {
    in_a_host("many-threads", "own", 2).await;
}

async fn a_host_that_reaps_every_child_is_no_trouble() {
    in_a_host("one-thread", "every", 2).await;
}

async fn a_host_that_reaps_every_child_with_many_threads_is_no_trouble() {
    in_a_host("many-threads", "every", 1).await;
}

async fn a_host_that_ignores_its_childrens_ends_is_no_trouble() {
    in_a_host("one-thread", "none", 1).await;
}

async fn in_a_host(threads: &str, reaping: &str, jobs: u32) {
    let dir = tempfile::tempdir().unwrap();
    let rounds = if soak() { "200" } else { "4" };
    let host = Host::start(&["guest", threads, reaping, &jobs.to_string(), rounds, dir.path().to_str().unwrap()]);
    let limit = Duration::from_secs(if soak() { 1500 } else { 50 });
    assert_eq!(host.code(limit).await, Some(0));
}

async fn rank_reaped_by_the_host_program_is_reported_as_ended() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&["without-guard", dir.path().to_str().unwrap()]);
    assert_eq!(host.code(PATIENCE).await, Some(0));
}

/// Is a host program whose children no process can wait for.
pub(crate) fn run_without_guard(dir: &Path) -> ExitCode {
    ignore_ends_of_children();
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        let launcher = LocalLauncher::builder(run_dir(dir)).guard(GuardProgram::None).build().await.unwrap();
        let orders = batch(1, [sh("exit 3"), sleeper()]);
        launcher.start(&orders).await.unwrap();
        let [ended, runs] = [0, 1].map(|i| orders.starts[i].proc.clone());
        assert_eq!(exit_of(&launcher, &ended).await.how, Termination::Unknown);
        launcher.stop(from_ref(&runs), Duration::ZERO).await.unwrap();
        assert_eq!(exit_of(&launcher, &runs).await.how, Termination::Unknown);
        launcher.shutdown(Duration::ZERO).await.unwrap();
    });
    ExitCode::SUCCESS
}

fn ignore_ends_of_children() {
    // SAFETY: a valid disposition; nothing else in this process handles the signal.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

static EVENTS: AtomicU32 = AtomicU32::new(0);
static PANICS: AtomicU32 = AtomicU32::new(0);
/// Whether the next panic is one of the test's.
static EXPECTED: AtomicBool = AtomicBool::new(false);

/// The host's own subscriber: counts its own events.
struct Subscriber;

impl tracing::Subscriber for Subscriber {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "host"
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        EVENTS.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Is the host program.
pub(crate) fn run(threads: &str, reaping: &str, jobs: &str, rounds: &str, dir: &Path) -> ExitCode {
    tracing::subscriber::set_global_default(Subscriber).unwrap();
    let prints = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        if !EXPECTED.load(Ordering::Relaxed) {
            prints(panic);
        }
    }));
    let tokio = match threads {
        "one-thread" => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let mut tokio = tokio;
    // Threads that the runtime keeps for blocking work are tokio's; here they go when they have nothing to do.
    let tokio = tokio.worker_threads(2).enable_all().thread_keep_alive(Duration::from_millis(1)).build().unwrap();
    if reaping == "none" {
        ignore_ends_of_children();
    }
    // The C library installs a handler of its own with the first thread of a program. This one has threads.
    std::thread::spawn(|| ()).join().unwrap();
    let (jobs, rounds): (u32, u32) = (jobs.parse().unwrap(), rounds.parse().unwrap());
    tokio.block_on(async {
        let mut own = Own::new(reaping);
        let before = Process::now();
        let mut early_kib = 0;
        for round in 0..rounds {
            let of_round = |job| dir.join(format!("{round}-{job}"));
            let jobs: Vec<_> =
                (0..jobs).map(|job| tokio::spawn(embed(of_round(job), (round + job) % 2 == 0))).collect();
            own.does_its_own_things().await;
            for job in jobs {
                job.await.unwrap();
            }
            own.is_as_before(&before).await;
            if round == rounds / 4 {
                early_kib = Process::resident_kib();
            }
        }
        let grown_kib = Process::resident_kib().saturating_sub(early_kib);
        println!(
            "{threads}, {reaping} children reaped, {jobs} jobs, {rounds} rounds: {grown_kib} KiB more than early on"
        );
        assert!(grown_kib < GROWTH_KIB_MAX);
    });
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
    EXPECTED.store(true, Ordering::Relaxed);
    assert!(std::panic::catch_unwind(|| panic!("the host's own panic")).is_err());
    assert_eq!(PANICS.load(Ordering::Relaxed), 1, "its hook is in place");
    ExitCode::SUCCESS
}

/// A job of its own, to its end or dropped in the middle of it.
async fn embed(dir: std::path::PathBuf, to_its_end: bool) {
    std::fs::create_dir_all(&dir).unwrap();
    let keep = OnOwnerLoss::Keep { at_most: Duration::from_secs(60) }; // not what a drop means
    let launcher = Arc::new(launcher(&dir, keep).await);
    let guard = guard_pid(&run_dir(&dir));
    let run = runtime(&dir, TRAIN, RANKS, Arc::clone(&launcher)).run();
    let ranks = if to_its_end {
        let run = tokio::spawn(run);
        let ranks = all_train(&dir, RANKS).await;
        std::fs::write(dir.join("finish"), "").unwrap();
        let report = run.await.unwrap();
        assert_eq!((report.outcome, report.incidents.len()), (Outcome::Completed, 0), "{}", report.reason);
        launcher.shutdown(Duration::ZERO).await.unwrap();
        ranks
    } else {
        tokio::select! {
            report = run => panic!("{}", report.reason),
            ranks = all_train(&dir, RANKS) => ranks,
        }
    };
    drop(launcher);
    for pid in ranks.iter().chain([&guard]) {
        eventually(&format!("process {pid} of the job is gone"), || (!is_alive(*pid)).then_some(())).await;
    }
    assert!(to_its_end || (0..RANKS).all(|rank| saved(&dir, rank)), "those that were dropped could save");
}

/// Exit codes of children by their pids.
type Reaped = Arc<Mutex<BTreeMap<u32, Option<i32>>>>;

/// What the host program has of its own.
struct Own {
    interrupts: tokio::signal::unix::Signal,
    interrupted: u32,
    /// All children that were reaped, where it reaps all.
    reaped: Option<Reaped>,
    ends_are_ignored: bool,
}

impl Own {
    fn new(reaping: &str) -> Own {
        let reaped = (reaping == "every").then(Reaped::default);
        if let Some(reaped) = reaped.clone() {
            tokio::spawn(reap_every_child(reaped));
        }
        let interrupts = signal(SignalKind::interrupt()).unwrap();
        Own { interrupts, interrupted: 0, reaped, ends_are_ignored: reaping == "none" }
    }

    async fn does_its_own_things(&mut self) {
        let (before, child) = (EVENTS.load(Ordering::Relaxed), Command::new("sh").args(["-c", "exit 7"]).spawn());
        tracing::info!(target: "host", "its own event");
        assert_eq!(EVENTS.load(Ordering::Relaxed), before + 1);

        rustix::process::kill_process(rustix::process::getpid(), Signal::INT).unwrap();
        self.interrupts.recv().await.unwrap();
        self.interrupted += 1;

        let mut child = child.unwrap();
        match &self.reaped {
            Some(reaped) => {
                let reaped = || reaped.lock().unwrap().remove(&child.id());
                assert_eq!(eventually("its child is reaped", reaped).await, Some(7));
            }
            None if self.ends_are_ignored => {
                eventually("its child has ended", || child.try_wait().is_err().then_some(())).await;
            }
            None => {
                let ended = eventually("its child has ended", || child.try_wait().unwrap()).await;
                assert_eq!(ended.code(), Some(7));
            }
        }
    }

    async fn is_as_before(&self, before: &Process) {
        let until = Instant::now() + PATIENCE;
        loop {
            let differences = Process::now().differences(before);
            if differences.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "something is left: {differences:#?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// As a program does that does not know all its children.
async fn reap_every_child(reaped: Reaped) {
    loop {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let pid = pid.as_raw_nonzero().get().unsigned_abs();
            reaped.lock().unwrap().insert(pid, status.exit_status());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
