//! The operator: gives orders, repeats them while there is no reply, and periodically checks for decisions that need
//! approval and changes what ranks record.
//!
//! It is a good operator: it resumes after a pause, allows again what it has forbidden for a while, and answers every
//! request for approval. `chaos` plans the orders and their times.

use super::chaos::Relief;
use super::event::Event;
use super::plugins::RESTART;
use super::supervisor::Away;
use super::world::World as Sim;
use crate::job::{IncidentId, Name, NodeId, OrderId};
use crate::kernel::{Explanation, HoldReason, Input, Order, OrderAccepted, OrderEnvelope, OrderRejected};
use crate::launch::NodeState;
use crate::trace::switches::{PerKind, Switch};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Name of the operator of valid orders.
const ANN: Name = Name::new("ann");
/// Name of the operator of orders that must be denied.
pub(super) const SLIP: Name = Name::new("slip-of-the-pen");
/// Time after which an order without a reply is repeated: its supervisor may be gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// The state of the operator.
#[derive(Debug, Default)]
pub(super) struct Operator {
    given: u64,
    /// Orders without a reply.
    awaited: BTreeMap<OrderId, OrderEnvelope>,
    /// Hosts that were reported as broken from outside. They stay in this set after an uncordon, because the fault may
    /// still be decided later.
    pub(super) broken: BTreeSet<NodeId>,
}

impl Sim<'_> {
    /// Gives a valid order.
    pub(super) fn order(&mut self, order: Order) {
        self.order_as(ANN, order);
    }

    /// Gives an order. It reaches the supervisor at once, if there is one.
    pub(super) fn order_as(&mut self, by: Name, order: Order) {
        self.operator.given += 1;
        let id = OrderId(self.operator.given);
        let ordered = OrderEnvelope { id, by, reason: "simulated".into(), order };
        if !matches!(self.supervisor.away, Away::Gone(_)) {
            self.supervisor.mailbox.push(Input::Ordered(Box::new(ordered.clone())));
        }
        self.operator.awaited.insert(id, ordered);
        self.queue.push(self.now + PATIENCE, Event::Relief(Relief::Unanswered(id)));
    }

    /// Repeats an order, except approvals and refusals, which are outdated by now.
    pub(super) fn order_again(&mut self, id: OrderId) {
        let Some(ordered) = self.operator.awaited.remove(&id).filter(|_| self.finished.is_none()) else { return };
        if !matches!(ordered.order, Order::Approve { .. } | Order::Decline { .. }) {
            self.order_as(ordered.by, ordered.order);
        }
    }

    /// Handles the supervisor's reply. The calm at the end begins only after the end of every pause was accepted.
    pub(super) fn replied(&mut self, id: OrderId, result: &Result<OrderAccepted, OrderRejected>) {
        let Some(ordered) = self.operator.awaited.remove(&id) else { return };
        self.log.note(self.now, || format!("{id} ({:?}) is answered: {result:?}", ordered.order));
        if ordered.order == Order::Resume && ordered.by == ANN {
            self.deeds.pending -= 1;
        }
    }

    /// Ends a pause, including one that the supervisor has not received yet.
    pub(super) fn resume(&mut self) {
        self.operator.awaited.retain(|_, ordered| ordered.order != Order::Pause);
        self.order(Order::Resume);
    }

    /// Returns true if a process may be started on a host, as far as the operator knows.
    pub(super) fn is_usable(&self, host: usize) -> bool {
        let id = &self.fleet.hosts[host].id;
        let known = self.supervisor.kernel.view().nodes.get(id).map(|n| n.state);
        let leaves = |o: &OrderEnvelope| matches!(&o.order, Order::Drain { node } if node == id);
        self.fleet.hosts[host].state == NodeState::Ready
            && known != Some(NodeState::Cordoned)
            && !self.operator.broken.contains(id)
            && !self.operator.awaited.values().any(leaves)
    }

    /// Returns true if the supervisor is awake and has no unread input, so that its view is current.
    pub(super) fn is_up_to_date(&self) -> bool {
        self.supervisor.away == Away::No && self.supervisor.mailbox.is_empty()
    }

    /// Checks for decisions that need approval, and answers one of them, or lets it wait.
    pub(super) fn makes_rounds(&mut self) {
        if self.finished.is_some() {
            return;
        }
        let asking = |i: &&crate::kernel::IncidentReport| i.held == Some(HoldReason::AwaitingApproval);
        let asked = self.supervisor.kernel.status().incidents.iter().find(asking).map(|i| i.id);
        let answers = self.is_up_to_date() && (self.is_calm() || self.dice.chance(700));
        if self.dice.chance(200) {
            let kinds = PerKind::<()>::default().map(|()| Switch::from(self.dice.chance(500)));
            self.order(Order::SwitchTrace { kinds });
        }
        let next = match asked.filter(|_| answers) {
            Some(incident) => {
                let may_decline = self.dice.chance(600) && self.may_decline(incident);
                self.order(if may_decline { Order::Decline { incident } } else { Order::Approve { incident } });
                self.dice.ms(500, 3_000)
            }
            None => self.dice.ms(5_000, 25_000),
        };
        self.queue.push(self.now + next, Event::Relief(Relief::Rounds));
    }

    /// Returns true if the job survives a refusal: the incident is only an order, or another proposal is left that
    /// nearly always helps.
    fn may_decline(&self, incident: IncidentId) -> bool {
        let Some(why) = self.supervisor.kernel.explain(incident) else { return false };
        let Explanation { attempts, chosen: Some((chosen, _)), lost, .. } = why else { return false };
        if !attempts.is_empty() || self.audit.has_begun(incident) {
            return false;
        }
        self.audit.is_wish(incident) || (chosen != RESTART && lost.iter().any(|l| l.strategy == RESTART))
    }
}
