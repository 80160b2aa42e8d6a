//! Orders of an operator, and external fault reports.

use super::super::event::Event;
use super::super::operator::SLIP;
use super::super::plugins::RESTART;
use super::super::world::World as Sim;
use super::{Charge, FaultKind, Relief, Strike};
use crate::detect::{Damage, Fault, FaultClass, Health, Suspect};
use crate::job::{Domain, IncidentId, Name, NodeId, Permission, Rank};
use crate::kernel::{Order, Request};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

impl Sim<'_> {
    /// In one job of twenty, lets the operator give an order before the job has started.
    pub(in crate::sim) fn orders_may_come_early(&mut self) {
        if !self.dice.chance(50) {
            return;
        }
        let early = [FaultKind::OrderDrain, FaultKind::OrderRestart, FaultKind::OrderPause, FaultKind::OrderSlip];
        let kind = *self.dice.pick(&early).unwrap_or(&FaultKind::OrderPause);
        self.deeds.pending += 1;
        let at = self.now + self.dice.ms(1, 5_000);
        self.queue.push(at, Event::Strike(Strike::Planned(kind, 0)));
    }

    /// Drains a host, whether or not there is room elsewhere, and may uncordon it later.
    pub(super) fn order_drain(&mut self) -> bool {
        let usable: Vec<usize> = (0..self.fleet.hosts.len()).filter(|h| self.is_usable(*h)).collect();
        let Some(host) = self.dice.pick(&usable).copied() else { return false };
        // If room is scarce, the supervisor must know of every loss, and must not be about to move ranks to this host:
        // otherwise it would accept an order that leaves too little room.
        let in_sight = self.fleet.hosts.iter().all(|h| h.state != crate::launch::NodeState::OutOfSight);
        let well_known = in_sight && self.is_up_to_date() && self.audit.open_incidents() == 0;
        if !well_known && !self.may_lose_a_host() {
            return false;
        }
        let node = self.fleet.hosts[host].id.clone();
        self.deeds.drained.insert(node.clone());
        self.order(Order::Drain { node: node.clone() });
        self.may_readmit(node);
        true
    }

    fn may_readmit(&mut self, node: NodeId) {
        if self.dice.chance(750) {
            let at = self.now + self.dice.ms(2_000, 120_000);
            self.queue.push(at, Event::Relief(Relief::Readmit(node)));
        }
    }

    pub(super) fn order_restart(&mut self) -> bool {
        let mut ranks = BTreeSet::new();
        for _ in 0..self.dice.below(4) {
            let rank = self.dice.below(self.training.seats.len());
            ranks.insert(Rank(u32::try_from(rank).unwrap_or_default()));
        }
        self.deeds.asked.extend(&ranks);
        self.order(Order::Restart { ranks });
        true
    }

    /// Pauses the runtime, sometimes just before a fault, and resumes it after a while.
    pub(super) fn order_pause(&mut self) -> bool {
        self.order(Order::Pause);
        self.deeds.pending += 1;
        let over = self.now + self.dice.ms(200, 60_000);
        self.queue.push(over, Event::Relief(Relief::Resume));
        if self.dice.chance(500) {
            self.deeds.pending += 1;
            let at = self.now + self.dice.ms(0, 10_000);
            self.queue.push(at, Event::Strike(Strike::Planned(FaultKind::Crash, 0)));
        }
        true
    }

    /// Forbids a strategy for a while, or requires approval for it. A strategy that repairs the job must remain, so
    /// `restart` may require approval, but is not forbidden.
    pub(super) fn order_allow(&mut self) -> bool {
        let names: Vec<Name> = self.supervisor.kernel.status().permissions.into_keys().collect();
        let Some(name) = self.dice.pick(&names).cloned() else { return false };
        let forbids = name != RESTART && name != "exit" && self.dice.chance(400);
        let permission = if forbids { Permission::Never } else { Permission::Ask };
        self.order(Order::Allow { strategies: BTreeMap::from([(name.clone(), permission)]) });
        let over = self.now + self.dice.ms(1_000, 90_000);
        self.queue.push(over, Event::Relief(Relief::Allow(name)));
        if !forbids && self.dice.chance(600) {
            self.order_restart(); // a decision to approve
        }
        true
    }

    /// Gives an order that has to be denied.
    pub(super) fn order_slip(&mut self) -> bool {
        let (node, incident) = (NodeId(Name::new("nowhere")), IncidentId(u64::MAX));
        let no_strategy = BTreeMap::from([(Name::new("nobody"), Permission::Auto)]);
        let slips = [
            Order::Drain { node: node.clone() },
            Order::Uncordon { node },
            Order::Restart { ranks: BTreeSet::from([Rank(0), Rank(u32::MAX)]) },
            Order::Checkpoint,
            Order::Allow { strategies: no_strategy },
            Order::Approve { incident },
            Order::Decline { incident },
        ];
        let slip = self.dice.pick(&slips).cloned().unwrap_or(Order::Checkpoint);
        self.order_as(SLIP, slip);
        true
    }

    /// Reports that a host, or one of its devices, is broken. The job itself shows no sign of it. Often no process runs
    /// on that host, because it is a spare one or was left already.
    pub(super) fn host_broken(&mut self) -> bool {
        if !self.is_up_to_date() || !self.may_lose_a_host() {
            return false;
        }
        let idle = self.idle_hosts();
        let idle = self.dice.pick(&idle).copied().filter(|_| self.dice.chance(300));
        let busy = self.busy_host().filter(|h| self.is_usable(*h));
        let Some(host) = idle.or(busy) else { return false };
        let node = self.fleet.hosts[host].id.clone();
        let domain = match self.dice.chance(500) {
            true => Domain::Device(node.clone(), 3),
            false => Domain::Node(node.clone()),
        };
        let damage = Damage { device: Health::Faulty, ..Damage::default() };
        let suspect = Suspect::certain(domain.clone(), FaultClass::Device, damage);
        let fault = Fault::new(Name::new("health"), self.now, suspect);
        let away_before = self.away_total();
        self.deeds.guilty_hosts.insert(node.clone());
        if idle.is_some() {
            self.supervisor.mailbox.push(crate::kernel::Input::Requested(Request::Fault(Box::new(fault))));
            self.may_readmit(node);
            return true;
        }
        self.deeds.charge(Charge { kind: FaultKind::HostBroken, at: self.now, domain, proc: None, away_before });
        self.operator.broken.insert(node.clone());
        self.supervisor.mailbox.push(crate::kernel::Input::Requested(Request::Fault(Box::new(fault))));
        self.may_readmit(node);
        true
    }

    /// Forbids every strategy that could repair the job: the ordered restart is not done, and the next fault ends the
    /// job.
    pub(super) fn all_forbidden(&mut self) -> bool {
        self.deeds.ending = true;
        let names = self.supervisor.kernel.status().permissions.into_keys();
        let strategies = names.filter(|name| *name != "exit").map(|name| (name, Permission::Never)).collect();
        self.order(Order::Allow { strategies });
        let rank = Rank(u32::try_from(self.dice.below(self.training.seats.len())).unwrap_or_default());
        self.deeds.asked.insert(rank);
        self.order(Order::Restart { ranks: BTreeSet::from([rank]) });
        self.deeds.pending += 1;
        let at = self.now + Duration::from_secs(3);
        self.queue.push(at, Event::Strike(Strike::Planned(FaultKind::Crash, 0)));
        true
    }
}
