//! Observes a job that another system runs: adopts its processes, and notices when it has recovered.
//!
//! No command from here affects a process.

use super::incidents::Open;
use super::{Branch, HoldReason, Kernel};
use crate::detect::Fault;
use crate::job::{Counted, Domain, IncidentId, ProcId, Ready, Role};
use crate::state::{Phase, Proc, ProcStatus};
use std::sync::Arc;

impl Kernel {
    /// Adopts processes that another system has started as the ones that their roles are meant to have. All that are
    /// reported together enter one world.
    pub(super) fn expect<'a>(&mut self, told: impl IntoIterator<Item = &'a ProcStatus>) {
        let view = &self.state.view;
        let newer = |status: &&ProcStatus| {
            let known = view.procs.get(&status.proc.role).map(|known| known.incarnation);
            known < Some(status.proc.incarnation)
        };
        let mut members = view.world.members().clone();
        for ProcStatus { proc, node, .. } in told.into_iter().filter(newer) {
            if let Some(member) = proc.role.rank().and_then(|rank| members.get_mut(&rank)) {
                member.incarnation = proc.incarnation;
                member.node = node.clone().or(member.node.take());
            }
        }
        if members != *view.world.members() {
            let world = view.world.successor(Counted::No, |old| *old = members);
            self.enter_world(Arc::new(world));
        }
    }

    /// Adopts an expected process as the one of its role.
    pub(super) fn adopt(&mut self, proc: &ProcId) {
        self.state.counts.branch(Branch::Adopted);
        let generation = self.state.view.world.generation();
        let pending = Proc::pending(proc.incarnation, generation, "not started by taskd", self.now());
        let reports_steps = self.state.view.proc(&proc.role).is_some_and(|before| before.reports_steps);
        self.state.view.procs.insert(proc.role.clone(), Proc { wanted: true, reports_steps, ..pending });
    }

    /// Closes observed incidents that another system has recovered from: nothing that was blamed is left, and the job
    /// trains.
    pub(super) fn mended_by_others(&mut self) {
        let observed =
            self.state.incidents.values().filter(|o| o.held.as_ref().is_some_and(|h| h.why == HoldReason::DryRun));
        let observed: Vec<IncidentId> = observed.map(|o| o.incident.id).collect();
        if observed.is_empty() || !self.all_ready() {
            return;
        }
        for id in observed {
            if self.state.incidents.get(&id).is_some_and(|open| self.is_mended(open)) {
                self.state.counts.branch(Branch::MendedByOthers);
                self.close(
                    id,
                    "repaired by another system: the blamed processes were replaced, and the job trains",
                    None,
                );
            }
        }
    }

    /// Returns true if another system has recovered from the incident.
    ///
    /// Every process that was blamed was replaced by a newer one, no rank is left on a host that was blamed, and, if
    /// the whole job was blamed, every rank has progressed or was restarted since.
    fn is_mended(&self, open: &Open) -> bool {
        let view = &self.state.view;
        let stands = |fault: &Fault| match &fault.primary_suspect().domain {
            Domain::Process(Role::Rank(rank)) => {
                let member = view.world.members().get(rank);
                member.is_none_or(|m| fault.incarnation().is_none_or(|of| of >= m.incarnation))
            }
            Domain::Node(node) | Domain::Device(node, _) => !self.ranks_on(node).is_empty(),
            Domain::Plugin(_) => false,
            _ => view.training().any(|(_, proc)| proc.progress_at <= open.incident.opened),
        };
        !open.incident.faults.iter().any(stands)
    }

    /// Returns true if every rank has a process that counts as started.
    fn all_ready(&self) -> bool {
        let view = &self.state.view;
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
