//! What supervisor and guard cost while 64 ranks do nothing but live: their heartbeats are read, nothing happens.

use super::samples::Samples;
use super::{Failure, rank};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use taskd_core::detect;
use taskd_core::job::{JobSpec, WorkerSpec};
use taskd_core::launch::{Launcher, LocalLauncher, Phase};
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::Runtime;

const RANKS: u32 = 64;
/// How often the ranks' pages are read: several times within the bound of the default silence detector.
const READ_EVERY: Duration = Duration::from_secs(2);
/// How often it is looked whether all ranks run.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What idling costs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figures {
    /// Of one core, supervisor and guard together, over all windows.
    idle_cpu_percent: f64,
    /// Resident memory of the guard.
    guard_rss_kib: u64,
}

/// Measures, and prints a line.
pub(crate) async fn measure(quick: bool) -> Result<Figures, Failure> {
    let (settle, windows, window) = match quick {
        true => (Duration::from_millis(200), 2, Duration::from_millis(300)),
        false => (Duration::from_secs(10), 6, Duration::from_secs(10)),
    };
    let dir = tempfile::Builder::new().prefix("taskd-bench-").tempdir()?;
    let launcher = Arc::new(LocalLauncher::builder(dir.path().join("run")).job_name("idle").build().await?);
    let guard = guard_pid(&dir.path().join("run"))?;
    let runtime = Runtime::builder()
        .job(JobSpec::new("idle", RANKS, WorkerSpec::new(rank::command("wait", 1)?)))
        .journal(dir.path().join("journal"))
        .source(launcher.heartbeats(READ_EVERY))
        .detectors(detect::defaults())
        .strategy(Restart::new())
        .strategy(ExitStrategy::new())
        .launcher(Arc::clone(&launcher))
        .build()?;
    let handle = runtime.handle();
    let running = tokio::spawn(runtime.run());
    while launcher.list().await?.procs.iter().filter(|status| status.phase == Phase::Running).count() < RANKS as usize {
        if running.is_finished() {
            return Err(format!("the job ended before it was measured: {}", running.await?.reason).into());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    tokio::time::sleep(settle).await; // the first seconds are not idle: ranks start, lifelines are looked for

    let (mut both, mut by_guard, mut by_supervisor) = (Samples::default(), Samples::default(), Samples::default());
    let mut total = Duration::ZERO;
    let begun = Instant::now();
    for _ in 0..windows {
        let before = (ran(guard)?, ran(std::process::id())?, Instant::now());
        tokio::time::sleep(window).await;
        let percent = |time: Duration| 100.0 * time.as_secs_f64() / before.2.elapsed().as_secs_f64();
        let (guards, ours) = (ran(guard)?.saturating_sub(before.0), ran(std::process::id())?.saturating_sub(before.1));
        total += guards + ours;
        both.push(percent(guards + ours));
        by_guard.push(percent(guards));
        by_supervisor.push(percent(ours));
    }
    let percent = 100.0 * total.as_secs_f64() / begun.elapsed().as_secs_f64();
    let (resident, own) = (status_kib(guard, "VmRSS:")?, status_kib(guard, "RssAnon:")?);
    handle.stop("measured").await;
    let report = running.await?;
    launcher.shutdown(Duration::ZERO).await?;
    if !report.incidents.is_empty() {
        return Err(format!("the job was not idle: {} incidents", report.incidents.len()).into());
    }
    println!(
        "\nidle: % of one core over {RANKS} sleeping ranks with lifelines and heartbeats, full runtime, both logs"
    );
    println!("{windows} windows of {window:?}: median (least to most)\n");
    println!("| supervisor and guard | supervisor | guard | guard's memory |\n|---|---|---|---|");
    println!("| {both} | {by_supervisor} | {by_guard} | {resident} KiB resident, {own} KiB of them its own |");
    Ok(Figures { idle_cpu_percent: percent, guard_rss_kib: resident })
}

/// The guard of a run directory, which its record names.
fn guard_pid(run_dir: &Path) -> Result<u32, Failure> {
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(run_dir.join("guard.json"))?)?;
    Ok(record["guard_pid"].as_u64().and_then(|pid| pid.try_into().ok()).ok_or("guard.json names no guard")?)
}

/// Time that all threads of a process have run: the scheduler's own account, in nanoseconds.
fn ran(pid: u32) -> Result<Duration, Failure> {
    let mut total = Duration::ZERO;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue }; // a thread has ended
        total += Duration::from_nanos(text.split(' ').next().unwrap_or_default().parse()?);
    }
    Ok(total)
}

/// A line of `/proc/PID/status` in KiB.
pub(crate) fn status_kib(pid: u32, name: &str) -> Result<u64, Failure> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
    Ok(value.ok_or_else(|| format!("/proc/{pid}/status has no {name}"))?.parse()?)
}
