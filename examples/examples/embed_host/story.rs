//! The scenario: faults and commands from outside, and checks of what the service does.

use crate::embedded::{NODES, RANKS, settings, socket_path};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use taskd_examples::program::{self, Failure};
use taskd_examples::trainer;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// The environment variable that marks everything the service starts, so that leftover processes are found.
const MARK: &str = "EMBED_HOST_RUN";
/// Time limit of each wait.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long processes may take to end.
const GONE_WITHIN: Duration = Duration::from_secs(2);

/// The result.
#[derive(Debug, Serialize)]
pub(crate) struct Story {
    /// True if every check passed.
    completed: bool,
    /// Milliseconds until the second service had attached to its job.
    attached_ms: f64,
    /// Training steps while there was no service.
    steps_alone: u64,
    /// The rank that was killed meanwhile, and the number of incidents that report its exit.
    killed: u32,
    killed_seen: usize,
    /// Hosts of all ranks after the drain, and after the reported fault.
    hosts_after_drain: Vec<String>,
    hosts_after_fault: Vec<String>,
    /// The answer of the socket to the exporter.
    fault_answer: Value,
    /// The service's own children that it has reaped, and the SIGINTs that its own handler has received.
    own_children: u64,
    interrupts: u64,
    /// Processes that were left two seconds after the service had ended.
    leftovers: usize,
    /// The incidents, as the second service reports them.
    incidents: Value,
}

/// Runs the scenario.
pub(crate) async fn run(seed: u64) -> Result<Story, Failure> {
    let dir = tempfile::Builder::new().prefix("taskd-embed-host-").tempdir()?;
    let dir = dir.path();
    let mark = dir.display().to_string();

    println!("service       started; job, logs and socket are in {}", dir.display());
    let mut first = Service::start(dir, &mark)?;
    first.receive("trains").await?;
    first.signal(Signal::INT)?;
    let interrupts = first.receive("interrupted").await?.as_u64().unwrap_or(0);
    println!("SIGINT        the service's own handler has run, and the job trains on");
    let ranks = first.ranks().await?;
    let before = step(dir);
    first.signal(Signal::KILL)?;
    first.child.wait().await?;
    tokio::time::sleep(Duration::from_secs(1)).await; // without a service no process reports progress
    let steps_alone = step(dir).saturating_sub(before);
    let killed = u32::try_from(seed % u64::from(RANKS))?;
    let victim = ranks.get(&killed).and_then(|rank| Pid::from_raw(rank.pid)).ok_or("the victim has no process")?;
    kill_process(victim, Signal::KILL)?;
    println!(
        "SIGKILL       the service is gone, the job has trained {steps_alone} steps; now rank {killed} is killed as well"
    );

    let mut second = Service::start(dir, &mark)?;
    let attached = second.receive("attached_ms").await?;
    second.receive("closed").await?;
    println!(
        "service       started again: attached to its job after {:.0} ms, and recovered it",
        attached.as_f64().unwrap_or(0.0)
    );

    println!("drain         {}", second.ask(&format!("drain {}", NODES[0]), "taken").await?);
    second.receive("closed").await?;
    let hosts_after_drain = second.hosts().await?;
    println!("              ranks are on {}", hosts_after_drain.join(", "));
    second.ask(&format!("readmit {}", NODES[0]), "taken").await?;

    let fault_answer = exporter(&socket_path(dir), NODES[1]).await?;
    second.receive("closed").await?;
    let hosts_after_fault = second.hosts().await?;
    println!("exporter      reports a broken device on {}; ranks are on {}", NODES[1], hosts_after_fault.join(", "));

    second.send("end").await?;
    let ended = second.receive_whole("ended").await?;
    let well = second.child.wait().await?.success();
    let leftovers = leftovers(&mark).await;
    println!("end           the service has ended its job and itself; {leftovers} processes are left");

    let incidents = ended["incidents"].clone();
    let is_exit = |i: &&Value| i["blamed"] == serde_json::json!([killed]);
    let killed_seen = incidents.as_array().into_iter().flatten().filter(is_exit).count();
    let own_children = ended["own"]["children"].as_u64().unwrap_or(0);
    let moved = |hosts: &[String], to: &str| hosts.len() == RANKS as usize && hosts.iter().all(|host| host == to);
    Ok(Story {
        completed: well
            && leftovers == 0
            && killed_seen == 1
            && interrupts == 1
            && steps_alone > 0
            && moved(&hosts_after_drain, NODES[1])
            && moved(&hosts_after_fault, NODES[0]),
        attached_ms: attached.as_f64().unwrap_or(f64::NAN),
        steps_alone,
        killed,
        killed_seen,
        hosts_after_drain,
        hosts_after_fault,
        fault_answer,
        own_children,
        interrupts,
        leftovers,
        incidents,
    })
}

impl Story {
    /// Prints the result: a table, or one line of JSON as the last line.
    pub(crate) fn print(&self, json: bool) {
        program::print(self, json, || self.table());
    }

    fn table(&self) -> String {
        let mut out = String::from("\n  incident  class   where                 decided   outcome\n");
        for incident in self.incidents.as_array().into_iter().flatten() {
            let text = |key: &str| incident[key].as_str().map_or_else(|| incident[key].to_string(), str::to_owned);
            let (id, class, domain) = (text("id"), text("class"), text("domain"));
            let (strategy, how) = (text("strategy"), text("outcome"));
            let _ = writeln!(out, "  {id:<8}  {class:<6}  {domain:<20}  {strategy:<8}  {how}");
        }
        let _ = writeln!(
            out,
            "\n  attached after {:.0} ms; {} steps without a service; the exit of rank {} was reported {} time(s)",
            self.attached_ms, self.steps_alone, self.killed, self.killed_seen
        );
        let _ = writeln!(
            out,
            "  the service reaped {} children of its own; {} processes left",
            self.own_children, self.leftovers
        );
        out + if self.completed { "  all as expected" } else { "  SOMETHING WENT WRONG" }
    }
}

/// A process of the service, and its lines.
struct Service {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

/// The host and process of a rank.
struct RankAt {
    node: String,
    pid: i32,
}

impl Service {
    fn start(dir: &Path, mark: &str) -> Result<Service, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("service").arg(dir).env(MARK, mark).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (stdin, stdout) = stdin.zip(stdout).ok_or("the service has no pipes")?;
        Ok(Service { child, stdin, lines: BufReader::new(stdout).lines() })
    }

    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?)).ok_or("the service has ended")?;
        Ok(kill_process(pid, signal)?)
    }

    async fn send(&mut self, line: &str) -> Result<(), Failure> {
        Ok(self.stdin.write_all(format!("{line}\n").as_bytes()).await?)
    }

    /// Returns the next line that has the key `key`.
    async fn receive_whole(&mut self, key: &str) -> Result<Value, Failure> {
        let received = async {
            while let Some(line) = self.lines.next_line().await? {
                let message: Value = serde_json::from_str(&line)?;
                if let Some(why) = message.get("error") {
                    return Err(format!("the service reports: {why}").into());
                }
                if message.get(key).is_some() {
                    return Ok(message);
                }
            }
            Err(Failure::from(format!("the service ended before it sent {key:?}")))
        };
        let late = |_| Failure::from(format!("the service did not send {key:?} within {PATIENCE:?}"));
        tokio::time::timeout(PATIENCE, received).await.map_err(late)?
    }

    async fn receive(&mut self, key: &str) -> Result<Value, Failure> {
        Ok(self.receive_whole(key).await?[key].take())
    }

    async fn ask(&mut self, line: &str, key: &str) -> Result<Value, Failure> {
        self.send(line).await?;
        self.receive(key).await
    }

    async fn ranks(&mut self) -> Result<BTreeMap<u32, RankAt>, Failure> {
        let ranks = self.ask("ranks", "ranks").await?;
        let rank = |at: &Value| {
            let pid = at["pid"].as_i64()?.try_into().ok()?;
            Some((at["rank"].as_u64()?.try_into().ok()?, RankAt { node: at["node"].as_str()?.to_owned(), pid }))
        };
        Ok(ranks.as_array().into_iter().flatten().filter_map(rank).collect())
    }

    /// Returns the hosts of all ranks, in rank order.
    async fn hosts(&mut self) -> Result<Vec<String>, Failure> {
        Ok(self.ranks().await?.into_values().map(|rank| rank.node).collect())
    }
}

/// Returns the last step that the training program has recorded.
fn step(dir: &Path) -> u64 {
    let lines = trainer::read_metrics(&settings(dir).metrics_path()).unwrap_or_default();
    lines.last().map_or(0, |line| line.step)
}

/// Runs the other vendor's exporter, a process of its own.
async fn exporter(socket: &Path, node: &str) -> Result<Value, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.arg("exporter").arg(socket).arg(node).output().await?;
    let text = String::from_utf8(output.stdout)?;
    serde_json::from_str(&text).map_err(|error| format!("the socket answered {text:?}: {error}").into())
}

/// Returns the number of processes that are left after [`GONE_WITHIN`]: a guard ends only after its last answer.
async fn leftovers(mark: &str) -> usize {
    let until = Instant::now() + GONE_WITHIN;
    while marked(mark) > 0 && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    marked(mark)
}

/// Returns the number of processes with this mark in their environment.
fn marked(mark: &str) -> usize {
    let mark = format!("{MARK}={mark}");
    let environments = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let environments = environments.map(|entry: std::fs::DirEntry| -> PathBuf { entry.path().join("environ") });
    let marked = |file: &PathBuf| {
        let environ = std::fs::read(file).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes())
    };
    environments.filter(marked).count()
}
