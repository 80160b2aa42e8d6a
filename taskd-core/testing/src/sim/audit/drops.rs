//! Everything that must be dropped is dropped and counted: the audit's count equals the kernel's.

use super::super::outcome::Violation;
use super::Moment;
use super::books::{Books, event};
use crate::detect::OPERATOR;
use crate::job::{CommandId, Domain, Exit, Generation, Incarnation, IncidentId, NodeId, ProcId, Role, Termination};
use crate::kernel::Effect;
use crate::kernel::{Command, DropReason, Event, Input, Kernel};
use crate::launch::{
    Change, ControlLink, LinkStatus, Listing, NodeState, Phase, Place, ProcStatus, WorkerEvent, WorkerMessage,
};
use crate::recover::{Action, Failure, TargetReply};
use crate::trace::{Observation, Signal};
use std::collections::{BTreeMap, BTreeSet};

/// The newest process of a role that the kernel can know.
#[derive(Clone, Debug)]
struct Newest {
    incarnation: Incarnation,
    generation: Generation,
    phase: Phase,
    node: Option<NodeId>,
    link: Option<ControlLink>,
}

#[derive(Debug, Default)]
pub(super) struct Drops {
    procs: BTreeMap<Role, Newest>,
    nodes: BTreeMap<NodeId, NodeState>,
    generation: Generation,
    finished: bool,
    ending: bool,
    /// Starts without a reply, with the processes that the launcher has not reported yet.
    starting: BTreeMap<CommandId, BTreeSet<ProcId>>,
    /// Starts that were ordered; a new supervisor repeats some of them.
    given: BTreeSet<CommandId>,
    /// Commands that the stage in progress of each plan waits for.
    stage: BTreeMap<Option<IncidentId>, Vec<CommandId>>,
    /// Commands of plans that were cancelled.
    void: BTreeSet<CommandId>,
    /// Directives that are not finished.
    directives: BTreeMap<CommandId, Option<IncidentId>>,
    /// Replies to finished directives: late, or after their time limit.
    reported_late: u64,
    counted: BTreeMap<DropReason, u64>,
}

/// The drops that follow from inputs and commands alone. The others depend on the findings of detectors.
const FORESEEN: [DropReason; 4] =
    [DropReason::OldIncarnation, DropReason::OldGeneration, DropReason::RepeatedChange, DropReason::LateAnswer];

impl Drops {
    pub(super) fn check(&self, kernel: &Kernel) -> Result<(), Violation> {
        let by_kernel = |what| kernel.counts().drops.get(&what).copied().unwrap_or(0);
        for what in FORESEEN {
            let must = self.counted.get(&what).copied().unwrap_or(0);
            let counted = by_kernel(what);
            let slack = if what == DropReason::LateAnswer { self.reported_late } else { 0 };
            let all = if slack > 0 { counted + by_kernel(DropReason::TimedOutAnswer) } else { counted };
            if counted < must || counted > must + slack || all < must + slack {
                return Err(Violation::DropsDiffer { what, must, counted });
            }
        }
        Ok(())
    }

    /// Counts what the kernel must drop of an input.
    pub(super) fn input(&mut self, m: &Moment<'_>) {
        if self.finished {
            return; // it accepts no more inputs
        }
        match m.input {
            Input::Observed(facts) => facts.iter().for_each(|o| self.observed(o)),
            Input::Changed(Change::Proc(status)) => self.process(status),
            Input::Changed(Change::Link(status)) => self.linked(status),
            Input::Changed(Change::Worker(event)) => self.reported(event),
            Input::Changed(Change::Node(node)) => {
                self.nodes.insert(node.node.clone(), node.state);
            }
            Input::Listed(listing) => self.listed(listing),
            Input::Answered { id, results } => self.answered(*id, results),
            input if input.is_stop() => self.cancel_start(),
            Input::Start(_) => self.forget_void_starts(),
            _ => {}
        }
    }

    /// Forgets starts that are awaited no longer. A new supervisor repeats the starts that are still awaited; all other
    /// ordered processes exist, or are lost.
    fn forget_void_starts(&mut self) {
        let Drops { starting, stage, .. } = self;
        starting.retain(|id, _| stage.values().flatten().any(|awaited| awaited == id));
    }

    fn count(&mut self, what: DropReason) {
        *self.counted.entry(what).or_default() += 1;
    }

    fn newest(&mut self, domain: &Domain) -> Option<&mut Newest> {
        let Domain::Process(role) = domain else { return None };
        self.procs.get_mut(role)
    }

    fn put(&mut self, proc: &ProcId, newest: Newest) {
        self.procs.insert(proc.role.clone(), newest);
    }

    fn linked(&mut self, LinkStatus { proc, link: linked, .. }: &LinkStatus) {
        let known = self.procs.get_mut(&proc.role).filter(|known| known.incarnation == proc.incarnation);
        let Some(known) = known else { return self.count(DropReason::OldIncarnation) };
        if known.link == *linked {
            return self.count(DropReason::RepeatedChange);
        }
        known.link.clone_from(linked);
    }

    fn reported(&mut self, WorkerEvent { proc, message: what, .. }: &WorkerEvent) {
        if self.procs.get(&proc.role).is_none_or(|known| known.incarnation != proc.incarnation) {
            return self.count(DropReason::OldIncarnation);
        }
        match what {
            WorkerMessage::Reply { id, .. } if !self.directives.contains_key(id) => self.reported_late += 1,
            WorkerMessage::Failed(failure) if failure.generation < self.generation => {
                self.count(DropReason::OldGeneration)
            }
            WorkerMessage::InMemoryCheckpoint(copy) if copy.generation < self.generation => {
                self.count(DropReason::OldGeneration)
            }
            _ => {}
        }
    }

    fn observed(&mut self, o: &Observation) {
        let Some(known) = self.newest(&o.about) else { return };
        if o.incarnation.is_some_and(|i| i != known.incarnation) {
            self.count(DropReason::OldIncarnation);
        } else if o.signal != Signal::Heartbeat && o.generation.is_some_and(|g| g < known.generation) {
            self.count(DropReason::OldGeneration);
        }
    }

    fn process(&mut self, status: &ProcStatus) {
        for procs in self.starting.values_mut() {
            procs.remove(&status.proc);
        }
        let about = Domain::Process(status.proc.role.clone());
        let incarnation = status.proc.incarnation;
        if let Some(known) = self.newest(&about).filter(|n| status.phase.is_over() && n.incarnation == incarnation) {
            known.link = None;
        }
        let known = self.newest(&about).map(|n| n.incarnation);
        if Some(incarnation) < known {
            return self.count(DropReason::OldIncarnation);
        }
        if Some(incarnation) > known {
            let phase = Phase::Pending("not ordered".into());
            let generation = self.generation;
            self.put(&status.proc, Newest { incarnation, generation, phase, node: None, link: None });
        }
        let Some(known) = self.newest(&about) else { return };
        let (old, new) = (&known.phase, &status.phase);
        if new.order() < old.order() || (new.order() == old.order() && (new.order() > 0 || new == old)) {
            return self.count(DropReason::RepeatedChange);
        }
        known.phase = new.clone();
        known.node = status.node.clone().or(known.node.take());
    }

    fn listed(&mut self, listing: &Listing) {
        for node in &listing.nodes {
            self.nodes.insert(node.node.clone(), node.state);
        }
        listing.procs.iter().for_each(|status| self.process(status));
        listing.links.iter().for_each(|status| self.linked(status));
        let is_listed = |proc: &ProcId| listing.links.iter().any(|status| status.proc == *proc);
        for (role, newest) in &mut self.procs {
            if !is_listed(&ProcId { role: role.clone(), incarnation: newest.incarnation }) {
                newest.link = None;
            }
        }
        let listed: BTreeSet<&ProcId> =
            listing.procs.iter().map(|s| &s.proc).chain(self.starting.values().flatten()).collect();
        for (role, newest) in &mut self.procs {
            let out_of_sight = newest.node.as_ref().and_then(|n| self.nodes.get(n)) == Some(&NodeState::OutOfSight);
            let proc = ProcId { role: role.clone(), incarnation: newest.incarnation };
            if !listed.contains(&proc) && !out_of_sight {
                (newest.phase, newest.link) = (gone(), None);
            }
        }
    }

    fn answered(&mut self, id: CommandId, results: &[(Domain, Result<TargetReply, Failure>)]) {
        let starting = self.starting.remove(&id).unwrap_or_default();
        let answers: BTreeMap<_, _> = results.iter().map(|(target, result)| (target, result.is_ok())).collect();
        let answer = |p: &ProcId| answers.get(&Domain::Process(p.role.clone())).copied();
        let (answered, open): (BTreeSet<_>, BTreeSet<_>) = starting.into_iter().partition(|p| answer(p).is_some());
        for proc in answered {
            let refused = answer(&proc) == Some(false);
            let newest = self.newest(&Domain::Process(proc.role));
            if let Some(newest) = newest.filter(|n| refused && n.incarnation == proc.incarnation) {
                newest.phase = gone();
            }
        }
        if !open.is_empty() {
            self.starting.insert(id, open);
        }
        if self.void.remove(&id) {
            self.count(DropReason::LateAnswer);
        }
    }

    /// Updates the newest processes and the awaited replies by a command.
    pub(super) fn command(&mut self, command: &Command, books: &Books) {
        match &command.effect {
            Effect::Act(Action::Start { batch, .. }) => {
                let again = !self.given.insert(command.id);
                if !again {
                    self.starting.insert(command.id, batch.starts.iter().map(|o| o.proc.clone()).collect());
                }
                for order in batch.starts.iter().filter(|_| !again) {
                    let node = match &order.place {
                        Place::On(node) => Some(node.clone()),
                        _ => None,
                    };
                    let phase = Phase::Pending("ordered".into());
                    let (incarnation, generation) = (order.proc.incarnation, batch.world.generation());
                    self.put(&order.proc, Newest { incarnation, generation, phase, node, link: None });
                }
                self.stage.entry(command.incident).or_default().push(command.id);
            }
            Effect::Act(Action::Stop { procs, exact, .. }) if procs.iter().any(|p| self.is_awaited(p, *exact)) => {
                self.stage.entry(command.incident).or_default().push(command.id);
            }
            Effect::Act(Action::Collect(ask)) if !ask.about.is_empty() && command.incident.is_some() => {
                self.stage.entry(command.incident).or_default().push(command.id);
            }
            Effect::Act(Action::SendDirectives(batch)) if !batch.directives.is_empty() => {
                self.directives.insert(command.id, command.incident);
                self.stage.entry(command.incident).or_default().push(command.id);
            }
            Effect::Act(Action::Enter(world)) => {
                self.generation = world.generation();
                for (rank, member) in world.members() {
                    let of = self.newest(&Domain::Process(Role::Rank(*rank)));
                    if let Some(newest) = of.filter(|n| n.incarnation == member.incarnation) {
                        newest.generation = world.generation();
                    }
                }
            }
            Effect::Act(Action::Finish { .. }) => self.finished = true,
            _ => {}
        }
        if let Some(event) = event(command) {
            self.event(event, books);
        }
    }

    fn is_awaited(&mut self, proc: &ProcId, exact: bool) -> bool {
        let newest = self.newest(&Domain::Process(proc.role.clone()));
        newest
            .is_some_and(|n| n.incarnation == proc.incarnation && !n.phase.is_exited() && (exact || !n.phase.is_over()))
    }

    fn event(&mut self, event: &Event, books: &Books) {
        match event {
            Event::Found { fault, .. } if fault.by == OPERATOR => {} // it waits for the start
            // The first start has failed: processes that are still missing were abandoned when it timed out.
            Event::Found { fault, .. } if books.starting && fault.primary_suspect().domain == Domain::Job => {
                self.stage.remove(&None);
            }
            Event::Found { fault, .. }
                if !matches!(fault.primary_suspect().domain, Domain::Plugin(_)) && books.starting =>
            {
                self.cancel_start();
            }
            Event::Cancelled { incident, .. } => {
                self.decided(Some(*incident));
                let cancelled = self.stage.remove(&Some(*incident)).unwrap_or_default();
                self.void.extend(cancelled);
            }
            Event::StageDone { incident, .. } => {
                self.decided(*incident);
                self.stage.remove(incident);
            }
            Event::Failed { incident, .. } | Event::Closed { incident, .. } => {
                self.decided(Some(*incident));
                self.stage.remove(&Some(*incident));
            }
            Event::Decided(decision) if decision.held.is_none() => {
                let nothing_left = || !books.is_non_disruptive(decision);
                self.ending |= decision.chosen.as_ref().map_or_else(nothing_left, |c| c.proposal.cost.ends_job);
            }
            _ => {}
        }
    }

    /// Ends the directives of a recovery.
    fn decided(&mut self, incident: Option<IncidentId>) {
        self.directives.retain(|_, of| *of != incident);
    }

    fn cancel_start(&mut self) {
        let cancelled = self.stage.remove(&None).unwrap_or_default();
        self.void.extend(cancelled);
    }
}

/// Returns the end of a process of which no details are known. Only the fact that it has ended is compared.
fn gone() -> Phase {
    Phase::Exited(Box::new(Exit::new(Termination::Unknown)))
}
