//! What people are told in the end: every incident with its times, and the outcome of the job.
//!
//! It only keeps books: nothing is decided from it.

use super::explain::Archive;
use super::trial::CHARGED;
use super::{Counts, Decision, Drop, Held, Kernel, MemoryFigures, ReplicaFigures, Smaller, State, View};
use crate::detect::{Fault, FaultClass};
use crate::job::seconds::OptionalSeconds;
use crate::job::{Domain, IncidentId, JobTime, Name, Rank, Role};
use crate::recover::Incident;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

/// Most closed incidents that a report holds; older ones stand in the log only.
pub const INCIDENTS_REPORTED_MAX: usize = 1024;

/// One incident, as told to people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IncidentReport {
    /// Its number.
    pub id: IncidentId,
    /// Kind of the fault that explains the others.
    pub class: FaultClass,
    /// Where that fault is.
    pub domain: Domain,
    /// The detector that found it.
    pub by: Name,
    /// Ranks that are blamed: causes, not victims.
    pub blamed: Vec<Rank>,
    /// Services that are blamed.
    #[serde(default)]
    pub blamed_services: Vec<Name>,
    /// Ranks to whom something happened because of it.
    pub victims: Vec<Rank>,
    /// Why: the evidence in words.
    pub evidence: Vec<String>,
    /// Since when something was wrong.
    pub onset: JobTime,
    /// When the first fault was found.
    pub detected: JobTime,
    /// When it was last decided what to do.
    pub decided: Option<JobTime>,
    /// The strategy that was chosen last.
    pub strategy: Option<Name>,
    /// Why that one.
    pub reason: String,
    /// When the incident was closed by a recovery: the ranks were ready again (see [`Policy::ready`](crate::job::Policy)).
    pub resumed: Option<JobTime>,
    /// When it was closed.
    #[serde(default)]
    pub closed: Option<JobTime>,
    /// How it ended.
    pub outcome: String,
    /// Why what was decided is not carried out, if it is not.
    #[serde(default)]
    pub held: Option<Held>,
    /// How long the chosen strategy was expected to keep the job from training.
    #[serde(default, with = "OptionalSeconds")]
    pub expected_downtime: Option<Duration>,
}

impl IncidentReport {
    /// Seconds of training that acting at once would have saved over what really happened, for a decision that was held:
    /// from the decision to the end of the incident (or of the job), less the expected downtime. Negative where the job came
    /// back sooner by itself. `None`: it was acted on, or is not over.
    ///
    /// A bound from below: nothing is added for work since the last checkpoint, nor for a job that never came back.
    #[must_use]
    pub fn would_have_saved_s(&self) -> Option<f64> {
        self.held?;
        let (decided, closed, downtime) = (self.decided?, self.closed?, self.expected_downtime?);
        Some(closed.since(decided).as_secs_f64() - downtime.as_secs_f64())
    }
}

/// What became of a job.
///
/// A program that runs one job and nothing else ends with [`exit_code`](Outcome::exit_code).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It has not ended.
    #[default]
    Running,
    /// Training ended as it should.
    Completed,
    /// No recovery was left that could have helped.
    Failed,
    /// Somebody asked for its end, and it was stopped in order.
    Stopped,
    /// It trains on without a supervisor; a later one can attach to it and goes on.
    Detached,
}

/// The account of a whole job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobReport {
    /// What became of it.
    #[serde(default)]
    pub outcome: Outcome,
    /// Whether training ended as it should: [`Outcome::Completed`].
    pub ok: bool,
    /// Why it ended, in one sentence; empty while it runs.
    pub reason: String,
    /// When it ended, or the time of the last input.
    pub ended: JobTime,
    /// Recoveries that counted.
    pub restarts: u32,
    /// What checkpoints in the ranks' memory have cost, where they made any.
    #[serde(default)]
    pub memory: Option<MemoryFigures>,
    /// What the checksums of the ranks' states have cost, where they reported any.
    #[serde(default)]
    pub replicas: Option<ReplicaFigures>,
    /// When the job trained with fewer ranks than it has, the newest [`SMALLER_REPORTED_MAX`](super::SMALLER_REPORTED_MAX) times: its
    /// result is another one then.
    #[serde(default)]
    pub smaller: Vec<Smaller>,
    /// The incidents in the order in which they were closed.
    pub incidents: Vec<IncidentReport>,
    /// What was counted.
    pub counts: Counts,
}

impl JobReport {
    /// The account of a supervisor that has left its job to the next one.
    #[must_use]
    pub(crate) fn detached(self, keep: Duration) -> JobReport {
        let reason = format!("handed over: the job runs on and waits {keep:?} for the next supervisor");
        JobReport { outcome: Outcome::Detached, ok: false, reason, ..self }
    }
}

/// The books behind a [`JobReport`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Ledger {
    open: BTreeMap<IncidentId, IncidentReport>,
    closed: VecDeque<IncidentReport>,
    outcome: Option<(Outcome, String, JobTime)>,
    #[serde(default)]
    pub(super) archive: Archive,
}

impl Kernel {
    /// The account of the job until now.
    #[must_use]
    pub fn report(&self) -> JobReport {
        let State { ledger, view, counts, memory, smaller, .. } = &self.state;
        let (outcome, reason, ended) = ledger.outcome.clone().unwrap_or((Outcome::Running, String::new(), view.now));
        JobReport {
            outcome,
            ok: outcome == Outcome::Completed,
            reason,
            ended,
            restarts: view.world.restarts(),
            memory: memory.figures(),
            replicas: view.replicas.figures(),
            smaller: smaller.all(),
            incidents: ledger.closed.iter().chain(ledger.open.values()).cloned().collect(),
            counts: counts.clone(),
        }
    }
}

impl Ledger {
    pub(super) fn found(&mut self, id: IncidentId, now: JobTime, fault: &Fault) {
        let report = self.open.entry(id).or_insert_with(|| IncidentReport {
            id,
            class: fault.prime().class.clone(),
            domain: fault.prime().domain.clone(),
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
        });
        report.onset = report.onset.min(fault.onset);
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

    /// Blame is read off the incident when it is decided, and again when more is known: a death is seen before the error
    /// that tells a victim from a cause.
    pub(super) fn judged(&mut self, incident: &Incident, view: &View) {
        let Some(report) = self.open.get_mut(&incident.id) else { return };
        let left_first = left_first(incident);
        let root = incident.root().or(left_first).unwrap_or(&incident.faults[0]);
        report.class = root.prime().class.clone();
        report.domain = root.prime().domain.clone();
        report.by = root.by.clone();
        report.evidence = root.clues.iter().map(|c| c.text.clone()).filter(|t| !t.is_empty()).collect();
        if let Some(fault) = left_first {
            report.evidence.insert(0, how_it_left(fault, view));
        }
        report.blamed = ranks_of(incident.causes().into_iter());
        report.blamed_services = services_of(incident.causes().into_iter());
        report.victims = ranks_of(incident.faults.iter());
        report.victims.retain(|rank| !report.blamed.contains(rank));
    }

    /// Two incidents were one all along: what is told of it stands under one number.
    pub(super) fn merged(&mut self, into: IncidentId, from: IncidentId) {
        let Some(part) = self.open.remove(&from) else { return };
        let Some(whole) = self.open.get_mut(&into) else { return };
        whole.onset = whole.onset.min(part.onset);
        whole.detected = whole.detected.min(part.detected);
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
            counts.drop(Drop::ReportBound);
        }
        self.closed.push_back(report);
    }

    /// Incidents that are not over.
    pub(super) fn open(&self) -> impl Iterator<Item = &IncidentReport> {
        self.open.values()
    }

    /// An incident, over or not, as long as the report holds it.
    pub(super) fn report_of(&self, id: IncidentId) -> Option<&IncidentReport> {
        self.open.get(&id).or_else(|| self.closed.iter().rfind(|report| report.id == id))
    }

    pub(super) fn finished(&mut self, outcome: Outcome, reason: &str, now: JobTime) {
        self.outcome = Some((outcome, reason.to_owned(), now));
    }
}

/// Where everything that is known are ends that point elsewhere: the first of them. What was charged to a recovery has its reason.
fn left_first(incident: &Incident) -> Option<&Fault> {
    let is_end = |fault: &Fault| fault.prime().class == FaultClass::Exit && !fault.prime().is_cause();
    let is_charged = |fault: &Fault| fault.clues.iter().any(|clue| clue.what == CHARGED || clue.what == "interrupted");
    let all = incident.faults.iter().all(|fault| is_end(fault) && !is_charged(fault));
    incident.faults.iter().filter(|_| all).min_by_key(|fault| fault.onset)
}

/// What is told of the rank that left first, where every end points to another one.
fn how_it_left(fault: &Fault, view: &View) -> String {
    let domain = &fault.prime().domain;
    let proc = view.proc_of(domain).filter(|proc| fault.incarnation() == Some(proc.incarnation));
    let incarnation = fault.incarnation().map(|incarnation| incarnation.to_string()).unwrap_or_default();
    let how = proc.and_then(|proc| proc.phase.termination());
    let how = how.map_or_else(|| "it is gone".to_owned(), |how| how.to_string());
    let step = proc.and_then(|proc| proc.step);
    let step = step.map_or_else(|| " before its first step was seen".to_owned(), |step| format!(" after step {step}"));
    format!(
        "{domain}{incarnation} left first: {how}{step}; all that failed point to another rank, and none is known to have failed by \
         itself"
    )
}

/// The ranks among the prime suspects, in order, each once.
fn ranks_of<'a>(faults: impl Iterator<Item = &'a Fault>) -> Vec<Rank> {
    let ranks = faults.filter_map(|f| match &f.prime().domain {
        Domain::Process(Role::Rank(rank)) => Some(*rank),
        _ => None,
    });
    ranks.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The services among the prime suspects, in order, each once.
fn services_of<'a>(faults: impl Iterator<Item = &'a Fault>) -> Vec<Name> {
    let services = faults.filter_map(|f| match &f.prime().domain {
        Domain::Process(Role::Service(name)) => Some(name.clone()),
        _ => None,
    });
    services.collect::<BTreeSet<_>>().into_iter().collect()
}

impl Decision {
    /// Why the job ends here, for a person: what happened, on what evidence, what was tried, why nothing else helps.
    pub(super) fn last_words(&self) -> String {
        let root = self.incident.root().unwrap_or(&self.incident.faults[0]);
        let mut words = format!("{} in {}", root.prime().class, root.prime().domain);
        for clue in root.clues.iter().filter(|c| !c.text.is_empty()) {
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
