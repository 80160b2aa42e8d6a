//! How many observations a second the kernel takes on one core with and without the two logs, and what a rank costs in
//! memory.
//!
//! One observation in two is a heartbeat, the other a completed step. What is timed is what the shell does with them:
//! facts become observations, go through the mailbox into the kernel, and with their commands into the logs. The threads
//! that write the logs share the core; a round ends when its last record is written.

use super::Failure;
use super::idle::status_kib;
use super::job::Job;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::process::Command;
use std::time::{Duration, Instant};
use taskd_examples::samples::Samples;

/// Resident memory is taken so often, of a job with the ranks and of one without.
const FOOTPRINTS: u32 = 5;

/// What the kernel takes.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figures {
    /// On one core, with both logs on real files, by the clock on the wall: the median of all rounds.
    observations_per_s: f64,
    /// Of the supervisor's resident memory.
    bytes_per_rank: f64,
}

/// Measures, and prints the tables.
pub(crate) fn measure(quick: bool) -> Result<Figures, Failure> {
    let (ranks, observations, rounds) = if quick { (1000, 20_000, 1) } else { (10_000, 2_000_000, 7) };
    // A thread of its own, since it ties itself, and the threads that it starts, to one core.
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
        "\nresident memory: {footprint} bytes per rank, kernel, detectors and both logs, {ranks} ranks beside one"
    );
    Ok(Figures { observations_per_s: rates.logged.by_wall.median() * 1e6, bytes_per_rank: footprint.median() })
}

/// Millions of observations a second.
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

/// The last core on which this thread may run: the first ones have most of the machine's other work.
fn stay_on_one_core() -> Result<(), Failure> {
    let allowed = sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu)).ok_or("no core")?;
    let mut one = CpuSet::new();
    one.set(last);
    Ok(sched_setaffinity(None, &one)?)
}

/// Time that all threads of this process have run.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Bytes of resident memory that each rank adds, seen from outside: a process with all of them beside one with a single
/// rank.
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

/// Runs a job of so many ranks for a while and prints its own memory in KiB.
pub(crate) fn print_footprint(ranks: &str) -> Result<(), Failure> {
    let ranks = ranks.parse()?;
    let dir = tempfile::Builder::new().prefix("taskd-bench-").tempdir()?;
    let mut job = Job::up(ranks, Some(dir.path()))?;
    job.feed(ranks * 20);
    job.settle()?;
    println!("{}", status_kib(std::process::id(), "RssAnon:")?);
    Ok(())
}
