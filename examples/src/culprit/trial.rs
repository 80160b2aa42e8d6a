//! One training, one injected fault, and what the detectors report.
//!
//! It compares nothing: it returns the injection and the reports.

use super::inject::Injection;
use crate::faults::pid_of;
use crate::program::Failure;
use crate::traced::{Launchers, TracedJob, reach, step_of};
use clap::ValueEnum;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use taskd_core::detect::{
    ExitDetector, FailSlowDetector, Fault, FaultDetectorExt, HangDetector, NumericalDetector, SilenceDetector,
    SlowRankDetector,
};
use taskd_core::kernel::Event;
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::{Runtime, RuntimeHandle, TimestampedEvent};
use tokio::sync::broadcast::Receiver;

const RANKS: u32 = 4;
/// Steps before the injection: by then the detectors know the usual pace of these ranks.
const WARM_STEPS: u64 = 120;
/// Time limit of a verdict.
const VERDICT_WITHIN: Duration = Duration::from_secs(20);
/// Time after the first verdict in which further ranks that are blamed count.
const SETTLED_AFTER: Duration = Duration::from_secs(1);
/// The interval at which records are taken: twice a step.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// Bound of the silence detector: importing torch may delay a heartbeat.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// What to try.
#[derive(Clone, Debug)]
pub struct Trial {
    /// An interpreter with torch.
    pub python: PathBuf,
    /// The fault.
    pub injection: Injection,
    /// Chooses victim and moment.
    pub seed: u64,
    /// Detector of slow components.
    pub detector: SlowDetector,
}

/// A detector of slow components.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SlowDetector {
    /// Compares each rank with its own past.
    #[default]
    SlowRank,
    /// Compares ranks with their peers, and distinguishes rank, host, group, input and checkpoint.
    FailSlow,
}

/// The injection, and what was reported.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The victim; `None` if nothing was injected.
    pub victim: Option<u32>,
    /// The last step that rank 0 had printed at the injection.
    pub step: u64,
    /// All reported faults, in order.
    pub found: Vec<Found>,
    /// The ranks that are blamed in the end, without those that are only affected.
    pub blamed: BTreeSet<u32>,
}

/// One fault that a detector found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Time since the injection.
    pub after: Duration,
    /// Steps since the injection.
    pub steps: u64,
    /// The fault.
    pub fault: Fault,
}

impl Trial {
    /// Runs the trial.
    ///
    /// # Errors
    /// The training cannot be run.
    pub async fn run(&self) -> Result<Observed, Failure> {
        let dir = tempfile::Builder::new().prefix("taskd-culprit-").tempdir()?;
        let (python, dir) = (self.python.clone(), dir.path().to_owned());
        let checkpoint_every = self.injection.checkpoint_every();
        let job = TracedJob { python, dir, ranks: RANKS, device_ms: 40, checkpoint_every, shards: true };
        let launchers = job.launchers().await?;
        let runtime = runtime(&job, &launchers, self.detector)?;
        let handle = runtime.handle();
        let running = tokio::spawn(runtime.run());
        let observed = self.disturb(&job, &launchers, &handle).await;
        let _ = handle.stop_now("the trial is over").await; // error: the job is over
        let report = running.await?;
        launchers.local.shutdown(Duration::ZERO).await?;
        let mut observed = observed?;
        observed.blamed = report.incidents.iter().flat_map(|incident| &incident.blamed).map(|rank| rank.0).collect();
        Ok(observed)
    }

    async fn disturb(&self, job: &TracedJob, at: &Launchers, handle: &RuntimeHandle) -> Result<Observed, Failure> {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let victim = rng.random_range(0..RANKS);
        let step = reach(job, WARM_STEPS + rng.random_range(0..20)).await?;
        handle.pause("only a diagnosis is wanted").await?;
        let mut events = handle.events();
        let pid = pid_of(&at.torch, victim).await.ok_or("the victim does not run")?;
        let begun = Instant::now();
        let injected = self.injection.into_rank(job, victim, pid)?;
        let mut found = Vec::new();
        let mut until = begun + VERDICT_WITHIN;
        while let Some(fault) = next_fault(&mut events, until).await {
            let after = begun.elapsed();
            let steps = step_of(job).unwrap_or(step).saturating_sub(step);
            if fault.primary_suspect().is_cause() {
                until = until.min(Instant::now() + SETTLED_AFTER);
            }
            found.push(Found { after, steps, fault });
        }
        drop(injected);
        let victim = self.injection.has_victim().then_some(victim);
        Ok(Observed { victim, step, found, blamed: BTreeSet::new() })
    }
}

fn runtime(job: &TracedJob, at: &Launchers, detector: SlowDetector) -> Result<Runtime, Failure> {
    let slow = match detector {
        SlowDetector::SlowRank => SlowRankDetector::default().boxed(),
        SlowDetector::FailSlow => FailSlowDetector::new().boxed(),
    };
    let runtime = Runtime::builder()
        .job(job.spec())
        .source(at.local.heartbeats(SILENT_AFTER / 10))
        .source(at.local.recordings().every(LOOK_EVERY))
        .detector(ExitDetector::new())
        .detector(SilenceDetector::after(SILENT_AFTER))
        .detector(slow)
        .detector(HangDetector::default())
        .detector(NumericalDetector::new())
        .strategy(Restart::new())
        .strategy(ExitStrategy::new())
        .launcher(Arc::clone(&at.torch));
    Ok(runtime.build()?)
}

/// Returns the next fault that is found before `until`.
async fn next_fault(events: &mut Receiver<Arc<TimestampedEvent>>, until: Instant) -> Option<Fault> {
    loop {
        let event = tokio::time::timeout_at(until.into(), events.recv()).await.ok()?.ok()?;
        if let Event::Found { fault, .. } = &event.event {
            return Some(fault.clone());
        }
    }
}
