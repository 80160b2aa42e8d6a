//! Reads the incidents of a job from the logs of its supervisor.

use std::collections::BTreeMap;
use std::path::Path;
use taskd_analysis::document::{EvidenceItem, Incident};
use taskd_analysis::model::Trace;
use taskd_runtime::job::{IncidentId, JobTime, Seq};
use taskd_runtime::journal::{Entry, History, Step};
use taskd_runtime::kernel::{Effect, Event, Input};

/// Maximum number of incidents that are returned: the first ones.
const INCIDENTS_MAX: usize = 1000;

/// Incidents of a job, and what could not be read.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The incidents, in the order in which they were opened. Their moments are microseconds since 1970.
    pub incidents: Vec<Incident>,
    /// What is missing, each as a sentence.
    pub missing: Vec<String>,
}

/// Returns true if the directory has the logs of a supervisor.
#[must_use]
pub fn has_logs(name: &str) -> bool {
    name.starts_with("decisions-") && name.ends_with(".log")
}

/// Reads the logs in a directory. An incident without a known time of day is named among the missing parts.
///
/// # Errors
/// A sentence, if the directory has no readable log.
pub fn read(dir: &Path) -> Result<Found, String> {
    let history = History::open(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut reading = Reading::default();
    reading.found.missing.extend(history.problems().iter().map(ToString::to_string));
    for life in history.lives() {
        let first = life.starts().next().map(|(_, _, header)| header.started_unix_ms).filter(|ms| *ms > 0);
        reading.calendar = None;
        let mut steps = life.steps(Seq(0));
        for entry in steps.by_ref() {
            match entry {
                Entry::Step(step) => reading.step(&step, first),
                Entry::Missing(missing) => reading.found.missing.push(missing.to_string()),
            }
        }
        reading.open.clear(); // numbers of incidents begin again in another life
    }
    if reading.undated > 0 {
        let what = format!("{} incidents have no time of day and are not shown", reading.undated);
        reading.found.missing.push(what);
    }
    if reading.left_out > 0 {
        let what = format!("{} incidents after the first {INCIDENTS_MAX} are not shown", reading.left_out);
        reading.found.missing.push(what);
    }
    Ok(reading.found)
}

/// Moves incidents from the calendar to the trace's axis. Without events, the first incident is time zero.
pub fn on_axis(incidents: &mut [Incident], trace: &mut Trace) {
    incidents.sort_by_key(|incident| incident.at_us);
    let Some(first) = incidents.first() else { return };
    if trace.ranks.is_empty() {
        trace.began_unix_ns = first.at_us.checked_mul(1000);
    }
    let began_us = trace.began_unix_ns.map_or(first.at_us, |began| began / 1000);
    incidents.iter_mut().for_each(|incident| incident.at_us = incident.at_us.saturating_sub(began_us));
}

#[derive(Default)]
struct Reading {
    /// A job time, and the time of day at that moment in milliseconds since 1970.
    calendar: Option<(JobTime, u64)>,
    /// Place of each incident of this life in the list.
    open: BTreeMap<IncidentId, usize>,
    found: Found,
    undated: u64,
    left_out: u64,
}

impl Reading {
    fn step(&mut self, step: &Step, started_unix_ms: Option<u64>) {
        if let Some(Input::WallClock { unix_ms }) = step.input {
            self.calendar = Some((step.now, unix_ms));
        } else if self.calendar.is_none() {
            self.calendar = started_unix_ms.map(|ms| (step.now, ms));
        }
        for command in step.commands.iter().flatten() {
            if let Effect::Publish(event) = &command.effect {
                self.event(event);
            }
        }
    }

    fn event(&mut self, event: &Event) {
        match event {
            Event::Found { incident, fault, opened: true } => {
                let Some(at_us) = self.unix_us(fault.onset) else {
                    self.undated += 1;
                    return;
                };
                if self.found.incidents.len() >= INCIDENTS_MAX {
                    self.left_out += 1;
                    return;
                }
                let suspect = fault.primary_suspect();
                let evidence = fault.evidence.iter().map(|clue| EvidenceItem {
                    what: clue.what.to_string(),
                    value: clue.value,
                    usual: clue.usual,
                    text: clue.text.clone(),
                });
                self.open.insert(*incident, self.found.incidents.len());
                self.found.incidents.push(Incident {
                    at_us,
                    class: suspect.class.to_string(),
                    suspect: suspect.domain.to_string(),
                    sentence: format!("{} of {}", suspect.class, suspect.domain),
                    evidence: evidence.collect(),
                });
            }
            Event::Closed { incident, how } => {
                let at = self.open.get(incident).copied();
                if let Some(incident) = at.and_then(|at| self.found.incidents.get_mut(at)) {
                    incident.sentence = format!("{}: {how}", incident.sentence);
                }
            }
            _ => (),
        }
    }

    /// Returns a job time as microseconds since 1970.
    fn unix_us(&self, at: JobTime) -> Option<i64> {
        let (then, unix_ms) = self.calendar?;
        let unix_us = i64::try_from(unix_ms).ok()?.checked_mul(1000)?;
        let since = |later: JobTime, earlier| i64::try_from(later.since(earlier).as_micros()).ok();
        if at >= then { unix_us.checked_add(since(at, then)?) } else { unix_us.checked_sub(since(then, at)?) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incidents_of_a_recorded_job_have_their_time_their_suspect_and_their_outcome() {
        let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/recorded/journal-8");
        let found = read(&recorded).expect("it is readable");
        let first = found.incidents.first().expect("it has incidents");
        let what = (first.at_us, &*first.class, &*first.suspect, &*first.sentence);
        assert_eq!(
            what,
            (1_700_000_000_000_000, "exit", "rank 2", "exit of rank 2: recovered by restart"),
            "{found:?}"
        );
        let error = read(Path::new("/nowhere")).expect_err("there is no log");
        assert!(error.starts_with("/nowhere: "), "{error}");
    }
}
