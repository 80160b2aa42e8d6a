//! The injected faults, and what the supervisor reported of each.

use super::inject::Injection;
use super::watch::{Incident, Seen};
use crate::clock::millis;
use crate::program;
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;
use taskd_core::kernel::Saving;

/// One incident and its injection, or an injection that was not found.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Class of the fault that was found; null for an injection that was not found.
    pub class: Option<String>,
    /// Ranks that were blamed.
    pub ranks: Vec<u32>,
    /// The injection and its rank; null if there was none.
    pub injected: Option<String>,
    /// True if exactly the injected rank was blamed, for the injected kind of fault.
    pub correct: bool,
    /// From the injection to the first fault found, in milliseconds.
    pub detected_ms: Option<f64>,
    /// The strategy that would have been carried out.
    pub strategy: Option<String>,
    /// The reason for that decision.
    pub reason: String,
    /// The outcome, without taskd.
    pub outcome: String,
    /// Training time in seconds that acting would have saved; negative where the job came back sooner by itself.
    pub would_have_saved_s: Option<f64>,
    /// The evidence, one sentence each.
    pub evidence: Vec<String>,
}

/// Returns the rows of one job: every incident in order, then the injections that were not found.
#[must_use]
pub fn rows(injections: &[Injection], seen: &Seen) -> Vec<Row> {
    let mut left: Vec<&Injection> = injections.iter().collect();
    let mut rows: Vec<Row> = seen.incidents.iter().map(|incident| row(incident, &mut left)).collect();
    rows.extend(left.into_iter().map(missed));
    rows
}

/// An incident answers the newest earlier injection that has no answer yet.
fn row(incident: &Incident, left: &mut Vec<&Injection>) -> Row {
    let Incident { report, found } = incident;
    let ranks: Vec<u32> = report.blamed.iter().map(|rank| rank.0).collect();
    let before = |injection: &&Injection| found.is_some_and(|found| injection.at <= found);
    let answered = left.iter().rposition(before).map(|at| left.remove(at));
    let class = report.class.to_string();
    Row {
        correct: answered.is_some_and(|injection| ranks == [injection.rank] && class == injection.kind.class()),
        injected: answered.map(name),
        detected_ms: answered.zip(*found).map(|(injection, found)| millis(found.saturating_sub(injection.at))),
        class: Some(class),
        ranks,
        strategy: report.strategy.as_ref().map(ToString::to_string),
        reason: report.reason.clone(),
        outcome: report.outcome.clone(),
        would_have_saved_s: report.would_have_saved_s().map(|s| (s * 1e3).round() / 1e3),
        evidence: report.evidence.clone(),
    }
}

fn missed(injection: &Injection) -> Row {
    Row {
        class: None,
        ranks: Vec::new(),
        injected: Some(name(injection)),
        correct: false,
        detected_ms: None,
        strategy: None,
        reason: String::new(),
        outcome: "not found".into(),
        would_have_saved_s: None,
        evidence: Vec::new(),
    }
}

fn name(injection: &Injection) -> String {
    format!("{} to rank {}", injection.kind.name(), injection.rank)
}

/// The account of all observed jobs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Account {
    /// True if all jobs ended as expected.
    pub completed: bool,
    /// Number of jobs.
    pub jobs: u32,
    /// Ranks of each job.
    pub ranks: u32,
    /// The incidents of all jobs.
    pub incidents: Vec<Row>,
    /// Faults that were injected.
    pub injected: usize,
    /// Faults that were found in the right rank.
    pub correct: usize,
    /// Incidents without an injection.
    pub false_alarms: usize,
    /// Sum over all incidents; an incident in which the job recovered sooner by itself counts as negative.
    pub would_have_saved_s: f64,
    /// Supervisors that tried to signal, trace or start a process: Linux kills a supervisor at its first try (seccomp).
    pub signals_sent: u32,
    /// Maximum resident memory of a supervisor, in MiB.
    pub supervisor_rss_mib: f64,
    /// Maximum of that memory which is not backed by the program file, in MiB.
    pub supervisor_own_mib: f64,
    /// Maximum CPU time of a supervisor, in percent of one CPU.
    pub supervisor_cpu_percent: f64,
    /// The cost of observing for the job, if it was measured.
    pub overhead: Option<crate::overhead::Overhead>,
}

impl Account {
    /// Adds a job.
    pub fn add(&mut self, injections: &[Injection], seen: &Seen) {
        let rows = rows(injections, seen);
        self.completed = seen.completed && (self.completed || self.jobs == 0);
        self.jobs += 1;
        self.injected += injections.len();
        self.correct += rows.iter().filter(|row| row.correct).count();
        self.false_alarms += rows.iter().filter(|row| row.injected.is_none()).count();
        self.would_have_saved_s += rows.iter().filter_map(|row| row.would_have_saved_s).sum::<f64>();
        self.would_have_saved_s = (self.would_have_saved_s * 1e3).round() / 1e3;
        let mib = |kib: u64| (kib as f64 / 1024.0 * 10.0).round() / 10.0;
        self.supervisor_rss_mib = self.supervisor_rss_mib.max(mib(seen.rss_kib.0));
        self.supervisor_own_mib = self.supervisor_own_mib.max(mib(seen.rss_kib.1));
        self.supervisor_cpu_percent = self.supervisor_cpu_percent.max((seen.cpu_percent * 100.0).round() / 100.0);
        self.signals_sent += seen.signals_sent;
        self.incidents.extend(rows);
    }

    /// Prints the account: a table, or one line of JSON as the last line.
    pub fn print(&self, json: bool) {
        program::print(self, json, || self.table());
    }

    fn table(&self) -> String {
        let mut out = String::from(
            "\n  what      where   injected              correct  detected    would do  would have saved  outcome\n",
        );
        for row in &self.incidents {
            let ranks: Vec<String> = row.ranks.iter().map(u32::to_string).collect();
            let _ = writeln!(
                out,
                "  {:<8}  {:<6}  {:<20}  {:<7}  {:<10}  {:<8}  {:<16}  {}",
                row.class.as_deref().unwrap_or("-"),
                if ranks.is_empty() { "-".to_owned() } else { format!("rank {}", ranks.join(",")) },
                row.injected.as_deref().unwrap_or("-"),
                if row.correct { "yes" } else { "NO" },
                row.detected_ms.map_or("-".to_owned(), |ms| format!("{ms:.0} ms")),
                row.strategy.as_deref().unwrap_or("-"),
                row.would_have_saved_s.map_or("-".to_owned(), |s| match Saving::of_s(s) {
                    Saving::Saved(time) => format!("{:.1} s", time.as_secs_f64()),
                    Saving::Slower(time) => format!("{:.1} s slower", time.as_secs_f64()),
                }),
                row.outcome,
            );
            for line in &row.evidence {
                let _ = writeln!(out, "      because {line}");
            }
        }
        let _ = writeln!(
            out,
            "\n  jobs        {}, {} ranks each: {} of {} faults found in the right rank, {} false alarms",
            self.jobs, self.ranks, self.correct, self.injected, self.false_alarms
        );
        let savings = self.incidents.iter().filter_map(|row| row.would_have_saved_s).map(Saving::of_s);
        let (mut saved, mut slower) = (Duration::ZERO, Duration::ZERO);
        savings.for_each(|saving| match saving {
            Saving::Saved(time) => saved += time,
            Saving::Slower(time) => slower += time,
        });
        let _ = write!(out, "  savings     {:.1} s of training with taskd", saved.as_secs_f64());
        let _ = match slower.is_zero() {
            true => writeln!(out),
            false => writeln!(out, ", and {:.1} s lost where torchrun recovered sooner", slower.as_secs_f64()),
        };
        let _ = writeln!(
            out,
            "  supervisor  {} signals sent, {:.1} MiB resident, {:.1} MiB of them its own, {:.2} % of a processor",
            self.signals_sent, self.supervisor_rss_mib, self.supervisor_own_mib, self.supervisor_cpu_percent
        );
        if let Some(overhead) = &self.overhead {
            let _ = writeln!(out, "  overhead    {overhead}");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::inject::Kind;

    #[test]
    fn no_saving_is_printed_that_is_negative() {
        let row = |saved| Row {
            would_have_saved_s: Some(saved),
            ..missed(&Injection { kind: Kind::Kill, rank: 1, at: Duration::ZERO })
        };
        let account =
            Account { incidents: vec![row(40.0), row(-55.0)], would_have_saved_s: -15.0, ..Account::default() };
        let table = account.table();
        assert!(table.contains("  40.0 s ") && table.contains("  55.0 s slower "), "{table}");
        assert!(
            table.contains("40.0 s of training with taskd, and 55.0 s lost where torchrun recovered sooner"),
            "{table}"
        );
        assert!(!table.contains("-1") && !table.contains("-5"), "{table}");
    }

    #[test]
    fn an_injection_without_an_incident_is_not_counted_as_correct() {
        let injection = Injection { kind: Kind::Kill, rank: 1, at: Duration::from_secs(3) };
        let seen = Seen {
            reason: String::new(),
            completed: true,
            incidents: Vec::new(),
            rss_kib: (2048, 1024),
            cpu_percent: 0.5,
            signals_sent: 0,
        };
        let mut account = Account::default();
        account.add(&[injection], &seen);
        assert_eq!((account.injected, account.correct, account.incidents.len()), (1, 0, 1));
        assert_eq!((account.supervisor_rss_mib, account.completed), (2.0, true));
        account.add(&[], &Seen { completed: false, ..seen });
        assert!(!account.completed, "one of them did not");
    }
}
