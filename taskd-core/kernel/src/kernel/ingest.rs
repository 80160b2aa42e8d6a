//! Handles incoming listings, changes and observations: passes them through the fences to the view and the detectors.
//!
//! A report concerns many parts, so this file calls each with its share. It decides nothing about faults: the findings
//! of detectors are handled by `incidents`.

use super::in_memory_checkpoints::HEARD_WITHIN;
use super::processes::{Admission, Known};
use super::{Branch, Check, DropReason, Effect, Kernel};
use crate::job::{CommandId, Domain, ProcId, Role};
use crate::recover::stages::STOP_MARGIN;
use crate::recover::{Action, Failure, TargetReply};
use crate::state::{
    Change, GuardStatus, LinkStatus, Listing, NodeState, NodeStatus, Phase, ProcStatus, StepFailure, WorkerEvent,
    WorkerMessage,
};
use crate::trace::{Observation, Probe, ProbeReply, ProbeResult, Signal};
use std::sync::Arc;
use std::time::Duration;

impl Kernel {
    pub(super) fn listed(&mut self, listing: &Listing) {
        for guard in &listing.guards {
            self.guard_told(guard);
        }
        for node in &listing.nodes {
            self.host_reported(node);
        }
        if self.state.view.is_dry_run() {
            self.expect(&listing.procs);
        }
        for status in &listing.procs {
            self.process(status);
        }
        for status in &listing.links {
            self.linked(status);
        }
        self.links().close_unlisted(&listing.links);
        listing.failed_steps.iter().for_each(|event| self.said(event));
        for status in self.processes().missing(&listing.procs) {
            self.state.counts.branch(Branch::Missing);
            if self.state.adrift.contains(&status.proc) {
                self.answers().start_lost(&status.proc);
            } else {
                self.process(&status);
            }
        }
        self.listing_taken();
    }

    pub(super) fn changed(&mut self, change: &Change) {
        match change {
            Change::Proc(status) => {
                if self.state.view.is_dry_run() {
                    self.expect([status]);
                }
                self.process(status);
            }
            Change::Node(node) => self.host_reported(node),
            Change::Link(status) => self.linked(status),
            Change::Worker(said) => self.said(said),
            Change::Guard(status) => self.guard_told(status),
        }
    }

    fn process(&mut self, status: &ProcStatus) {
        let ProcStatus { proc, phase, .. } = status;
        if phase.is_exited() {
            self.maybe_complete = true;
            self.outbox().effect(Effect::Acknowledge(proc.clone()));
        }
        self.answers().by_phase(proc, phase);
        if phase.is_over() {
            self.links().ended(proc);
            self.answers().for_the_dead(proc);
        }
        let first_told = self.processes().first_told(proc);
        match self.processes().known(proc) {
            Known::Older => {
                self.state.counts.drop(DropReason::OldIncarnation);
                return self.stop_stray(proc, phase);
            }
            Known::Stray if self.state.view.is_dry_run() => {
                self.superseded(&proc.role);
                self.processes().adopt(proc);
            }
            // A service that the supervisor before started again in the same world.
            Known::Stray if self.state.life.is_resuming() && matches!(proc.role, Role::Service(_)) => {
                self.processes().adopt(proc);
            }
            Known::Stray => {
                self.superseded(&proc.role);
                self.processes().note_stray(proc);
                self.stop_stray(proc, phase);
            }
            Known::Same => {}
        }
        if phase.is_over() {
            self.lost_before(status);
        }
        let Some(known) = self.state.view.procs.get(&proc.role) else { return };
        if known.phase.is_exited() {
            self.stop_stray(proc, phase); // it was thought to have ended
        } else if first_told && !known.wanted {
            self.stop_again(proc, phase);
        }
        if self.processes().note_phase(status) {
            self.tell_of(proc, Signal::Phase(phase.clone()));
        }
        self.seen(status);
    }

    /// Handles the exit of a process whose host was lost during the process's start. The process is lost with its host, like
    /// the other processes there.
    fn lost_before(&mut self, status: &ProcStatus) {
        let host = status.node.as_ref().and_then(|node| self.state.view.nodes.get(node));
        let Some(host) = host.filter(|host| host.state == NodeState::Left).cloned() else { return };
        let known = self.state.view.procs.get_mut(&status.proc.role);
        if let Some(known) = known.filter(|known| known.node.is_none()) {
            known.node = Some(host.node.clone());
            self.lost_hosts().left(&host);
        }
    }

    /// Handles the first report about a rank that another supervisor has left. Its control link is reported next: until
    /// then it counts as one that has just closed, so that no decision takes the rank for one without a link.
    fn seen(&mut self, status: &ProcStatus) {
        let host = status.node.as_ref().and_then(|node| self.state.view.nodes.get(node));
        let is_expected = host.is_some_and(|host| host.state == NodeState::OutOfSight) && !status.phase.is_over();
        if is_expected || !self.state.unseen.remove(&status.proc) {
            return;
        }
        let now = self.now();
        let known = self.state.view.procs.get_mut(&status.proc.role);
        if let Some(known) = known.filter(|known| known.phase == Phase::Running && known.link.is_none()) {
            known.unlinked_at = Some(now);
        }
        if self.state.unseen.is_empty() {
            self.agenda().all_seen();
        }
    }

    /// Handles a newer process of a role than this kernel has started.
    ///
    /// A previous supervisor started it after the end of the log that this kernel was restored from. The known process
    /// is gone. It is reported as missing, so that a recovery starts what is missing.
    fn superseded(&mut self, role: &Role) {
        let Some(status) = self.processes().replaced(role) else { return };
        self.process(&status);
        self.take_findings(); // while it is the newest known process
    }

    /// Stops a process that runs although it is not wanted.
    ///
    /// Its start was carried out after its stop, or it was never ordered. Processes found by the first listing are
    /// stopped by the first start.
    fn stop_stray(&mut self, proc: &ProcId, phase: &Phase) {
        if phase.is_over() || self.state.life.is_listing() || self.state.view.is_dry_run() {
            return;
        }
        self.state.counts.branch(Branch::StrayStopped);
        let grace = self.state.view.spec.policy.termination_grace_period;
        let stop = Action::Stop { procs: vec![proc.clone()], grace, exact: true };
        self.command(None, stop, Duration::MAX);
    }

    /// Stops a process again that did not exist yet when it was first stopped. The time limit of commands that wait for
    /// its end is extended.
    fn stop_again(&mut self, proc: &ProcId, phase: &Phase) {
        self.stop_stray(proc, phase);
        let due = self.now() + self.state.view.spec.policy.termination_grace_period + STOP_MARGIN;
        self.time_limits().extend_stop(proc, due);
    }

    fn host_reported(&mut self, status: &NodeStatus) {
        if self.hosts().note(status) {
            self.lost_hosts().left(status);
        }
    }

    fn guard_told(&mut self, status: &GuardStatus) {
        let Some(since) = self.guards().told(status) else { return };
        // The time in which nothing could be done is not charged to any process.
        let silent = self.now().since(since);
        self.slept(u64::try_from(silent.as_nanos()).unwrap_or(u64::MAX));
        let node = &status.node;
        for id in self.agenda().guard_speaks(node) {
            self.close(id, &format!("the guard of {node} answers again, after {:.1} s", silent.as_secs_f64()), None);
        }
    }

    fn linked(&mut self, status: &LinkStatus) {
        let news = self.links().linked(status);
        if news.has_report {
            self.agenda().report_arrived();
        }
        if news.is_parked {
            self.answers().parked(&status.proc);
        }
    }

    /// Handles a message of a process.
    fn said(&mut self, said: &WorkerEvent) {
        let WorkerEvent { proc, message, .. } = said;
        let known = self.state.view.procs.get(&proc.role);
        if known.is_none_or(|known| known.incarnation != proc.incarnation) {
            return self.state.counts.drop(DropReason::OldIncarnation);
        }
        match message {
            WorkerMessage::Reply { id, result } => self.answers().directive(*id, proc, result),
            WorkerMessage::Failed(failure) => self.failed_step(proc, failure),
            WorkerMessage::InMemoryCheckpoint(copy) => {
                let commits = self.in_memory_checkpoints().copied(proc, copy);
                if let Some(batch) = commits.filter(|_| !self.state.view.is_dry_run()) {
                    self.command(None, Action::SendDirectives(batch), HEARD_WITHIN);
                }
            }
            WorkerMessage::ErrorRecorded(error) => self.tell_of(proc, Signal::FailureRecorded(error.clone())),
        }
    }

    fn failed_step(&mut self, proc: &ProcId, failure: &StepFailure) {
        let is_old = failure.generation < self.state.view.world.generation();
        if is_old && self.checks.has(Check::StepFailureFence) {
            return self.state.counts.drop(DropReason::OldGeneration);
        }
        self.state.counts.branch(Branch::StepFailed);
        let (at, about, incarnation) = (self.now(), Domain::Process(proc.role.clone()), Some(proc.incarnation));
        let (generation, signal) = (Some(failure.generation), Signal::StepFailed(Box::new(failure.clone())));
        self.detectors().tell(&Observation { at, about, incarnation, generation, signal });
    }

    /// Handles the answers to a command.
    pub(super) fn answered(&mut self, id: CommandId, results: &[(Domain, Result<TargetReply, Failure>)]) {
        let starts = self.answers().starts_answered(id, results);
        for (proc, phase) in &starts.missed {
            self.stop_again(proc, phase);
        }
        for (ask, about, result) in self.answers().answered(id, results, &starts) {
            self.deliver_probe_reply(&ask, &about, &result);
        }
    }

    /// Passes an answer to a probe, or the lack of one, to the detectors as an observation.
    fn deliver_probe_reply(&mut self, ask: &Probe, about: &Domain, result: &Result<TargetReply, Failure>) {
        let exhibit = match result {
            Ok(TargetReply::ProbeResult(exhibit)) => exhibit.clone(),
            Ok(TargetReply::Accepted | TargetReply::Directive(_)) => {
                ProbeResult::Unavailable("answered without evidence".into())
            }
            Err(Failure::Refused(why) | Failure::Unreachable(why)) => ProbeResult::Unavailable(why.clone()),
            Err(Failure::TimedOut | Failure::Gone) => {
                self.state.counts.branch(Branch::SilentEvidence);
                ProbeResult::Silence
            }
        };
        let Probe { by, tag, what, .. } = ask.clone();
        let evidence = ProbeReply { by, tag, what, about: about.clone(), result: exhibit };
        self.tell(about.clone(), Signal::ProbeReply(Arc::new(evidence)));
    }

    pub(super) fn observe(&mut self, o: &Observation) {
        if let Domain::Process(role) = &o.about {
            match self.processes().admit(role, o) {
                Admission::Dropped => return,
                Admission::Admitted => {}
                Admission::Stepped { step, incarnation } => {
                    self.state.free_in_row = 0;
                    if let Some(trial) = &mut self.state.trial {
                        trial.stepped(step);
                    }
                    self.state.smaller.stepped(step);
                    self.answers().by_step(&o.about, incarnation);
                }
            }
        }
        self.detectors().tell(o);
    }

    fn tell(&mut self, about: Domain, signal: Signal) {
        let at = self.now();
        self.detectors().tell(&Observation { at, about, incarnation: None, generation: None, signal });
    }

    fn tell_of(&mut self, proc: &ProcId, signal: Signal) {
        let (at, about, incarnation) = (self.now(), Domain::Process(proc.role.clone()), Some(proc.incarnation));
        self.detectors().tell(&Observation { at, about, incarnation, generation: None, signal });
    }

    pub(super) fn expire(&mut self) {
        for (ask, about) in self.time_limits().time_out() {
            self.deliver_probe_reply(&ask, &about, &Err(Failure::TimedOut));
        }
        self.detectors().expire();
    }

    /// Handles a time in which the supervisor did not run.
    ///
    /// Time limits are extended by that time, and silence during it is not blamed on any process.
    pub(super) fn slept(&mut self, nanos: u64) {
        self.state.counts.branch(Branch::Slept);
        self.time_limits().extend(Duration::from_nanos(nanos));
        let until = self.now() + self.state.view.spec.policy.suspend_threshold;
        self.detectors().hold(until);
        self.tell(Domain::Job, Signal::SupervisorSlept { nanos });
    }
}
