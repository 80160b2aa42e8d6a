//! Recovery of one killed rank in a job of several hosts, compared with the same job on one host: same ranks, same
//! machine, same run, one after the other in turn.
//!
//! `cargo run --release -p taskd-cluster-example --example recovery_ratio`, as root. The hosts are namespaces of this
//! machine and share its processors without limits. `--most` makes a greater ratio of the medians the exit code 1.

use clap::Parser;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use taskd_cluster_example::hosts::Hosts;
use taskd_cluster_example::run_if_role;
use taskd_cluster_example::training::{Plan, Training};
use taskd_core::launch::guard;
use taskd_examples::program::{self, Failure, number};
use taskd_examples::recover::now;
use taskd_examples::samples::Samples;
use taskd_pytorch::{store, venv};
use tokio::time::{Instant, sleep};

/// Steps of each rank before a kill.
const STEPS_BEFORE: usize = 10;
/// Lease of a host: long, so that a loaded machine loses no host.
const LEASE: Duration = Duration::from_secs(10);
/// Processors of a host: no limit on machines that have fewer.
const CPUS: f64 = 64.0;
/// Pause in each step, in milliseconds.
const PACE_MS: u64 = 20;
/// Time for a standby to be ready. Without one a recovery imports torch, on one host as on several.
const STANDBY_WITHIN: Duration = Duration::from_secs(300);
/// What a guard logs when its standby is ready.
const STANDBY_IS_READY: &str = "a standby is pre-warmed";

/// Compares the recovery of one rank on several hosts and on one.
#[derive(Debug, Parser)]
struct Options {
    /// Ranks of each job, and hosts of the second one.
    #[arg(long, default_value_t = 6, value_parser = number::<u32>(2, 12))]
    ranks: u32,
    /// Number of times that both jobs run, in turn.
    #[arg(long, default_value_t = 2, value_parser = number::<u32>(1, 100))]
    rounds: u32,
    /// Kills in each job.
    #[arg(long, default_value_t = 3, value_parser = number::<u32>(1, 100))]
    kills: u32,
    /// Chooses the victims and the moments.
    #[arg(long, default_value_t = 7, value_parser = number::<u64>(0, u64::MAX))]
    seed: u64,
    /// Greatest ratio of the medians that is no failure, in hundredths.
    #[arg(long, value_parser = number::<u32>(1, 100_000))]
    most: Option<u32>,
    /// Prints the figures as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

/// The figures of a run.
#[derive(Debug, Serialize)]
struct Figures {
    ranks: u32,
    /// Seconds from a kill until every rank has completed a step again: on one host, and with a host per rank.
    one_host_s: Vec<f64>,
    several_hosts_s: Vec<f64>,
    /// Median of the second by median of the first.
    ratio: f64,
    /// Recoveries of each for which a standby was ready.
    standbys: [u32; 2],
    /// Completed steps that were computed again, in all recoveries together.
    steps_lost: u64,
    /// The machine's load of the last minute at the end.
    load: f64,
}

/// One recovery.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    took_s: f64,
    /// When all ranks had completed a step again, in seconds of the monotonic clock.
    trained_at: f64,
    had_standby: bool,
    steps_lost: u64,
}

fn main() -> ExitCode {
    guard::init(); // this program is also the guard, in which this call does not return
    store::init(); // nor does it return in the store
    if let Some(code) = run_if_role() {
        return code;
    }
    let options: Options = program::options();
    program::run("recovery_ratio", Box::pin(run(&options)))
}

async fn run(options: &Options) -> Result<(), Failure> {
    let located = tokio::task::spawn_blocking(|| venv::locate(&mut |line| eprintln!("python        {line}")));
    let python = located.await??;
    let mut random = StdRng::seed_from_u64(options.seed);
    let mut jobs: [Vec<Recovery>; 2] = [Vec::new(), Vec::new()];
    for round in 1..=options.rounds {
        for (recoveries, hosts) in jobs.iter_mut().zip([1, options.ranks]) {
            // On Ctrl-C the run is dropped, and its hosts are removed.
            let new = tokio::select! {
                new = recover(options, &python, hosts, &mut random) => new?,
                _ = tokio::signal::ctrl_c() => return Err("interrupted".into()),
            };
            if !options.json {
                let times: Vec<String> = new.iter().map(|one| format!("{:.2} s", one.took_s)).collect();
                println!("round {round}       {hosts} hosts: {}", times.join(", "));
            }
            recoveries.extend(new);
        }
    }
    let figures = Figures::of(options.ranks, &jobs);
    program::print(&figures, options.json, || figures.text());
    match options.most.map(|most| f64::from(most) / 100.0).filter(|most| figures.ratio > *most) {
        Some(most) => Err(format!("the ratio is {:.2}, greater than {most}", figures.ratio).into()),
        None => Ok(()),
    }
}

/// Runs a job on this number of hosts, kills ranks of it, and returns how each was recovered.
async fn recover(options: &Options, python: &Path, hosts: u32, random: &mut StdRng) -> Result<Vec<Recovery>, Failure> {
    let made = Hosts::create(hosts as usize, CPUS)?;
    made.notes().iter().for_each(|note| eprintln!("note          {note}"));
    let mut training = Training::start(plan(options.ranks, python, hosts), made)?;
    training.begun(STEPS_BEFORE).await?;
    let (mut since, mut used) = (0.0, BTreeMap::new());
    let mut recoveries = Vec::new();
    for _ in 0..options.kills {
        training.steps_since(since, STEPS_BEFORE).await?;
        let recovery = recover_one(&mut training, options.ranks, random, &mut used).await?;
        since = recovery.trained_at;
        recoveries.push(recovery);
    }
    let ended = training.end().await?;
    program::completed(&ended.report)?;
    Ok(recoveries)
}

fn plan(ranks: u32, python: &Path, hosts: u32) -> Plan {
    Plan {
        python: python.to_owned(),
        ranks,
        min_ranks: ranks,
        slots: vec![ranks.div_ceil(hosts)],
        hosts: hosts as usize,
        voters: Vec::new(),
        leaf: Vec::new(),
        lease: LEASE,
        pace_ms: PACE_MS,
    }
}

/// Kills a random rank, and waits until all train again. `used` counts the standbys that were needed on each host.
async fn recover_one(
    training: &mut Training,
    ranks: u32,
    random: &mut StdRng,
    used: &mut BTreeMap<String, usize>,
) -> Result<Recovery, Failure> {
    let rank = random.random_range(0..ranks);
    let victim = training.steps().pids().get(&rank).copied().ok_or("the rank has no process")?;
    let host = training.lives().get(&victim).and_then(|life| life.host.clone()).ok_or("the rank has no host")?;
    let used = used.entry(host.clone()).or_default();
    let had_standby = standby_is_ready(training, &host, *used).await?;
    *used += 1;
    sleep(Duration::from_millis(random.random_range(0..100))).await; // so that kills hit every phase of a step
    let at = now();
    kill_process(Pid::from_raw(victim).ok_or("the rank has no process")?, Signal::KILL)?;
    let what = "all ranks train again after the kill";
    let (step, trained_at) = training.until(what, |steps| steps.first_common(at, ranks, &[victim])).await?;
    let steps_lost = training.steps().last_before(at).map_or(0, |last| (last + 1).saturating_sub(step));
    Ok(Recovery { took_s: trained_at - at, trained_at, had_standby, steps_lost })
}

/// Waits until a host has made more standbys than it has `used`. Returns false if it does not in time.
async fn standby_is_ready(training: &Training, host: &str, used: usize) -> Result<bool, Failure> {
    let host = training.hosts.get(host)?;
    let log = host.dir().join("run").join("guard.log");
    let deadline = Instant::now() + STANDBY_WITHIN;
    loop {
        // The directory of a host is mounted in its own namespace, which its processes show.
        let seen_by = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/root{}", log.display())).ok();
        let lines = host.pids()?.iter().find_map(seen_by).unwrap_or_default();
        if lines.lines().filter(|line| line.contains(STANDBY_IS_READY)).count() > used {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        sleep(Duration::from_millis(200)).await;
    }
}

impl Figures {
    fn of(ranks: u32, jobs: &[Vec<Recovery>; 2]) -> Figures {
        let [one, several] = jobs;
        let samples = |of: &[Recovery]| of.iter().map(|recovery| recovery.took_s).collect::<Samples>();
        let seconds = |of: &[Recovery]| of.iter().map(|one| (one.took_s * 1e3).round() / 1e3).collect();
        let standbys =
            |of: &[Recovery]| u32::try_from(of.iter().filter(|one| one.had_standby).count()).unwrap_or(u32::MAX);
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Figures {
            ranks,
            one_host_s: seconds(one),
            several_hosts_s: seconds(several),
            ratio: samples(several).median() / samples(one).median(),
            standbys: [standbys(one), standbys(several)],
            steps_lost: one.iter().chain(several).map(|recovery| recovery.steps_lost).sum(),
            load: load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or_default(),
        }
    }

    fn text(&self) -> String {
        let samples = |of: &[f64]| of.iter().copied().collect::<Samples>();
        format!(
            "one host      {} s, {} of {} with a standby\n{:14}{} s, {} of {} with a standby\nratio         {:.2} of \
             the medians; {} steps lost, load {}",
            samples(&self.one_host_s),
            self.standbys[0],
            self.one_host_s.len(),
            format!("{} hosts", self.ranks),
            samples(&self.several_hosts_s),
            self.standbys[1],
            self.several_hosts_s.len(),
            self.ratio,
            self.steps_lost,
            self.load,
        )
    }
}
