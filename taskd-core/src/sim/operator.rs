//! The operator: gives orders, gives them again while nobody answers, and looks now and then what waits for a decision, or
//! what else ranks might record.
//!
//! A good one: what was paused is resumed, what was forbidden for a while is allowed again, and no question stays open. What
//! is ordered when is planned by `chaos`.

use super::chaos::Relief;
use super::event::Event;
use super::plugins::RESTART;
use super::supervisor::Away;
use super::world::World as Sim;
use crate::job::{IncidentId, Name, NodeId, OrderId};
use crate::kernel::{Denial, Explanation, Held, Input, Order, Ordered, Taken};
use crate::launch::NodeState;
use crate::trace::switches::{PerKind, Switch};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Who gives orders that have a meaning.
const ANN: Name = Name::new("ann");
/// Who gives orders that must be denied.
pub(super) const SLIP: Name = Name::new("slip-of-the-pen");
/// An order without an answer is given again after this time: its supervisor may be gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the operator has in mind.
#[derive(Debug, Default)]
pub(super) struct Operator {
    given: u64,
    /// Orders without an answer.
    awaited: BTreeMap<OrderId, Ordered>,
    /// Hosts of which somebody outside has said that they are broken: readmitted or not, what was found may still be decided.
    pub(super) broken: BTreeSet<NodeId>,
}

impl Sim<'_> {
    /// Gives an order that has a meaning.
    pub(super) fn order(&mut self, order: Order) {
        self.order_as(ANN, order);
    }

    /// Gives an order. It reaches the supervisor at once, if there is one.
    pub(super) fn order_as(&mut self, by: Name, order: Order) {
        self.operator.given += 1;
        let id = OrderId(self.operator.given);
        let ordered = Ordered { id, by, reason: "simulated".into(), order };
        if !matches!(self.supervisor.away, Away::Gone(_)) {
            self.supervisor.mailbox.push(Input::Ordered(Box::new(ordered.clone())));
        }
        self.operator.awaited.insert(id, ordered);
        self.queue.push(self.now + PATIENCE, Event::Relief(Relief::Unanswered(id)));
    }

    /// An answer to a question is stale by now; everything else is ordered again.
    pub(super) fn order_again(&mut self, id: OrderId) {
        let Some(ordered) = self.operator.awaited.remove(&id).filter(|_| self.finished.is_none()) else { return };
        if !matches!(ordered.order, Order::Approve { .. } | Order::Decline { .. }) {
            self.order_as(ordered.by, ordered.order);
        }
    }

    /// The supervisor has answered. The end of a pause, or of a prohibition, is what the calm at the end waits for.
    pub(super) fn replied(&mut self, id: OrderId, result: &Result<Taken, Denial>) {
        let Some(ordered) = self.operator.awaited.remove(&id) else { return };
        self.log.note(self.now, || format!("{id} ({:?}) is answered: {result:?}", ordered.order));
        if ordered.order == Order::Resume && ordered.by == ANN {
            self.deeds.pending -= 1;
        }
    }

    /// Ends a pause, also one that the supervisor has not heard of yet.
    pub(super) fn resume(&mut self) {
        self.operator.awaited.retain(|_, ordered| ordered.order != Order::Pause);
        self.order(Order::Resume);
    }

    /// Whether something new may be started on a host, for all that the operator knows.
    pub(super) fn is_usable(&self, host: usize) -> bool {
        let id = &self.fleet.hosts[host].id;
        let known = self.supervisor.kernel.view().nodes.get(id).map(|n| n.state);
        let leaves = |o: &Ordered| matches!(&o.order, Order::Drain { node } if node == id);
        self.fleet.hosts[host].state == NodeState::Ready
            && known != Some(NodeState::Cordoned)
            && !self.operator.broken.contains(id)
            && !self.operator.awaited.values().any(leaves)
    }

    /// Whether the supervisor is awake and has nothing unread: what it knows is how it is.
    pub(super) fn is_up_to_date(&self) -> bool {
        self.supervisor.away == Away::No && self.supervisor.mailbox.is_empty()
    }

    /// Looks at what waits for an answer, and answers one question, or lets it wait.
    pub(super) fn makes_rounds(&mut self) {
        if self.finished.is_some() {
            return;
        }
        let asking = |i: &&crate::kernel::IncidentReport| i.held == Some(Held::Asking);
        let asked = self.supervisor.kernel.status().incidents.iter().find(asking).map(|i| i.id);
        let answers = self.is_up_to_date() && (self.is_calm() || self.dice.chance(700));
        if self.dice.chance(200) {
            let kinds = PerKind::KINDS.map(|_| Switch::from(self.dice.chance(500)));
            self.order(Order::Switch { kinds });
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

    /// Whether the job lives on when what is asked for is declined: it is a mere wish, or another proposal is left that nearly
    /// always helps.
    fn may_decline(&self, incident: IncidentId) -> bool {
        let Some(why) = self.supervisor.kernel.explain(incident) else { return false };
        let Explanation { attempts, chosen: Some((chosen, _)), lost, .. } = why else { return false };
        if !attempts.is_empty() || self.audit.has_begun(incident) {
            return false;
        }
        self.audit.is_wish(incident) || (chosen != RESTART && lost.iter().any(|l| l.strategy == RESTART))
    }
}
