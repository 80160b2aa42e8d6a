//! The supervisor of the experiment: attaches to a running job, decides, takes no action, and reports.
//!
//! It is a process of its own, [sealed](super::sealed): Linux ends it if it signals or starts a process.

use super::job::STEP;
use crate::clock::monotonic;
use crate::program::Failure;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::{self, FaultDetectorExt, SilenceDetector, StallDetector};
use taskd_core::job::{IncidentId, JobSpec, Mode, Policy, Ready, WorkerSpec};
use taskd_core::kernel::{Event, IncidentReport};
use taskd_core::launch::{ExternalProcs, StepPattern};
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::{Runtime, RuntimeHandle, TimestampedEvent};
use taskd_pytorch::TorchLauncher;
use tokio::sync::broadcast::error::RecvError;

/// The interval at which processes and logs are read.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Time without a sign of life after which a rank is suspected.
const SILENCE: Duration = Duration::from_secs(1);
/// Time without a step of any rank after which the job counts as stalled.
const STALL: Duration = Duration::from_secs(60);

/// What to watch.
#[derive(Clone, Debug, clap::Args)]
pub struct Watch {
    /// The torchrun agent's process id.
    #[arg(long)]
    agent: u32,
    /// Ranks of the job.
    #[arg(long)]
    ranks: u32,
    /// Seconds that this job takes from a start to its first step: the expected cost of a restart.
    #[arg(long)]
    downtime_s: f64,
    /// Directory for the logs and the report.
    #[arg(long)]
    dir: std::path::PathBuf,
}

/// What the supervisor has observed and would have done.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Seen {
    /// Why it stopped watching.
    pub reason: String,
    /// True if the job ended as expected.
    pub completed: bool,
    /// Every incident.
    pub incidents: Vec<Incident>,
    /// Maximum resident memory in KiB, and the part of it at the end that is not backed by the program file.
    pub rss_kib: (u64, u64),
    /// CPU time from its start to its end, in percent of one CPU.
    pub cpu_percent: f64,
    /// 1 if Linux ended it because it tried to signal, trace or start a process.
    pub signals_sent: u32,
}

/// One incident.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Incident {
    /// The incident as taskd reports it.
    pub report: IncidentReport,
    /// When it was found, on the machine's monotonic clock.
    pub found: Option<Duration>,
}

/// Returns the path of the report.
#[must_use]
pub fn report_path(dir: &Path) -> std::path::PathBuf {
    dir.join("seen.json")
}

/// Watches until the job is over, and writes the report.
///
/// # Errors
/// The job cannot be watched.
pub async fn watch(options: &Watch) -> Result<(), Failure> {
    let begun = monotonic();
    let foreign = Arc::new(ExternalProcs::below(options.agent).attach().await?);
    let mut policy = Policy::default();
    (policy.mode, policy.ready) = (Mode::DryRun, Ready::Stepping);
    let silence = SilenceDetector::after(SILENCE).boxed();
    let mut detectors = detect::defaults();
    detectors.retain(|detector| !["silence", "stall"].contains(&detector.name().as_str()));
    detectors.extend([silence, StallDetector::after(STALL).boxed()]);
    let runtime = Runtime::builder()
        .job(JobSpec::new("observed", options.ranks, WorkerSpec::new(["torchrun"])).with_policy(policy))
        .journal(options.dir.join("journal"))
        .source(foreign.states(LOOK_EVERY))
        .source(foreign.steps(StepPattern::after(STEP), LOOK_EVERY))
        .detectors(detectors)
        .strategy(Restart::new().with_downtime(Duration::try_from_secs_f64(options.downtime_s)?))
        .strategy(ExitStrategy::new())
        .launcher(TorchLauncher::new(Arc::clone(&foreign), options.dir.join("torch")))
        .build()?;
    let handle = runtime.handle();
    let listener = tokio::spawn(listen(handle.clone()));
    let gone = tokio::spawn(stop_when_gone(Arc::clone(&foreign), handle));
    let report = runtime.run().await;
    gone.abort();
    let found = listener.await?;
    let incident = |report: &IncidentReport| Incident { report: report.clone(), found: found.get(&report.id).copied() };
    let seen = Seen {
        completed: report.ok,
        incidents: report.incidents.iter().map(incident).collect(),
        reason: report.reason,
        rss_kib: (status_kib("VmHWM:")?, status_kib("RssAnon:")?),
        cpu_percent: 100.0 * cpu_time().as_secs_f64() / (monotonic() - begun).as_secs_f64(),
        signals_sent: 0, // otherwise there would be no report
    };
    Ok(std::fs::write(report_path(&options.dir), serde_json::to_vec(&seen)?)?)
}

/// Stops watching a job that has ended without having completed.
async fn stop_when_gone(foreign: Arc<ExternalProcs>, handle: RuntimeHandle) {
    foreign.ended().await;
    tokio::time::sleep(2 * LOOK_EVERY).await; // the runtime ends by itself if the job has completed
    let _ = handle.stop("torchrun has ended").await; // error: the job is over
}

/// Prints the events, and returns when each incident was found.
async fn listen(handle: RuntimeHandle) -> BTreeMap<IncidentId, Duration> {
    let mut events = handle.events();
    drop(handle); // otherwise the channel would never close
    let mut found = BTreeMap::new();
    loop {
        match events.recv().await {
            Ok(event) => note(&event, &mut found),
            Err(RecvError::Lagged(missed)) => println!("({missed} events were missed here)"),
            Err(RecvError::Closed) => return found,
        }
    }
}

fn note(event: &TimestampedEvent, found: &mut BTreeMap<IncidentId, Duration>) {
    let at = event.at;
    match &event.event {
        Event::Found { incident, fault, .. } => {
            found.entry(*incident).or_insert_with(monotonic);
            let suspect = fault.primary_suspect();
            let side = if suspect.is_cause() { "" } else { " (a victim)" };
            let clues: Vec<&str> = fault.evidence.iter().map(|clue| clue.text.as_str()).collect();
            println!("{at}  {incident}: {} in {}{side}: {}", suspect.class, suspect.domain, clues.join("; "));
        }
        Event::Decided(decision) => {
            let would = decision.chosen.as_ref().map_or("nothing".into(), |chosen| chosen.strategy.to_string());
            println!("{at}  {}: would do: {would}: {}", decision.incident.id, decision.reason);
        }
        Event::Closed { incident, how } => println!("{at}  {incident} closed: {how}"),
        _ => {}
    }
}

/// Returns the CPU time of this process, with all its threads.
fn cpu_time() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap_or(0))
}

/// Returns a figure of this process's `/proc/self/status`.
fn status_kib(name: &str) -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
    Ok(value.ok_or_else(|| format!("/proc/self/status has no {name}"))?.parse()?)
}
