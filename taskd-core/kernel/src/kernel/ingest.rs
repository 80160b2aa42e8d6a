//! Handles incoming listings, changes and observations: passes them through the fences to the view and the detectors.
//!
//! It decides nothing about faults: the findings of detectors are handled by `incidents`.

use super::{Branch, Check, DropReason, Effect, Kernel, Slot};
use crate::detect::{Damage, Fault, FaultClass, FaultDetector, Findings, Suspect};
use crate::job::{Domain, Exit, Name, ProcId, Role, Termination};
use crate::recover::Action;
use crate::recover::stages::STOP_MARGIN;
use crate::state::{Change, Listing, NodeState, Phase, Proc, ProcStatus, View};
use crate::trace::{Observation, Signal};
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// How long a detector is not called if its deadline stays in the past.
const STUBBORN_HOLD: Duration = Duration::from_secs(1);

/// Relation of a reported process to the known one of its role.
enum Known {
    /// The reported process is the known one.
    Same,
    /// A newer process of the role is known.
    Older,
    /// The reported process was never started by this kernel.
    Stray,
}

impl Kernel {
    pub(super) fn listed(&mut self, listing: &Listing) {
        for guard in &listing.guards {
            self.guard_told(guard);
        }
        for node in &listing.nodes {
            self.note_node(node);
        }
        if self.observes() {
            self.expect(&listing.procs);
        }
        for status in &listing.procs {
            self.process(status);
        }
        self.links_listed(&listing.links);
        let listed: BTreeSet<&ProcId> = listing.procs.iter().map(|p| &p.proc).collect();
        let starting: BTreeSet<&ProcId> = self.state.starting.values().flatten().collect();
        let missing = self.state.view.procs.iter().filter_map(|(role, p)| {
            let proc = ProcId { role: role.clone(), incarnation: p.incarnation };
            let absent = !p.phase.is_exited() && !listed.contains(&proc) && !starting.contains(&proc);
            let state = p.node.as_ref().and_then(|n| self.state.view.nodes.get(n)).map(|n| n.state);
            (absent && state != Some(NodeState::OutOfSight)).then(|| gone(proc, p))
        });
        for status in missing.collect::<Vec<_>>() {
            self.state.counts.branch(Branch::Missing);
            if self.state.adrift.contains(&status.proc) {
                self.start_lost(&status.proc);
            } else {
                self.process(&status);
            }
        }
        self.listing_taken();
    }

    pub(super) fn changed(&mut self, change: &Change) {
        match change {
            Change::Proc(status) => {
                if self.observes() {
                    self.expect([status]);
                }
                self.process(status);
            }
            Change::Node(node) => self.note_node(node),
            Change::Link(status) => self.linked(status),
            Change::Worker(said) => self.said(said),
            Change::Guard(status) => self.guard_told(status),
        }
    }

    fn process(&mut self, status: &ProcStatus) {
        let ProcStatus { proc, phase, .. } = status;
        if phase.is_exited() {
            self.maybe_complete = true;
            self.effect(None, Effect::Acknowledge(proc.clone()));
        }
        self.answer_by_phase(proc, phase);
        self.unlink(proc, phase);
        let first_told = self.first_told(proc);
        match self.known(proc) {
            Known::Older => {
                self.state.counts.drop(DropReason::OldIncarnation);
                return self.stop_stray(proc, phase);
            }
            Known::Stray if self.observes() => {
                self.superseded(&proc.role);
                self.adopt(proc);
            }
            Known::Stray => {
                self.superseded(&proc.role);
                let generation = self.state.view.world.generation();
                let stray = Proc::pending(proc.incarnation, generation, "not ordered", self.now());
                self.state.view.procs.insert(proc.role.clone(), stray);
                self.stop_stray(proc, phase);
            }
            Known::Same => {}
        }
        let now = self.now();
        let Some(known) = self.state.view.procs.get_mut(&proc.role) else { return };
        if known.phase.is_exited() {
            self.stop_stray(proc, phase); // it was thought to have ended
        } else if first_told && !known.wanted {
            self.stop_again(proc, phase);
        }
        let Some(known) = self.state.view.procs.get_mut(&proc.role) else { return };
        let is_news = match phase.order().cmp(&known.phase.order()) {
            Ordering::Greater => true,
            Ordering::Equal => matches!(phase, Phase::Pending(_)) && *phase != known.phase,
            Ordering::Less => false,
        };
        if !is_news {
            return self.state.counts.drop(DropReason::RepeatedChange);
        }
        if *phase == Phase::Running {
            known.progress_at = now;
        }
        if phase.is_over() && known.ended_at.is_none() {
            known.ended_at = Some(now);
        }
        known.phase = phase.clone();
        known.node = status.node.clone().or(known.node.take());
        known.pid = status.pid.or(known.pid);
        let incarnation = Some(proc.incarnation);
        let about = Domain::Process(proc.role.clone());
        let signal = Signal::Phase(phase.clone());
        self.tell(&Observation { at: now, about, incarnation, generation: None, signal });
    }

    /// Handles a newer process of a role than this kernel has started.
    ///
    /// A previous supervisor started it after the end of the log that this kernel was restored from. The known process
    /// is gone. It is reported as missing, so that a recovery starts what is missing.
    fn superseded(&mut self, role: &Role) {
        let known = self.state.view.procs.get(role).filter(|p| p.wanted && !p.phase.is_exited());
        let Some(known) = known else { return };
        let status = gone(ProcId { role: role.clone(), incarnation: known.incarnation }, known);
        self.state.counts.branch(Branch::Missing);
        self.process(&status);
        self.take_findings(); // while it is the newest known process
    }

    fn known(&self, proc: &ProcId) -> Known {
        match self.state.view.procs.get(&proc.role) {
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

    /// Stops a process that runs although it is not wanted.
    ///
    /// Its start was carried out after its stop, or it was never ordered. Processes found by the first listing are
    /// stopped by the first start.
    fn stop_stray(&mut self, proc: &ProcId, phase: &Phase) {
        if phase.is_over() || self.state.life.is_listing() || self.observes() {
            return;
        }
        self.state.counts.branch(Branch::StrayStopped);
        let grace = self.state.view.spec.policy.termination_grace_period;
        let stop = Action::Stop { procs: vec![proc.clone()], grace, exact: true };
        self.command(None, stop, Duration::MAX);
    }

    /// Stops a process again that did not exist yet when it was first stopped. The time limit of commands that wait for
    /// its end is extended.
    pub(super) fn stop_again(&mut self, proc: &ProcId, phase: &Phase) {
        self.stop_stray(proc, phase);
        let target = Domain::Process(proc.role.clone());
        let due = self.now() + self.state.view.spec.policy.termination_grace_period + STOP_MARGIN;
        for pending in self.state.pending.values_mut() {
            let waits = pending.waiting.get(&target) == Some(&Some(proc.incarnation));
            if waits && matches!(pending.action, Action::Stop { .. }) {
                pending.due = pending.due.max(due);
            }
        }
    }

    /// Returns true if nothing was reported of the process since its start was ordered.
    ///
    /// From now on it is known that the launcher has accepted the start, whatever the answer to the order or to its
    /// repetition.
    fn first_told(&mut self, proc: &ProcId) -> bool {
        let mut first = self.state.adrift.remove(proc);
        self.state.starting.retain(|_, procs| {
            first |= procs.remove(proc);
            !procs.is_empty()
        });
        first
    }

    pub(super) fn observe(&mut self, o: &Observation) {
        if let Domain::Process(role) = &o.about {
            let incarnation_fence = self.checks.has(Check::IncarnationFence);
            let generation_fence = self.checks.has(Check::GenerationFence);
            let now = self.state.view.now;
            let Some(known) = self.state.view.procs.get_mut(role) else {
                return self.tell(o); // the process is not known to the kernel, but detectors may know it
            };
            if incarnation_fence && o.incarnation.is_some_and(|i| i != known.incarnation) {
                return self.state.counts.drop(DropReason::OldIncarnation);
            }
            let of_world = o.signal != Signal::Heartbeat; // a surviving process is alive in every world
            if generation_fence && of_world && o.generation.is_some_and(|g| g < known.generation) {
                return self.state.counts.drop(DropReason::OldGeneration);
            }
            if let Signal::Progress { step } = o.signal {
                known.step = Some(step);
                known.progress_at = now;
                known.reports_steps = true;
                let incarnation = known.incarnation;
                self.state.free_in_row = 0;
                self.stepped(step);
                self.state.smaller.stepped(step);
                self.answer_by_step(&o.about, incarnation);
            }
        }
        self.tell(o);
    }

    pub(super) fn tell(&mut self, o: &Observation) {
        self.each(|detector, view, out| detector.observe(o, view, out));
    }

    /// Calls every detector. One that panics is taken out of service, and the panic becomes a fault of the detector.
    fn each(&mut self, mut call: impl FnMut(&mut dyn FaultDetector, &View, &mut Findings)) {
        for slot in &mut self.detectors {
            slot.call(&self.state.view, &mut self.found, &mut call);
        }
    }

    pub(super) fn expire(&mut self) {
        self.time_out();
        let now = self.state.view.now;
        for slot in &mut self.detectors {
            if slot.deadline().is_none_or(|at| at > now) {
                continue;
            }
            slot.call(&self.state.view, &mut self.found, |detector, view, out| detector.expire(view, out));
            if slot.deadline().is_some_and(|at| at <= now) {
                slot.not_before = now + STUBBORN_HOLD;
                self.state.counts.drop(DropReason::StubbornDeadline);
            }
        }
    }

    /// Handles a time in which the supervisor did not run.
    ///
    /// Time limits are extended by that time, and silence during it is not blamed on any process.
    pub(super) fn slept(&mut self, nanos: u64) {
        let slept = Duration::from_nanos(nanos);
        self.state.counts.branch(Branch::Slept);
        for pending in self.state.pending.values_mut() {
            pending.due = pending.due + slept;
        }
        let until = self.now() + self.state.view.spec.policy.suspend_threshold;
        for slot in &mut self.detectors {
            slot.not_before = slot.not_before.max(until);
        }
        let signal = Signal::SupervisorSlept { nanos };
        let (at, about) = (self.now(), Domain::Job);
        self.tell(&Observation { at, about, incarnation: None, generation: None, signal });
    }
}

impl Slot {
    fn call(
        &mut self,
        view: &View,
        found: &mut Findings,
        mut call: impl FnMut(&mut dyn FaultDetector, &View, &mut Findings),
    ) {
        let Some(detector) = &mut self.detector else { return };
        if catch_unwind(AssertUnwindSafe(|| call(&mut **detector, view, found))).is_ok() {
            return;
        }
        let name = catch_unwind(AssertUnwindSafe(|| detector.name())).unwrap_or(Name::new("unnamed detector"));
        self.detector = None;
        found.blame(plugin_fault(view, name, "the detector panicked and is disabled".into()));
    }
}

/// Returns a fault of a plugin of the runtime itself.
pub(super) fn plugin_fault(view: &View, plugin: Name, what: String) -> Fault {
    let suspect = Suspect::certain(Domain::Plugin(plugin), FaultClass::Plugin, Damage::default());
    Fault::new(Name::new("runtime"), view.now, suspect).with_evidence(crate::detect::Evidence::text("plugin", what))
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
