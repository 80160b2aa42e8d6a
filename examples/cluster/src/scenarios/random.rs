//! Random cases: several faults of one job, one after the other, with ranks and guards killed in between. Whatever is
//! drawn, training must not stall, no two worlds may train, and every step must have the state of an undisturbed run.

use super::expected::Moment;
use super::row::Row;
use super::shapes::SIX;
use super::{Setting, Trial};
use rand::RngExt;
use std::collections::BTreeSet;
use std::time::Duration;
use taskd_core::job::{Domain, Role};
use taskd_core::kernel::JobReport;
use taskd_examples::program::Failure;
use tokio::time::sleep;

/// Most faults of one case.
const FAULTS_MAX: u32 = 3;
/// During the recovery from every n-th fault, on average, a rank or a guard is killed: n.
const KILL_ONE_OF: u32 = 3;

/// One random case.
#[derive(Clone, Copy, Debug)]
pub struct RandomCase {
    /// Its number, from 1 on.
    pub number: u32,
    /// Chooses its faults, victims and moments.
    pub seed: u64,
}

/// A fault of a random case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    RankKilled,
    GuardKilled,
    HostLost,
    HostCut,
    /// Packets from a host to the manager's host are lost.
    HostMute,
    /// Packets from the manager's host to a host are lost.
    HostDeaf,
    HostBlip,
    AgentRestarted,
    SpareLost,
    ManagerRestarted,
    ManagerLost,
    ManagerCut,
}

const FAULTS: [Fault; 12] = [
    Fault::RankKilled,
    Fault::GuardKilled,
    Fault::HostLost,
    Fault::HostCut,
    Fault::HostMute,
    Fault::HostDeaf,
    Fault::HostBlip,
    Fault::AgentRestarted,
    Fault::SpareLost,
    Fault::ManagerRestarted,
    Fault::ManagerLost,
    Fault::ManagerCut,
];

/// What the faults of a case have hit.
#[derive(Debug, Default)]
struct Hits {
    hosts: BTreeSet<String>,
    ranks: BTreeSet<u32>,
}

/// A fault that was carried out.
#[derive(Debug)]
struct Struck {
    what: String,
    at: Moment,
    /// The ranks that get new processes.
    ranks: BTreeSet<u32>,
    /// Host that is to be brought back.
    away: Option<String>,
    /// Hosts between which packets are lost in this direction.
    cut: Option<(String, String)>,
}

impl RandomCase {
    /// Runs the case.
    ///
    /// # Errors
    /// This machine cannot have hosts in namespaces, or the job did not start.
    pub async fn run(&self, setting: &Setting) -> Result<Row, Failure> {
        let mut trial = super::begin(&SIX, setting, self.seed).await?;
        let mut row = Row { pids_kept: true, ..Row::new("random", None, &trial) };
        let number = trial.random.random_range(1..=FAULTS_MAX);
        if let Err(error) = self.faults(number, &mut trial, &mut row).await {
            row.problems.push(error.to_string());
        }
        row.one_world(&trial);
        row.correct = row.problems.is_empty();
        row.scenario = format!("random {} (seed {})", self.number, self.seed);
        super::finish(row, &mut trial, setting, &SIX).await
    }

    async fn faults(&self, number: u32, trial: &mut Trial, row: &mut Row) -> Result<(), Failure> {
        let mut hits = Hits::default();
        for _ in 0..number {
            one_fault(trial, row, &mut hits).await?;
        }
        let ended = trial.training.end().await?;
        row.completed(&ended);
        row.record_blame(&ended.report);
        row.problems.extend(wrongly_blamed(&ended.report, &hits));
        Ok(())
    }
}

/// Carries out one fault, waits until all ranks train again, and brings back what it has taken.
async fn one_fault(trial: &mut Trial, row: &mut Row, hits: &mut Hits) -> Result<(), Failure> {
    let lease = trial.training.plan.lease;
    trial.before = trial.training.steps().pids();
    let fault = FAULTS[trial.random.random_range(0..FAULTS.len())];
    let mut struck = strike(trial, fault, hits).await?;
    if fault != Fault::RankKilled && trial.random.random_range(0..KILL_ONE_OF) == 0 {
        kill_in_between(trial, &mut struck, hits).await?;
    }
    row.injected += &format!("{}{}", if row.injected.is_empty() { "" } else { "; " }, struck.what);
    if struck.ranks.is_empty() {
        sleep(lease * 2).await; // a lease that was not extended has ended by now
    }
    let since = if struck.ranks.is_empty() { Moment::now() } else { struck.at };
    let (step, time) = trial.trains_again(&struck.ranks, since).await?;
    let resumed = super::row::round(time - struck.at.monotonic);
    row.resumed_s = Some(row.resumed_s.unwrap_or(0.0).max(resumed));
    let steps = trial.training.steps();
    if !struck.ranks.is_empty() {
        row.lost_steps(&steps, struck.at.monotonic, step);
    }
    let kept = row.pids_kept;
    row.keep_processes(trial, &struck.ranks, &steps);
    row.pids_kept &= kept;
    if let Some((from, to)) = &struck.cut {
        let hosts = &trial.training.hosts;
        hosts.get(from)?.heal_to(hosts.get(to)?)?;
    }
    if let Some(host) = &struck.away {
        trial.bring_back(host).await?;
    }
    sleep(lease).await; // the returned host registers
    Ok(())
}

async fn strike(trial: &mut Trial, fault: Fault, hits: &mut Hits) -> Result<Struck, Failure> {
    let (manager, _) = trial.manager()?;
    let host = victim(trial, fault, &manager)?;
    let ranks = match fault {
        Fault::HostBlip | Fault::AgentRestarted | Fault::ManagerRestarted | Fault::SpareLost => BTreeSet::new(),
        Fault::RankKilled => BTreeSet::from([trial.any_rank()]),
        _ => trial.ranks_on(&host),
    };
    trial.part_of_a_step().await;
    let mut struck = Struck { what: String::new(), at: Moment::now(), ranks, away: None, cut: None };
    if fault == Fault::RankKilled {
        let rank = struck.ranks.first().copied().ok_or("no rank is chosen")?;
        trial.kill(rank)?;
        hits.ranks.insert(rank);
        return Ok(Struck { what: format!("SIGKILL to rank {rank}"), ..struck });
    }
    hits.ranks.extend(trial.ranks_on(&host));
    hits.hosts.insert(host.clone());
    struck.what = strike_host(trial, fault, &mut struck, (host, manager)).await?;
    Ok(struck)
}

/// Carries out the fault of a host. Returns what happened, in words.
async fn strike_host(
    trial: &mut Trial,
    fault: Fault,
    struck: &mut Struck,
    (host, manager): (String, String),
) -> Result<String, Failure> {
    Ok(match fault {
        Fault::RankKilled => return Err("a rank is no host".into()),
        Fault::GuardKilled => {
            trial.kill_guard(&host)?;
            format!("SIGKILL to the guard of {host}")
        }
        Fault::HostLost | Fault::SpareLost | Fault::ManagerLost => {
            struck.at = trial.lose(&host).await?;
            struck.away = Some(host.clone());
            format!("{host} lost")
        }
        Fault::HostCut | Fault::ManagerCut => {
            trial.training.hosts.get(&host)?.set_link(false)?;
            struck.away = Some(host.clone());
            format!("link of {host} down")
        }
        Fault::HostMute | Fault::HostDeaf => {
            let ends = if fault == Fault::HostMute { (host, manager) } else { (manager, host) };
            let hosts = &trial.training.hosts;
            hosts.get(&ends.0)?.cut_to(hosts.get(&ends.1)?)?;
            let what = format!("packets from {} to {} lost", ends.0, ends.1);
            struck.cut = Some(ends);
            what
        }
        Fault::HostBlip => {
            let time = trial.training.plan.lease / 2;
            trial.training.hosts.get(&host)?.set_link(false)?;
            sleep(time).await;
            trial.training.hosts.get(&host)?.set_link(true)?;
            format!("link of {host} down for {time:?}")
        }
        Fault::AgentRestarted | Fault::ManagerRestarted => {
            trial.restart_program(&host).await?;
            format!("program of {host} killed and restarted")
        }
    })
}

/// Returns the host that a fault hits.
fn victim(trial: &mut Trial, fault: Fault, manager: &str) -> Result<String, Failure> {
    let names: Vec<String> = trial.training.programs.keys().cloned().collect();
    let (with_ranks, without): (Vec<String>, Vec<String>) =
        names.into_iter().filter(|host| host != manager).partition(|host| !trial.ranks_on(host).is_empty());
    let candidates = match fault {
        Fault::ManagerRestarted | Fault::ManagerLost | Fault::ManagerCut => vec![manager.to_owned()],
        Fault::SpareLost if !without.is_empty() => without,
        _ => with_ranks,
    };
    let number = trial.random.random_range(0..candidates.len().max(1));
    Ok(candidates.get(number).cloned().ok_or("no host has a rank")?)
}

/// Kills a rank or a guard of a host that was not hit, within the lease of the one that was.
async fn kill_in_between(trial: &mut Trial, struck: &mut Struck, hits: &mut Hits) -> Result<(), Failure> {
    let after = trial.training.plan.lease.mul_f64(trial.random.random_range(0.0..1.2));
    let unhurt: Vec<u32> = trial.before.keys().copied().filter(|rank| !struck.ranks.contains(rank)).collect();
    let number = trial.random.random_range(0..unhurt.len().max(1));
    let Some(rank) = unhurt.get(number).copied() else { return Ok(()) };
    sleep(after).await;
    let Some(host) = trial.host_of(rank) else { return Ok(()) };
    let together = Duration::from_secs_f64(struck.at.elapsed());
    hits.ranks.insert(rank);
    if trial.random.random_range(0..2) == 0 {
        trial.kill(rank)?;
        struck.ranks.insert(rank);
        struck.what += &format!(", and SIGKILL to rank {rank} {together:.1?} later");
    } else {
        trial.kill_guard(&host)?;
        struck.ranks.extend(trial.ranks_on(&host));
        struck.what += &format!(", and SIGKILL to the guard of {host} {together:.1?} later");
        hits.hosts.insert(host);
    }
    Ok(())
}

/// Returns the incidents that blame what no fault has hit.
fn wrongly_blamed(report: &JobReport, hits: &Hits) -> Vec<String> {
    let is_hit = |domain: &Domain| match domain {
        Domain::Node(host) | Domain::Guard(host) => hits.hosts.contains(host.0.as_str()),
        Domain::Process(Role::Rank(rank)) => hits.ranks.contains(&rank.0),
        _ => true,
    };
    let wrong = report.incidents.iter().filter(|one| !is_hit(&one.domain));
    wrong.map(|one| format!("{} in {} is blamed, although it was not hit", one.class, one.domain)).collect()
}
