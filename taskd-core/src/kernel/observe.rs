//! A job that something else runs: its processes are taken as they are, and what mends it is noticed.
//!
//! Nothing here gives a command that touches a process.

use super::incidents::Open;
use super::{Branch, Held, Kernel, Proc};
use crate::detect::Fault;
use crate::job::{Counted, Domain, IncidentId, ProcId, Ready, Role};
use crate::launch::{Phase, ProcStatus};
use std::sync::Arc;

impl Kernel {
    /// Takes processes that something else has started for those that their roles are meant to have: one world for all that
    /// are told together.
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

    /// Takes a process that is expected for the one of its role.
    pub(super) fn adopt(&mut self, proc: &ProcId) {
        self.state.counts.branch(Branch::Adopted);
        let generation = self.state.view.world.generation();
        let pending = Proc::pending(proc.incarnation, generation, "not started by taskd", self.now());
        let reports_steps = self.state.view.proc(&proc.role).is_some_and(|before| before.reports_steps);
        self.state.view.procs.insert(proc.role.clone(), Proc { wanted: true, reports_steps, ..pending });
    }

    /// Closes what was only observed, and what something else has mended: nothing that was blamed is there any more, and the job
    /// trains.
    pub(super) fn mended_by_others(&mut self) {
        let observed =
            self.state.incidents.values().filter(|o| o.held.as_ref().is_some_and(|h| h.why == Held::Observing));
        let observed: Vec<IncidentId> = observed.map(|o| o.incident.id).collect();
        if observed.is_empty() || !self.all_ready() {
            return;
        }
        for id in observed {
            if self.state.incidents.get(&id).is_some_and(|open| self.is_mended(open)) {
                self.state.counts.branch(Branch::MendedByOthers);
                self.close(id, "mended by others: what was blamed was replaced, and the job trains", None);
            }
        }
    }

    /// Whether a newer process is in the place of every one that was blamed, no rank is left on a host that was, and every rank
    /// has come further since, or was started anew, where it is the job that was.
    fn is_mended(&self, open: &Open) -> bool {
        let view = &self.state.view;
        let stands = |fault: &Fault| match &fault.prime().domain {
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

    /// Whether every rank has a process that counts as started.
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
