//! Bookkeeping of incidents for the final report, from their first fault to their end.
//!
//! Nothing is decided from it.

use super::calendar::Calendar;
use super::explain::Archive;
use super::in_memory_checkpoints::Memory;
use super::orders::Orders;
use super::report::{INCIDENTS_REPORTED_MAX, IncidentReport, JobReport, Outcome, WallTimes};
use super::shrunk_periods::SmallerTimes;
use super::{Counts, Decision, DropReason};
use crate::detect::{Fault, FaultClass, INTERRUPTED};
use crate::job::{Domain, IncidentId, JobTime, Name, NodeId, Rank, Role};
use crate::recover::Incident;
use crate::state::{Proc, View};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

/// The data behind a [`JobReport`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Ledger {
    open: BTreeMap<IncidentId, IncidentReport>,
    closed: VecDeque<IncidentReport>,
    /// Number of closed incidents that were dropped, because the report holds a limited number.
    #[serde(default)]
    gone: u64,
    outcome: Option<(Outcome, String, JobTime)>,
    #[serde(default)]
    pub(super) archive: Archive,
}

/// Reads what the report of a job consists of.
pub(super) struct Reporter<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) calendar: &'a Calendar,
    pub(super) view: &'a View,
    pub(super) counts: &'a Counts,
    pub(super) memory: &'a Memory,
    pub(super) smaller: &'a SmallerTimes,
    pub(super) orders: &'a Orders,
}

impl Reporter<'_> {
    /// Returns the report of the job until now.
    pub(super) fn report(&self) -> JobReport {
        let Reporter { ledger, calendar, view, counts, memory, smaller, orders } = self;
        let (outcome, reason, ended) = ledger.outcome.clone().unwrap_or((Outcome::Running, String::new(), view.now));
        JobReport {
            outcome,
            ok: outcome == Outcome::Completed,
            reason,
            ended,
            wall: calendar.wall(ended),
            restarts: view.world.restarts(),
            memory: memory.figures(),
            replicas: view.replicas.figures(),
            smaller: smaller.all(),
            incidents: ledger.closed.iter().chain(ledger.open.values()).map(|report| report.dated(calendar)).collect(),
            orders: orders.kept(),
            orders_left_out: orders.left_out(),
            output_dirs: BTreeMap::new(),
            counts: (*counts).clone(),
        }
    }
}

impl Ledger {
    pub(super) fn found(&mut self, id: IncidentId, now: JobTime, fault: &Fault, view: &View) {
        let report = self.open.entry(id).or_insert_with(|| IncidentReport {
            id,
            class: fault.primary_suspect().class.clone(),
            domain: fault.primary_suspect().domain.clone(),
            by: fault.by.clone(),
            blamed: Vec::new(),
            blamed_services: Vec::new(),
            victims: Vec::new(),
            evidence: Vec::new(),
            onset: fault.onset,
            detected: now,
            decided: None,
            strategy: None,
            reason: String::new(),
            resumed: None,
            closed: None,
            outcome: "open".into(),
            held: None,
            expected_downtime: None,
            procs: Vec::new(),
            procs_left_out: 0,
            wall: WallTimes::default(),
        });
        report.onset = report.onset.min(fault.onset);
        report.names(fault, view);
    }

    pub(super) fn decided(&mut self, decision: &Decision, view: &View) {
        self.judged(&decision.incident, view);
        self.archive.keep(decision);
        let Some(report) = self.open.get_mut(&decision.incident.id) else { return };
        report.decided = Some(decision.at);
        report.strategy = decision.chosen.as_ref().map(|c| c.strategy.clone());
        report.reason.clone_from(&decision.reason);
        report.held = decision.held;
        report.expected_downtime = decision.chosen.as_ref().map(|c| c.proposal.cost.downtime);
    }

    /// Updates the blame in the report. Called when the incident is decided, and again when more is known: the death of
    /// a process is reported before the error that distinguishes a victim from a cause.
    pub(super) fn judged(&mut self, incident: &Incident, view: &View) {
        let Some(report) = self.open.get_mut(&incident.id) else { return };
        let left_first = left_first(incident);
        let root = incident.root().or(left_first).unwrap_or(&incident.faults[0]);
        report.class = root.primary_suspect().class.clone();
        report.domain = root.primary_suspect().domain.clone();
        report.by = root.by.clone();
        report.evidence = root.evidence.iter().map(|c| c.text.clone()).filter(|t| !t.is_empty()).collect();
        if let Some(fault) = left_first {
            report.evidence.insert(0, how_it_left(fault, view));
        }
        let failed = incident.attempts.iter().map(|(strategy, why)| format!("{strategy} failed: {why}"));
        report.evidence.extend(failed);
        report.blamed = ranks_of(incident.causes().into_iter());
        report.blamed_services = services_of(incident.causes().into_iter());
        let causes: BTreeSet<&Domain> =
            incident.causes().into_iter().map(|fault| &fault.primary_suspect().domain).collect();
        for proc in &mut report.procs {
            proc.is_cause = causes.contains(&Domain::Process(proc.proc.role.clone()));
        }
        // The fault of a lost host has absorbed those of its ranks.
        let with_host: BTreeSet<Rank> = report.victims.iter().copied().chain(lost_with_hosts(incident, view)).collect();
        report.victims = ranks_of(incident.faults.iter()).into_iter().chain(with_host).collect();
        report.victims.sort_unstable();
        report.victims.dedup();
        report.victims.retain(|rank| !report.blamed.contains(rank));
    }

    /// Merges the reports of two incidents under one number.
    pub(super) fn merged(&mut self, into: IncidentId, from: IncidentId) {
        let Some(part) = self.open.remove(&from) else { return };
        let Some(whole) = self.open.get_mut(&into) else { return };
        whole.onset = whole.onset.min(part.onset);
        whole.detected = whole.detected.min(part.detected);
        whole.procs_left_out = whole.procs_left_out.saturating_add(part.procs_left_out);
        part.procs.into_iter().for_each(|proc| whole.takes(proc));
    }

    pub(super) fn closed(
        &mut self,
        id: IncidentId,
        now: JobTime,
        how: &str,
        strategy: Option<&Name>,
        counts: &mut Counts,
    ) {
        let Some(mut report) = self.open.remove(&id) else { return };
        how.clone_into(&mut report.outcome);
        report.closed = Some(now);
        if strategy.is_some() {
            report.resumed = Some(now);
        }
        if self.closed.len() >= INCIDENTS_REPORTED_MAX {
            self.closed.pop_front();
            self.gone = self.gone.saturating_add(1);
            counts.drop(DropReason::ReportBound);
        }
        self.closed.push_back(report);
    }

    /// Returns the newest closed incidents, at most `most`, newest last, and the number of older ones.
    pub(super) fn recent(&self, most: usize) -> (impl Iterator<Item = &IncidentReport>, u64) {
        let older = self.closed.len().saturating_sub(most);
        (self.closed.iter().skip(older), self.gone.saturating_add(older as u64))
    }

    /// Returns the open incidents.
    pub(super) fn open(&self) -> impl Iterator<Item = &IncidentReport> {
        self.open.values()
    }

    /// Returns the report of an incident, open or closed, as long as it is kept.
    pub(super) fn report_of(&self, id: IncidentId) -> Option<&IncidentReport> {
        self.open.get(&id).or_else(|| self.closed.iter().rfind(|report| report.id == id))
    }

    pub(super) fn finished(&mut self, outcome: Outcome, reason: &str, now: JobTime) {
        self.outcome = Some((outcome, reason.to_owned(), now));
    }
}

/// Returns the first fault, if all known faults are exits caused by another rank. `None` if any fault was charged to a
/// recovery or was an interrupt, since its reason is known then.
fn left_first(incident: &Incident) -> Option<&Fault> {
    let is_end =
        |fault: &Fault| fault.primary_suspect().class == FaultClass::Exit && !fault.primary_suspect().is_cause();
    let is_interrupt = |fault: &Fault| fault.evidence.iter().any(|clue| clue.what == INTERRUPTED);
    let all = incident.faults.iter().all(|fault| is_end(fault) && !fault.is_charged() && !is_interrupt(fault));
    incident.faults.iter().filter(|_| all).min_by_key(|fault| fault.onset)
}

/// Returns the evidence text for the rank that left first, if every exit points to another rank.
fn how_it_left(fault: &Fault, view: &View) -> String {
    let domain = &fault.primary_suspect().domain;
    let proc = view.proc_of(domain).filter(|proc| fault.incarnation() == Some(proc.incarnation));
    let incarnation = fault.incarnation().map(|incarnation| incarnation.to_string()).unwrap_or_default();
    let how = proc.and_then(|proc| proc.phase.termination());
    let how = how.map_or_else(|| "unknown exit status".to_owned(), |how| how.to_string());
    let step = proc.and_then(Proc::last_step);
    let step = step.map_or_else(|| " before it reported a step".to_owned(), |step| format!(" after step {step}"));
    format!(
        "{domain}{incarnation} ended first: {how}{step}; every failure points to another rank, and no rank is known to \
         have failed by itself"
    )
}

/// Returns the ranks among the primary suspects, in order, without duplicates.
fn ranks_of<'a>(faults: impl Iterator<Item = &'a Fault>) -> Vec<Rank> {
    let ranks = faults.filter_map(|f| match &f.primary_suspect().domain {
        Domain::Process(Role::Rank(rank)) => Some(*rank),
        _ => None,
    });
    ranks.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the ranks that were lost with the hosts that an incident blames.
fn lost_with_hosts(incident: &Incident, view: &View) -> Vec<Rank> {
    let host = |fault: &Fault| match &fault.primary_suspect().domain {
        Domain::Node(node) if fault.primary_suspect().class == FaultClass::NodeLost => Some(node.clone()),
        _ => None,
    };
    let hosts: BTreeSet<NodeId> = incident.faults.iter().filter_map(host).collect();
    let lost = |proc: &Proc| proc.unguarded && proc.node.as_ref().is_some_and(|node| hosts.contains(node));
    view.procs.iter().filter(|(_, proc)| lost(proc)).filter_map(|(role, _)| role.rank()).collect()
}

/// Returns the services among the primary suspects, in order, without duplicates.
fn services_of<'a>(faults: impl Iterator<Item = &'a Fault>) -> Vec<Name> {
    let services = faults.filter_map(|f| match &f.primary_suspect().domain {
        Domain::Process(Role::Service(name)) => Some(name.clone()),
        _ => None,
    });
    services.collect::<BTreeSet<_>>().into_iter().collect()
}

impl Decision {
    /// Returns the reason why the job ends, for people: what happened, the evidence, the attempts, and the refusals.
    pub(super) fn last_words(&self) -> String {
        let root = self.incident.root().unwrap_or(&self.incident.faults[0]);
        let mut words = format!("{} in {}", root.primary_suspect().class, root.primary_suspect().domain);
        for clue in root.evidence.iter().filter(|c| !c.text.is_empty()) {
            let _ = write!(words, ", {}", clue.text);
        }
        for (strategy, why) in &self.incident.attempts {
            let _ = write!(words, "; {strategy} failed: {why}");
        }
        for refusal in &self.refused {
            let _ = write!(words, "; {}: {}", refusal.strategy, refusal.reason);
        }
        words
    }
}
