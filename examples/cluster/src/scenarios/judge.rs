//! The row of one run: what was injected, what the job blamed, and whether that is correct.

use super::Scenario;
use super::trial::{Expected, Injected, Trial, host_named};
use crate::training::{Ended, Steps, two_worlds};
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Duration;
use taskd_core::kernel::{IncidentReport, JobReport, Outcome};

/// Most steps that a fault may cost: the one during which it happened.
const STEPS_LOST_MAX: u64 = 1;
/// Most time beyond the lease for a job to train again: a replacement without a standby imports torch on a loaded
/// machine.
const RESUMED_WITHIN: Duration = Duration::from_secs(60);
/// Time by which the look at a process may be late, on a loaded machine.
const LOOK_WITHIN: Duration = Duration::from_millis(500);

/// One run of a scenario.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// Name of the scenario.
    pub scenario: String,
    /// What was injected.
    pub injected: String,
    /// What the job blamed, for each incident.
    pub blamed: String,
    /// True if all that must follow has followed.
    pub correct: bool,
    /// Seconds from the fault to its detection.
    pub detected_s: Option<f64>,
    /// Seconds from the fault until all ranks have completed a step again; if no rank was lost, the longest time
    /// without a step.
    pub resumed_s: Option<f64>,
    /// Completed steps that were computed again.
    pub steps_lost: Option<u64>,
    /// True if the ranks that were not hit have kept their processes.
    pub pids_kept: bool,
    /// True if two processes trained one rank at the same time.
    pub two_worlds: bool,
    /// Seconds from the fault until the ranks of a host that was cut off had ended.
    pub fenced_s: Option<f64>,
    /// Reason why the scenario does not pass yet, if that is known.
    pub known_gap: Option<&'static str>,
    /// What is not correct, in sentences.
    pub problems: Vec<String>,
    /// Lease in seconds.
    pub lease_s: f64,
    /// The machine's load of the last minute at the end.
    pub load: f64,
}

impl Row {
    /// Returns the row of a fault that could not be injected.
    pub(super) fn failed(scenario: &Scenario, trial: &Trial, error: &impl ToString) -> Row {
        Row { problems: vec![error.to_string()], ..Row::new(scenario, trial) }
    }

    /// Returns the row of a job that did not come to its end.
    pub(super) fn broken(scenario: &Scenario, trial: &Trial, injected: &Injected) -> Row {
        let (steps, lives) = (trial.training.steps(), trial.training.lives());
        let mut row = Row { injected: injected.what.clone(), ..Row::new(scenario, trial) };
        row.problems.clone_from(&injected.problems);
        row.problems.extend(two_worlds(&steps, &lives).inspect(|_| row.two_worlds = true));
        row.fence(trial, injected);
        row
    }

    /// Returns the row of a job that has ended.
    pub(super) fn of(scenario: &Scenario, trial: &Trial, injected: &Injected, ended: &Ended) -> Row {
        let mut row = Row { injected: injected.what.clone(), ..Row::new(scenario, trial) };
        row.problems.clone_from(&injected.problems);
        if ended.report.outcome != Outcome::Completed || !ended.status.success() {
            row.problems.push(format!("the job ended otherwise ({}): {}", ended.status, ended.report.reason));
        }
        row.blame(injected, &ended.report);
        row.resume(trial, injected, &ended.steps);
        if let Some(found) = two_worlds(&ended.steps, &ended.lives) {
            row.two_worlds = true;
            row.problems.push(found);
        }
        row.fence(trial, injected);
        row.correct = row.problems.is_empty();
        row
    }

    fn new(scenario: &Scenario, trial: &Trial) -> Row {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or_default();
        let (lease_s, known_gap) = (trial.training.plan.lease.as_secs_f64(), scenario.known_gap);
        Row { scenario: scenario.name.into(), lease_s, load, known_gap, ..Row::default() }
    }

    /// Compares the incidents with what must be blamed.
    fn blame(&mut self, injected: &Injected, report: &JobReport) {
        let words = |incident: &IncidentReport| {
            let by = incident.strategy.as_ref().map(|by| format!(" ({by})")).unwrap_or_default();
            format!("{} in {}{by}", incident.class, incident.domain)
        };
        self.blamed = report.incidents.iter().map(words).collect::<Vec<_>>().join("; ");
        let detected = report.incidents.first().and_then(|incident| incident.wall.detected);
        self.detected_s = detected.map(|at| round(at.as_unix_ms() as f64 / 1e3 - injected.at.unix));
        let is_right = match &injected.expected {
            Expected::Recovery { class, domain, .. } => {
                matches!(&report.incidents[..], [one] if one.class == *class && one.domain == *domain)
            }
            Expected::Undisturbed { host, .. } => {
                let named = |one: &IncidentReport| host.as_ref().is_some_and(|host| one.domain == host_named(host));
                report.incidents.iter().all(named)
            }
        };
        if !is_right {
            let blamed = if self.blamed.is_empty() { "nothing" } else { &self.blamed };
            self.problems.push(match &injected.expected {
                Expected::Recovery { class, domain, .. } => format!("{class} in {domain} was to blame, not {blamed}"),
                Expected::Undisturbed { .. } => format!("{blamed} is blamed, although no rank was hit"),
            });
        }
    }

    /// Computes when the job trained again, at what cost, and with which processes.
    fn resume(&mut self, trial: &Trial, injected: &Injected, steps: &Steps) {
        let (at, ranks) = (injected.at.monotonic, trial.training.plan.ranks);
        let none = BTreeSet::new();
        let replaced = match &injected.expected {
            Expected::Recovery { ranks, .. } => ranks,
            Expected::Undisturbed { .. } => &none,
        };
        if replaced.is_empty() {
            self.resumed_s = Some(round(steps.longest_pause(at)));
            self.steps_lost = Some(0);
        } else if let Some((step, time)) = steps.first_common(at, ranks, &trial.pids_of(replaced)) {
            self.resumed_s = Some(round(time - at));
            let within = (trial.training.plan.lease + RESUMED_WITHIN).as_secs_f64();
            if time - at > within {
                self.problems.push(format!("the job trains again after {:.1} s, not within {within} s", time - at));
            }
            let lost = steps.last_before(at).map_or(0, |last| (last + 1).saturating_sub(step));
            self.steps_lost = Some(lost);
            if lost > STEPS_LOST_MAX {
                self.problems.push(format!("{lost} completed steps were computed again, more than {STEPS_LOST_MAX}"));
            }
        }
        let after = steps.pids();
        let lost: Vec<String> = trial
            .before
            .iter()
            .filter(|(rank, pid)| !replaced.contains(rank) && after.get(rank) != Some(pid))
            .map(|(rank, _)| rank.to_string())
            .collect();
        self.pids_kept = lost.is_empty();
        if !self.pids_kept {
            self.problems.push(format!("ranks {} have other processes, although they were not hit", lost.join(", ")));
        }
    }

    /// Checks that a host that was cut off has stopped its ranks in time.
    fn fence(&mut self, trial: &Trial, injected: &Injected) {
        let (Some(host), Expected::Recovery { ranks, .. }) = (&injected.fenced, &injected.expected) else { return };
        let lives = trial.training.lives();
        let of_host = trial.pids_of(ranks);
        let alive: Vec<_> = of_host.iter().filter(|pid| lives.get(pid).is_none_or(|life| !life.ended)).collect();
        if !alive.is_empty() {
            let text = format!("{} processes of {host} still run, although its lease has ended", alive.len());
            return self.problems.push(text);
        }
        let ends = of_host.iter().filter_map(|pid| lives.get(pid)).map(|life| life.last_alive - injected.at.monotonic);
        let fenced = ends.fold(0.0, f64::max);
        self.fenced_s = Some(round(fenced));
        let settings = taskd_core::cluster::ClusterSettings::default().with_lease(trial.training.plan.lease);
        let within = (settings.replace_after() + LOOK_WITHIN).as_secs_f64();
        if fenced > within {
            self.problems
                .push(format!("the ranks of {host} ended {fenced:.1} s after the cut, not within {within:.1} s"));
        }
    }
}

/// Rounds seconds to milliseconds.
fn round(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}
