//! What people are told in the end: every incident with its times, and the outcome of the job.
//!
//! It only keeps books: nothing is decided from it.

use super::explain::Archive;
use super::{
    Counts, Decision, Drop, Held, Kernel, MemoryFigures, OrderReport, Proc, ReplicaFigures, Smaller, State, View,
};
use crate::detect::{Fault, FaultClass, INTERRUPTED};
use crate::job::seconds::OptionalSeconds;
use crate::job::{Domain, IncidentId, JobTime, Name, NodeId, ProcId, Rank, Role, WallTime};
use crate::recover::Incident;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::{self, Write as _};
use std::time::Duration;

/// Most closed incidents that a report holds; older ones stand in the log only.
pub const INCIDENTS_REPORTED_MAX: usize = 1024;

/// Most processes that an incident names with host and process id: its causes before its victims.
pub const PROCS_PER_INCIDENT_MAX: usize = 64;

/// A process that an incident is about, as it was then: who looks for it in other logs knows it by these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcReport {
    /// Which.
    pub proc: ProcId,
    /// On which host.
    pub node: Option<NodeId>,
    /// Its process id there.
    pub pid: Option<u32>,
    /// Whether it is a cause; else it happened to it.
    pub is_cause: bool,
    /// Where its output is: the directory of its `stdout.log` and `stderr.log` on that host. The runtime fills it in, where its
    /// launcher [says so](crate::launch::LauncherInfo::output_dirs).
    #[serde(default)]
    pub output: Option<String>,
}

/// The times of an incident by the calendar, each `None` where there is none, or where the calendar is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct WallTimes {
    /// Of [`IncidentReport::onset`].
    pub onset: Option<WallTime>,
    /// Of [`IncidentReport::detected`].
    pub detected: Option<WallTime>,
    /// Of [`IncidentReport::decided`].
    pub decided: Option<WallTime>,
    /// Of [`IncidentReport::resumed`].
    pub resumed: Option<WallTime>,
    /// Of [`IncidentReport::closed`].
    pub closed: Option<WallTime>,
}

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
    /// The processes among causes and victims, the first [`PROCS_PER_INCIDENT_MAX`].
    #[serde(default)]
    pub procs: Vec<ProcReport>,
    /// Processes that are not among them for want of room.
    #[serde(default)]
    pub procs_left_out: u32,
    /// Its times by the calendar.
    #[serde(default)]
    pub wall: WallTimes,
}

impl IncidentReport {
    /// Notes which process a fault is about, while it is known where that is.
    fn names(&mut self, fault: &Fault, view: &View) {
        let Domain::Process(role) = &fault.prime().domain else { return };
        let known = view.proc(role).filter(|proc| fault.incarnation().is_none_or(|of| of == proc.incarnation));
        let Some(incarnation) = fault.incarnation().or(known.map(|proc| proc.incarnation)) else { return };
        let (node, pid) = known.map_or((None, None), |proc| (proc.node.clone(), proc.pid));
        let proc = ProcId { role: role.clone(), incarnation };
        self.takes(ProcReport { proc, node, pid, is_cause: fault.prime().is_cause(), output: None });
    }

    /// Takes a process in, if need be in the place of a victim.
    fn takes(&mut self, proc: ProcReport) {
        if self.procs.iter().any(|known| known.proc == proc.proc) {
            return;
        }
        if self.procs.len() >= PROCS_PER_INCIDENT_MAX {
            self.procs_left_out = self.procs_left_out.saturating_add(1);
            let victim = self.procs.iter().rposition(|known| !known.is_cause).filter(|_| proc.is_cause);
            let Some(victim) = victim else { return };
            self.procs.remove(victim);
        }
        self.procs.push(proc);
    }

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

    /// The same as a sentence can say it.
    #[must_use]
    pub fn saving(&self) -> Option<Saving> {
        self.would_have_saved_s().map(Saving::of_s)
    }
}

/// What acting at once would have been good for: printed, it is the end of a sentence about what was not done.
///
/// ```
/// use taskd_core::kernel::Saving;
///
/// assert_eq!(Saving::of_s(40.2).to_string(), "would have saved 40.2 s at least");
/// assert_eq!(Saving::of_s(-55.0).to_string(), "would have been 55.0 s slower: the job came back sooner by itself");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Saving {
    /// So much training at least would have been saved.
    Saved(Duration),
    /// The job was back by itself so much sooner than it was expected to be after acting.
    Slower(Duration),
}

impl Saving {
    /// Of seconds, negative ones where the job came back sooner by itself.
    #[must_use]
    pub fn of_s(seconds: f64) -> Saving {
        let size = Duration::try_from_secs_f64(seconds.abs()).unwrap_or_default();
        if seconds < 0.0 { Saving::Slower(size) } else { Saving::Saved(size) }
    }
}

impl fmt::Display for Saving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Saving::Saved(time) => write!(f, "would have saved {:.1} s at least", time.as_secs_f64()),
            Saving::Slower(time) => {
                write!(f, "would have been {:.1} s slower: the job came back sooner by itself", time.as_secs_f64())
            }
        }
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
    /// Another supervisor has taken it over, and this one has left it.
    Superseded,
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
    /// The same by the calendar.
    #[serde(default)]
    pub wall: Option<WallTime>,
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
    /// What operators have ordered, the newest [`ORDERS_KEPT_MAX`](super::ORDERS_KEPT_MAX).
    #[serde(default)]
    pub orders: Vec<OrderReport>,
    /// Older orders, which stand in the log only.
    #[serde(default)]
    pub orders_left_out: u64,
    /// Where the output of its processes is, by host: each has a directory of its own there. The runtime fills it in.
    #[serde(default)]
    pub output_dirs: BTreeMap<NodeId, String>,
    /// What was counted.
    pub counts: Counts,
}

impl JobReport {
    /// The account of a supervisor that leaves a job which goes on.
    #[must_use]
    pub(crate) fn left(self, outcome: Outcome, reason: String) -> JobReport {
        JobReport { outcome, ok: false, reason, ..self }
    }
}

/// The books behind a [`JobReport`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Ledger {
    open: BTreeMap<IncidentId, IncidentReport>,
    closed: VecDeque<IncidentReport>,
    /// Closed ones that had to go.
    #[serde(default)]
    gone: u64,
    outcome: Option<(Outcome, String, JobTime)>,
    #[serde(default)]
    pub(super) archive: Archive,
}

impl Kernel {
    /// The account of the job until now.
    #[must_use]
    pub fn report(&self) -> JobReport {
        let State { ledger, view, counts, memory, smaller, orders, .. } = &self.state;
        let (outcome, reason, ended) = ledger.outcome.clone().unwrap_or((Outcome::Running, String::new(), view.now));
        JobReport {
            outcome,
            ok: outcome == Outcome::Completed,
            reason,
            ended,
            wall: self.wall(ended),
            restarts: view.world.restarts(),
            memory: memory.figures(),
            replicas: view.replicas.figures(),
            smaller: smaller.all(),
            incidents: ledger.closed.iter().chain(ledger.open.values()).map(|report| self.dated(report)).collect(),
            orders: orders.kept(),
            orders_left_out: orders.left_out(),
            output_dirs: BTreeMap::new(),
            counts: counts.clone(),
        }
    }

    /// An incident, over or not, as long as the report holds it.
    pub(crate) fn incident(&self, id: IncidentId) -> Option<IncidentReport> {
        self.state.ledger.report_of(id).map(|report| self.dated(report))
    }

    /// An incident with its times by the calendar.
    pub(super) fn dated(&self, report: &IncidentReport) -> IncidentReport {
        let wall = WallTimes {
            onset: self.wall(report.onset),
            detected: self.wall(report.detected),
            decided: report.decided.and_then(|at| self.wall(at)),
            resumed: report.resumed.and_then(|at| self.wall(at)),
            closed: report.closed.and_then(|at| self.wall(at)),
        };
        IncidentReport { wall, ..report.clone() }
    }
}

impl Ledger {
    pub(super) fn found(&mut self, id: IncidentId, now: JobTime, fault: &Fault, view: &View) {
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
        let failed = incident.attempts.iter().map(|(strategy, why)| format!("{strategy} failed: {why}"));
        report.evidence.extend(failed);
        report.blamed = ranks_of(incident.causes().into_iter());
        report.blamed_services = services_of(incident.causes().into_iter());
        let causes: BTreeSet<&Domain> = incident.causes().into_iter().map(|fault| &fault.prime().domain).collect();
        for proc in &mut report.procs {
            proc.is_cause = causes.contains(&Domain::Process(proc.proc.role.clone()));
        }
        report.victims = ranks_of(incident.faults.iter());
        report.victims.retain(|rank| !report.blamed.contains(rank));
    }

    /// Two incidents were one all along: what is told of it stands under one number.
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
            counts.drop(Drop::ReportBound);
        }
        self.closed.push_back(report);
    }

    /// The newest of those that are over, at most so many, the newest last; and how many older ones there were.
    pub(super) fn recent(&self, most: usize) -> (impl Iterator<Item = &IncidentReport>, u64) {
        let older = self.closed.len().saturating_sub(most);
        (self.closed.iter().skip(older), self.gone.saturating_add(older as u64))
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
    let is_interrupt = |fault: &Fault| fault.clues.iter().any(|clue| clue.what == INTERRUPTED);
    let all = incident.faults.iter().all(|fault| is_end(fault) && !fault.is_charged() && !is_interrupt(fault));
    incident.faults.iter().filter(|_| all).min_by_key(|fault| fault.onset)
}

/// What is told of the rank that left first, where every end points to another one.
fn how_it_left(fault: &Fault, view: &View) -> String {
    let domain = &fault.prime().domain;
    let proc = view.proc_of(domain).filter(|proc| fault.incarnation() == Some(proc.incarnation));
    let incarnation = fault.incarnation().map(|incarnation| incarnation.to_string()).unwrap_or_default();
    let how = proc.and_then(|proc| proc.phase.termination());
    let how = how.map_or_else(|| "it is gone".to_owned(), |how| how.to_string());
    let step = proc.and_then(Proc::last_step);
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
