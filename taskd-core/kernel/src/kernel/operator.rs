//! Carries out the orders of an operator, or gives the reason for a refusal.
//!
//! It starts and stops nothing by itself: an order that concerns ranks or hosts becomes an incident, and is decided
//! like one.

use super::order::{HoldReason, Order, OrderAccepted, OrderEnvelope, OrderRejected};
use super::order_check::Wish;
use super::{Branch, Effect, Kernel, Life};
use crate::detect::{Evidence, Fault, FaultClass, OPERATOR, Suspect};
use crate::job::{Domain, IncidentId, JobSpec, JobTime, Name, NodeId, Permission, Rank, WallTime};
use crate::recover::Action;
use crate::recover::stages::STOP_MARGIN;
use crate::state::{View, placement};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
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

/// What an operator can set for the runtime: its pause, and the permissions of strategies.
pub(super) struct Controls<'a> {
    pub(super) paused: &'a mut Option<Paused>,
    pub(super) permissions: &'a mut BTreeMap<Name, Permission>,
    pub(super) spec: &'a mut Arc<JobSpec>,
}

impl Controls<'_> {
    /// Sets permissions of strategies that exist.
    fn allow(&mut self, strategies: &BTreeMap<Name, Permission>) -> OrderAccepted {
        self.permissions.extend(strategies.iter().map(|(name, permission)| (name.clone(), *permission)));
        self.apply_permissions();
        taken(format!("{} permissions changed", strategies.len()))
    }

    /// Applies the permissions set by operators over those of the specification.
    pub(super) fn apply_permissions(&mut self) {
        if self.permissions.is_empty() {
            return;
        }
        let mut spec = (**self.spec).clone();
        spec.policy.strategies.extend(self.permissions.clone());
        spec.policy.reasons.retain(|name, _| !self.permissions.contains_key(name)); // from the specification
        *self.spec = Arc::new(spec);
    }

    fn pause(&mut self, at: JobTime, wall: Option<WallTime>, ordered: &OrderEnvelope) -> OrderAccepted {
        let (by, reason) = (ordered.by.clone(), ordered.reason.clone());
        let since = self.paused.get_or_insert(Paused { at, wall, by, reason });
        let when = since.wall.map_or_else(|| since.at.to_string(), |wall| wall.to_string());
        taken(format!("paused since {when} by {}: decisions are logged, and nothing is begun", since.by))
    }

    fn resume(&mut self) -> Result<(), OrderRejected> {
        self.paused.take().map_or_else(|| refused("the runtime is not paused"), |_| Ok(()))
    }
}

impl Kernel {
    pub(super) fn ordered(&mut self, ordered: &OrderEnvelope) {
        let result = self.follow(ordered);
        self.state.counts.branch(if result.is_ok() { Branch::OrderTaken } else { Branch::OrderDenied });
        let (at, wall) = (self.now(), self.wall(self.now()));
        self.state.orders.answered(ordered, at, wall, &result);
        self.outbox().effect(Effect::Reply { order: ordered.id, result });
        if let Order::Stop { grace } = &ordered.order {
            self.stop(&ordered.reason, *grace); // last: no effect follows the end of the job
        }
    }

    fn follow(&mut self, ordered: &OrderEnvelope) -> Result<OrderAccepted, OrderRejected> {
        match &ordered.order {
            Order::Stop { grace } => Ok(self.order_check().stop(*grace)),
            _ if self.state.life.is_ending() => refused("the job is ending"),
            Order::Drain { node } => self.drain(node, ordered),
            Order::Uncordon { node } => self.hosts().uncordon(node),
            Order::Restart { ranks } => {
                let (wishes, text) = self.order_check().restart(ranks)?;
                Ok(self.wish_all(wishes, text, ordered))
            }
            Order::Checkpoint => {
                let (wish, text) = self.order_check().checkpoint()?;
                Ok(self.wish_all(vec![wish], text, ordered))
            }
            Order::Allow { strategies } => {
                self.order_check().exist(strategies.keys())?;
                let taken = self.controls().allow(strategies);
                self.agenda().release(|held| held == HoldReason::AwaitingApproval);
                Ok(taken)
            }
            Order::Pause => {
                let (at, wall) = (self.now(), self.wall(self.now()));
                Ok(self.controls().pause(at, wall, ordered))
            }
            Order::Resume => {
                self.controls().resume()?;
                let held = self.agenda().release(|held| held == HoldReason::Paused);
                Ok(taken(format!("{held} held incidents are decided anew")))
            }
            Order::Approve { incident } => self.agenda().approve(*incident, true),
            Order::Decline { incident } => self.agenda().approve(*incident, false),
            Order::SwitchTrace { kinds } => self.trace_switches().switch(*kinds, ordered),
        }
    }

    /// Stops the job, or shortens a stop in progress.
    pub(super) fn stop(&mut self, reason: &str, grace: Option<Duration>) {
        self.state.counts.branch(Branch::StopRequested);
        match grace {
            Some(grace) if self.state.life.is_ending() && !self.state.view.is_dry_run() => {
                let stop = Action::Stop { procs: self.state.view.alive().collect(), grace, exact: true };
                self.command(None, stop, STOP_MARGIN);
            }
            _ => self.end_as(Life::Stopping, false, &format!("stopped: {reason}"), grace),
        }
    }

    fn drain(&mut self, node: &NodeId, ordered: &OrderEnvelope) -> Result<OrderAccepted, OrderRejected> {
        let here = self.order_check().drain(node)?;
        let is_out = self.state.cordons.contains_key(node);
        if !is_out {
            self.hosts().cordon(node, format!("drained by {}: {}", ordered.by, ordered.reason));
            self.hosts().note_removals(1);
        }
        Ok(match (here, is_out) {
            (0, true) => taken(format!("{node} is drained already")),
            (0, false) => taken(format!("{node} is cordoned: no rank runs there, and none starts there")),
            _ => {
                let wish = Wish::new(Domain::Node(node.clone()));
                self.wish_all(vec![wish], format!("{here} ranks move away from {node}"), ordered)
            }
        })
    }

    /// Makes an operator's requests. The reply names the incident of the last one.
    fn wish_all(&mut self, wishes: Vec<Wish>, text: String, ordered: &OrderEnvelope) -> OrderAccepted {
        let mut incident = None;
        for wish in wishes {
            incident = self.wish(wish, ordered);
        }
        OrderAccepted { incident, text }
    }

    /// Opens or joins an incident for an operator's request. Returns the incident's id.
    fn wish(&mut self, wish: Wish, ordered: &OrderEnvelope) -> Option<IncidentId> {
        let Wish { domain, damage, advice } = wish;
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

    /// Renews the requests to drain a host that a recovery did not fulfil.
    pub(super) fn renew_drains(&mut self, id: IncidentId, touched: &[Domain]) {
        let wishes = self.order_check().unfulfilled_drains(id, touched);
        wishes.into_iter().for_each(|wish| self.found.blame(wish));
    }
}

/// Returns the ranks of the world in force that are placed on a host.
pub(super) fn ranks_on(node: &NodeId, view: &View) -> Vec<Rank> {
    let seats = placement::current(view);
    seats.into_iter().filter(|(_, seat)| seat.node.as_ref() == Some(node)).map(|(rank, _)| rank).collect()
}

pub(super) fn refused<T>(why: impl Into<String>) -> Result<T, OrderRejected> {
    Err(OrderRejected::Refused(why.into()))
}

pub(super) fn taken(text: String) -> OrderAccepted {
    OrderAccepted { incident: None, text }
}
