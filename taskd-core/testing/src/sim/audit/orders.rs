//! Every order is answered once, invalid orders are denied, drained hosts stay unused, and exactly the required
//! decisions are held.

use super::super::operator::SLIP;
use super::super::outcome::Violation;
use super::Moment;
use super::books::{Books, event};
use crate::detect::OPERATOR;
use crate::job::{CommandId, Domain, IncidentId, JobTime, Mode, Name, NodeId, Permission, Policy, RemovalCap};
use crate::kernel::Effect;
use crate::kernel::{
    Chosen, Command, Decision, Event, HoldReason, Input, Order, OrderAccepted, OrderEnvelope, OrderRejected,
};
use crate::launch::{Place, StartBatch};
use crate::recover::Action;
use crate::trace::switches::Requested;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Orders {
    policy: Policy,
    /// The policy's permissions, as changed by operators.
    allowed: BTreeMap<Name, Permission>,
    paused: bool,
    /// The strategy that each held incident needs approval for.
    asking: BTreeMap<IncidentId, Name>,
    approved: BTreeSet<(IncidentId, Name)>,
    /// Hosts that were drained, or removed by a recovery.
    left: BTreeSet<NodeId>,
    /// Drained hosts, with the incident in which their ranks move.
    leaving: BTreeMap<NodeId, IncidentId>,
    /// Hosts that still have ranks although the incident that had to move them is over.
    stays: BTreeMap<NodeId, IncidentId>,
    /// The times at which hosts were removed.
    removed: Vec<JobTime>,
    /// Starts that were ordered; a new supervisor repeats some of them.
    given: BTreeSet<CommandId>,
    /// The kinds that ranks are to record, and the name of the operator.
    switched: Option<(Requested, Name)>,
    finished: bool,
}

impl Orders {
    pub(super) fn input(&mut self, m: &Moment<'_>) -> Result<(), Violation> {
        if let Input::Start(start) = m.input {
            self.policy = start.spec.policy.clone();
        }
        let Input::Ordered(ordered) = m.input else { return Ok(()) };
        let is_reply = |c: &&Command| matches!(c.effect, Effect::Reply { order, .. } if order == ordered.id);
        let replies = m.commands.iter().filter(is_reply).count();
        if replies != usize::from(!self.finished) {
            return Err(Violation::NotAnsweredOnce { order: ordered.id, replies });
        }
        let cancels = |c: &Command| matches!(event(c), Some(Event::Cancelled { .. }));
        if ordered.order == Order::Pause && m.commands.iter().any(cancels) {
            // A recovery that has begun continues.
            return Err(Violation::WronglyFollowed { order: Box::new(ordered.order.clone()) });
        }
        Ok(())
    }

    pub(super) fn check(&mut self, m: &Moment<'_>, command: &Command, books: &Books) -> Result<(), Violation> {
        match &command.effect {
            Effect::Reply { result, .. } => return self.replied(m, command, result),
            Effect::Act(Action::Start { batch, .. }) if self.given.insert(command.id) => return self.starts(batch),
            Effect::Act(Action::Cordon { nodes, .. }) => {
                if command.incident.is_none() {
                    // Spare hosts: there was no decision.
                    self.removed.extend(nodes.iter().map(|_| m.kernel.view().now));
                }
                self.left.extend(nodes.iter().cloned());
            }
            Effect::Act(Action::Finish { .. }) => self.finished = true,
            Effect::Switch { kinds, by, again: true } if self.switched != Some((*kinds, by.clone())) => {
                return Err(Violation::WronglyFollowed { order: Box::new(Order::SwitchTrace { kinds: *kinds }) });
            }
            _ => {}
        }
        match event(command) {
            Some(Event::Decided(decision)) => self.decided(m, decision, books),
            Some(Event::Merged { incident, into }) => {
                self.merged(*incident, *into);
                Ok(())
            }
            Some(Event::Closed { incident, how }) => {
                self.closed(m, *incident, how);
                Ok(())
            }
            Some(Event::Found { incident, fault, .. }) if fault.by == OPERATOR => {
                if let Domain::Node(node) = &fault.primary_suspect().domain {
                    self.stays.remove(node);
                    self.leaving.insert(node.clone(), *incident);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Checks that a drained host has no ranks left when its incident is over, or that another incident still moves
    /// them.
    pub(super) fn step_done(&self) -> Result<(), Violation> {
        match self.stays.first_key_value() {
            Some(_) if self.finished => Ok(()), // no rank is left to move
            Some((node, incident)) => Err(Violation::NotLeft { node: node.clone(), incident: *incident }),
            None => Ok(()),
        }
    }

    fn replied(
        &mut self,
        m: &Moment<'_>,
        command: &Command,
        result: &Result<OrderAccepted, OrderRejected>,
    ) -> Result<(), Violation> {
        let Input::Ordered(ordered) = m.input else {
            return Err(Violation::WithoutReason { command: Box::new(command.clone()) });
        };
        let Ok(taken) = result else { return Ok(()) };
        let touches = matches!(
            ordered.order,
            Order::Drain { .. } | Order::Restart { .. } | Order::Checkpoint | Order::SwitchTrace { .. }
        );
        let must_not = ordered.by == SLIP || (touches && self.policy.mode == Mode::DryRun);
        if must_not || !switches_as_ordered(m, &ordered.order) {
            return Err(Violation::WronglyFollowed { order: Box::new(ordered.order.clone()) });
        }
        self.follow(m, ordered, taken);
        Ok(())
    }

    fn follow(&mut self, m: &Moment<'_>, ordered: &OrderEnvelope, taken: &OrderAccepted) {
        match &ordered.order {
            Order::Drain { node } => {
                if self.left.insert(node.clone()) {
                    self.removed.push(m.kernel.view().now);
                }
                self.leaving.extend(taken.incident.map(|incident| (node.clone(), incident)));
            }
            Order::Uncordon { node } => {
                self.left.remove(node);
                self.leaving.remove(node);
            }
            Order::Allow { strategies } => {
                self.allowed.extend(strategies.iter().map(|(name, permission)| (name.clone(), *permission)));
            }
            Order::SwitchTrace { kinds } => self.switched = Some((*kinds, ordered.by.clone())),
            Order::Pause => self.paused = true,
            Order::Resume => self.paused = false,
            Order::Approve { incident } => {
                self.approved.extend(self.asking.remove(incident).map(|name| (*incident, name)));
            }
            _ => {}
        }
    }

    /// Checks that nothing new starts on a drained host; earlier orders may still arrive.
    fn starts(&self, batch: &StartBatch) -> Result<(), Violation> {
        for order in &batch.starts {
            if let Place::On(node) = &order.place
                && self.left.contains(node)
            {
                return Err(Violation::StartedOnLeft { proc: order.proc.clone(), node: node.clone() });
            }
        }
        Ok(())
    }

    fn decided(&mut self, m: &Moment<'_>, decision: &Decision, books: &Books) -> Result<(), Violation> {
        let id = decision.incident.id;
        let is_dropped = decision.chosen.is_none() && books.is_non_disruptive(decision);
        let must = if is_dropped { None } else { self.must_hold(m, id, decision.chosen.as_ref()) };
        if decision.held != must {
            return Err(Violation::WronglyHeld { incident: id, held: decision.held, must });
        }
        let Some(chosen) = &decision.chosen else { return Ok(()) };
        match decision.held {
            Some(HoldReason::AwaitingApproval) => {
                self.asking.insert(id, chosen.strategy.clone());
            }
            Some(_) => {}
            None => self.removed.extend((0..chosen.proposal.cost.nodes_removed).map(|_| m.kernel.view().now)),
        }
        Ok(())
    }

    fn must_hold(&self, m: &Moment<'_>, id: IncidentId, chosen: Option<&Chosen>) -> Option<HoldReason> {
        if self.policy.mode == Mode::DryRun {
            return Some(HoldReason::DryRun);
        }
        if self.paused {
            return Some(HoldReason::Paused);
        }
        let Chosen { strategy, proposal } = chosen?;
        if self.approved.contains(&(id, strategy.clone())) {
            return None;
        }
        let permission = self.allowed.get(strategy).or_else(|| self.policy.strategies.get(strategy));
        let asks = *permission.unwrap_or(&self.policy.default_permission) == Permission::Ask;
        let RemovalCap { nodes_max, within } = self.policy.node_removals;
        let recent = self.removed.iter().filter(|at| **at + within >= m.kernel.view().now).count();
        let wanted = proposal.cost.nodes_removed;
        let too_many = wanted > 0 && recent + wanted as usize > nodes_max as usize;
        (asks || too_many).then_some(HoldReason::AwaitingApproval)
    }

    fn merged(&mut self, from: IncidentId, into: IncidentId) {
        let renamed = |(id, name): (IncidentId, Name)| (if id == from { into } else { id }, name);
        self.approved = std::mem::take(&mut self.approved).into_iter().map(renamed).collect();
        self.leaving.values_mut().filter(|id| **id == from).for_each(|id| *id = into);
    }

    /// Checks the hosts that a closed incident had to drain: the ranks have moved, or another incident continues to
    /// move them.
    fn closed(&mut self, m: &Moment<'_>, id: IncidentId, how: &str) {
        let left: Vec<NodeId> =
            self.leaving.iter().filter(|(_, by)| **by == id).map(|(node, _)| node.clone()).collect();
        self.leaving.retain(|_, by| *by != id);
        let gave_up = how.starts_with("not done") || how.starts_with("open when");
        let members = &m.kernel.view().world.members();
        let stays = |node: &&NodeId| members.values().any(|member| member.node.as_ref() == Some(*node));
        self.stays.extend(left.iter().filter(stays).filter(|_| !gave_up).map(|node| (node.clone(), id)));
    }
}

/// Returns true if recording is switched exactly once, and as ordered, if the order requires it, and otherwise not at
/// all.
fn switches_as_ordered(m: &Moment<'_>, order: &Order) -> bool {
    let switched = m.commands.iter().filter_map(|command| match &command.effect {
        Effect::Switch { kinds, again: false, .. } => Some(kinds),
        _ => None,
    });
    let ordered = match order {
        Order::SwitchTrace { kinds } => Some(kinds),
        _ => None,
    };
    switched.eq(ordered)
}
