//! One training, one injection, and everything that the detectors report.
//!
//! It compares nothing: that is in `account`.

use super::inject::Scene;
use super::job::{Job, Torch};
use super::kind::{Kind, Ranks};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use taskd_core::detect::{
    Evidence, ExitDetector, FailSlowDetector, Fault, FaultDetectorExt, HangDetector, SilenceDetector, Suspect,
};
use taskd_core::job::{Domain, Role};
use taskd_core::kernel::Event;
use taskd_core::launch::LocalLauncher;
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::{Runtime, RuntimeHandle, TimestampedEvent};
use taskd_examples::faults::pid_of;
use taskd_examples::files::Files;
use taskd_examples::program::Failure;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

/// Steps before an injection: the detectors know the usual times by then.
const WARM_STEPS: u64 = 40;
/// Steps before a hang, for which no usual times are needed.
const WARM_STEPS_HANG: u64 = 10;
/// Range of steps from which the seed chooses the further ones before the injection.
const MOMENTS: u64 = 12;
/// Number of kinds at most: with one seed, each has a victim of its own.
const KINDS: u64 = 64;
/// Time in which a hang must be found.
const HANG_WITHIN: Duration = Duration::from_secs(8);
/// Steps after a verdict in which further blames are awaited.
const SETTLE_STEPS: u64 = 8;
/// The same for a hang.
const SETTLED_AFTER: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// Bound of the silence detector: a rank of a loaded machine may be late.
const SILENT_AFTER: Duration = Duration::from_secs(15);

/// What to try.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    /// An interpreter with torch.
    pub(super) python: PathBuf,
    pub(super) kind: Kind,
    pub(super) ranks: Ranks,
    /// Chooses victim and moment.
    pub(super) seed: u64,
    pub(super) has_containers: bool,
    /// The directory in which the records of the ranks are stored, if they are kept.
    pub(super) keep: Option<PathBuf>,
}

/// One blame or note of a detector.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Report {
    /// Milliseconds since the injection; negative before it.
    pub(super) after_ms: f64,
    /// Steps since the injection.
    pub(super) after_steps: i64,
    /// The component.
    pub(super) component: String,
    /// The ranks that belong to the component, if it is a rank or a group.
    pub(super) ranks: Vec<u32>,
    /// The cause: that of the slow-down or of the hang, else the class of the fault.
    pub(super) cause: String,
    /// True if the component is blamed, false for a note.
    pub(super) is_blame: bool,
    /// First slow step, counted from the injection.
    pub(super) onset_step: Option<i64>,
    /// Evidence, one sentence each.
    pub(super) evidence: Vec<String>,
}

/// The injection, and what was reported.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    /// The victims: one rank, two of a link, or none.
    pub(super) victims: Vec<u32>,
    /// The last step that rank 0 had printed at the injection.
    pub(super) step: u64,
    pub(super) reports: Vec<Report>,
    /// Median time of a step before and after the injection, in milliseconds.
    pub(super) step_ms: [Option<f64>; 2],
}

/// What the detectors report, with the moment and the step.
type Heard = Arc<Mutex<Vec<(Instant, u64, Arc<TimestampedEvent>)>>>;

impl Trial {
    /// Runs the trial.
    pub(super) async fn run(&self) -> Result<Observed, Failure> {
        let dir = tempfile::Builder::new().prefix("taskd-diagnosis-").tempdir()?;
        let job = Job { python: self.python.clone(), dir: dir.path().to_owned(), ranks: self.ranks };
        let (local, torch) = job.launchers().await?;
        let files = self.keep.as_deref().map(Files::begin).transpose()?;
        let runtime = runtime(&job, &local, &torch, files.as_ref())?;
        let handle = runtime.handle();
        let heard = Heard::default();
        let listener = tokio::spawn(listen(handle.events(), job.clone(), Arc::clone(&heard)));
        let running = tokio::spawn(runtime.run());
        let disturbed = self.disturb(&job, &torch, &handle, &heard).await;
        let _ = handle.stop_now("the trial is over").await; // error: the job is over
        let ended = running.await?;
        local.shutdown(Duration::ZERO).await?;
        listener.abort();
        files.map(Files::finish).transpose()?;
        let (_scene, mut observed) = disturbed?; // containers are removed after their processes
        // A dead rank is blamed until it turns out to be the victim of another rank's mistake.
        let blamed: BTreeSet<u32> = ended.incidents.iter().flat_map(|incident| &incident.blamed).map(|r| r.0).collect();
        for found in observed.reports.iter_mut().filter(|found| found.ranks.len() == 1) {
            found.is_blame &= found.ranks.iter().all(|rank| blamed.contains(rank));
        }
        Ok(observed)
    }

    async fn disturb(
        &self,
        job: &Job,
        torch: &Torch,
        handle: &RuntimeHandle,
        heard: &Heard,
    ) -> Result<(Scene, Observed), Failure> {
        let mut rng = StdRng::seed_from_u64(self.seed.wrapping_mul(KINDS).wrapping_add(self.kind as u64));
        let victim = rng.random_range(0..self.ranks.count());
        let warm = if self.kind.is_hang() { WARM_STEPS_HANG } else { WARM_STEPS };
        let wanted = warm + rng.random_range(0..MOMENTS);
        job.reach(1).await?;
        handle.pause("only a diagnosis is wanted").await?;
        let mut pids = BTreeMap::new();
        for rank in 0..self.ranks.count() {
            pids.insert(rank, pid_of(torch, rank).await.ok_or("a rank does not run")?);
        }
        let mut scene = Scene::around(job, pids, self.has_containers)?;
        let step = job.reach(wanted).await?;
        let begun = Instant::now();
        scene.inject(self.kind, job, victim)?;
        self.wait(job, heard, begun, step).await;
        let heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        let reports = heard.iter().filter_map(|(at, now, event)| report(event, *at, *now, begun, step, self.ranks));
        let victims = match self.kind {
            Kind::SlowLink => self.ranks.link(victim).to_vec(),
            kind if kind.has_victim() => vec![victim],
            _ => Vec::new(),
        };
        let step_ms = [job.median_ms(5..step), job.median_ms(step + 2..u64::MAX)];
        let observed = Observed { victims, step, reports: reports.collect(), step_ms };
        drop(heard);
        Ok((scene, observed))
    }

    /// Waits for a verdict about what was injected, and then for further ones.
    async fn wait(&self, job: &Job, heard: &Heard, begun: Instant, step: u64) {
        let is_found = || {
            let heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            heard.iter().any(|(at, _, event)| *at > begun && is_blame(event))
        };
        if self.kind.is_hang() {
            while !is_found() && begun.elapsed() < HANG_WITHIN {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            return tokio::time::sleep(SETTLED_AFTER).await;
        }
        let mut last = step + self.kind.steps_awaited();
        // A training that stands still or ends in spite of the kind ends the trial.
        let until = begun + Duration::from_millis(500) * u32::try_from(self.kind.steps_awaited()).unwrap_or(u32::MAX);
        let mut was_found = self.kind == Kind::Clean;
        while job.step() < last && Instant::now() < until {
            if !was_found && is_found() {
                was_found = true;
                last = last.min(job.step() + SETTLE_STEPS);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

fn runtime(
    job: &Job,
    local: &Arc<LocalLauncher>,
    torch: &Arc<Torch>,
    files: Option<&Files>,
) -> Result<Runtime, Failure> {
    let recordings = local.recordings().every(LOOK_EVERY);
    let runtime = Runtime::builder()
        .job(job.spec())
        .source(local.heartbeats(SILENT_AFTER / 10))
        .source(match files {
            Some(files) => recordings.sink(files.sink()),
            None => recordings,
        })
        .detector(ExitDetector::new())
        .detector(SilenceDetector::after(SILENT_AFTER))
        .detector(FailSlowDetector::new().boxed())
        .detector(HangDetector::default())
        .strategy(Restart::new())
        .strategy(ExitStrategy::new())
        .launcher(Arc::clone(torch));
    Ok(runtime.build()?)
}

async fn listen(mut events: Receiver<Arc<TimestampedEvent>>, job: Job, heard: Heard) {
    loop {
        let event = match events.recv().await {
            Ok(event) => event,
            Err(RecvError::Lagged(_)) => continue, // more events than any detector reports
            Err(RecvError::Closed) => return,
        };
        if matches!(event.event, Event::Found { .. } | Event::Noted { .. }) {
            heard.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), job.step(), event));
        }
    }
}

fn is_blame(event: &TimestampedEvent) -> bool {
    matches!(&event.event, Event::Found { fault, .. } if fault.primary_suspect().is_cause())
}

fn report(event: &TimestampedEvent, at: Instant, now: u64, begun: Instant, step: u64, ranks: Ranks) -> Option<Report> {
    let after = at.checked_duration_since(begun).map_or_else(|| -millis(begun - at), millis);
    let after_steps = now.cast_signed() - step.cast_signed();
    let report = |domain: &Domain, cause: String, evidence: &[Evidence], is_blame| {
        let onset =
            evidence.iter().find(|clue| clue.what.as_str() == "fail_slow_onset_step").and_then(|clue| clue.value);
        #[allow(clippy::cast_possible_truncation, reason = "the number of a step")]
        let onset_step = onset.map(|at| at as i64 - step.cast_signed());
        let evidence = evidence.iter().map(|clue| clue.text.clone()).collect();
        let (component, ranks) = (domain.to_string(), members(domain, ranks));
        Report { after_ms: after, after_steps, component, ranks, cause, is_blame, onset_step, evidence }
    };
    match &event.event {
        Event::Found { fault, .. } => {
            let Suspect { domain, .. } = fault.primary_suspect();
            Some(report(domain, cause_of(fault), &fault.evidence, fault.primary_suspect().is_cause()))
        }
        Event::Noted { about, clue } => {
            let cause = slow_cause(clue).unwrap_or_else(|| clue.what.to_string());
            Some(report(about, cause, std::slice::from_ref(clue), false))
        }
        _ => None,
    }
}

fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}

/// Returns the ranks of a component.
fn members(domain: &Domain, ranks: Ranks) -> Vec<u32> {
    match domain {
        Domain::Process(Role::Rank(rank)) => vec![rank.0],
        Domain::Group(id) => ranks.groups().get(id).into_iter().flatten().map(|rank| rank.0).collect(),
        _ => (0..ranks.count()).collect(),
    }
}

/// Returns the cause that begins the sentence of the fail-slow detector.
fn slow_cause(clue: &Evidence) -> Option<String> {
    let (cause, _) = clue.text.split_once(':').filter(|_| clue.what.as_str() == "fail_slow_percent")?;
    Some(cause.to_owned())
}

/// Returns the cause in one word: from the detector's clues, else the class of the fault.
fn cause_of(fault: &Fault) -> String {
    const WORDS: [(&str, &str); 6] = [
        ("hang_frozen", "frozen"),
        ("hang_skipped", "skipped"),
        ("hang_mismatch", "mismatched"),
        ("hang_missing", "missing"),
        ("hang_ended", "ended"),
        ("hang_dispute", "dispute"),
    ];
    if let Some(cause) = fault.evidence.iter().find_map(slow_cause) {
        return cause;
    }
    let has = |what: &str| fault.evidence.iter().any(|clue| clue.what.as_str() == what);
    let word = WORDS.iter().find(|(clue, _)| has(clue)).map(|(_, word)| (*word).to_owned());
    word.unwrap_or_else(|| fault.primary_suspect().class.to_string())
}
