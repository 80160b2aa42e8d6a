//! Every order is answered once, what must be denied is, hosts that were left stay left, and what has to be held is held,
//! neither more nor less.

use super::super::operator::SLIP;
use super::super::outcome::Violation;
use super::Moment;
use super::books::{Books, event};
use crate::detect::OPERATOR;
use crate::job::{CommandId, Domain, IncidentId, JobTime, Mode, Name, NodeId, Permission, Policy, RemovalCap};
use crate::kernel::{Chosen, Command, Decision, Denial, Event, Held, Input, Order, Ordered, Taken};
use crate::launch::{Place, StartBatch};
use crate::recover::Action;
use crate::trace::switches::Requested;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Orders {
    policy: Policy,
    /// What operators have made of the policy's permissions.
    allowed: BTreeMap<Name, Permission>,
    paused: bool,
    /// What each held incident asks for.
    asking: BTreeMap<IncidentId, Name>,
    approved: BTreeSet<(IncidentId, Name)>,
    /// Hosts that were drained, or taken out by a recovery.
    left: BTreeSet<NodeId>,
    /// Drained hosts, with the incident in which their ranks leave them.
    leaving: BTreeMap<NodeId, IncidentId>,
    /// Hosts that ranks should have left in this step, with the incident that is over.
    stays: BTreeMap<NodeId, IncidentId>,
    /// When hosts were taken out.
    removed: Vec<JobTime>,
    /// Starts that were given; a new supervisor gives some again.
    given: BTreeSet<CommandId>,
    /// What ranks are to record, and who ordered it.
    switched: Option<(Requested, Name)>,
    finished: bool,
}

impl Orders {
    pub(super) fn input(&mut self, m: &Moment<'_>) -> Result<(), Violation> {
        if let Input::Start(start) = m.input {
            self.policy = start.spec.policy.clone();
        }
        let Input::Ordered(ordered) = m.input else { return Ok(()) };
        let is_reply = |c: &&Command| matches!(c.action, Action::Reply { order, .. } if order == ordered.id);
        let replies = m.commands.iter().filter(is_reply).count();
        if replies != usize::from(!self.finished) {
            return Err(Violation::NotAnsweredOnce { order: ordered.id, replies });
        }
        let cancels = |c: &Command| matches!(event(c), Some(Event::Cancelled { .. }));
        if ordered.order == Order::Pause && m.commands.iter().any(cancels) {
            return Err(Violation::WronglyFollowed { order: Box::new(ordered.order.clone()) }); // what has begun goes on
        }
        Ok(())
    }

    pub(super) fn check(&mut self, m: &Moment<'_>, command: &Command, books: &Books) -> Result<(), Violation> {
        match &command.action {
            Action::Reply { result, .. } => return self.replied(m, command, result),
            Action::Start { batch, .. } if self.given.insert(command.id) => return self.starts(batch),
            Action::Cordon { nodes, .. } => {
                if command.incident.is_none() {
                    self.removed.extend(nodes.iter().map(|_| m.kernel.view().now)); // spare ones: nothing was decided
                }
                self.left.extend(nodes.iter().cloned());
            }
            Action::Finish { .. } => self.finished = true,
            Action::Switch { kinds, by, again: true } if self.switched != Some((*kinds, by.clone())) => {
                return Err(Violation::WronglyFollowed { order: Box::new(Order::Switch { kinds: *kinds }) });
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
                if let Domain::Node(node) = &fault.prime().domain {
                    self.stays.remove(node);
                    self.leaving.insert(node.clone(), *incident);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A host that was to be left has been, or is still being left when the incident is over.
    pub(super) fn step_done(&self) -> Result<(), Violation> {
        match self.stays.first_key_value() {
            Some(_) if self.finished => Ok(()), // nobody is left to leave it
            Some((node, incident)) => Err(Violation::NotLeft { node: node.clone(), incident: *incident }),
            None => Ok(()),
        }
    }

    fn replied(&mut self, m: &Moment<'_>, command: &Command, result: &Result<Taken, Denial>) -> Result<(), Violation> {
        let Input::Ordered(ordered) = m.input else {
            return Err(Violation::WithoutReason { command: Box::new(command.clone()) });
        };
        let Ok(taken) = result else { return Ok(()) };
        let touches =
            matches!(ordered.order, Order::Drain { .. } | Order::Restart { .. } | Order::Dump | Order::Switch { .. });
        let must_not = ordered.by == SLIP || (touches && self.policy.mode == Mode::Observe);
        if must_not || !switches_as_ordered(m, &ordered.order) {
            return Err(Violation::WronglyFollowed { order: Box::new(ordered.order.clone()) });
        }
        self.follow(m, ordered, taken);
        Ok(())
    }

    fn follow(&mut self, m: &Moment<'_>, ordered: &Ordered, taken: &Taken) {
        match &ordered.order {
            Order::Drain { node } => {
                if self.left.insert(node.clone()) {
                    self.removed.push(m.kernel.view().now);
                }
                self.leaving.extend(taken.incident.map(|incident| (node.clone(), incident)));
            }
            Order::Readmit { node } => {
                self.left.remove(node);
                self.leaving.remove(node);
            }
            Order::Allow { strategies } => {
                self.allowed.extend(strategies.iter().map(|(name, permission)| (name.clone(), *permission)));
            }
            Order::Switch { kinds } => self.switched = Some((*kinds, ordered.by.clone())),
            Order::Pause => self.paused = true,
            Order::Resume => self.paused = false,
            Order::Approve { incident } => {
                self.approved.extend(self.asking.remove(incident).map(|name| (*incident, name)));
            }
            _ => {}
        }
    }

    /// Nothing new starts on a host that was left; what was ordered before may still come.
    fn starts(&self, batch: &StartBatch) -> Result<(), Violation> {
        for order in &batch.orders {
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
        let is_dropped = decision.chosen.is_none() && books.harms_nobody(decision);
        let must = if is_dropped { None } else { self.must_hold(m, id, decision.chosen.as_ref()) };
        if decision.held != must {
            return Err(Violation::WronglyHeld { incident: id, held: decision.held, must });
        }
        let Some(chosen) = &decision.chosen else { return Ok(()) };
        match decision.held {
            Some(Held::Asking) => {
                self.asking.insert(id, chosen.strategy.clone());
            }
            Some(_) => {}
            None => self.removed.extend((0..chosen.proposal.cost.nodes_removed).map(|_| m.kernel.view().now)),
        }
        Ok(())
    }

    fn must_hold(&self, m: &Moment<'_>, id: IncidentId, chosen: Option<&Chosen>) -> Option<Held> {
        if self.policy.mode == Mode::Observe {
            return Some(Held::Observing);
        }
        if self.paused {
            return Some(Held::Paused);
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
        (asks || too_many).then_some(Held::Asking)
    }

    fn merged(&mut self, from: IncidentId, into: IncidentId) {
        let renamed = |(id, name): (IncidentId, Name)| (if id == from { into } else { id }, name);
        self.approved = std::mem::take(&mut self.approved).into_iter().map(renamed).collect();
        self.leaving.values_mut().filter(|id| **id == from).for_each(|id| *id = into);
    }

    /// When ranks were to leave a host and that is said to be done, they have, or it goes on in another incident.
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

/// Whether what is recorded is switched once if that was ordered, and to that, and else not at all.
fn switches_as_ordered(m: &Moment<'_>, order: &Order) -> bool {
    let switched = m.commands.iter().filter_map(|command| match &command.action {
        Action::Switch { kinds, again: false, .. } => Some(kinds),
        _ => None,
    });
    let ordered = match order {
        Order::Switch { kinds } => Some(kinds),
        _ => None,
    };
    switched.eq(ordered)
}
