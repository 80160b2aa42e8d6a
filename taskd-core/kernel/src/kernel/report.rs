//! The final report: every incident with its times, and the outcome of the job. The `ledger` fills it in.
//!
//! Nothing is decided from it.

use super::calendar::Calendar;
use super::{Counts, HoldReason, MemoryFigures, OrderReport, ShrunkPeriod};
use crate::detect::{Fault, FaultClass};
use crate::job::seconds::OptionalSeconds;
use crate::job::{Domain, IncidentId, JobTime, Name, NodeId, ProcId, Rank, WallTime};
use crate::state::{ReplicaFigures, View};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Maximum number of closed incidents in a job report: the newest ones. Older incidents are in the job's log only.
pub const INCIDENTS_REPORTED_MAX: usize = 1024;

/// Maximum number of processes that an incident's report lists with host and process id. If the list is full, a
/// cause of the incident takes the place of a victim.
pub const PROCS_PER_INCIDENT_MAX: usize = 64;

/// A process that caused an incident or was affected by it, as it was during the incident. Its host, process id and
/// directory help to find it in other logs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcReport {
    /// Identifier of the process: its rank or service, and its incarnation (the number of its start).
    pub proc: ProcId,
    /// Host of the process.
    pub node: Option<NodeId>,
    /// Process id on the process's host, if known.
    pub pid: Option<u32>,
    /// True if the process is a cause of the incident; false if it is a victim.
    pub is_cause: bool,
    /// Directory of the process's `stdout.log` and `stderr.log`, on the host of the process. The runtime fills it in, if
    /// its launcher provides it (`LauncherInfo::output_dirs`).
    #[serde(default)]
    pub output: Option<String>,
}

/// Wall-clock times of an incident. A time is `None` if the event has not happened, or if its job time cannot be
/// converted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct WallTimes {
    /// Wall-clock time of [`IncidentReport::onset`].
    pub onset: Option<WallTime>,
    /// Wall-clock time of [`IncidentReport::detected`].
    pub detected: Option<WallTime>,
    /// Wall-clock time of [`IncidentReport::decided`].
    pub decided: Option<WallTime>,
    /// Wall-clock time of [`IncidentReport::resumed`].
    pub resumed: Option<WallTime>,
    /// Wall-clock time of [`IncidentReport::closed`].
    pub closed: Option<WallTime>,
}

/// Report of one incident: its faults, the decision about them, and how it ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IncidentReport {
    /// Identifier of the incident.
    pub id: IncidentId,
    /// Class of the main fault: the one that explains the others.
    pub class: FaultClass,
    /// Location of the main fault, the one that explains the others.
    pub domain: Domain,
    /// Name of the detector that found the main fault.
    pub by: Name,
    /// Ranks that caused the incident; victims are in `victims`.
    pub blamed: Vec<Rank>,
    /// Services that caused the incident.
    #[serde(default)]
    pub blamed_services: Vec<Name>,
    /// Ranks that the incident affected but that did not cause it.
    pub victims: Vec<Rank>,
    /// Evidence for the faults, as text for people.
    pub evidence: Vec<String>,
    /// Job time at which the trouble began, as far as the detectors know. It can be earlier than `detected`.
    pub onset: JobTime,
    /// Job time at which a detector found the first fault of the incident.
    pub detected: JobTime,
    /// Job time of the last decision about the incident; `None` before the first decision.
    pub decided: Option<JobTime>,
    /// Name of the strategy that the last decision chose, if it chose one.
    pub strategy: Option<Name>,
    /// Reason for the last decision, in one sentence.
    pub reason: String,
    /// Job time at which the ranks were ready again (see [`Policy::ready`](crate::job::Policy)), so that a recovery
    /// closed the incident. `None` if no recovery has closed it.
    pub resumed: Option<JobTime>,
    /// Job time at which the incident was closed; `None` while it is open.
    #[serde(default)]
    pub closed: Option<JobTime>,
    /// How the incident ended, as text; `open` while it has not.
    pub outcome: String,
    /// Reason why the last decision is held, that is, not carried out for now; `None` if it is carried out.
    #[serde(default)]
    pub held: Option<HoldReason>,
    /// Downtime of the job that was expected for the recovery that the last decision chose.
    #[serde(default, with = "OptionalSeconds")]
    pub expected_downtime: Option<Duration>,
    /// Processes that caused the incident or were affected by it, at most [`PROCS_PER_INCIDENT_MAX`].
    #[serde(default)]
    pub procs: Vec<ProcReport>,
    /// Number of the incident's processes that `procs` leaves out, because it holds at most `PROCS_PER_INCIDENT_MAX`.
    #[serde(default)]
    pub procs_left_out: u32,
    /// The times of the incident in wall-clock time.
    #[serde(default)]
    pub wall: WallTimes,
}

impl IncidentReport {
    /// Returns the report with its wall-clock times.
    pub(super) fn dated(&self, calendar: &Calendar) -> IncidentReport {
        let wall = WallTimes {
            onset: calendar.wall(self.onset),
            detected: calendar.wall(self.detected),
            decided: self.decided.and_then(|at| calendar.wall(at)),
            resumed: self.resumed.and_then(|at| calendar.wall(at)),
            closed: self.closed.and_then(|at| calendar.wall(at)),
        };
        IncidentReport { wall, ..self.clone() }
    }

    /// Adds the process that a fault concerns, while its host and process id are known.
    pub(super) fn names(&mut self, fault: &Fault, view: &View) {
        let Domain::Process(role) = &fault.primary_suspect().domain else { return };
        let known = view.proc(role).filter(|proc| fault.incarnation().is_none_or(|of| of == proc.incarnation));
        let Some(incarnation) = fault.incarnation().or(known.map(|proc| proc.incarnation)) else { return };
        let (node, pid) = known.map_or((None, None), |proc| (proc.node.clone(), proc.pid));
        let proc = ProcId { role: role.clone(), incarnation };
        self.takes(ProcReport { proc, node, pid, is_cause: fault.primary_suspect().is_cause(), output: None });
    }

    /// Adds a process. If the list is full, a cause takes the place of a victim.
    pub(super) fn takes(&mut self, proc: ProcReport) {
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

    /// Returns the seconds of training that carrying out the incident's held decision at once would have saved.
    ///
    /// The result is the time from the decision to the end of the incident (or of the job), minus the expected
    /// downtime. The result is negative if the job recovered sooner by itself, and `None` if the decision was carried
    /// out, chose no recovery, or the incident is not closed.
    ///
    /// The result is a lower bound: it includes no work since the last checkpoint, and no time after the end of a job
    /// that never recovered.
    #[must_use]
    pub fn would_have_saved_s(&self) -> Option<f64> {
        self.held?;
        let (decided, closed, downtime) = (self.decided?, self.closed?, self.expected_downtime?);
        Some(closed.since(decided).as_secs_f64() - downtime.as_secs_f64())
    }

    /// Returns the result of `would_have_saved_s` in a form that can be printed.
    #[must_use]
    pub fn saving(&self) -> Option<Saving> {
        self.would_have_saved_s().map(Saving::of_s)
    }
}

/// Training time that the job would have saved, or lost, if a held decision had been carried out at once. Its
/// `Display` text is the end of a sentence whose subject is the recovery that was not carried out.
///
/// ```
/// # extern crate taskd_kernel as taskd_core;
/// use taskd_core::kernel::Saving;
///
/// assert_eq!(Saving::of_s(40.2).to_string(), "would have saved at least 40.2 s");
/// assert_eq!(Saving::of_s(-55.0).to_string(), "would have been 55.0 s slower: the job recovered sooner by itself");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Saving {
    /// At least this much training time would have been saved.
    Saved(Duration),
    /// The recovery that was held would have taken this much longer than the job, which recovered sooner by itself.
    Slower(Duration),
}

impl Saving {
    /// Converts a number of seconds: saved training time if it is positive, lost training time if it is negative.
    #[must_use]
    pub fn of_s(seconds: f64) -> Saving {
        let size = Duration::try_from_secs_f64(seconds.abs()).unwrap_or_default();
        if seconds < 0.0 { Saving::Slower(size) } else { Saving::Saved(size) }
    }
}

impl fmt::Display for Saving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Saving::Saved(time) => write!(f, "would have saved at least {:.1} s", time.as_secs_f64()),
            Saving::Slower(time) => {
                write!(f, "would have been {:.1} s slower: the job recovered sooner by itself", time.as_secs_f64())
            }
        }
    }
}

/// Outcome of a job: running, completed, failed, stopped, or continued without this supervisor.
///
/// A program that only runs one job exits with [`exit_code`](Outcome::exit_code).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The job has not ended.
    #[default]
    Running,
    /// Training completed successfully.
    Completed,
    /// The job failed: no recovery was left that could have helped.
    Failed,
    /// The job was stopped on request.
    Stopped,
    /// The supervisor has detached, and the job trains on without one. A later supervisor can attach to it and
    /// continue.
    Detached,
    /// Another supervisor has taken over the job, and this one has detached.
    Superseded,
}

/// Report of a whole job: its outcome, incidents, orders and counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobReport {
    /// Outcome of the job.
    #[serde(default)]
    pub outcome: Outcome,
    /// True if training completed successfully: [`Outcome::Completed`].
    pub ok: bool,
    /// Reason why the job ended, in one sentence; empty while it runs.
    pub reason: String,
    /// Job time at which the job ended; while it runs, job time of the last input of the decision kernel.
    pub ended: JobTime,
    /// Wall-clock time of `ended`, if known.
    #[serde(default)]
    pub wall: Option<WallTime>,
    /// Number of recoveries that counted as restarts.
    pub restarts: u32,
    /// Cost of the in-memory checkpoints: their size in bytes, and how often ranks waited for or skipped a copy. `None`
    /// if ranks made none.
    #[serde(default)]
    pub memory: Option<MemoryFigures>,
    /// Cost of the checksums with which ranks prove that they hold the same state, if ranks reported any.
    #[serde(default)]
    pub replicas: Option<ReplicaFigures>,
    /// Periods in which the job trained with fewer ranks than specified, which changes its training result.
    ///
    /// Only the newest [`SHRUNK_PERIODS_REPORTED_MAX`](super::SHRUNK_PERIODS_REPORTED_MAX) are listed.
    #[serde(default)]
    pub smaller: Vec<ShrunkPeriod>,
    /// Closed incidents in the order in which they were closed, then open ones.
    pub incidents: Vec<IncidentReport>,
    /// Operators' orders with their results; only the newest [`ORDERS_KEPT_MAX`](super::ORDERS_KEPT_MAX).
    #[serde(default)]
    pub orders: Vec<OrderReport>,
    /// Number of older operators' orders that `orders` leaves out; they are in the job's log only.
    #[serde(default)]
    pub orders_left_out: u64,
    /// Output directory of the job on each host, with a subdirectory for each process. The runtime fills it in.
    #[serde(default)]
    pub output_dirs: BTreeMap<NodeId, String>,
    /// Counters of the decision kernel: items that it dropped, bounds that it reached, and decision branches that it
    /// took.
    pub counts: Counts,
}

impl JobReport {
    /// Returns this report with the outcome and reason of a supervisor that detaches while the job continues; `ok` is
    /// set to false.
    #[must_use]
    #[doc(hidden)]
    pub fn left(self, outcome: Outcome, reason: String) -> JobReport {
        JobReport { outcome, ok: false, reason, ..self }
    }
}
