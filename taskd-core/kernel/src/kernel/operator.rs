//! Carries out the orders of an operator, or gives the reason for a refusal.
//!
//! It starts and stops nothing by itself: an order that concerns ranks or hosts becomes an incident, and is decided
//! like one.

use super::order::{HoldReason, Order, OrderAccepted, OrderEnvelope, OrderRejected};
use super::{Branch, Effect, Kernel, Life};
use crate::detect::{Damage, Evidence, Fault, FaultClass, Health, OPERATOR, Suspect};
use crate::job::{Domain, IncidentId, JobTime, Mode, Name, NodeId, Permission, Rank, Role, WallTime};
use crate::recover::stages::STOP_MARGIN;
use crate::recover::{Action, DUMP};
use crate::state::{NodeState, NodeStatus, placement};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Pause of the runtime by an operator: since when, by whose order, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Paused {
    /// Job time at which the pause began.
    pub at: JobTime,
    /// Wall-clock time at which the pause began, if known.
    #[serde(default)]
    pub wall: Option<WallTime>,
    /// Name of the operator that ordered the pause.
    pub by: Name,
    /// Reason that the operator gave for the pause.
    pub reason: String,
}

/// A host that is not used, whatever state its launcher reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cordon {
    /// Operator or detector that took the host out, and the reason.
    pub(super) reason: String,
    /// State that the launcher last reported for the host.
    told: NodeState,
}

impl Kernel {
    pub(super) fn ordered(&mut self, ordered: &OrderEnvelope) {
        let result = self.follow(ordered);
        self.state.counts.branch(if result.is_ok() { Branch::OrderTaken } else { Branch::OrderDenied });
        let (at, wall) = (self.now(), self.wall(self.now()));
        self.state.orders.answered(ordered, at, wall, &result);
        self.effect(None, Effect::Reply { order: ordered.id, result });
        if let Order::Stop { grace } = &ordered.order {
            self.stop(&ordered.reason, *grace); // last: no effect follows the end of the job
        }
    }

    fn follow(&mut self, ordered: &OrderEnvelope) -> Result<OrderAccepted, OrderRejected> {
        match &ordered.order {
            Order::Stop { grace } => Ok(self.answer_to_stop(*grace)),
            _ if self.state.life.is_ending() => refused("the job is ending"),
            Order::Drain { node } => self.drain(node, ordered),
            Order::Uncordon { node } => self.readmit(node),
            Order::Restart { ranks } => self.restart(ranks, ordered),
            Order::Checkpoint => self.dump(ordered),
            Order::Allow { strategies } => self.allow(strategies),
            Order::Pause => Ok(self.pause(ordered)),
            Order::Resume => self.resume(),
            Order::Approve { incident } => self.answer_question(*incident, true),
            Order::Decline { incident } => self.answer_question(*incident, false),
            Order::SwitchTrace { kinds } => self.switch_trace(*kinds, ordered),
        }
    }

    /// Stops the job, or shortens a stop in progress.
    pub(super) fn stop(&mut self, reason: &str, grace: Option<Duration>) {
        self.state.counts.branch(Branch::StopRequested);
        match grace {
            Some(grace) if self.state.life.is_ending() && !self.observes() => {
                let stop = Action::Stop { procs: self.state.view.alive().collect(), grace, exact: true };
                self.command(None, stop, STOP_MARGIN);
            }
            _ => self.end_as(Life::Stopping, false, &format!("stopped: {reason}"), grace),
        }
    }

    fn answer_to_stop(&self, grace: Option<Duration>) -> OrderAccepted {
        taken(match (self.observes(), self.state.life.is_ending(), grace) {
            (true, _, _) => "this runtime ends; the processes that it observes continue".to_owned(),
            (false, true, None) => "the job stops already".to_owned(),
            (false, true, Some(grace)) => {
                format!("the job stops already; processes that run after {grace:?} are killed")
            }
            (false, false, grace) => {
                let grace = grace.unwrap_or(self.state.view.spec.policy.termination_grace_period);
                format!("the job stops; processes that run after {grace:?} are killed")
            }
        })
    }

    fn drain(&mut self, node: &NodeId, ordered: &OrderEnvelope) -> Result<OrderAccepted, OrderRejected> {
        self.must_act()?;
        let view = &self.state.view;
        if !view.nodes.contains_key(node) {
            let known: Vec<String> = view.nodes.keys().map(ToString::to_string).collect();
            return refused(format!("{node} is not a host of this job; its hosts are {}", known.join(", ")));
        }
        let here = self.ranks_on(node).len();
        let is_out = self.state.cordons.contains_key(node);
        if is_out && here == 0 {
            return Ok(taken(format!("{node} is drained already")));
        }
        if here > 0 {
            let broken = self.state.incidents.values().flat_map(|open| open.incident.broken_hosts());
            let left = broken.chain([node.clone()]).collect(); // broken hosts are left as well, once that is decided
            let without = view.without(&left);
            placement::settle(&without, placement::current(&without)).map_err(OrderRejected::Refused)?;
        }
        if !is_out {
            self.cordon(node, format!("drained by {}: {}", ordered.by, ordered.reason));
            self.note_removals(1);
        }
        if here == 0 {
            return Ok(taken(format!("{node} is cordoned: no rank runs there, and none starts there")));
        }
        let incident = self.wish(Domain::Node(node.clone()), Damage::default(), None, ordered);
        Ok(OrderAccepted { incident, text: format!("{here} ranks move away from {node}") })
    }

    fn readmit(&mut self, node: &NodeId) -> Result<OrderAccepted, OrderRejected> {
        let Some(cordon) = self.state.cordons.remove(node) else {
            return refused(format!("{node} was not drained, nor taken out by a recovery"));
        };
        if let Some(status) = self.state.view.nodes.get_mut(node) {
            status.state = cordon.told;
        }
        Ok(taken(format!("{node} takes processes again; reason of the cordon: {}", cordon.reason)))
    }

    fn restart(&mut self, ranks: &BTreeSet<Rank>, ordered: &OrderEnvelope) -> Result<OrderAccepted, OrderRejected> {
        self.must_act()?;
        let world = &self.state.view.world;
        let members = world.members();
        if let Some(rank) = ranks.iter().find(|rank| world.absent().contains_key(rank)) {
            return refused(format!(
                "{rank} is absent from the shrunk world; it starts when the world grows or all ranks restart"
            ));
        }
        if let Some(unknown) = ranks.iter().find(|rank| !members.contains_key(rank)) {
            return refused(format!(
                "there is no {unknown}: the job has ranks 0 to {}",
                world.places().count().saturating_sub(1)
            ));
        }
        let replace = Damage { process: Health::Faulty, ..Damage::default() };
        let mut incident = None;
        for rank in ranks {
            incident = self.wish(Domain::Process(Role::Rank(*rank)), replace, None, ordered);
        }
        if ranks.is_empty() {
            incident = self.wish(Domain::Job, Damage::default(), None, ordered);
        }
        let whom = if ranks.is_empty() { "all".to_owned() } else { ranks.len().to_string() };
        Ok(OrderAccepted { incident, text: format!("{whom} ranks are to be started anew") })
    }

    fn dump(&mut self, ordered: &OrderEnvelope) -> Result<OrderAccepted, OrderRejected> {
        self.must_act()?;
        if let Err(names) = self.has_strategy(&DUMP) {
            return Err(OrderRejected::Unsupported(format!(
                "no strategy of this runtime saves a checkpoint on request: none is named {DUMP} (there are {names})"
            )));
        }
        let incident = self.wish(Domain::Job, Damage::default(), Some(DUMP), ordered);
        Ok(OrderAccepted { incident, text: "a checkpoint is requested".into() })
    }

    fn allow(&mut self, strategies: &BTreeMap<Name, Permission>) -> Result<OrderAccepted, OrderRejected> {
        for name in strategies.keys() {
            if let Err(names) = self.has_strategy(name) {
                return refused(format!("there is no strategy {name}; the runtime has {names}"));
            }
        }
        self.state.permissions.extend(strategies.iter().map(|(name, permission)| (name.clone(), *permission)));
        self.apply_permissions();
        self.release(|held| held == HoldReason::AwaitingApproval);
        Ok(taken(format!("{} permissions changed", strategies.len())))
    }

    /// Returns `Ok` if there is a strategy of this name; otherwise an error text with the names of all strategies.
    fn has_strategy(&self, name: &Name) -> Result<(), String> {
        let names: Vec<Name> = self.strategies.iter().map(|strategy| strategy.name()).collect();
        let listed = || names.iter().map(Name::as_str).collect::<Vec<_>>().join(", ");
        if names.contains(name) { Ok(()) } else { Err(listed()) }
    }

    /// Applies the permissions set by operators over those of the specification.
    pub(super) fn apply_permissions(&mut self) {
        if self.state.permissions.is_empty() {
            return;
        }
        let mut spec = (*self.state.view.spec).clone();
        spec.policy.strategies.extend(self.state.permissions.clone());
        spec.policy.reasons.retain(|name, _| !self.state.permissions.contains_key(name)); // from the specification
        self.state.view.spec = Arc::new(spec);
    }

    fn pause(&mut self, ordered: &OrderEnvelope) -> OrderAccepted {
        let (at, wall) = (self.now(), self.wall(self.now()));
        let (by, reason) = (ordered.by.clone(), ordered.reason.clone());
        let since = self.state.paused.get_or_insert(Paused { at, wall, by, reason });
        let when = since.wall.map_or_else(|| since.at.to_string(), |wall| wall.to_string());
        taken(format!("paused since {when} by {}: decisions are logged, and nothing is begun", since.by))
    }

    fn resume(&mut self) -> Result<OrderAccepted, OrderRejected> {
        if self.state.paused.take().is_none() {
            return refused("the runtime is not paused");
        }
        let held = self.release(|held| held == HoldReason::Paused);
        Ok(taken(format!("{held} held incidents are decided anew")))
    }

    fn answer_question(&mut self, id: IncidentId, yes: bool) -> Result<OrderAccepted, OrderRejected> {
        let now = self.now();
        let Some(open) = self.state.incidents.get_mut(&id) else { return refused(format!("{id} is not open")) };
        let hold = open.held.take_if(|hold| hold.why == HoldReason::AwaitingApproval);
        let Some(chosen) = hold.and_then(|hold| hold.chosen) else {
            return refused(format!("{id} does not wait for an approval"));
        };
        open.decide_at = Some(now);
        let strategy = chosen.strategy;
        let text = format!("{strategy} is {}", if yes { "approved" } else { "declined" });
        match yes {
            true => open.approved.insert(strategy),
            false => open.declined.insert(strategy),
        };
        self.state.counts.branch(if yes { Branch::Approved } else { Branch::Declined });
        Ok(OrderAccepted { incident: Some(id), text })
    }

    /// Marks the incidents that are held for such a reason to be decided again. Returns their number.
    pub(super) fn release(&mut self, such: impl Fn(HoldReason) -> bool) -> usize {
        let now = self.now();
        let held = self.state.incidents.values_mut().filter(|o| o.held.as_ref().is_some_and(|h| such(h.why)));
        held.map(|open| (open.held, open.decide_at) = (None, Some(now))).count()
    }

    /// Opens or joins an incident for an operator's request. Returns the incident's id.
    fn wish(
        &mut self,
        domain: Domain,
        damage: Damage,
        advice: Option<Name>,
        ordered: &OrderEnvelope,
    ) -> Option<IncidentId> {
        let suspect = Suspect::certain(domain.clone(), FaultClass::Leave, damage);
        let clue = Evidence::text("order", format!("{} asks for it: {}", ordered.by, ordered.reason));
        let mut fault = Fault::new(OPERATOR, self.now(), suspect).with_evidence(clue);
        fault.advice = advice;
        self.found.blame(fault);
        self.take_findings();
        let is_it = |f: &Fault| f.by == OPERATOR && f.primary_suspect().domain == domain;
        let open = self.state.incidents.values().rfind(|open| open.incident.faults.iter().any(is_it));
        open.map(|open| open.incident.id)
    }

    fn must_act(&self) -> Result<(), OrderRejected> {
        if self.observes() {
            return refused("this runtime only observes: it starts and stops no process");
        }
        match self.state.life.is_listing() {
            true => refused("the running processes are not known yet: repeat the order in a moment"),
            false => Ok(()),
        }
    }

    /// Returns true if the runtime only observes and reports what it would do.
    pub(super) fn observes(&self) -> bool {
        self.state.view.spec.policy.mode == Mode::DryRun
    }

    /// Renews the requests to drain a host that a recovery did not fulfil.
    ///
    /// A drain may have been handled together with other faults, and the recovery may have left ranks on the host: then
    /// the drain is requested again, alone. A drain that was alone and that a recovery of that host did not fulfil is
    /// not renewed, or it would be repeated forever.
    pub(super) fn renew_drains(&mut self, id: IncidentId, touched: &[Domain]) {
        let Some(open) = self.state.incidents.get(&id) else { return };
        let leaves = |fault: &Fault| fault.by == OPERATOR && matches!(fault.primary_suspect().domain, Domain::Node(_));
        let others = !open.incident.faults.iter().all(leaves);
        let is_left = |fault: &&Fault| match &fault.primary_suspect().domain {
            Domain::Node(node) if fault.by == OPERATOR => {
                let passed_over =
                    others || !touched.iter().any(|d| self.state.view.overlap(d, &fault.primary_suspect().domain));
                passed_over && self.state.cordons.contains_key(node) && !self.ranks_on(node).is_empty()
            }
            _ => false,
        };
        let wishes: Vec<Fault> = open.incident.faults.iter().filter(is_left).cloned().collect();
        wishes.into_iter().for_each(|wish| self.found.blame(wish));
    }

    /// Returns the ranks of the world in force that are placed on a host.
    pub(super) fn ranks_on(&self, node: &NodeId) -> Vec<Rank> {
        let seats = placement::current(&self.state.view);
        seats.into_iter().filter(|(_, seat)| seat.node.as_ref() == Some(node)).map(|(rank, _)| rank).collect()
    }

    /// Cordons a host: no new process starts there from now on.
    pub(super) fn cordon(&mut self, node: &NodeId, reason: String) {
        self.state.counts.branch(Branch::Cordoned);
        let told = self.state.view.nodes.get(node).map_or(NodeState::Ready, |status| status.state);
        self.state.cordons.entry(node.clone()).or_insert(Cordon { reason, told });
        if let Some(status) = self.state.view.nodes.get_mut(node).filter(|s| s.state == NodeState::Ready) {
            status.state = NodeState::Cordoned;
        }
    }

    /// Records the state of a host that the launcher reported. A cordon takes precedence over a ready state.
    pub(super) fn note_node(&mut self, status: &NodeStatus) {
        let mut status = status.clone();
        if let Some(cordon) = self.state.cordons.get_mut(&status.node) {
            cordon.told = status.state;
            if status.state == NodeState::Ready {
                status.state = NodeState::Cordoned;
            }
        }
        self.state.view.nodes.insert(status.node.clone(), status);
    }
}

pub(super) fn refused<T>(why: impl Into<String>) -> Result<T, OrderRejected> {
    Err(OrderRejected::Refused(why.into()))
}

pub(super) fn taken(text: String) -> OrderAccepted {
    OrderAccepted { incident: None, text }
}
