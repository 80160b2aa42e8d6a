//! Checks an operator's order against the state of the job: what the order would do, or why it is refused.
//!
//! It carries out nothing: that is the part of `operator`.

use super::hosts::Cordon;
use super::incidents::Open;
use super::lifecycle::Life;
use super::operator::{ranks_on, refused, taken};
use super::{OrderAccepted, OrderRejected};
use crate::detect::{Damage, Fault, Health, OPERATOR};
use crate::job::{Domain, IncidentId, Name, NodeId, Rank, Role};
use crate::recover::{DUMP, RecoveryStrategy};
use crate::state::{View, placement};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A request of an operator that becomes a fault of the operator, so that it is decided like an incident.
pub(super) struct Wish {
    pub(super) domain: Domain,
    pub(super) damage: Damage,
    /// The strategy that the operator asks for, if any.
    pub(super) advice: Option<Name>,
}

impl Wish {
    /// Creates a request to leave a domain, with any strategy.
    pub(super) fn new(domain: Domain) -> Wish {
        Wish { domain, damage: Damage::default(), advice: None }
    }
}

/// Checks orders against the state of the job.
pub(super) struct OrderCheck<'a> {
    pub(super) view: &'a View,
    pub(super) life: Life,
    pub(super) incidents: &'a BTreeMap<IncidentId, Open>,
    pub(super) cordons: &'a BTreeMap<NodeId, Cordon>,
    pub(super) strategies: &'a [Box<dyn RecoveryStrategy>],
}

impl OrderCheck<'_> {
    /// Returns the reply to an order to stop the job.
    pub(super) fn stop(&self, grace: Option<Duration>) -> OrderAccepted {
        taken(match (self.view.is_dry_run(), self.life.is_ending(), grace) {
            (true, _, _) => "this runtime ends; the processes that it observes continue".to_owned(),
            (false, true, None) => "the job stops already".to_owned(),
            (false, true, Some(grace)) => {
                format!("the job stops already; processes that run after {grace:?} are killed")
            }
            (false, false, grace) => {
                let grace = grace.unwrap_or(self.view.spec.policy.termination_grace_period);
                format!("the job stops; processes that run after {grace:?} are killed")
            }
        })
    }

    /// Returns the number of ranks that have to move away from a host to drain it.
    ///
    /// # Errors
    /// The reason why the host cannot be drained: for example, no other host has room for its ranks.
    pub(super) fn drain(&self, node: &NodeId) -> Result<usize, OrderRejected> {
        self.must_act()?;
        let view = self.view;
        if !view.nodes.contains_key(node) {
            let known: Vec<String> = view.nodes.keys().map(ToString::to_string).collect();
            return refused(format!("{node} is not a host of this job; its hosts are {}", known.join(", ")));
        }
        let here = ranks_on(node, view).len();
        if here > 0 {
            let broken = self.incidents.values().flat_map(|open| open.incident.broken_hosts());
            let left = broken.chain([node.clone()]).collect(); // broken hosts are left as well, once that is decided
            let without = view.without(&left);
            placement::settle(&without, placement::current(&without)).map_err(OrderRejected::Refused)?;
        }
        Ok(here)
    }

    /// Returns the requests to restart ranks, with the text of the reply.
    ///
    /// # Errors
    /// The reason why a rank cannot be restarted: it does not exist, or is absent.
    pub(super) fn restart(&self, ranks: &BTreeSet<Rank>) -> Result<(Vec<Wish>, String), OrderRejected> {
        self.must_act()?;
        let world = &self.view.world;
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
        if ranks.is_empty() {
            return Ok((vec![Wish::new(Domain::Job)], "all ranks are to be started anew".to_owned()));
        }
        let damage = Damage { process: Health::Faulty, ..Damage::default() };
        let restart = |rank: &Rank| Wish { damage, ..Wish::new(Domain::Process(Role::Rank(*rank))) };
        Ok((ranks.iter().map(restart).collect(), format!("{} ranks are to be started anew", ranks.len())))
    }

    /// Returns the request to save a checkpoint, with the text of the reply.
    ///
    /// # Errors
    /// The reason why no checkpoint can be saved: no strategy does that.
    pub(super) fn checkpoint(&self) -> Result<(Wish, String), OrderRejected> {
        self.must_act()?;
        if let Err(names) = self.has_strategy(&DUMP) {
            return Err(OrderRejected::Unsupported(format!(
                "no strategy of this runtime saves a checkpoint on request: none is named {DUMP} (there are {names})"
            )));
        }
        Ok((Wish { advice: Some(DUMP), ..Wish::new(Domain::Job) }, "a checkpoint is requested".into()))
    }

    /// Returns `Ok` if there are strategies of all these names.
    ///
    /// # Errors
    /// A refusal that names a missing strategy.
    pub(super) fn exist<'n>(&self, names: impl Iterator<Item = &'n Name>) -> Result<(), OrderRejected> {
        for name in names {
            if let Err(names) = self.has_strategy(name) {
                return refused(format!("there is no strategy {name}; the runtime has {names}"));
            }
        }
        Ok(())
    }

    /// Returns the requests to drain a host that a recovery did not fulfil.
    ///
    /// A drain may have been handled together with other faults, and the recovery may have left ranks on the host: then
    /// the drain is requested again, alone. A drain that was alone and that a recovery of that host did not fulfil is
    /// not renewed, or it would be repeated forever.
    pub(super) fn unfulfilled_drains(&self, id: IncidentId, touched: &[Domain]) -> Vec<Fault> {
        let Some(open) = self.incidents.get(&id) else { return Vec::new() };
        let leaves = |fault: &Fault| fault.by == OPERATOR && matches!(fault.primary_suspect().domain, Domain::Node(_));
        let others = !open.incident.faults.iter().all(leaves);
        let is_left = |fault: &&Fault| match &fault.primary_suspect().domain {
            Domain::Node(node) if fault.by == OPERATOR => {
                let passed_over =
                    others || !touched.iter().any(|d| self.view.overlap(d, &fault.primary_suspect().domain));
                passed_over && self.cordons.contains_key(node) && !ranks_on(node, self.view).is_empty()
            }
            _ => false,
        };
        open.incident.faults.iter().filter(is_left).cloned().collect()
    }

    /// Returns `Ok` if there is a strategy of this name; otherwise an error text with the names of all strategies.
    fn has_strategy(&self, name: &Name) -> Result<(), String> {
        let names: Vec<Name> = self.strategies.iter().map(|strategy| strategy.name()).collect();
        let listed = || names.iter().map(Name::as_str).collect::<Vec<_>>().join(", ");
        if names.contains(name) { Ok(()) } else { Err(listed()) }
    }

    fn must_act(&self) -> Result<(), OrderRejected> {
        if self.view.is_dry_run() {
            return refused("this runtime only observes: it starts and stops no process");
        }
        match self.life.is_listing() {
            true => refused("the running processes are not known yet: repeat the order in a moment"),
            false => Ok(()),
        }
    }
}
