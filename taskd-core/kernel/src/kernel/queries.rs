//! What the kernel returns when it is asked: state, status, reports and explanations. No query changes the kernel.

use super::ledger::Reporter;
use super::status::StatusReader;
use super::{Counts, Explanation, IncidentReport, JobReport, JobStatus, Kernel, OrderReport, State};
use crate::job::{IncidentId, JobTime, NodeId, Seq, WallTime};
use crate::recover::RecoveryStrategy;
use crate::state::{HostIncident, View};

impl Kernel {
    /// Returns the current state of the job.
    #[must_use]
    pub const fn view(&self) -> &View {
        &self.state.view
    }

    /// Returns the recovery strategies in the order in which the decision kernel asks them for proposals.
    #[doc(hidden)]
    pub fn strategies(&self) -> &[Box<dyn RecoveryStrategy>] {
        &self.strategies
    }

    /// Returns the sequence number of the last input that the decision kernel has handled. It equals the number of
    /// inputs handled so far.
    #[must_use]
    pub const fn seq(&self) -> Seq {
        self.state.seq
    }

    /// Returns the decision kernel's counters: items that it dropped, bounds that it reached, and decision branches
    /// that it took.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.state.counts
    }

    /// Returns the number of recoveries that the job's recovery budget still allows.
    #[must_use]
    pub fn budget_left(&self) -> u32 {
        self.state.budget.left()
    }

    /// Returns true if the job has ended: nothing is decided any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state.life.is_over()
    }

    /// Returns the wall-clock time that corresponds to the job time `at`. `None` if no recorded
    /// [`Input::WallClock`](super::Input::WallClock) covers `at`.
    #[must_use]
    pub fn wall(&self, at: JobTime) -> Option<WallTime> {
        self.state.calendar.wall(at)
    }

    /// Returns the incidents of hosts that this job has recorded after its first `known` ones. Only the newest 1024 are
    /// kept. Empty without [`Input::HostHistory`](super::Input::HostHistory).
    #[doc(hidden)]
    pub fn recorded_host_incidents(&self, known: u64) -> impl Iterator<Item = &(NodeId, HostIncident)> {
        self.state.recorded.after(known)
    }

    /// Returns the number of incidents of hosts that this job has recorded.
    #[doc(hidden)]
    #[must_use]
    pub const fn recorded_host_incidents_count(&self) -> u64 {
        self.state.recorded.count()
    }

    /// Returns the report of the job until now.
    #[must_use]
    pub fn report(&self) -> JobReport {
        let State { ledger, calendar, view, counts, memory, smaller, orders, .. } = &self.state;
        Reporter { ledger, calendar, view, counts, memory, smaller, orders }.report()
    }

    /// Returns the report of an incident, open or closed; `None` if the kernel does not know the incident, or no longer
    /// keeps its report.
    #[doc(hidden)]
    pub fn incident(&self, id: IncidentId) -> Option<IncidentReport> {
        self.state.ledger.report_of(id).map(|report| report.dated(&self.state.calendar))
    }

    /// Explains the last decision about an incident. `None` if there is no such incident, nothing was decided about it
    /// yet, or it is not among the last [`EXPLAINED_MAX`](super::EXPLAINED_MAX) incidents.
    #[must_use]
    pub fn explain(&self, id: IncidentId) -> Option<Explanation> {
        self.state.ledger.explain(id, &self.state.calendar)
    }

    /// Returns the current status of the job.
    #[must_use]
    pub fn status(&self) -> JobStatus {
        let State { view, life, paused, cordons, budget, ledger, calendar, memory, smaller, orders, .. } = &self.state;
        let strategies = &self.strategies;
        let life = *life;
        StatusReader { view, life, paused, cordons, budget, ledger, calendar, memory, smaller, orders, strategies }
            .status()
    }

    /// Returns the order that was answered last.
    #[doc(hidden)]
    pub fn last_order(&self) -> Option<&OrderReport> {
        self.state.orders.newest()
    }
}
