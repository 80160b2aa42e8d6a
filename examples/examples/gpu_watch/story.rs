//! The scenario without a GPU: two cards of a stand-in for NVIDIA's library, a real job on two hosts, and an Xid 79
//! during training.
//!
//! The processes, the supervisor and the decision are real; the cards, the hosts and the error are simulated.

use super::table::{Card, Table};
use async_trait::async_trait;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use taskd_core::detect::{ExitDetector, FaultClass};
use taskd_core::job::{JobSpec, Name, NodeId, WorkerSpec};
use taskd_core::kernel::IncidentReport;
use taskd_core::launch::{Launcher, LocalLauncher, MultiHostLauncher, Phase, ProcStatus};
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::Runtime;
use taskd_core::trace::{SourceError, TraceBatch, TraceSource};
use taskd_examples::program::{self, Failure};
use taskd_hw_cuda::detect::GpuDetector;
use taskd_hw_cuda::health::NvmlSource;
use taskd_hw_cuda::xid::XidTable;

/// Source of the stand-in, which identifies itself as one.
const STAND_IN: &str = include_str!("../../../taskd-hw-cuda/tests/standin/nvml.c");

const HEALTHY: &str = "devices 2\ndriver stand-in\n0.temperature 46\n0.slowdown 95\n0.power_mw 402000\n0.utilization 98\n\
                       1.temperature 44\n1.slowdown 95\n1.power_mw 395000\n1.utilization 97\n";

const RANKS: u32 = 2;

/// Trains for about two seconds.
const TRAINING: &str = "i=0; while [ $i -lt 40 ]; do sleep 0.05; i=$((i + 1)); done";

/// Time from the start of the job until the card falls off the bus.
const UNTIL_THE_FAULT: Duration = Duration::from_millis(700);

/// The result.
#[derive(Debug, Serialize)]
struct Account {
    stand_in: bool,
    devices: Vec<Card>,
    xids: u64,
    completed: bool,
    restarts: u32,
    /// All incidents, in one sentence each.
    incidents: Vec<String>,
    /// The decision on the card's incident.
    class: String,
    domain: String,
    strategy: Option<String>,
    reason: String,
    evidence: Vec<String>,
    /// From the fault's line in the log to the decision, in milliseconds.
    decided_ms: Option<f64>,
    /// Hosts of the ranks at the end.
    hosts: Vec<String>,
}

pub(super) async fn run(xids: XidTable, json: bool) -> Result<(), Failure> {
    println!("There is no GPU: a library stands in for NVIDIA's, and hosts and cards are simulated.");
    let dir = tempfile::Builder::new().prefix("taskd-gpu-watch-").tempdir()?;
    let (library, log) = (compile(dir.path())?, dir.path().join("kernel.log"));
    let script = dir.path().join("nvml.so.script");
    std::fs::write(&script, HEALTHY)?;
    std::fs::write(&log, "")?;
    let host = |name: &'static str| NodeId(Name::new(name));
    let source = NvmlSource::builder(host("gpu-a")).with_library(&library).with_kernel_log(&log);
    let source = source.with_interval(Duration::from_millis(100)).open().await?;
    let table = Arc::new(Mutex::new(Table::new(xids.clone())));
    let mut hosts = Vec::new();
    for name in ["gpu-a", "gpu-b"] {
        let builder = LocalLauncher::builder(dir.path().join(name)).job_name("gpu-watch");
        hosts.push(Arc::new(builder.node(host(name)).slots(RANKS).build().await?));
    }
    let fleet = Arc::new(MultiHostLauncher::of(hosts.iter().map(Arc::clone)).await?);
    let runtime = Runtime::builder()
        .job(training(host("gpu-a")))
        .source(Shown { source, table: Arc::clone(&table) })
        .detector(ExitDetector::new())
        .detector(GpuDetector::new().with_table(xids))
        .strategy(Restart::new())
        .strategy(ExitStrategy::new())
        .launcher(Arc::clone(&fleet))
        .build()?;
    let fault = tokio::spawn(async move {
        tokio::time::sleep(UNTIL_THE_FAULT).await;
        println!(">>> the stand-in's driver: card 1 falls off the bus");
        fall_off_the_bus(&script, &log)
    });
    let ended_on = Arc::new(Mutex::new(BTreeSet::new()));
    let last = Arc::clone(&ended_on);
    let watched = tokio::spawn(async move { places(&fleet, &last).await });
    let report = runtime.run_with_signals(program::LEAVE).await?;
    fault.abort();
    watched.abort();
    for launcher in hosts {
        launcher.shutdown(Duration::ZERO).await?;
    }
    program::completed(&report)?;
    let places = ended_on.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect();
    let incident = report.incidents.iter().find(|incident| incident.class == FaultClass::Device);
    let incident = incident.ok_or("the card's fault was not found")?;
    let table = table.lock().unwrap_or_else(PoisonError::into_inner);
    let account = Account {
        stand_in: true,
        devices: table.cards(),
        xids: table.xids_seen,
        completed: report.ok,
        restarts: report.restarts,
        incidents: report.incidents.iter().map(in_one_sentence).collect(),
        class: incident.class.to_string(),
        domain: incident.domain.to_string(),
        strategy: incident.strategy.as_ref().map(ToString::to_string),
        reason: incident.reason.clone(),
        evidence: incident.evidence.clone(),
        decided_ms: incident.decided.map(|decided| decided.since(incident.onset).as_secs_f64() * 1e3),
        hosts: places,
    };
    program::print(&account, json, || format!("{table}\n{}", account.sentence()));
    Ok(())
}

impl Account {
    fn sentence(&self) -> String {
        let Account { domain, strategy, reason, evidence, hosts, .. } = self;
        let (strategy, why) = (strategy.as_deref().unwrap_or("nothing"), evidence.join("\n  "));
        let hosts = hosts.join(", ");
        format!("{domain} was blamed, and {strategy} chosen: {reason}\n  {why}\nthe ranks ended on {hosts}")
    }
}

fn in_one_sentence(incident: &IncidentReport) -> String {
    let IncidentReport { class, domain, strategy, reason, evidence, .. } = incident;
    let strategy = strategy.as_ref().map_or("nothing", Name::as_str);
    format!("{class} in {domain} ({}): {strategy}, {reason}", evidence.join("; "))
}

fn training(host: NodeId) -> JobSpec {
    let mut spec = JobSpec::new("gpu-watch", RANKS, WorkerSpec::new(["sh", "-c", TRAINING])).with_nodes([host]);
    spec.policy.termination_grace_period = Duration::from_millis(200);
    spec
}

/// Returns the hosts of the ranks, as last observed before the job ended.
async fn places(fleet: &MultiHostLauncher, last: &Mutex<BTreeSet<String>>) {
    loop {
        if let Ok(listing) = fleet.list().await {
            let runs = |proc: &&ProcStatus| proc.phase == Phase::Running;
            let here = listing.procs.iter().filter(runs).filter_map(|proc| Some(proc.node.as_ref()?.to_string()));
            let here: BTreeSet<String> = here.collect();
            if !here.is_empty() {
                *last.lock().unwrap_or_else(PoisonError::into_inner) = here;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn compile(dir: &Path) -> Result<std::path::PathBuf, Failure> {
    let (source, library) = (dir.join("nvml.c"), dir.join("nvml.so"));
    std::fs::write(&source, STAND_IN)?;
    let mut cc = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()));
    cc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-ldl");
    match cc.status() {
        Ok(status) if status.success() => Ok(library),
        Ok(status) => Err(format!("the stand-in does not compile: {status}").into()),
        Err(error) => Err(format!("the stand-in needs a C compiler (cc, or what CC names): {error}").into()),
    }
}

/// Does what a real driver does: writes a line to the kernel log, raises an event, and makes the card unresponsive.
fn fall_off_the_bus(script: &Path, log: &Path) -> std::io::Result<()> {
    use std::io::Write;
    let mut lines = std::fs::OpenOptions::new().append(true).open(log)?;
    writeln!(lines, "NVRM: Xid (PCI:0000:3c:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")?;
    let next = script.with_extension("next");
    std::fs::write(&next, format!("{HEALTHY}1.lost 1\nevent.1 1 79\n"))?;
    std::fs::rename(next, script)
}

/// A source whose facts are also printed.
struct Shown {
    source: NvmlSource,
    table: Arc<Mutex<Table>>,
}

#[async_trait]
impl TraceSource for Shown {
    taskd_core::delegate!(TraceSource to |this| this.source, except next);

    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        let reported = self.source.next().await;
        if let Some(Ok(batch)) = &reported {
            let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
            batch.facts.iter().filter_map(|fact| table.take(fact)).for_each(|line| println!("{line}"));
        }
        reported
    }
}
