//! Hosts that fail again and again are known to the next job: three jobs share one history of hosts.
//!
//! `cargo run --example host_history`: four guards are four hosts of this machine, three of them run a rank of each job,
//! and a rank is killed from outside in each. The first job knows nothing. The second avoids the host of the first
//! incident, and the third has to take one of the two hosts with incidents. At the end the recorded incidents are
//! compared with the injected ones, and the history is printed.
//!
//! `cargo run --example host_history -- --show FILE` prints the history of a cluster: which hosts had most incidents,
//! when, of which kinds, and their share of all incidents.

use clap::Parser;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use taskd_core::detect::ExitDetector;
use taskd_core::host_history::HostHistoryFile;
use taskd_core::job::{Name, NodeId, ProcId, WallTime};
use taskd_core::launch::{Launcher, MultiHostLauncher, Phase, ProcStatus};
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::{JobSpec, LocalLauncher, Runtime, WorkerSpec, guard};
use taskd_examples::program::{self, Failure, number};

const HOSTS: usize = 4;
const RANKS: u32 = 3;
/// Rank that is killed in each job, the first job first.
const VICTIMS: [u32; 3] = [1, 0, 2];

/// Three jobs share a history of hosts; or prints the history of a cluster.
#[derive(Debug, Parser)]
struct Options {
    /// Prints this history of hosts, and runs nothing.
    #[arg(long, value_name = "FILE")]
    show: Option<PathBuf>,
    /// Number of hosts in the printed table.
    #[arg(long, allow_negative_numbers = true, default_value_t = 10, value_parser = number::<usize>(1, 4096))]
    top: usize,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

/// What the three jobs did.
#[derive(Debug, Default, Serialize)]
struct Account {
    /// Hosts of the killed ranks.
    injected: Vec<String>,
    /// Hosts of the recorded incidents, oldest first.
    recorded: Vec<String>,
    /// Hosts on which each job started, by rank.
    placed: Vec<Vec<String>>,
    /// True if the recorded incidents are the injected ones.
    equal: bool,
}

fn main() -> ExitCode {
    guard::init(); // this program is also the guard, in which this call does not return
    let options: Options = program::options();
    program::run("host_history", async move {
        match &options.show {
            Some(path) => show(&HostHistoryFile::new(path), options.top),
            None => {
                let dir = tempfile::Builder::new().prefix("taskd-host-history-").tempdir()?;
                let file = HostHistoryFile::new(dir.path().join("hosts.jsonl"));
                let account = Box::pin(jobs(dir.path(), &file)).await?;
                show(&file, options.top)?;
                program::print(&account, options.json, || {
                    format!("injected {:?}, recorded {:?}", account.injected, account.recorded)
                });
                Ok(())
            }
        }
    })
}

/// Prints a history.
fn show(file: &HostHistoryFile, top: usize) -> Result<(), Failure> {
    let stored = file.read()?;
    if stored.unreadable > 0 {
        println!("{} lines of {} are damaged", stored.unreadable, file.path().display());
    }
    #[allow(clippy::disallowed_methods, reason = "this is the program's edge")]
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    print!("{}", stored.history.report(top, WallTime::from_unix_ms(u64::try_from(now.as_millis())?)));
    Ok(())
}

async fn jobs(dir: &Path, file: &HostHistoryFile) -> Result<Account, Failure> {
    let mut account = Account::default();
    for (number, victim) in VICTIMS.into_iter().enumerate() {
        let placed = Box::pin(job(&dir.join(format!("job-{number}")), file, victim)).await?;
        println!("job {number}: ranks on {}; rank {victim} is killed", placed.join(", "));
        account.injected.extend(placed.get(victim as usize).cloned());
        account.placed.push(placed);
    }
    let stored = file.read()?.history;
    let mut recorded: Vec<_> = stored.iter().collect();
    recorded.sort_by_key(|(_, incident)| incident.at);
    account.recorded = recorded.into_iter().map(|(host, _)| host.0.to_string()).collect();
    account.equal = account.recorded == account.injected;
    Ok(account)
}

/// Runs a job on all hosts, kills a rank, and returns the hosts on which its ranks started.
async fn job(dir: &Path, file: &HostHistoryFile, victim: u32) -> Result<Vec<String>, Failure> {
    let end = dir.join("end");
    let script = r#"while [ ! -e "$1" ]; do sleep 0.02; done"#;
    let worker = WorkerSpec::new(["sh", "-c", script, "rank", &end.display().to_string()]);
    let mut hosts = Vec::new();
    for at in 0..HOSTS {
        let host =
            LocalLauncher::builder(dir.join(format!("host-{at}"))).node(NodeId(Name::from(format!("host-{at}"))));
        hosts.push(Arc::new(host.slots(1).build().await?));
    }
    let fleet = Arc::new(MultiHostLauncher::of(hosts.iter().map(Arc::clone)).await?);
    let heartbeats = |runtime: taskd_core::RuntimeBuilder, (at, host): (usize, &Arc<LocalLauncher>)| {
        runtime.source(host.heartbeats(Duration::from_millis(200)).named(format!("heartbeats-{at}")))
    };
    let runtime = Runtime::builder()
        .job(JobSpec::new("host-history", RANKS, worker))
        .detector(ExitDetector::new())
        .strategy(Restart::new())
        .strategy(ExitStrategy::new())
        .host_history(file.path())
        .launcher(Arc::clone(&fleet));
    let runtime = hosts.iter().enumerate().fold(runtime, heartbeats).build()?;
    let story = async {
        let started = running(&fleet, 1).await?;
        let pid = started.iter().find(|status| status.proc == ProcId::rank(victim, 1)).and_then(|status| status.pid);
        let pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).ok_or("the rank has no process")?;
        kill_process(pid, Signal::KILL)?;
        running(&fleet, 2).await?;
        std::fs::write(&end, "")?;
        let host = |status: ProcStatus| status.node.map(|node| node.0.to_string()).unwrap_or_default();
        Ok::<_, Failure>(started.into_iter().map(host).collect::<Vec<_>>())
    };
    let mut run = std::pin::pin!(runtime.run_with_signals(program::LEAVE));
    let placed = tokio::select! {
        placed = story => placed?,
        report = &mut run => {
            program::completed(&report?)?;
            return Err("the job ended before its rank was killed".into());
        }
    };
    program::completed(&run.await?)?;
    for host in &hosts {
        host.shutdown(Duration::ZERO).await?;
    }
    Ok(placed)
}

/// Returns the ranks' processes, in the order of the ranks, once all run in this incarnation.
async fn running(fleet: &MultiHostLauncher, incarnation: u32) -> Result<Vec<ProcStatus>, Failure> {
    loop {
        let listing = fleet.list().await?;
        let find = |rank| listing.procs.iter().find(|status| status.proc == ProcId::rank(rank, incarnation));
        let found: Vec<ProcStatus> = (0..RANKS).filter_map(find).cloned().collect();
        if found.len() == RANKS as usize && found.iter().all(|status| status.phase == Phase::Running) {
            return Ok(found);
        }
        fleet.watch(listing.revision).await?;
    }
}
