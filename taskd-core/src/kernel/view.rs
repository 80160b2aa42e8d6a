//! The job as it stands, for plugins: a level, not edges.

use super::Replicas;
use crate::job::{
    Domain, Generation, Incarnation, IncidentId, JobSpec, JobTime, Member, Name, NodeId, ProcId, Rank, Role, World,
};
use crate::launch::{GuardState, GuardStatus, Linked, NodeState, NodeStatus, Phase, Point};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All that a plugin may know: the time, what is wanted, and what is observed.
///
/// It has no lifetime, so that mocks of the traits that take it can be generated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// The time of the input that is being handled.
    pub now: JobTime,
    /// What the user asked for.
    pub spec: Arc<JobSpec>,
    /// The world in force.
    pub world: Arc<World>,
    /// The latest known process of every role.
    pub procs: BTreeMap<Role, Proc>,
    /// The hosts that the launcher lists.
    pub nodes: BTreeMap<NodeId, NodeStatus>,
    /// Whether something is being mended as the input comes: an incident is open whose decision is not held.
    #[serde(default)]
    pub mending: bool,
    /// Which ranks have proved to hold the same state.
    #[serde(default)]
    pub replicas: Replicas,
    /// The guards of the hosts' processes, as the launcher tells of them.
    #[serde(default)]
    pub guards: BTreeMap<NodeId, GuardStatus>,
    /// The strategy on trial: it has put a world in force that keeps processes, and is not through, or so recently that what
    /// fails now may be its doing ([`TRIAL_STEPS`](super::TRIAL_STEPS), [`TRIAL_WITHIN`](super::TRIAL_WITHIN)).
    #[serde(default)]
    pub on_trial: Option<Name>,
    /// The service at which the launcher has ranks meet anew, where it has one.
    #[serde(default)]
    pub meets_at: Option<Name>,
}

/// The latest known process of a role: observed beside wanted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proc {
    /// Which start of the role.
    pub incarnation: Incarnation,
    /// Into which world it was started, or has been taken over.
    pub generation: Generation,
    /// Whether it is meant to run. An exit that was asked for is no fault.
    pub wanted: bool,
    /// The open incident whose recovery has stopped it, and is to start another in its place.
    pub stopped_for: Option<IncidentId>,
    /// Where it runs, once known.
    pub node: Option<NodeId>,
    /// Its process id there, once it runs.
    pub pid: Option<u32>,
    /// Where it is in its life.
    pub phase: Phase,
    /// The last training step that it completed since it was started, as the program counts.
    pub step: Option<u64>,
    /// When that was; its start before the first.
    pub progress_at: JobTime,
    /// The control link to it, while there is one.
    #[serde(default)]
    pub link: Option<Linked>,
    /// Since when it has no control link any more; nothing while there is one, and where there never was.
    #[serde(default)]
    pub unlinked_at: Option<JobTime>,
    /// The guard of its host went while it ran: it ends with its guard, and its end is not its own.
    #[serde(default)]
    pub unguarded: bool,
    /// Whether a step of this rank was seen, of this start or an earlier one: one that runs and steps is then known to train.
    #[serde(default)]
    pub reports_steps: bool,
    /// When its end was told, once it was.
    #[serde(default)]
    pub ended_at: Option<JobTime>,
}

impl Proc {
    /// The last step that it is known to have completed: its exit says that exactly, and a heartbeat is of a while before.
    pub(crate) fn last_step(&self) -> Option<u64> {
        self.phase.exit().and_then(|exit| exit.step).or(self.step)
    }

    /// One of which nothing was told yet, and that nobody wants.
    pub(super) fn pending(incarnation: Incarnation, generation: Generation, why: &str, now: JobTime) -> Proc {
        Proc {
            incarnation,
            generation,
            wanted: false,
            stopped_for: None,
            node: None,
            pid: None,
            phase: Phase::Pending(why.to_owned()),
            step: None,
            progress_at: now,
            link: None,
            unlinked_at: None,
            unguarded: false,
            reports_steps: false,
            ended_at: None,
        }
    }
}

impl View {
    /// The latest known process of a role.
    #[must_use]
    pub fn proc(&self, role: &Role) -> Option<&Proc> {
        self.procs.get(role)
    }

    /// The latest known process of a domain, if it is a process.
    #[must_use]
    pub fn proc_of(&self, domain: &Domain) -> Option<&Proc> {
        match domain {
            Domain::Process(role) => self.procs.get(role),
            _ => None,
        }
    }

    /// Processes that have not exited, wanted or not.
    pub fn alive(&self) -> impl Iterator<Item = ProcId> + '_ {
        let alive = self.procs.iter().filter(|(_, p)| !p.phase.is_exited());
        alive.map(|(role, p)| ProcId { role: role.clone(), incarnation: p.incarnation })
    }

    /// Ranks of the world in force whose process is wanted and runs, as far as is known.
    pub fn training(&self) -> impl Iterator<Item = (Rank, &Proc)> + '_ {
        self.procs.iter().filter_map(|(role, p)| {
            let rank = role.rank()?;
            (p.wanted && p.phase == Phase::Running).then_some((rank, p))
        })
    }

    /// Whether all ranks of the world in force train.
    #[must_use]
    pub fn all_train(&self) -> bool {
        let members = self.world.members();
        self.training().filter(|(rank, _)| members.contains_key(rank)).count() == members.len()
    }

    /// Whether all ranks of the world in force train, and each of them is in its step loop or has completed a step: whoever has not may
    /// still be on its way to where all meet.
    #[must_use]
    pub fn all_have_met(&self) -> bool {
        let is_in = |proc: &Proc| proc.step.is_some() || proc.link.as_ref().is_some_and(|link| link.at == Point::Loop);
        self.all_train() && self.training().all(|(_, proc)| is_in(proc))
    }

    /// Ranks of the world in force whose process was asked to stop, or could not be started, and not replaced since.
    pub fn stopped(&self) -> impl Iterator<Item = Rank> + '_ {
        self.unwanted().map(|(rank, _)| rank)
    }

    /// Ranks of the world in force whose process has ended, and not well.
    pub fn failed(&self) -> impl Iterator<Item = Rank> + '_ {
        let failed = |(rank, member): (&Rank, &Member)| {
            let proc = self.procs.get(&Role::Rank(*rank)).filter(|p| p.incarnation == member.incarnation)?;
            (!proc.phase.termination()?.is_success()).then_some(*rank)
        };
        self.world.members().iter().filter_map(failed)
    }

    /// Services of the job that are not there: stopped, lost, or not started yet. Who starts only some ranks has to leave such a
    /// job to others.
    pub fn missing_services(&self) -> impl Iterator<Item = &Name> + '_ {
        let is_there = |proc: &Proc| proc.wanted && proc.phase.termination().is_none_or(|how| how.is_success());
        let proc = |name: &Name| self.procs.get(&Role::Service(name.clone()));
        self.spec.services.keys().filter(move |name| !proc(name).is_some_and(is_there))
    }

    /// Those of the stopped ones that a recovery of this incident has to start again: no other open incident's recovery will.
    pub fn stopped_for(&self, incident: IncidentId) -> impl Iterator<Item = Rank> + '_ {
        self.unwanted().filter(move |(_, p)| p.stopped_for.is_none_or(|by| by == incident)).map(|(rank, _)| rank)
    }

    fn unwanted(&self) -> impl Iterator<Item = (Rank, &Proc)> + '_ {
        self.world.members().iter().filter_map(|(rank, member)| {
            let proc = self.procs.get(&Role::Rank(*rank))?;
            (proc.incarnation == member.incarnation && !proc.wanted).then_some((*rank, proc))
        })
    }

    /// The number that a plan may give to a new process of `role`.
    ///
    /// Plans are made in the middle of other plans, so counting from the world's members would give one number to two
    /// processes: this counts from the latest process that is known as well.
    #[must_use]
    pub fn next_incarnation(&self, role: &Role) -> Incarnation {
        let member = role.rank().and_then(|rank| self.world.members().get(&rank));
        let latest = self.procs.get(role).map(|p| p.incarnation).max(member.map(|m| m.incarnation));
        latest.unwrap_or_default().next()
    }

    /// The host of a domain, where it has one.
    #[must_use]
    pub fn node_of<'a>(&'a self, domain: &'a Domain) -> Option<&'a NodeId> {
        match domain {
            Domain::Node(node) | Domain::Device(node, _) | Domain::Guard(node) => Some(node),
            Domain::Process(role) => self.procs.get(role)?.node.as_ref(),
            _ => None,
        }
    }

    /// The device of a rank, where the world names one.
    #[must_use]
    pub fn device_of(&self, rank: Rank) -> Option<Domain> {
        let member = self.world.members().get(&rank)?;
        Some(Domain::Device(member.node.clone()?, member.device?))
    }

    /// Whether a host is listed and takes something new.
    #[must_use]
    pub fn is_ready(&self, host: &NodeId) -> bool {
        self.nodes.get(host).is_some_and(|n| n.state == NodeState::Ready)
    }

    /// The same job, in which these hosts take nothing new.
    #[must_use]
    pub fn without(&self, hosts: &BTreeSet<NodeId>) -> Cow<'_, View> {
        if !hosts.iter().any(|host| self.is_ready(host)) {
            return Cow::Borrowed(self);
        }
        let mut without = self.clone();
        for status in without.nodes.values_mut().filter(|n| n.state == NodeState::Ready && hosts.contains(&n.node)) {
            status.state = NodeState::Cordoned;
        }
        Cow::Owned(without)
    }

    /// Whether `inner` is the same as, or a part of, `outer`.
    #[must_use]
    pub fn contains(&self, outer: &Domain, inner: &Domain) -> bool {
        if outer == inner {
            return true;
        }
        if *outer == Domain::Job {
            return !matches!(inner, Domain::Plugin(_)); // a plugin watches the job, it is no part of it
        }
        match (outer, inner) {
            (Domain::Group(group), Domain::Process(Role::Rank(rank))) => self.world.group(group).contains(rank),
            (Domain::Node(node), inner) => self.node_of(inner) == Some(node),
            (Domain::Guard(node), Domain::Process(_)) => self.node_of(inner) == Some(node),
            (Domain::Device(..), Domain::Process(Role::Rank(rank))) => self.device_of(*rank).as_ref() == Some(outer),
            _ => false,
        }
    }

    /// Whether one of the two is a part of the other, or they are the same.
    #[must_use]
    pub fn overlap(&self, a: &Domain, b: &Domain) -> bool {
        self.contains(a, b) || self.contains(b, a)
    }

    /// Hosts whose guard is there and does not answer: nothing can be started or stopped on them until it does.
    pub fn silent_guards(&self) -> impl Iterator<Item = &NodeId> + '_ {
        self.guards.values().filter(|guard| matches!(guard.state, GuardState::Silent(_))).map(|guard| &guard.node)
    }

    /// Hosts on which something new may start.
    pub fn ready_nodes(&self) -> impl Iterator<Item = &NodeId> + '_ {
        self.nodes.values().filter(|n| n.state == NodeState::Ready).map(|n| &n.node)
    }
}
