//! Orders of an operator: what each does, or why it is not followed.
//!
//! It starts and stops nothing by itself: what an operator wants of ranks or hosts becomes an incident, and is decided like one.

use super::order::{Denial, Held, Order, Ordered, Taken};
use super::{Branch, Kernel};
use crate::detect::{Clue, Damage, Fault, FaultClass, OPERATOR, Sound, Suspect};
use crate::job::{Domain, IncidentId, JobTime, Mode, Name, NodeId, Permission, Rank, Role, WallTime};
use crate::launch::{NodeState, NodeStatus};
use crate::recover::{Action, DUMP, placement};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Since when, by whom and why nothing is acted on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Paused {
    /// Since when.
    pub at: JobTime,
    /// Since when, by the calendar.
    #[serde(default)]
    pub wall: Option<WallTime>,
    /// By whom.
    pub by: Name,
    /// Why.
    pub reason: String,
}

/// A host that is left, whatever its launcher says of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cordon {
    /// Who wants it left, and why.
    pub(super) reason: String,
    /// What the launcher said of it last.
    told: NodeState,
}

impl Kernel {
    pub(super) fn ordered(&mut self, ordered: &Ordered) {
        let result = match self.state.life.is_ending() {
            true => refused("the job is being ended"),
            false => self.follow(ordered),
        };
        self.state.counts.branch(if result.is_ok() { Branch::OrderTaken } else { Branch::OrderDenied });
        let (at, wall) = (self.now(), self.wall(self.now()));
        self.state.orders.answered(ordered, at, wall, &result);
        self.command(None, Action::Reply { order: ordered.id, result }, Duration::MAX);
    }

    fn follow(&mut self, ordered: &Ordered) -> Result<Taken, Denial> {
        match &ordered.order {
            Order::Drain { node } => self.drain(node, ordered),
            Order::Readmit { node } => self.readmit(node),
            Order::Restart { ranks } => self.restart(ranks, ordered),
            Order::Dump => self.dump(ordered),
            Order::Allow { strategies } => self.allow(strategies),
            Order::Pause => Ok(self.pause(ordered)),
            Order::Resume => self.resume(),
            Order::Approve { incident } => self.answer_question(*incident, true),
            Order::Decline { incident } => self.answer_question(*incident, false),
            Order::Switch { kinds } => self.switch_trace(*kinds, ordered),
        }
    }

    fn drain(&mut self, node: &NodeId, ordered: &Ordered) -> Result<Taken, Denial> {
        self.must_act()?;
        let view = &self.state.view;
        if !view.nodes.contains_key(node) {
            let known: Vec<String> = view.nodes.keys().map(ToString::to_string).collect();
            return refused(format!("{node} is no host of this job, which has {}", known.join(", ")));
        }
        let here = self.ranks_on(node).len();
        let is_out = self.state.cordons.contains_key(node);
        if is_out && here == 0 {
            return Ok(taken(format!("{node} is left already")));
        }
        if here > 0 {
            let broken = self.state.incidents.values().flat_map(|open| open.incident.broken_hosts());
            let left = broken.chain([node.clone()]).collect(); // those are to be left as well, as soon as it is decided
            let without = view.without(&left);
            placement::settle(&without, placement::current(&without)).map_err(Denial::Refused)?;
        }
        if !is_out {
            self.cordon(node, format!("drained by {}: {}", ordered.by, ordered.reason));
            self.note_removals(1);
        }
        if here == 0 {
            return Ok(taken(format!("nothing runs on {node}, and nothing new starts there")));
        }
        let incident = self.wish(Domain::Node(node.clone()), Damage::default(), None, ordered);
        Ok(Taken { incident, text: format!("{here} ranks leave {node}") })
    }

    fn readmit(&mut self, node: &NodeId) -> Result<Taken, Denial> {
        let Some(cordon) = self.state.cordons.remove(node) else {
            return refused(format!("{node} was not drained, nor taken out by a recovery"));
        };
        if let Some(status) = self.state.view.nodes.get_mut(node) {
            status.state = cordon.told;
        }
        Ok(taken(format!("{node} is used again when something is to be placed ({})", cordon.reason)))
    }

    fn restart(&mut self, ranks: &BTreeSet<Rank>, ordered: &Ordered) -> Result<Taken, Denial> {
        self.must_act()?;
        let world = &self.state.view.world;
        let members = world.members();
        if let Some(rank) = ranks.iter().find(|rank| world.absent().contains_key(rank)) {
            return refused(format!(
                "{rank} has left the world, which has shrunk; it starts when that grows, or all start again"
            ));
        }
        if let Some(unknown) = ranks.iter().find(|rank| !members.contains_key(rank)) {
            return refused(format!(
                "there is no {unknown}: the job has ranks 0 to {}",
                world.places().count().saturating_sub(1)
            ));
        }
        let replace = Damage { process: Sound::No, ..Damage::default() };
        let mut incident = None;
        for rank in ranks {
            incident = self.wish(Domain::Process(Role::Rank(*rank)), replace, None, ordered);
        }
        if ranks.is_empty() {
            incident = self.wish(Domain::Job, Damage::default(), None, ordered);
        }
        let whom = if ranks.is_empty() { "all".to_owned() } else { ranks.len().to_string() };
        Ok(Taken { incident, text: format!("{whom} ranks are to be started anew") })
    }

    fn dump(&mut self, ordered: &Ordered) -> Result<Taken, Denial> {
        self.must_act()?;
        if let Err(names) = self.has_strategy(&DUMP) {
            return Err(Denial::Unsupported(format!(
                "no strategy of this runtime saves a checkpoint on request: none is named {DUMP} (there are {names})"
            )));
        }
        let incident = self.wish(Domain::Job, Damage::default(), Some(DUMP), ordered);
        Ok(Taken { incident, text: "a checkpoint is asked for".into() })
    }

    fn allow(&mut self, strategies: &BTreeMap<Name, Permission>) -> Result<Taken, Denial> {
        for name in strategies.keys() {
            if let Err(names) = self.has_strategy(name) {
                return refused(format!("there is no strategy {name}: there are {names}"));
            }
        }
        self.state.permissions.extend(strategies.iter().map(|(name, permission)| (name.clone(), *permission)));
        self.apply_permissions();
        self.release(|held| held == Held::Asking);
        Ok(taken(format!("{} permissions changed", strategies.len())))
    }

    /// Whether there is such a strategy; if not, which there are.
    fn has_strategy(&self, name: &Name) -> Result<(), String> {
        let names: Vec<Name> = self.strategies.iter().map(|strategy| strategy.name()).collect();
        let listed = || names.iter().map(Name::as_str).collect::<Vec<_>>().join(", ");
        if names.contains(name) { Ok(()) } else { Err(listed()) }
    }

    /// Puts what operators have allowed and forbidden over what the specification says.
    pub(super) fn apply_permissions(&mut self) {
        if self.state.permissions.is_empty() {
            return;
        }
        let mut spec = (*self.state.view.spec).clone();
        spec.policy.strategies.extend(self.state.permissions.clone());
        spec.policy.reasons.retain(|name, _| !self.state.permissions.contains_key(name)); // it was the specification's
        self.state.view.spec = Arc::new(spec);
    }

    fn pause(&mut self, ordered: &Ordered) -> Taken {
        let (at, wall) = (self.now(), self.wall(self.now()));
        let (by, reason) = (ordered.by.clone(), ordered.reason.clone());
        let since = self.state.paused.get_or_insert(Paused { at, wall, by, reason });
        let when = since.wall.map_or_else(|| since.at.to_string(), |wall| wall.to_string());
        taken(format!("paused since {when} by {}: decisions are logged, and nothing is begun", since.by))
    }

    fn resume(&mut self) -> Result<Taken, Denial> {
        if self.state.paused.take().is_none() {
            return refused("it is not paused");
        }
        let held = self.release(|held| held == Held::Paused);
        Ok(taken(format!("{held} held incidents are decided anew")))
    }

    fn answer_question(&mut self, id: IncidentId, yes: bool) -> Result<Taken, Denial> {
        let now = self.now();
        let Some(open) = self.state.incidents.get_mut(&id) else { return refused(format!("{id} is not open")) };
        let hold = open.held.take_if(|hold| hold.why == Held::Asking);
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
        Ok(Taken { incident: Some(id), text })
    }

    /// Decides anew what is held for such a reason; how many incidents that is.
    pub(super) fn release(&mut self, such: impl Fn(Held) -> bool) -> usize {
        let now = self.now();
        let held = self.state.incidents.values_mut().filter(|o| o.held.as_ref().is_some_and(|h| such(h.why)));
        held.map(|open| (open.held, open.decide_at) = (None, Some(now))).count()
    }

    /// Makes an incident of what an operator wants.
    fn wish(&mut self, domain: Domain, damage: Damage, advice: Option<Name>, ordered: &Ordered) -> Option<IncidentId> {
        let suspect = Suspect::certain(domain.clone(), FaultClass::Leave, damage);
        let clue = Clue::text("order", format!("{} asks for it: {}", ordered.by, ordered.reason));
        let mut fault = Fault::new(OPERATOR, self.now(), suspect).because(clue);
        fault.advice = advice;
        self.found.blame(fault);
        self.take_findings();
        let is_it = |f: &Fault| f.by == OPERATOR && f.prime().domain == domain;
        let open = self.state.incidents.values().rfind(|open| open.incident.faults.iter().any(is_it));
        open.map(|open| open.incident.id)
    }

    fn must_act(&self) -> Result<(), Denial> {
        if self.observes() {
            return refused("this runtime only observes: it starts and stops nothing");
        }
        match self.state.life.is_listing() {
            true => refused("what runs already is not known yet: order it again in a moment"),
            false => Ok(()),
        }
    }

    /// Whether it only says what it would do.
    pub(super) fn observes(&self) -> bool {
        self.state.view.spec.policy.mode == Mode::Observe
    }

    /// A recovery has mended what came together with a wish to leave a host, and may have left that as it was: then it is taken
    /// up again, by itself. One that was alone and is still not granted by who has touched it would come back for ever.
    pub(super) fn renew_drains(&mut self, id: IncidentId, touched: &[Domain]) {
        let Some(open) = self.state.incidents.get(&id) else { return };
        let leaves = |fault: &Fault| fault.by == OPERATOR && matches!(fault.prime().domain, Domain::Node(_));
        let others = !open.incident.faults.iter().all(leaves);
        let is_left = |fault: &&Fault| match &fault.prime().domain {
            Domain::Node(node) if fault.by == OPERATOR => {
                let passed_over = others || !touched.iter().any(|d| self.state.view.overlap(d, &fault.prime().domain));
                passed_over && self.state.cordons.contains_key(node) && !self.ranks_on(node).is_empty()
            }
            _ => false,
        };
        let wishes: Vec<Fault> = open.incident.faults.iter().filter(is_left).cloned().collect();
        wishes.into_iter().for_each(|wish| self.found.blame(wish));
    }

    /// Ranks of the world in force that sit on a host.
    pub(super) fn ranks_on(&self, node: &NodeId) -> Vec<Rank> {
        let seats = placement::current(&self.state.view);
        seats.into_iter().filter(|(_, seat)| seat.node.as_ref() == Some(node)).map(|(rank, _)| rank).collect()
    }

    /// Takes a host out: nothing new starts there from now on.
    pub(super) fn cordon(&mut self, node: &NodeId, reason: String) {
        self.state.counts.branch(Branch::Cordoned);
        let told = self.state.view.nodes.get(node).map_or(NodeState::Ready, |status| status.state);
        self.state.cordons.entry(node.clone()).or_insert(Cordon { reason, told });
        if let Some(status) = self.state.view.nodes.get_mut(node).filter(|s| s.state == NodeState::Ready) {
            status.state = NodeState::Cordoned;
        }
    }

    /// Takes what the launcher says of a host, under what was decided about it.
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

pub(super) fn refused<T>(why: impl Into<String>) -> Result<T, Denial> {
    Err(Denial::Refused(why.into()))
}

pub(super) fn taken(text: String) -> Taken {
    Taken { incident: None, text }
}
