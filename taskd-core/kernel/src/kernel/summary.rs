//! A report as text, for the terminal or the log of the program that ran the job.
//!
//! It contains nothing that is not in the report.

use super::report::{IncidentReport, JobReport, ProcReport};
use super::{OrderReport, Outcome};
use crate::job::NodeId;
use std::fmt::{self, Display, Write as _};

/// Maximum number of incidents and of orders that are listed, newest ones.
const TOLD_MAX: usize = 16;
/// Maximum number of processes of an incident, and of hosts of the job, that are named.
const NAMED_MAX: usize = 4;

/// Formats the outcome of the job, its newest incidents and orders, and the location of its processes' output.
impl Display for JobReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JobReport { outcome, restarts, reason, incidents, orders, output_dirs, .. } = self;
        let recoveries = if *restarts == 1 { "1 restart".to_owned() } else { format!("{restarts} restarts") };
        write!(f, "{} after {recoveries}: {reason}", in_words(*outcome))?;
        let older = incidents.len().saturating_sub(TOLD_MAX);
        if older > 0 {
            write!(f, "\n  {older} older incidents are in the report")?;
        }
        incidents.iter().skip(older).try_for_each(|incident| write!(f, "\n  {}", line_of(incident)))?;
        let older = orders.len().saturating_sub(TOLD_MAX);
        for OrderReport { by, order, answer, outcome, .. } in orders.iter().skip(older) {
            let outcome = outcome.as_ref().map(|how| format!("; {how}")).unwrap_or_default();
            write!(f, "\n  {by} ordered: {order}: {answer}{outcome}")?;
        }
        let dirs = output_dirs.iter().map(|(node, dir)| (node, dir.clone()));
        output_in_words(dirs).map_or(Ok(()), |line| write!(f, "\n  {line}"))
    }
}

const fn in_words(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Running => "still running",
        Outcome::Completed => "completed",
        Outcome::Failed => "failed",
        Outcome::Stopped => "stopped",
        Outcome::Detached => "handed over",
        Outcome::Superseded => "taken over",
    }
}

/// Formats an incident as one line: `incident 1 at 2026-07-01T03:12:44.123Z: exit in rank 0: restart, closed 1.2 s
/// later: ...`.
fn line_of(incident: &IncidentReport) -> String {
    let IncidentReport { id, class, domain, strategy, detected, closed, outcome, wall, procs, .. } = incident;
    let at = wall.detected.map_or_else(|| detected.to_string(), |wall| wall.to_string());
    let strategy = strategy.as_ref().map(|strategy| format!(": {strategy}")).unwrap_or_default();
    let over =
        closed.map(|at| format!(", closed {:.1} s later", at.since(*detected).as_secs_f64())).unwrap_or_default();
    let mut line = format!("{id} at {at}: {class} in {domain}{strategy}{over}: {outcome}");
    let causes: Vec<&ProcReport> = procs.iter().filter(|proc| proc.is_cause).collect();
    for ProcReport { proc, node, pid, output, .. } in causes.iter().take(NAMED_MAX) {
        let pid = pid.map(|pid| format!(", process {pid}")).unwrap_or_default();
        let node = node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
        let output = output.as_ref().map(|output| format!(", output in {output}")).unwrap_or_default();
        let _ = write!(line, "\n      {proc}{pid}{node}{output}");
    }
    line
}

/// Returns a sentence that states on which hosts and in which directories the processes' output is. `None` if no
/// directory is known.
pub fn output_in_words<'a>(dirs: impl ExactSizeIterator<Item = (&'a NodeId, String)>) -> Option<String> {
    let more = dirs.len().saturating_sub(NAMED_MAX);
    let named: Vec<String> = dirs.take(NAMED_MAX).map(|(node, dir)| format!("{dir} on {node}")).collect();
    let more = if more > 0 { format!(", and of {more} more hosts") } else { String::new() };
    (!named.is_empty()).then(|| {
        format!(
            "output of the processes: {}{more} (of incarnation 2 of rank 3: rank-3.2/stdout.log and stderr.log)",
            named.join(", ")
        )
    })
}
