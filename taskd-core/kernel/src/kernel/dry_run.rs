//! Observes a job that another system runs, and notices when it has recovered.
//!
//! Nothing here changes anything.

use super::HoldReason;
use super::incidents::Open;
use super::operator::ranks_on;
use crate::detect::Fault;
use crate::job::{Domain, IncidentId, Mode, Ready, Role};
use crate::state::{Phase, Proc, View};
use std::collections::BTreeMap;

/// Text with which an incident is closed that another system has recovered from.
pub(super) const MENDED: &str = "repaired by another system: the blamed processes were replaced, and the job trains";

impl View {
    /// Returns true if the runtime only observes and reports what it would do.
    pub(super) fn is_dry_run(&self) -> bool {
        self.spec.policy.mode == Mode::DryRun
    }
}

/// Reads which incidents another system has recovered from.
pub(super) struct ObservedJob<'a> {
    pub(super) view: &'a View,
    pub(super) incidents: &'a BTreeMap<IncidentId, Open>,
}

impl ObservedJob<'_> {
    /// Returns the observed incidents that another system has recovered from: nothing that was blamed is left, and the
    /// job trains.
    pub(super) fn mended_by_others(&self) -> Vec<IncidentId> {
        let is_observed = |open: &Open| open.held.as_ref().is_some_and(|hold| hold.why == HoldReason::DryRun);
        let observed: Vec<&Open> = self.incidents.values().filter(|open| is_observed(open)).collect();
        if observed.is_empty() || !self.all_ready() {
            return Vec::new();
        }
        observed.into_iter().filter(|open| self.is_mended(open)).map(|open| open.incident.id).collect()
    }

    /// Returns true if another system has recovered from the incident.
    ///
    /// Every process that was blamed was replaced by a newer one, no rank is left on a host that was blamed, and, if
    /// the whole job was blamed, every rank has progressed or was restarted since.
    fn is_mended(&self, open: &Open) -> bool {
        let view = self.view;
        let stands = |fault: &Fault| match &fault.primary_suspect().domain {
            Domain::Process(Role::Rank(rank)) => {
                let member = view.world.members().get(rank);
                member.is_none_or(|m| fault.incarnation().is_none_or(|of| of >= m.incarnation))
            }
            Domain::Node(node) | Domain::Device(node, _) => !ranks_on(node, view).is_empty(),
            Domain::Plugin(_) | Domain::Topology(_) => false,
            _ => view.training().any(|(_, proc)| proc.progress_at <= open.incident.opened),
        };
        !open.incident.faults.iter().any(stands)
    }

    /// Returns true if every rank has a process that counts as started.
    fn all_ready(&self) -> bool {
        let view = self.view;
        let stepping = |proc: &Proc| match view.spec.policy.ready {
            Ready::Stepping => true,
            Ready::Training => proc.reports_steps,
            Ready::Accepted | Ready::Running | Ready::Parked => false,
        };
        view.world.members().iter().all(|(rank, member)| {
            let proc = view.proc(&Role::Rank(*rank)).filter(|p| p.incarnation == member.incarnation);
            proc.is_some_and(|p| p.phase == Phase::Running && (!stepping(p) || p.step.is_some()))
        })
    }
}
