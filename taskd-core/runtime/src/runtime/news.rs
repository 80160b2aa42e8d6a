//! Log lines for operators: one sentence for each incident opened, decided or closed, and for each order, with the
//! output directories of the processes.
//!
//! The sentences add nothing to the events except these locations.

use super::output::OutputDirs;
use crate::detect::host_history::HOST_PASSED_OVER;
use crate::journal::on_one_line;
use crate::kernel::{Decision, Event, HoldReason, IncidentReport, Kernel, OrderReport, ProcReport};
use std::fmt::Write as _;
use tracing::Level;

/// Most processes that a sentence names with host, process id and output.
const NAMED_MAX: usize = 3;

/// Returns the sentence for an event, with its level; `None` if other events cover it.
///
/// As in Kubernetes events, a problem is a warning, and a normal reaction to a problem is not.
pub(super) fn of(event: &Event, kernel: &Kernel, output: &OutputDirs) -> Option<(Level, String)> {
    Some(match event {
        Event::Found { incident, fault, opened: true } => {
            let suspect = fault.primary_suspect();
            let mut line = format!("{incident} opened: {} in {}", suspect.class, suspect.domain);
            because(&mut line, fault.evidence.iter().map(|clue| clue.text.as_str()));
            let report = kernel.incident(*incident);
            line += &report.map_or_else(String::new, |report| places(&report, output));
            (Level::WARN, line)
        }
        Event::Decided(decision) => decided(decision),
        Event::Failed { incident, strategy, reason } => {
            (Level::WARN, format!("{incident}: {strategy} failed: {reason}"))
        }
        Event::Cancelled { incident, strategy, reason } => {
            (Level::INFO, format!("{incident}: {strategy} cancelled: {reason}"))
        }
        Event::Closed { incident, how } => {
            let report = kernel.incident(*incident)?;
            let after = report.closed.unwrap_or(report.detected).since(report.detected);
            // Decided but not recovered, for example an order that was not carried out. Held incidents do not count:
            // others resolved them.
            let is_undone = report.decided.is_some() && report.resumed.is_none() && report.held.is_none();
            let level = if is_undone { Level::WARN } else { Level::INFO };
            let line = format!("{incident} closed {:.1} s after it was detected: {how}", after.as_secs_f64());
            (level, line + &places(&report, output))
        }
        Event::Noted { clue, .. } if clue.what == HOST_PASSED_OVER => (Level::INFO, clue.text.clone()),
        Event::Merged { incident, into } => (Level::INFO, format!("{incident} merged into {into}")),
        _ => return None,
    })
}

fn decided(decision: &Decision) -> (Level, String) {
    let Decision { incident, chosen, reason, held, budget_left, .. } = decision;
    let what = match (chosen, held) {
        (None, _) => "no strategy is left".to_owned(),
        (Some(chosen), None) => format!("{}, which costs {}", chosen.strategy, chosen.proposal.cost),
        (Some(chosen), Some(HoldReason::DryRun)) => format!("would run {}", chosen.strategy),
        (Some(chosen), Some(_)) => format!("{} is held", chosen.strategy),
    };
    let level = if chosen.is_none() || matches!(held, Some(HoldReason::Paused | HoldReason::AwaitingApproval)) {
        Level::WARN
    } else {
        Level::INFO
    };
    (level, format!("{} decided: {what}; {reason}; {budget_left} recoveries are left", incident.id))
}

/// Returns the sentence for an order, with its level.
pub(super) fn of_order(order: &OrderReport) -> (Level, String) {
    let OrderReport { by, reason, taken, answer, .. } = order;
    let what = &order.order;
    let why = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
    match taken {
        true => (Level::INFO, format!("{by} orders: {what}{why}: {answer}")),
        false => (Level::WARN, format!("{by} orders: {what}{why}: refused, {answer}")),
    }
}

/// Logs a sentence as one line.
pub(super) fn log((level, line): (Level, String)) {
    let line = on_one_line(&line);
    match level {
        Level::WARN => tracing::warn!("{line}"),
        _ => tracing::info!("{line}"),
    }
}

fn because<'a>(line: &mut String, clues: impl Iterator<Item = &'a str>) {
    for (number, clue) in clues.filter(|clue| !clue.is_empty()).enumerate() {
        let _ = write!(line, "{} {clue}", if number == 0 { ", because" } else { ";" });
    }
}

/// Returns the location and output of the causing processes, or of the affected ones if no process is the cause.
fn places(report: &IncidentReport, output: &OutputDirs) -> String {
    let has_cause = report.procs.iter().any(|proc| proc.is_cause);
    let named: Vec<&ProcReport> = report.procs.iter().filter(|proc| proc.is_cause == has_cause).collect();
    let place = |report: &&ProcReport| {
        let ProcReport { proc, node, pid, .. } = report;
        let pid = pid.map(|pid| format!(", process {pid}"));
        let node = node.as_ref().map(|node| format!(" on {node}"));
        let dir = output.dir(proc, report.node.as_ref()).map(|dir| format!(", output in {dir}"));
        format!("{proc}{}{}{}", pid.unwrap_or_default(), node.unwrap_or_default(), dir.unwrap_or_default())
    };
    let mut places: Vec<String> = named.iter().take(NAMED_MAX).map(place).collect();
    if named.len() > NAMED_MAX {
        places.push(format!("and {} more", named.len() - NAMED_MAX));
    }
    if places.is_empty() { String::new() } else { format!(" ({})", places.join("; ")) }
}
