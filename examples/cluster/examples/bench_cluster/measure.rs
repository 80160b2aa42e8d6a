//! One run: starts the processes, injects the faults, and measures.

use crate::child::Process;
use crate::etcd::Server;
use crate::job::{PATIENCE, certify, now};
use crate::report::{ChangeOfManager, Row};
use crate::{Removed, directory};
use serde_json::Value;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of candidates.
const VOTERS: usize = 3;
/// Interval at which processes are asked for what they have seen.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Settings of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) agents: u32,
    pub(crate) seconds: u64,
    pub(crate) processes: u32,
    pub(crate) rounds: u32,
    pub(crate) fanout: u32,
    pub(crate) starts: bool,
    pub(crate) slow: u32,
    /// Longest election timeout of the voters; `None` for what follows from the lease.
    pub(crate) election_ms: Option<u64>,
    /// True if etcd is the consensus engine, not the voters.
    pub(crate) etcd: bool,
}

/// The processes of a run.
struct Run {
    settings: Settings,
    managers: Vec<Process>,
    /// Index of the manager among the candidates.
    manager: usize,
    /// The agents; the last process has one, which is the one that becomes silent.
    agents: Vec<Process>,
    _etcd: Option<Server>,
    _removed: Removed,
}

/// Runs all measurements with one number of agents. After an error, `row` has the figures up to then.
pub(crate) fn run(settings: &Settings, row: &mut Row) -> Result<(), String> {
    (row.agents, row.fanout) = (settings.agents, settings.fanout);
    let times = crate::job::settings(settings.agents, settings.slow);
    row.lease_interval_ms = times.lease_interval.as_millis();
    row.lease_ms = times.lease.as_millis();
    step("register");
    let mut run = Run::begin(settings, row)?;
    step("world");
    run.world(row)?;
    step("leases");
    run.leases(row)?;
    let leases = row.lease_cpu_percent / 100.0;
    step("broadcast");
    (row.broadcast, _) = run.broadcasts(leases)?;
    step("fault");
    row.fault_to_all_direct_p99_ms = run.faults(0)?;
    run.manager().ask(&format!("fanout {}", settings.fanout), "fanout", PATIENCE)?;
    step("relayed");
    (row.broadcast_relayed, row.broadcast_relayed_first_ms) = run.broadcasts(leases)?;
    step("relayed fault");
    row.fault_to_all_p99_ms = run.faults(settings.rounds)?;
    row.relay_counts = run.manager().ask("counts", "counts", PATIENCE)?["counts"].as_str().unwrap_or_default().into();
    step("silent agent");
    row.lost_agent_s = run.lose()?;
    row.falsely_lost = run.left()?.len().saturating_sub(1); // all but the silent one
    (row.fenced, row.reconnections) = run.agents_state()?;
    (row.manager_rss_mib, row.manager_rss_peak_mib) = run.manager().rss_mib();
    step("failover");
    run.fail_over(row)?;
    row.failover_fenced = run.agents_state()?.0.saturating_sub(row.fenced);
    row.load = load();
    Ok(())
}

/// Measures the change of the manager alone.
pub(crate) fn change_of_manager(settings: &Settings) -> Result<ChangeOfManager, String> {
    let mut row = Row { agents: settings.agents, ..Row::default() };
    step("register, with etcd");
    let mut run = Run::begin(settings, &mut row)?;
    step("world, with etcd");
    run.world(&mut row)?;
    step("failover, with etcd");
    run.fail_over(&mut row)?;
    let Row { register_s, world_s, elected_s, failover_s, .. } = row;
    Ok(ChangeOfManager { register_s, world_s, elected_s, failover_s })
}

/// Prints what is measured now.
fn step(what: &str) {
    eprintln!("{:>10.3} s  {what}", now() as f64 / 1e9);
}

impl Run {
    /// Elects a manager, and registers all agents.
    fn begin(settings: &Settings, row: &mut Row) -> Result<Run, String> {
        let (dir, removed) = directory()?;
        certify(&dir)?;
        let addresses = free_addresses()?;
        let etcd = settings.etcd.then(|| Server::start(&dir)).transpose()?;
        let mut managers = Vec::new();
        let [agents, slow] = [settings.agents, settings.slow].map(|number| number.to_string());
        for voter in 0..VOTERS {
            let number = voter.to_string();
            let mut words = vec!["manager", "--dir", text(&dir)?, "--voter", &number, "--voters", &addresses];
            words.extend(["--agents", &agents, "--slow", &slow]);
            let election = settings.election_ms.map(|millis| millis.to_string());
            words.extend(election.iter().flat_map(|millis| ["--election-ms", &**millis]));
            words.extend(etcd.iter().flat_map(|server| ["--etcd", &*server.uri]));
            managers.push(Process::start(words)?);
        }
        let (manager, _) = elected(&mut managers)?;
        let mut run =
            Run { settings: *settings, managers, manager, agents: Vec::new(), _etcd: etcd, _removed: removed };
        let begin = Instant::now();
        let cpu = run.managers[manager].cpu_seconds();
        run.start_agents(&dir, &addresses)?;
        let hosts = run.manager().ask(&format!("hosts {}", settings.agents), "hosts", PATIENCE * 2)?;
        if hosts["hosts"].as_u64() != Some(settings.agents.into()) {
            return Err(format!("only {} of {} agents have registered", hosts["hosts"], settings.agents));
        }
        row.register_s = begin.elapsed().as_secs_f64();
        row.register_cpu_s = run.manager().cpu_seconds() - cpu;
        for agents in &mut run.agents {
            agents.wait("agents", PATIENCE)?;
        }
        Ok(run)
    }

    fn start_agents(&mut self, dir: &Path, managers: &str) -> Result<(), String> {
        let Settings { agents, processes, slow, .. } = self.settings;
        // The last host has a process of its own.
        let (many, mut first) = (agents - 1, 0);
        let slow = slow.to_string();
        let mut parts: Vec<u32> =
            (0..processes).map(|at| many / processes + u32::from(at < many % processes)).collect();
        parts.push(1);
        for (process, count) in (1_u32..).zip(parts) {
            let [first_text, count_text, of, process] =
                [first, count, agents, process].map(|number| number.to_string());
            let words = ["agents", "--dir", text(dir)?, "--first", &first_text, "--count", &count_text];
            let more = ["--of", &of, "--process", &process, "--managers", managers, "--slow", &slow];
            self.agents.push(Process::start([&words[..], &more].concat())?);
            first += count;
        }
        Ok(())
    }

    fn manager(&mut self) -> &mut Process {
        &mut self.managers[self.manager]
    }

    fn world(&mut self, row: &mut Row) -> Result<(), String> {
        let Settings { agents, starts, .. } = self.settings;
        let world = self.manager().ask(&format!("world {agents}"), "world", PATIENCE)?;
        (row.world_s, row.decide_s) = (seconds(&world["world"]), seconds(&world["decide"]));
        let command = format!("start {agents} {} {}", 1, if starts { "whole" } else { "empty" });
        let started = self.manager().ask(&command, "start", PATIENCE * 4)?;
        row.start_s = starts.then(|| seconds(&started["start"]));
        Ok(())
    }

    /// Keeps leases alive, and measures the processor time of the manager meanwhile.
    fn leases(&mut self, row: &mut Row) -> Result<(), String> {
        let period = Duration::from_secs(self.settings.seconds);
        let (begin, cpu) = (Instant::now(), self.manager().cpu_seconds());
        wait(period);
        let used = self.manager().cpu_seconds() - cpu;
        row.lease_cpu_percent = 100.0 * used / begin.elapsed().as_secs_f64();
        row.falsely_lost = self.left()?.len();
        Ok(())
    }

    fn left(&mut self) -> Result<Vec<(String, u64)>, String> {
        let left = self.manager().ask("left", "left", PATIENCE)?;
        serde_json::from_value(left["left"].clone()).map_err(|error| error.to_string())
    }

    /// Sends orders to all agents; meanwhile leases take the share `leases` of a core of the manager. Returns the times
    /// of all but the first, and the time of the first until all had answered,
    /// in milliseconds: relays open their connections then.
    fn broadcasts(&mut self, leases: f64) -> Result<(crate::report::Broadcast, f64), String> {
        self.arrivals(0)?;
        let first = self.manager().ask("broadcast", "broadcast", PATIENCE)?;
        self.arrivals(self.settings.agents)?;
        let (mut arrived, mut answered) = (Vec::new(), Vec::new());
        let (begin, cpu) = (Instant::now(), self.manager().cpu_seconds());
        for _ in 0..self.settings.rounds {
            let sent = self.manager().ask("broadcast", "broadcast", PATIENCE)?;
            let at = sent["at"].as_u64().unwrap_or_default();
            arrived.extend(self.arrivals(self.settings.agents)?.into_iter().map(|arrival| millis_since(at, arrival)));
            answered.push(seconds(&sent["broadcast"]) * 1e3);
        }
        let cpu = self.manager().cpu_seconds() - cpu - leases * begin.elapsed().as_secs_f64();
        let result = crate::report::Broadcast {
            p99_ms: p99(arrived),
            answered_ms: p99(answered),
            manager_cpu_ms: cpu.max(0.0) * 1e3 / f64::from(self.settings.rounds),
        };
        Ok((result, seconds(&first["broadcast"]) * 1e3))
    }

    /// Returns the times at which orders have arrived, at least `expected` of them.
    fn arrivals(&mut self, expected: u32) -> Result<Vec<u64>, String> {
        let (mut all, until) = (Vec::new(), Instant::now() + PATIENCE);
        loop {
            for agents in &mut self.agents {
                let arrivals = agents.ask("arrivals", "arrivals", PATIENCE)?;
                let arrivals: Vec<u64> =
                    serde_json::from_value(arrivals["arrivals"].clone()).map_err(|error| error.to_string())?;
                all.extend(arrivals);
            }
            if all.len() >= expected as usize {
                return Ok(all);
            }
            if Instant::now() > until {
                return Err(format!("an order has reached {} of {expected} agents", all.len()));
            }
            wait(LOOK_EVERY);
        }
    }

    /// Lets one rank fail after the other. Returns the time from a fault to the order on the other agents.
    fn faults(&mut self, first: u32) -> Result<f64, String> {
        self.manager().ask("react", "react", PATIENCE)?;
        let mut arrived = Vec::new();
        for host in first..first + self.settings.rounds.min(self.settings.agents / 4) {
            let fault = self.agents[0].ask(&format!("fault {host} 1"), "fault", PATIENCE)?;
            if fault["fault"] != true {
                return Err(format!("host {host} has no rank that can fail"));
            }
            self.manager().wait("reaction", PATIENCE)?;
            let at = fault["at"].as_u64().unwrap_or_default();
            arrived.extend(self.arrivals(self.settings.agents)?.into_iter().map(|arrival| millis_since(at, arrival)));
        }
        Ok(p99(arrived))
    }

    /// Stops the process of the last host as a frozen machine is. Returns the seconds until it is declared lost.
    fn lose(&mut self) -> Result<f64, String> {
        let (lost, until) = (crate::job::host(self.settings.agents - 1), Instant::now() + PATIENCE);
        let at = now();
        self.agents.last().ok_or("there are no agents")?.freeze()?;
        while Instant::now() < until {
            if let Some((_, when)) = self.left()?.iter().find(|(host, _)| *host == lost.0.to_string()) {
                return Ok(millis_since(at, *when) / 1e3);
            }
            wait(LOOK_EVERY);
        }
        Err(format!("{lost} is silent, and not lost"))
    }

    /// Returns the number of agents whose lease has ended at least once, and the number of their reconnections.
    fn agents_state(&mut self) -> Result<(u64, u64), String> {
        let (mut fenced, mut connections) = (0, 0);
        let Some((_silent, others)) = self.agents.split_last_mut() else { return Ok((0, 0)) };
        for agents in others {
            let state = agents.ask("state", "fenced", PATIENCE)?;
            fenced += state["fenced"].as_u64().unwrap_or_default();
            connections += state["connections"].as_u64().unwrap_or_default();
        }
        Ok((fenced, connections.saturating_sub(u64::from(self.settings.agents) - 1)))
    }

    /// Kills the manager. Measures the time until another one has all agents.
    fn fail_over(&mut self, row: &mut Row) -> Result<(), String> {
        let at = now();
        self.manager().kill();
        self.managers.remove(self.manager);
        let (manager, elected_at) = elected(&mut self.managers)?;
        self.manager = manager;
        let cpu = self.manager().cpu_seconds();
        let expected = self.settings.agents - 1;
        let hosts = self.manager().ask(&format!("hosts {expected}"), "hosts", PATIENCE * 2)?;
        if hosts["hosts"].as_u64() < Some(expected.into()) {
            return Err(format!("only {} of {expected} agents have found the new manager", hosts["hosts"]));
        }
        row.elected_s = millis_since(at, elected_at) / 1e3;
        row.failover_s = millis_since(at, hosts["at"].as_u64().unwrap_or_default()) / 1e3;
        row.failover_cpu_s = self.manager().cpu_seconds() - cpu;
        Ok(())
    }
}

/// Waits until one of the candidates is elected. Returns its index, and the time.
fn elected(candidates: &mut [Process]) -> Result<(usize, u64), String> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        for (index, candidate) in candidates.iter_mut().enumerate() {
            if let Some(elected) = candidate.poll("elected", LOOK_EVERY)? {
                return Ok((index, elected["at"].as_u64().unwrap_or_default()));
            }
        }
    }
    Err(format!("no manager is elected within {PATIENCE:?}"))
}

/// Returns free addresses for the voters, separated by commas.
fn free_addresses() -> Result<String, String> {
    let bind = |_| TcpListener::bind("127.0.0.1:0").and_then(|listener| Ok((listener.local_addr()?, listener)));
    let bound: Vec<_> =
        (0..VOTERS).map(bind).collect::<Result<_, _>>().map_err(|error| format!("no free port: {error}"))?;
    Ok(bound.iter().map(|(address, _)| address.to_string()).collect::<Vec<_>>().join(","))
}

fn text(path: &Path) -> Result<&str, String> {
    path.to_str().ok_or_else(|| format!("{} is no text", path.display()))
}

/// Returns the machine's load of the last minute.
fn load() -> f64 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(f64::NAN)
}

fn seconds(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn millis_since(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e6
}

fn p99(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() * 99).div_ceil(100).max(1) - 1;
    values.get(at).copied().unwrap_or(f64::NAN)
}

#[allow(clippy::disallowed_methods, reason = "the benchmark itself has nothing to wait for")]
fn wait(time: Duration) {
    std::thread::sleep(time);
}
