//! The account of a soak run: for each loop the kills, the results, and everything that should not have happened.

use super::job::Training;
use super::kills::Kill;
use super::loops::Loop;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::Duration;
use taskd_core::job::JobTime;
use taskd_core::kernel::{IncidentReport, Outcome};
use taskd_examples::program::Failure;

/// Maximum delay of a report of a kill: a host is busy while a framework is imported.
const SEEN_WITHIN: Duration = Duration::from_secs(20);

/// The whole account.
#[derive(Debug, Default, Serialize)]
pub(super) struct Account {
    pub(super) rows: Vec<Row>,
}

/// The results of one loop, with or without `taskd.steps`.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    #[serde(rename = "loop")]
    what: Loop,
    taskd_steps: bool,
    pub(super) jobs: u32,
    pub(super) kills: u32,
    /// Incidents by the strategy that ended them.
    recovered: BTreeMap<String, u32>,
    /// Steps whose loss was compared with the undisturbed run's.
    steps_compared: usize,
    /// The differences.
    different: Vec<String>,
    /// Jobs that did not complete, with their reasons.
    failed: Vec<String>,
    /// Verdicts on ranks that were not killed.
    blamed_wrongly: Vec<String>,
}

impl Row {
    pub(super) fn of(what: Loop, taskd_steps: bool) -> Row {
        let (recovered, [different, failed, blamed_wrongly]) = (BTreeMap::new(), Default::default());
        Row { what, taskd_steps, jobs: 0, kills: 0, recovered, steps_compared: 0, different, failed, blamed_wrongly }
    }

    /// Adds one disturbed job.
    pub(super) fn add(&mut self, training: &Training, undisturbed: &Training) {
        self.jobs += 1;
        self.kills += u32::try_from(training.kills.len()).unwrap_or(u32::MAX);
        for incident in &training.report.incidents {
            let by = incident.strategy.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
            *self.recovered.entry(by).or_default() += 1;
            if let Some(wrong) = wrongly_blamed(incident, &training.kills) {
                self.blamed_wrongly.push(wrong);
            }
        }
        if training.report.outcome == Outcome::Completed {
            if training.results != undisturbed.results {
                self.different.push(format!("job {} ended with a different state", self.jobs));
            }
        } else {
            self.failed.push(training.report.reason.clone());
        }
        self.compare_losses(training, undisturbed);
    }

    fn compare_losses(&mut self, training: &Training, undisturbed: &Training) {
        let right: BTreeMap<_, _> = undisturbed.losses.iter().map(|(rank, line)| ((*rank, line.step), line)).collect();
        for (rank, line) in &training.losses {
            self.steps_compared += 1;
            if right.get(&(*rank, line.step)) != Some(&line) {
                self.different.push(format!("job {}: step {} of rank {rank}", self.jobs, line.step));
            }
        }
    }

    fn is_well(&self) -> bool {
        self.different.is_empty() && self.failed.is_empty() && self.blamed_wrongly.is_empty()
    }
}

/// Returns the ranks that an incident blames although they were not killed, as text.
fn wrongly_blamed(incident: &IncidentReport, kills: &[Kill]) -> Option<String> {
    let since_start = |at: JobTime| at.since(JobTime::START);
    let (from, until) = (since_start(incident.onset), since_start(incident.closed.unwrap_or(incident.detected)));
    let killed = |rank: u32| {
        kills.iter().any(|kill| kill.rank == rank && kill.at + SEEN_WITHIN >= from && kill.at <= until + SEEN_WITHIN)
    };
    let wrong: Vec<String> =
        incident.blamed.iter().filter(|rank| !killed(rank.0)).map(|rank| rank.0.to_string()).collect();
    let about = || format!("{} of {}: rank {}", incident.class, incident.domain, wrong.join(" and "));
    (!wrong.is_empty()).then(about)
}

/// One line of the table.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how: Vec<String> = self.recovered.iter().map(|(by, count)| format!("{by} {count}")).collect();
        let (name, steps) = (self.what.name(), if self.taskd_steps { "taskd.steps" } else { "own loop" });
        write!(f, "{name:17} {steps:12} {:5} {:5}", self.kills, self.jobs)?;
        write!(f, " {:9} {:7} {:6}", self.different.len(), self.failed.len(), self.blamed_wrongly.len())?;
        write!(f, " {:7}  {}", self.steps_compared, how.join(", "))
    }
}

impl Account {
    pub(super) fn is_well(&self) -> bool {
        self.rows.iter().all(Row::is_well)
    }

    pub(super) fn table(&self) -> String {
        let mut table = format!(
            "{:17} {:12} {:>5} {:>5} {:>9} {:>7} {:>6} {:>7}  incidents by strategy\n",
            "loop", "form", "kills", "jobs", "different", "failed", "blamed", "steps"
        );
        for row in &self.rows {
            let _ = writeln!(table, "{row}");
        }
        table
    }

    /// # Errors
    /// What is not as expected.
    pub(super) fn judge(&self) -> Result<(), Failure> {
        let mut wrong = String::new();
        for row in self.rows.iter().filter(|row| !row.is_well()) {
            let all = [&row.different, &row.failed, &row.blamed_wrongly].map(|list| list.first().map(String::as_str));
            let first: Vec<&str> = all.into_iter().flatten().collect();
            let _ = write!(wrong, "{} ({}): {}; ", row.what.name(), row.jobs, first.join("; "));
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.trim_end_matches("; ").into()) }
    }
}
