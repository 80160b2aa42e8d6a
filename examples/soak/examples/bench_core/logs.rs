//! A week of a job in the two logs: their size, the time until a new supervisor has resumed the job from them, and the
//! time to replay the decisions.
//!
//! 64 ranks, each with a heartbeat and a completed step every second. The files are read from the page cache.

use super::Failure;
use super::job::{Job, header, plugins};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;
use taskd_core::journal::{Journal, JournalConfig, ReplayFrom, replay};
use taskd_core::kernel::Kernel;
use taskd_examples::samples::Samples;

const RANKS: u32 = 64;
const WEEK_S: u32 = 7 * 24 * 3600;
/// Seconds of the job between two waits for its logs: otherwise the disk would have to take a week of records in half a
/// minute.
const SETTLE_EVERY_S: u32 = 3600;
/// Number of times that a new supervisor opens the logs.
const OPENED: u32 = 5;

/// The cost of a week of logs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figures {
    week_log_bytes: u64,
    week_observations: u64,
    /// Time from opening the logs' directory to a kernel in the job's last state: the median.
    week_resume_ms: f64,
    week_replay_s: f64,
    /// True if every decision was equal to the logged one.
    week_replay_equal: bool,
}

/// Measures, prints a table, and returns the figures.
pub(crate) fn measure(quick: bool) -> Result<Figures, Failure> {
    let seconds = if quick { 600 } else { WEEK_S };
    let dir = tempfile::Builder::new().prefix("taskd-bench-").tempdir()?;
    let kernel = write(dir.path(), seconds)?;
    let (mut opened, mut resumed) = (Samples::default(), Samples::default());
    for _ in 0..OPENED {
        let begun = Instant::now();
        let (journal, recovered) = Journal::open(dir.path(), header(RANKS), JournalConfig::default())?;
        opened.push(begun.elapsed().as_secs_f64() * 1e3);
        let rebuilt = recovered.resume(plugins()).map_err(|(error, _)| error)?;
        resumed.push(begun.elapsed().as_secs_f64() * 1e3);
        drop(journal);
        if rebuilt.kernel.seq() != kernel.seq() {
            return Err(format!("resumed at input {}, but had reached {}", rebuilt.kernel.seq(), kernel.seq()).into());
        }
    }
    let begun = Instant::now();
    let report = replay(dir.path(), ReplayFrom::Start, plugins)?;
    let week_replay_s = begun.elapsed().as_secs_f64();
    let week_replay_equal =
        report.first_difference.is_none() && report.missing.is_empty() && report.upto == kernel.seq();
    let (week_log_bytes, week_observations) = (size_of(dir.path())?, u64::from(seconds) * u64::from(RANKS) * 2);
    println!("\nlogs of {RANKS} ranks over {seconds} s, a heartbeat and a step of each every second\n");
    println!(
        "| observations | steps of the kernel | bytes | opened, ms | and resumed, ms | replayed from the start, s | equal |"
    );
    println!("|---|---|---|---|---|---|---|");
    println!(
        "| {week_observations} | {} | {week_log_bytes} | {opened} | {resumed} | {week_replay_s:.1} | {week_replay_equal} |",
        report.steps
    );
    Ok(Figures {
        week_log_bytes,
        week_observations,
        week_resume_ms: resumed.median(),
        week_replay_s,
        week_replay_equal,
    })
}

/// Writes the logs of a job; returns the kernel in its last state.
fn write(dir: &Path, seconds: u32) -> Result<Kernel, Failure> {
    let mut job = Job::up(RANKS, Some(dir))?;
    for _ in 0..seconds.div_ceil(SETTLE_EVERY_S) {
        job.feed(RANKS * 2 * SETTLE_EVERY_S.min(seconds));
        job.settle()?;
    }
    Ok(job.into_kernel())
}

fn size_of(dir: &Path) -> Result<u64, Failure> {
    let sizes = std::fs::read_dir(dir)?.map(|entry| Ok(entry?.metadata()?.len()));
    sizes.sum::<Result<u64, std::io::Error>>().map_err(Into::into)
}
