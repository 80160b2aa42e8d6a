//! How many observations a second the kernel takes on one core with and without the two logs, and what a rank costs in
//! memory.
//!
//! One observation in two is a heartbeat, the other a completed step. What is timed is what the shell does with them:
//! facts become observations, go through the mailbox into the kernel, and with their commands into the logs. The threads
//! that write the logs share the core; a round ends when its last record is written.

use super::Failure;
use super::idle::status_kib;
use super::samples::Samples;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use taskd_core::detect;
use taskd_core::job::{Domain, Generation, Incarnation, JobSpec, JobTime, Name, ProcId, Rank, Role, WorkerSpec};
use taskd_core::journal::{Header, Journal, JournalConfig};
use taskd_core::kernel::{Checks, Input, Kernel, Mailbox, Plugins, Start};
use taskd_core::launch::{Change, Listing, Phase, ProcStatus};
use taskd_core::recover::{Action, ExitStrategy, Output, Restart};
use taskd_core::trace::{Fact, Signal};

/// Ranks whose facts come in one batch.
const RANKS_PER_BATCH: u32 = 500;
/// Time between two heartbeats of a rank, and between two of its steps.
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// How long a round waits for the last record.
const WRITE_WITHIN: Duration = Duration::from_secs(60);
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
    println!("| | by the clock on the wall | by the time that the core worked for it |\n|---|---|---|");
    println!("| both logs on real files | {} | {} |", rates.logged.by_wall, rates.logged.by_cpu);
    println!("| no logs | {} | {} |", rates.bare.by_wall, rates.bare.by_cpu);
    let ratio = rates.logged.by_cpu.median() / rates.bare.by_cpu.median();
    println!("\nwith logs it takes {ratio:.2} of what it takes without");
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

/// A job that runs as far as its kernel knows.
struct Job {
    kernel: Kernel,
    mailbox: Mailbox,
    journal: Option<Journal>,
    ranks: u32,
    now: JobTime,
    step: u64,
}

impl Job {
    /// A job all of whose ranks have been started, with logs where a directory is given.
    fn up(ranks: u32, logs: Option<&Path>) -> Result<Job, Failure> {
        let plugins = Plugins {
            detectors: detect::defaults(),
            strategies: vec![Box::new(Restart::new()), Box::new(ExitStrategy::new())],
        };
        let header =
            Header { job: Name::new("bench"), job_id: "1".into(), ranks, started_unix_ms: 0, plugins: Vec::new() };
        let journal = logs.map(|dir| Journal::open(dir, header, JournalConfig::default())).transpose()?;
        let mut job = Job {
            kernel: Kernel::new(plugins),
            mailbox: Mailbox::new(Checks::default()),
            journal: journal.map(|(journal, _)| journal),
            ranks,
            now: JobTime::START,
            step: 0,
        };
        let spec = Arc::new(JobSpec::new("bench", ranks, WorkerSpec::new(["train"])));
        job.give(Input::Start(Box::new(Start { spec })));
        let start = job.give(Input::Listed(Listing::default())).ok_or("the kernel starts nothing")?;
        let accepted = (0..ranks).map(|rank| (domain(rank), Ok(Output::Accepted))).collect();
        job.give(Input::Answered { id: start, results: accepted });
        for rank in 0..ranks {
            let (proc, instance) = (ProcId::rank(rank, 1), Name::new("host"));
            let status = ProcStatus { proc, node: None, instance, pid: Some(rank + 1), phase: Phase::Running };
            job.give(Input::Changed(Change::Proc(status)));
        }
        Ok(job)
    }

    /// Gives the kernel an input, and returns the id of a start if it orders one.
    fn give(&mut self, input: Input) -> Option<taskd_core::job::CommandId> {
        self.mailbox.push(input);
        self.run()
    }

    /// What the shell does with what has come in.
    fn run(&mut self) -> Option<taskd_core::job::CommandId> {
        let mut start = None;
        while let Some((now, input)) = self.mailbox.next(self.now, self.kernel.deadline()) {
            let commands = self.kernel.step(now, &input);
            if let Some(journal) = &mut self.journal {
                journal.append(self.kernel.seq(), now, &input, &commands);
                if journal.snapshot_due() {
                    journal.snapshot(&self.kernel.snapshot());
                }
            }
            let ordered = commands.iter().find(|c| matches!(c.action, Action::Start { .. }));
            start = start.or(ordered.map(|command| command.id));
        }
        start
    }

    /// Takes so many observations, or a few more.
    fn feed(&mut self, observations: u32) {
        let mut left = observations;
        while left > 0 {
            self.now = self.now + BEAT_EVERY;
            self.step += 1;
            for first in (0..self.ranks).step_by(RANKS_PER_BATCH as usize) {
                let ranks = first..self.ranks.min(first + RANKS_PER_BATCH);
                let step = self.step;
                let facts =
                    ranks.flat_map(|rank| [Signal::Heartbeat, Signal::Progress { step }].map(|s| fact(rank, s)));
                let observed: Vec<_> = facts.map(|fact| fact.observed(self.now)).collect();
                left = left.saturating_sub(u32::try_from(observed.len()).unwrap_or(u32::MAX));
                self.mailbox.push_facts(self.now, observed);
                self.run();
            }
        }
    }

    /// Waits until everything stands in the logs. All of it must have been taken.
    fn settle(&self) -> Result<(), Failure> {
        let taken =
            |rank| self.kernel.view().proc(&Role::Rank(Rank(rank))).is_some_and(|proc| proc.step == Some(self.step));
        if let Some(rank) = (0..self.ranks).find(|rank| !taken(*rank)) {
            return Err(format!("the kernel has not taken what was told of rank {rank}").into());
        }
        let Some(journal) = &self.journal else { return Ok(()) };
        let settled = journal.flush(WRITE_WITHIN);
        match journal.counts().lost {
            0 if settled => Ok(()),
            0 => Err(format!("the logs were not written within {WRITE_WITHIN:?}").into()),
            lost => Err(format!("the logs lost {lost} records: the disk is full, or far too slow").into()),
        }
    }
}

fn domain(rank: u32) -> Domain {
    Domain::Process(Role::Rank(Rank(rank)))
}

fn fact(rank: u32, signal: Signal) -> Fact {
    Fact::new(domain(rank), signal).of(Incarnation(1)).within(Generation(1))
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
