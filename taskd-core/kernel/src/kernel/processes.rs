//! Reported processes and observations, compared with what is known: the fences, and the phases of processes.
//!
//! It stops no process, and passes nothing to the detectors: that is the part of `ingest`.

use super::{Branch, Check, Checks, Counts, DropReason};
use crate::job::{CommandId, Exit, Generation, Incarnation, JobTime, Name, NodeId, ProcId, Role, Termination};
use crate::state::{NodeState, NodeStatus, Phase, Proc, ProcStatus};
use crate::trace::{Observation, Signal};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Relation of a reported process to the known one of its role.
pub(super) enum Known {
    /// The reported process is the known one.
    Same,
    /// A newer process of the role is known.
    Older,
    /// The reported process was never started by this kernel.
    Stray,
}

/// How an observation of a process is treated.
pub(super) enum Admission {
    /// It is of an older incarnation or generation, and was dropped.
    Dropped,
    /// It is passed to the detectors.
    Admitted,
    /// It is passed to the detectors, and this incarnation of its process has completed a step.
    Stepped { step: u64, incarnation: Incarnation },
}

/// Compares reports about processes with what is known, and records what is new.
pub(super) struct Processes<'a> {
    pub(super) now: JobTime,
    pub(super) generation: Generation,
    pub(super) checks: &'a Checks,
    pub(super) nodes: &'a BTreeMap<NodeId, NodeStatus>,
    pub(super) procs: &'a mut BTreeMap<Role, Proc>,
    pub(super) starting: &'a mut BTreeMap<CommandId, BTreeSet<ProcId>>,
    pub(super) adrift: &'a mut BTreeSet<ProcId>,
    pub(super) counts: &'a mut Counts,
}

impl Processes<'_> {
    /// Returns true if nothing was reported of the process since its start was ordered.
    ///
    /// From now on it is known that the launcher has accepted the start, whatever the answer to the order or to its
    /// repetition.
    pub(super) fn first_told(&mut self, proc: &ProcId) -> bool {
        let mut first = self.adrift.remove(proc);
        self.starting.retain(|_, procs| {
            first |= procs.remove(proc);
            !procs.is_empty()
        });
        first
    }

    pub(super) fn known(&self, proc: &ProcId) -> Known {
        match self.procs.get(&proc.role) {
            Some(known) if proc.incarnation == known.incarnation => Known::Same,
            Some(known) if proc.incarnation < known.incarnation => {
                if self.checks.has(Check::IncarnationFence) {
                    Known::Older
                } else {
                    Known::Same
                }
            }
            _ => Known::Stray,
        }
    }

    /// Records a process that this kernel has not started, as one that is not wanted.
    pub(super) fn note_stray(&mut self, proc: &ProcId) {
        let stray = Proc::pending(proc.incarnation, self.generation, "not ordered", self.now);
        self.procs.insert(proc.role.clone(), stray);
    }

    /// Adopts a process that another system has started as the one of its role.
    pub(super) fn adopt(&mut self, proc: &ProcId) {
        self.counts.branch(Branch::Adopted);
        let pending = Proc::pending(proc.incarnation, self.generation, "not started by taskd", self.now);
        let reports_steps = self.procs.get(&proc.role).is_some_and(|before| before.reports_steps);
        self.procs.insert(proc.role.clone(), Proc { wanted: true, reports_steps, ..pending });
    }

    /// Records the reported phase of a known process. Returns false if it was reported before, or would move the process
    /// backwards.
    pub(super) fn note_phase(&mut self, status: &ProcStatus) -> bool {
        let ProcStatus { proc, phase, .. } = status;
        let Some(known) = self.procs.get_mut(&proc.role) else { return false };
        let is_news = match phase.order().cmp(&known.phase.order()) {
            Ordering::Greater => true,
            Ordering::Equal => matches!(phase, Phase::Pending(_)) && *phase != known.phase,
            Ordering::Less => false,
        };
        if !is_news {
            self.counts.drop(DropReason::RepeatedChange);
            return false;
        }
        if *phase == Phase::Running {
            known.progress_at = self.now;
        }
        if phase.is_over() && known.ended_at.is_none() {
            known.ended_at = Some(self.now);
        }
        known.phase = phase.clone();
        known.node = status.node.clone().or(known.node.take());
        known.pid = status.pid.or(known.pid);
        true
    }

    /// Returns the status of the wanted process of a role that has not ended, as one that is missing.
    pub(super) fn replaced(&mut self, role: &Role) -> Option<ProcStatus> {
        let known = self.procs.get(role).filter(|p| p.wanted && !p.phase.is_exited())?;
        self.counts.branch(Branch::Missing);
        Some(gone(ProcId { role: role.clone(), incarnation: known.incarnation }, known))
    }

    /// Returns the status of the processes that should be in a listing and are not. A host that is out of sight lists
    /// none.
    pub(super) fn missing(&self, listed: &[ProcStatus]) -> Vec<ProcStatus> {
        let listed: BTreeSet<&ProcId> = listed.iter().map(|p| &p.proc).collect();
        let starting: BTreeSet<&ProcId> = self.starting.values().flatten().collect();
        let missing = self.procs.iter().filter_map(|(role, p)| {
            let proc = ProcId { role: role.clone(), incarnation: p.incarnation };
            let absent = !p.phase.is_exited() && !listed.contains(&proc) && !starting.contains(&proc);
            let state = p.node.as_ref().and_then(|n| self.nodes.get(n)).map(|n| n.state);
            (absent && state != Some(NodeState::OutOfSight)).then(|| gone(proc, p))
        });
        missing.collect()
    }

    /// Drops an observation of an older incarnation or generation, and records a completed step.
    pub(super) fn admit(&mut self, role: &Role, o: &Observation) -> Admission {
        let Some(known) = self.procs.get_mut(role) else {
            return Admission::Admitted; // the process is not known to the kernel, but detectors may know it
        };
        if self.checks.has(Check::IncarnationFence) && o.incarnation.is_some_and(|i| i != known.incarnation) {
            self.counts.drop(DropReason::OldIncarnation);
            return Admission::Dropped;
        }
        let of_world = o.signal != Signal::Heartbeat; // a surviving process is alive in every world
        let is_old = of_world && o.generation.is_some_and(|g| g < known.generation);
        if is_old && self.checks.has(Check::GenerationFence) {
            self.counts.drop(DropReason::OldGeneration);
            return Admission::Dropped;
        }
        let Signal::Progress { step } = o.signal else { return Admission::Admitted };
        known.step = Some(step);
        known.progress_at = self.now;
        known.reports_steps = true;
        Admission::Stepped { step, incarnation: known.incarnation }
    }
}

/// Returns the status of a process that should be in a listing and is not.
fn gone(proc: ProcId, known: &Proc) -> ProcStatus {
    let exit = Exit { step: known.step, ..Exit::new(Termination::Unknown) };
    ProcStatus {
        proc,
        node: known.node.clone(),
        instance: Name::new("missing"),
        pid: known.pid,
        phase: Phase::Exited(Box::new(exit)),
    }
}
