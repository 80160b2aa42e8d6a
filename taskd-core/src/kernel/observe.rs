//! A job that something else runs: its processes are taken as they are, and what mends it is noticed.
//!
//! Nothing here gives a command that touches a process.

use super::incidents::Open;
use super::{Branch, Held, Kernel, Proc};
use crate::detect::Fault;
use crate::job::{Counted, Domain, IncidentId, Member, Ready, Role};
use crate::launch::{Phase, ProcStatus};
use std::sync::Arc;

impl Kernel {
    /// Takes a process that something else has started for the one that its role is meant to have.
    pub(super) fn adopt(&mut self, status: &ProcStatus) {
        let ProcStatus { proc, node, .. } = status;
        self.state.counts.branch(Branch::Adopted);
        let member = proc.role.rank().and_then(|rank| Some((rank, self.state.view.world.members().get(&rank)?)));
        let is_as_told = |m: &Member| m.incarnation == proc.incarnation && (node.is_none() || m.node == *node);
        if let Some((rank, _)) = member.filter(|(_, member)| !is_as_told(member)) {
            let world = self.state.view.world.successor(Counted::No, |members| {
                members.entry(rank).and_modify(|member| {
                    member.incarnation = proc.incarnation;
                    member.node = node.clone().or(member.node.take());
                });
            });
            self.enter_world(Arc::new(world));
        }
        let adopted = Proc {
            incarnation: proc.incarnation,
            generation: self.state.view.world.generation(),
            wanted: true,
            stopped_for: None,
            node: None,
            pid: None,
            phase: Phase::Pending("not started by taskd".into()),
            step: None,
            progress_at: self.now(),
        };
        self.state.view.procs.insert(proc.role.clone(), adopted);
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
        let stepping = view.spec.policy.ready == Ready::Stepping;
        view.world.members().iter().all(|(rank, member)| {
            let proc = view.proc(&Role::Rank(*rank)).filter(|p| p.incarnation == member.incarnation);
            proc.is_some_and(|p| p.phase == Phase::Running && (!stepping || p.step.is_some()))
        })
    }
}
