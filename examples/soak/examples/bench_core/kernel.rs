//! How many observations per second the kernel processes on one core with and without the two logs, and the memory of a
//! rank.
//!
//! One observation in two is a heartbeat, the other a completed step. The timed work is that of the shell: facts become
//! observations, pass through the mailbox into the kernel, and are logged with their commands. The threads that write
//! the logs share the core; a round ends when its last record is written.

use super::Failure;
use super::idle::status_kib;
use super::job::Job;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::process::Command;
use std::time::{Duration, Instant};
use taskd_examples::samples::Samples;

/// Number of memory measurements, each of a job with all ranks and one with a single rank.
const FOOTPRINTS: u32 = 5;

/// Throughput and memory of the kernel.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figures {
    /// Throughput on one core, with both logs on real files, by wall time: the median of all rounds.
    observations_per_s: f64,
    /// Anonymous resident memory that a rank adds.
    bytes_per_rank: f64,
}

/// Measures, prints the tables, and returns the figures.
pub(crate) fn measure(quick: bool) -> Result<Figures, Failure> {
    let (ranks, observations, rounds) = if quick { (1000, 20_000, 1) } else { (10_000, 2_000_000, 7) };
    // A separate thread, since it binds itself, and the threads that it starts, to one core.
    let timing = std::thread::spawn(move || throughput(ranks, observations, rounds));
    let rates = timing.join().map_err(|_| "the measuring thread has panicked")??;
    println!(
        "\nkernel with the default detectors, {ranks} ranks, {rounds} rounds of {observations} observations in turn"
    );
    println!("million observations a second on one core: median (least to most)\n");
    println!("| | by wall time | by CPU time |\n|---|---|---|");
    println!("| both logs on real files | {} | {} |", rates.logged.by_wall, rates.logged.by_cpu);
    println!("| no logs | {} | {} |", rates.bare.by_wall, rates.bare.by_cpu);
    let ratio = rates.logged.by_cpu.median() / rates.bare.by_cpu.median();
    println!("\nthroughput with logs: {ratio:.2} of that without");
    let footprint = footprint(ranks)?;
    println!(
        "\nanonymous resident memory: {footprint} bytes per rank, kernel, detectors and both logs, {ranks} ranks beside one"
    );
    Ok(Figures { observations_per_s: rates.logged.by_wall.median() * 1e6, bytes_per_rank: footprint.median() })
}

/// Millions of observations per second.
#[derive(Debug, Default)]
struct Rate {
    by_wall: Samples,
    by_cpu: Samples,
}

#[derive(Debug, Default)]
struct Rates {
    logged: Rate,
    bare: Rate,
}

fn throughput(ranks: u32, observations: u32, rounds: u32) -> Result<Rates, Failure> {
    stay_on_one_core()?;
    let dir = tempfile::Builder::new().prefix("taskd-bench-").tempdir()?;
    let (mut logged, mut bare) = (Job::up(ranks, Some(dir.path()))?, Job::up(ranks, None)?);
    let mut rates = Rates::default();
    for _ in 0..rounds {
        for (job, rate) in [(&mut logged, &mut rates.logged), (&mut bare, &mut rates.bare)] {
            let before = (Instant::now(), cpu_time());
            job.feed(observations);
            job.settle()?;
            let millions = f64::from(observations) / 1e6;
            rate.by_wall.push(millions / before.0.elapsed().as_secs_f64());
            rate.by_cpu.push(millions / cpu_time().saturating_sub(before.1).as_secs_f64());
        }
    }
    Ok(rates)
}

/// Binds this thread to the last core on which it may run: the first ones have most of the machine's other work.
fn stay_on_one_core() -> Result<(), Failure> {
    let allowed = sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu)).ok_or("no core")?;
    let mut one = CpuSet::new();
    one.set(last);
    Ok(sched_setaffinity(None, &one)?)
}

/// Returns the CPU time of all threads of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Measures the anonymous resident memory that each rank adds, as the difference between a process with all ranks and
/// one with a single rank.
fn footprint(ranks: u32) -> Result<Samples, Failure> {
    let of = |ranks: u32| -> Result<f64, Failure> {
        let output = Command::new(std::env::current_exe()?).arg("footprint").arg(ranks.to_string()).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().parse()?)
    };
    let mut samples = Samples::default();
    for _ in 0..FOOTPRINTS {
        let (with, without) = (of(ranks)?, of(1)?);
        samples.push((with - without) * 1024.0 / f64::from(ranks - 1));
    }
    Ok(samples)
}

/// Runs a job of `ranks` ranks for a while and prints the anonymous memory of this process in KiB.
pub(crate) fn print_footprint(ranks: &str) -> Result<(), Failure> {
    let ranks = ranks.parse()?;
    let dir = tempfile::Builder::new().prefix("taskd-bench-").tempdir()?;
    let mut job = Job::up(ranks, Some(dir.path()))?;
    job.feed(ranks * 20);
    job.settle()?;
    println!("{}", status_kib(std::process::id(), "RssAnon:")?);
    Ok(())
}
