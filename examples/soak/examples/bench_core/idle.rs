//! The cost of supervisor and guard while all ranks sleep: heartbeats are read, and nothing else happens.

use super::{Failure, rank};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use taskd_core::detect;
use taskd_core::job::{JobSpec, WorkerSpec};
use taskd_core::kernel::JobReport;
use taskd_core::launch::{GuardProgram, Launcher, LocalLauncher, Phase};
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::{Runtime, RuntimeHandle};
use taskd_examples::samples::Samples;
use tokio::task::JoinHandle;

/// Number of ranks over which CPU time is measured.
const RANKS: u32 = 64;
/// Number of ranks of one machine, over which memory is measured, too.
const FEW_RANKS: u32 = 8;
/// How often the ranks' pages are read: several times within the bound of the default silence detector.
const READ_EVERY: Duration = Duration::from_secs(2);
/// The interval at which the ranks' state is checked.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The cost of an idle job.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    /// CPU time of supervisor and guard together over all windows, in percent of one core.
    idle_cpu_percent: f64,
    guard_memory: Vec<GuardMemory>,
}

/// Memory of a guard over sleeping ranks.
#[derive(Clone, Debug, Serialize)]
struct GuardMemory {
    /// The program that runs as the guard: this one, or a separate `taskd-guard`.
    program: &'static str,
    ranks: u32,
    rss_kib: u64,
    /// Anonymous memory. The rest is backed by files, mainly code, which all processes that run it share.
    rss_anon_kib: u64,
}

/// Measures, prints two tables, and returns the figures.
pub(crate) async fn measure(quick: bool, guard: Option<PathBuf>) -> Result<Figures, Failure> {
    let mut programs = vec![("this one", GuardProgram::ReexecSelf)];
    programs.extend(guard.map(|path| ("taskd-guard", GuardProgram::Path(path))));
    let (mut idle_cpu_percent, mut guard_memory) = (0.0, Vec::new());
    for (program, guard) in programs {
        for ranks in [FEW_RANKS, RANKS] {
            let idle = Idle::start(ranks, guard.clone(), quick).await?;
            if ranks == RANKS && guard == GuardProgram::ReexecSelf {
                idle_cpu_percent = idle.cpu(quick).await?;
            }
            guard_memory.push(idle.guard_memory(program)?);
            idle.stop().await?;
        }
    }
    println!("\n| guard's program | ranks | resident memory | of it not backed by a file |\n|---|---|---|---|");
    for GuardMemory { program, ranks, rss_kib, rss_anon_kib } in &guard_memory {
        println!("| {program} | {ranks} | {rss_kib} KiB | {rss_anon_kib} KiB |");
    }
    Ok(Figures { idle_cpu_percent, guard_memory })
}

/// A job whose ranks all sleep.
struct Idle {
    ranks: u32,
    launcher: Arc<LocalLauncher>,
    guard: u32,
    handle: RuntimeHandle,
    running: JoinHandle<JobReport>,
    _dir: tempfile::TempDir,
}

impl Idle {
    /// Returns when all ranks run and the start is complete.
    async fn start(ranks: u32, guard: GuardProgram, quick: bool) -> Result<Idle, Failure> {
        let dir = tempfile::Builder::new().prefix("taskd-bench-").tempdir()?;
        let run_dir = dir.path().join("run");
        let launcher = Arc::new(LocalLauncher::builder(&run_dir).job_name("idle").guard(guard).build().await?);
        let runtime = Runtime::builder()
            .job(JobSpec::new("idle", ranks, WorkerSpec::new(rank::command("wait", 1)?)))
            .journal(dir.path().join("journal"))
            .source(launcher.heartbeats(READ_EVERY))
            .detectors(detect::defaults())
            .strategy(Restart::new())
            .strategy(ExitStrategy::new())
            .launcher(Arc::clone(&launcher))
            .build()?;
        let handle = runtime.handle();
        let running = tokio::spawn(runtime.run());
        while launcher.list().await?.procs.iter().filter(|proc| proc.phase == Phase::Running).count() < ranks as usize {
            if running.is_finished() {
                return Err(format!("the job ended before it was measured: {}", running.await?.reason).into());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        // The first seconds are not idle: ranks start and connect their lifelines.
        tokio::time::sleep(Duration::from_millis(if quick { 200 } else { 10_000 })).await;
        Ok(Idle { ranks, guard: guard_pid(&run_dir)?, launcher, handle, running, _dir: dir })
    }

    /// Prints a table; returns the CPU time over all windows, in percent of one core.
    async fn cpu(&self, quick: bool) -> Result<f64, Failure> {
        let (windows, window) = if quick { (2, Duration::from_millis(300)) } else { (6, Duration::from_secs(10)) };
        let (mut both, mut by_guard, mut by_supervisor) = (Samples::default(), Samples::default(), Samples::default());
        let mut total = Duration::ZERO;
        let begun = Instant::now();
        for _ in 0..windows {
            let before = (ran(self.guard)?, ran(std::process::id())?, Instant::now());
            tokio::time::sleep(window).await;
            let percent = |time: Duration| 100.0 * time.as_secs_f64() / before.2.elapsed().as_secs_f64();
            let guards = ran(self.guard)?.saturating_sub(before.0);
            let ours = ran(std::process::id())?.saturating_sub(before.1);
            total += guards + ours;
            both.push(percent(guards + ours));
            by_guard.push(percent(guards));
            by_supervisor.push(percent(ours));
        }
        println!(
            "\nidle: % of one core over {} sleeping ranks with lifelines and heartbeats, full runtime, both logs",
            self.ranks
        );
        println!("{windows} windows of {window:?}: median (least to most)\n");
        println!("| supervisor and guard | supervisor | guard |\n|---|---|---|");
        println!("| {both} | {by_supervisor} | {by_guard} |");
        Ok(100.0 * total.as_secs_f64() / begun.elapsed().as_secs_f64())
    }

    fn guard_memory(&self, program: &'static str) -> Result<GuardMemory, Failure> {
        let kib = |name| status_kib(self.guard, name);
        Ok(GuardMemory { program, ranks: self.ranks, rss_kib: kib("VmRSS:")?, rss_anon_kib: kib("RssAnon:")? })
    }

    async fn stop(self) -> Result<(), Failure> {
        self.handle.stop("measured").await?;
        let report = self.running.await?;
        self.launcher.shutdown(Duration::ZERO).await?;
        match report.incidents.len() {
            0 => Ok(()),
            incidents => Err(format!("the job was not idle: {incidents} incidents").into()),
        }
    }
}

/// Returns the process id of the guard of a run directory, from its record.
fn guard_pid(run_dir: &Path) -> Result<u32, Failure> {
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(run_dir.join("guard.json"))?)?;
    Ok(record["guard_pid"].as_u64().and_then(|pid| pid.try_into().ok()).ok_or("guard.json names no guard")?)
}

/// Returns the CPU time of all threads of a process, from the scheduler, which counts in nanoseconds.
fn ran(pid: u32) -> Result<Duration, Failure> {
    let mut total = Duration::ZERO;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue }; // a thread has ended
        total += Duration::from_nanos(text.split(' ').next().unwrap_or_default().parse()?);
    }
    Ok(total)
}

/// Returns a line of `/proc/PID/status` in KiB.
pub(crate) fn status_kib(pid: u32, name: &str) -> Result<u64, Failure> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
    Ok(value.ok_or_else(|| format!("/proc/{pid}/status has no {name}"))?.parse()?)
}
