//! Judges one run: what the job blamed, when it trained again, at what cost, and whether that is correct.

use super::Scenario;
use super::Trial;
use super::expected::{Expected, Injected, host_named};
use super::reference::exception;
use super::row::{Row, round};
use crate::training::{Ended, Steps, two_worlds};
use std::collections::BTreeSet;
use std::time::Duration;
use taskd_core::cluster::ClusterSettings;
use taskd_core::detect::FaultClass;
use taskd_core::job::Domain;
use taskd_core::kernel::{IncidentReport, JobReport, Outcome};

/// Most steps that a fault may cost: the one during which it happened.
pub(super) const STEPS_LOST_MAX: u64 = 1;
/// Most time beyond the lease for a job to train again: a replacement without a standby imports torch on a loaded
/// machine.
const RESUMED_WITHIN: Duration = Duration::from_secs(60);
/// Time by which the look at a process may be late, on a loaded machine.
const LOOK_WITHIN: Duration = Duration::from_millis(500);
/// Seconds within which a new manager decides, on a quiet machine.
const MANAGER_BOUND_S: f64 = 5.0;
/// Seconds within which a job has all its ranks again after a host's return, on a quiet machine.
const GROWN_BOUND_S: f64 = 10.0;
/// Seconds for which that may pause the other hosts, on a quiet machine.
const PAUSED_BOUND_S: f64 = 0.5;
/// Class of the incident by which a job that trains with fewer ranks grows again.
const SHRUNK: &str = "shrunk";

impl Row {
    /// Returns the row of a job that did not come to its end.
    pub(super) fn broken(scenario: &Scenario, trial: &Trial, injected: &Injected) -> Row {
        let mut row = Row::begun(scenario, trial, injected);
        row.one_world(trial);
        row.fence(trial, injected);
        row
    }

    /// Returns the row of a job that had to stop, and has.
    pub(super) fn stopped(scenario: &Scenario, trial: &Trial, injected: &Injected) -> Row {
        let mut row = Row::begun(scenario, trial, injected);
        row.one_world(trial);
        row.correct = row.problems.is_empty();
        row
    }

    /// Returns the row of a job that has ended.
    pub(super) fn of(scenario: &Scenario, trial: &Trial, injected: &Injected, ended: &Ended) -> Row {
        let mut row = Row::begun(scenario, trial, injected);
        row.completed(ended);
        row.blame(injected, &ended.report);
        row.resume(trial, injected, &ended.steps);
        row.one_world(trial);
        row.fence(trial, injected);
        // A longer lease explains a longer time, except where no lease ends.
        let longer = match injected.expected {
            Expected::Undisturbed { .. } => Duration::ZERO,
            _ => trial.training.plan.lease.saturating_sub(ClusterSettings::default().lease),
        };
        let bound = scenario.bound_s.map(|bound| bound + longer.as_secs_f64());
        row.check_bound("training went on", row.resumed_s, bound);
        row.check_bound("another manager was in office", row.manager_s, Some(MANAGER_BOUND_S));
        row.check_bound("the job had all its ranks again", row.grown_s, Some(GROWN_BOUND_S));
        row.check_bound(
            "training paused for the returned host, and ended its pause",
            row.paused_s,
            Some(PAUSED_BOUND_S),
        );
        row.correct = row.problems.is_empty();
        row
    }

    fn begun(scenario: &Scenario, trial: &Trial, injected: &Injected) -> Row {
        let figures = injected.figures;
        Row {
            fenced_s: figures.fenced_s.map(round),
            injected: injected.what.clone(),
            problems: injected.problems.clone(),
            notes: injected.notes.clone(),
            manager_s: figures.manager_s.map(round),
            grown_s: figures.grown_s.map(round),
            paused_s: figures.paused_s.map(round),
            ..Row::new(scenario.name, scenario.known_gap, trial)
        }
    }

    /// Checks that the job has completed.
    pub(super) fn completed(&mut self, ended: &Ended) {
        self.exception = exception(&ended.report);
        if ended.report.outcome != Outcome::Completed || !ended.status.success() {
            self.problems.push(format!("the job ended otherwise ({}): {}", ended.status, ended.report.reason));
        }
    }

    /// Checks that no two processes trained one rank at the same time.
    pub(super) fn one_world(&mut self, trial: &Trial) {
        if let Some(found) = two_worlds(&trial.training.steps(), &trial.training.lives()) {
            self.two_worlds = true;
            self.problems.push(found);
        }
    }

    /// Records the incidents, in words.
    pub(super) fn record_blame(&mut self, report: &JobReport) {
        let words = |incident: &IncidentReport| {
            let by = incident.strategy.as_ref().map(|by| format!(" ({by})")).unwrap_or_default();
            format!("{} in {}{by}", incident.class, incident.domain)
        };
        self.blamed = report.incidents.iter().map(words).collect::<Vec<_>>().join("; ");
    }

    /// Compares the incidents with what must be blamed.
    fn blame(&mut self, injected: &Injected, report: &JobReport) {
        self.record_blame(report);
        let required = required(injected);
        let is_main = |one: &&IncidentReport| {
            let first = required.first().filter(|main| !injected.also.contains(main));
            first.is_some_and(|(class, domain)| one.class == *class && one.domain == *domain)
        };
        let main = report.incidents.iter().find(is_main);
        let detected = main.and_then(|incident| incident.wall.detected);
        self.detected_s = detected.map(|at| round(at.as_unix_ms() as f64 / 1e3 - injected.at.unix));
        if let (Some(words), Some(main)) = (&injected.evidence, main) {
            match main.evidence.iter().find(|text| text.contains(words)) {
                Some(_) => self.notes.push(format!("evidence: {}", main.evidence.join("; "))),
                None => self.problems.push(format!("no evidence names `{words}`: {}", main.evidence.join("; "))),
            }
        }
        for (class, domain) in &required {
            let number = report.incidents.iter().filter(|one| one.class == *class && one.domain == *domain).count();
            if number != 1 {
                let blamed = if self.blamed.is_empty() { "nothing" } else { &self.blamed };
                self.problems.push(format!("{class} in {domain} was to blame once, and is {number} times: {blamed}"));
            }
        }
        let is_expected = |one: &IncidentReport| {
            required.iter().any(|(class, domain)| one.class == *class && one.domain == *domain)
                || is_allowed(&injected.expected, one)
        };
        for one in report.incidents.iter().filter(|one| !is_expected(one)) {
            self.problems.push(format!("{} in {} is blamed, although it was not hit", one.class, one.domain));
        }
    }

    /// Computes when the job trained again, at what cost, and with which processes.
    fn resume(&mut self, trial: &Trial, injected: &Injected, steps: &Steps) {
        if let Expected::Stopped { then } = &injected.expected {
            let every: BTreeSet<u32> = trial.before.keys().copied().collect();
            let back = then.map_or(f64::INFINITY, |back| back.monotonic);
            let common = steps.first_common(back, trial.training.plan.ranks, &trial.pids_of(&every));
            self.resumed_s = common.map(|(_, time)| round(time - back));
            let last = steps.last_before(injected.at.monotonic).map_or(0, |last| last + 1);
            self.steps_lost = common.map(|(step, _)| last.saturating_sub(step));
            return;
        }
        let (at, hit) = (injected.at.monotonic, injected.expected.ranks());
        let ranks = match &injected.expected {
            Expected::Smaller { .. } => trial.left_without(&hit),
            _ => trial.training.plan.ranks,
        };
        if hit.is_empty() {
            self.resumed_s = Some(round(steps.longest_pause(at, injected.until.unwrap_or(f64::INFINITY))));
            self.steps_lost = Some(0);
        } else if let Some((step, time)) = steps.first_common(at, ranks, &trial.pids_of(&hit)) {
            self.resumed_s = Some(round(time - at));
            let within = (trial.training.plan.lease + RESUMED_WITHIN).as_secs_f64();
            if time - at > within {
                self.problems.push(format!("the job trains again after {:.1} s, not within {within} s", time - at));
            }
            self.lost_steps(steps, at, step);
        }
        let replaced: BTreeSet<u32> = hit.union(&injected.replaced).copied().collect();
        self.keep_processes(trial, &replaced, steps);
    }

    /// Checks how many steps were computed again, if the first one after the fault is `step`.
    pub(super) fn lost_steps(&mut self, steps: &Steps, at: f64, step: u64) {
        let lost = steps.last_before(at).map_or(0, |last| (last + 1).saturating_sub(step));
        self.steps_lost = Some(self.steps_lost.unwrap_or(0).max(lost));
        if lost > STEPS_LOST_MAX {
            self.problems.push(format!("{lost} completed steps were computed again, more than {STEPS_LOST_MAX}"));
        }
    }

    /// Checks that the ranks other than `replaced` have the processes that they had before.
    pub(super) fn keep_processes(&mut self, trial: &Trial, replaced: &BTreeSet<u32>, steps: &Steps) {
        let after = steps.pids();
        let has_changed = |(rank, pid): &(&u32, &i32)| !replaced.contains(rank) && after.get(rank) != Some(pid);
        let lost: Vec<String> = trial.before.iter().filter(has_changed).map(|(rank, _)| rank.to_string()).collect();
        self.pids_kept = lost.is_empty();
        if !self.pids_kept {
            self.problems.push(format!("ranks {} have other processes, although they were not hit", lost.join(", ")));
        }
    }

    /// Checks that a host that was cut off has stopped its ranks in time.
    fn fence(&mut self, trial: &Trial, injected: &Injected) {
        let Some(host) = &injected.fenced else { return };
        let lives = trial.training.lives();
        let of_host = trial.pids_of(&injected.expected.ranks());
        let alive: Vec<_> = of_host.iter().filter(|pid| lives.get(pid).is_none_or(|life| !life.ended)).collect();
        if !alive.is_empty() {
            let text = format!("{} processes of {host} still run, although its lease has ended", alive.len());
            return self.problems.push(text);
        }
        let ends = of_host.iter().filter_map(|pid| lives.get(pid)).map(|life| life.last_alive - injected.at.monotonic);
        let fenced = ends.fold(0.0, f64::max);
        self.fenced_s = Some(round(fenced));
        let settings = ClusterSettings::default().with_lease(trial.training.plan.lease);
        let within = (settings.replace_after() + LOOK_WITHIN).as_secs_f64();
        if fenced > within {
            self.problems
                .push(format!("the ranks of {host} ended {fenced:.1} s after the cut, not within {within:.1} s"));
        }
    }
}

/// Returns the incidents that must be reported once each.
fn required(injected: &Injected) -> Vec<(FaultClass, Domain)> {
    let first = match &injected.expected {
        Expected::Recovery { class, domain, .. } => Some((class.clone(), domain.clone())),
        Expected::Smaller { host, .. } => Some((FaultClass::NodeLost, host_named(host))),
        Expected::Undisturbed { .. } | Expected::Stopped { .. } => None,
    };
    first.into_iter().chain(injected.also.clone()).collect()
}

/// Returns true if an incident may be reported besides those that must.
fn is_allowed(expected: &Expected, one: &IncidentReport) -> bool {
    match expected {
        Expected::Smaller { .. } => one.class.to_string() == SHRUNK,
        Expected::Undisturbed { host, .. } => host.as_ref().is_some_and(|host| one.domain == host_named(host)),
        Expected::Recovery { .. } => false,
        Expected::Stopped { .. } => true, // every rank ends: the incidents are recorded, not judged
    }
}
