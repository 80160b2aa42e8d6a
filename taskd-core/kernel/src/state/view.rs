//! [`View`]: the current state of the job, as plugins read it. It holds a state (levels), not a history of changes
//! (edges).

use super::{HostHistory, Replicas};
use crate::job::{
    Domain, Generation, Incarnation, IncidentId, JobSpec, JobTime, Member, Name, NodeId, ProcId, Rank, Role, WallTime,
    World,
};
use crate::state::{ControlLink, GuardState, GuardStatus, LoopPosition, NodeState, NodeStatus, Phase};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// State of the job that a plugin may read: current time, specification, world in force, and observed processes and
/// hosts.
///
/// The type has no lifetime parameter, so that mocks of the traits that take it can be generated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct View {
    /// Job time of the input that the kernel is handling.
    pub now: JobTime,
    /// The job specification, as the user submitted it.
    pub spec: Arc<JobSpec>,
    /// World in force: the current set of ranks, each with its process.
    pub world: Arc<World>,
    /// The latest known process of every role (rank or service).
    pub procs: BTreeMap<Role, Proc>,
    /// Hosts that the launcher lists, with their status.
    pub nodes: BTreeMap<NodeId, NodeStatus>,
    /// True if at least one open incident is not held: the incident waits for its decision, or its recovery is in
    /// progress. An incident is held if its decision is not carried out for now, for example until an operator approves
    /// it.
    #[serde(default)]
    pub mending: bool,
    /// Result of comparing the ranks' checksums: which ranks have proved that they hold the same training state.
    #[serde(default)]
    pub replicas: Replicas,
    /// Status of the guard (the process that is the parent of all ranks of a host), by host, as the launcher last
    /// reported it.
    #[serde(default)]
    pub guards: BTreeMap<NodeId, GuardStatus>,
    /// Name of the recovery strategy on trial, if there is one.
    ///
    /// The trial begins when the strategy's recovery puts a world in force in which processes keep running. It ends
    /// when [`TRIAL_WITHIN`](crate::kernel::TRIAL_WITHIN) and, if steps are reported,
    /// [`TRIAL_STEPS`](crate::kernel::TRIAL_STEPS) steps have passed since the end of the recovery. The recovery may be
    /// the cause of a failure during the trial.
    #[serde(default)]
    pub on_trial: Option<Name>,
    /// Name of the rendezvous service that the launcher provides, if it provides one. Surviving ranks rejoin at this
    /// service.
    #[serde(default)]
    #[serde(alias = "meets_at")]
    pub rendezvous_service: Option<Name>,
    /// Incidents of hosts in earlier jobs and in this one. `None` if the job has no such history: then none of its own
    /// incidents is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_history: Option<Arc<HostHistory>>,
    /// Wall-clock time of [`now`](View::now), for texts and the scores of hosts. `None` without `host_history`, and
    /// before the first [`Input::WallClock`](crate::kernel::Input::WallClock).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall: Option<WallTime>,
}

/// Entry of [`View::procs`] for one role (rank or service): the desired and observed state of the latest known process
/// of this role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Proc {
    /// Incarnation (start number) of the process.
    pub incarnation: Incarnation,
    /// Generation of the world that the process was started into or carried over into.
    pub generation: Generation,
    /// True if the kernel wants the process to run. False, for example, after the kernel has ordered its stop: the exit
    /// of the process is then not a fault.
    pub wanted: bool,
    /// Id of the open incident whose recovery stopped this process and has to start a replacement.
    pub stopped_for: Option<IncidentId>,
    /// Host on which the process runs or is to run, once known.
    pub node: Option<NodeId>,
    /// Process id on its host, once the process runs.
    pub pid: Option<u32>,
    /// Phase of the process in its life cycle, for example pending, running or exited.
    pub phase: Phase,
    /// Number of the last training step that this process has completed, as its training program counts steps. `None`:
    /// no step is known.
    pub step: Option<u64>,
    /// Job time at which `step` was observed. Before the first step: the time at which the process began to run, or,
    /// before that, at which this entry was created.
    pub progress_at: JobTime,
    /// Last reported state of the control link to the process; `None` while no link is open.
    #[serde(default)]
    pub link: Option<ControlLink>,
    /// Job time at which the control link closed, if the process may still run. `None` while the link is open, if there
    /// never was one, and once the process has ended.
    #[serde(default)]
    pub unlinked_at: Option<JobTime>,
    /// True if the guard of the process's host was lost while the process ran. The process ends with its guard, so the
    /// exit of the process is not its own failure.
    #[serde(default)]
    pub unguarded: bool,
    /// True if a completed step of this or an earlier incarnation of the rank was observed. If true, only a completed
    /// step shows that the rank trains.
    #[serde(default)]
    pub reports_steps: bool,
    /// Job time at which the end of the process was first reported.
    #[serde(default)]
    pub ended_at: Option<JobTime>,
}

impl Proc {
    /// Creates the entry for a process whose start the kernel has ordered at job time `now`. The kernel wants the
    /// process to run, it is [pending](Phase::Pending), and nothing has been reported about it.
    #[must_use]
    pub fn ordered(incarnation: Incarnation, generation: Generation, now: JobTime) -> Proc {
        Proc { wanted: true, ..Proc::pending(incarnation, generation, "ordered", now) }
    }

    /// Last step known to be completed: that of the exit record, else that of the last heartbeat, which may be older.
    pub(crate) fn last_step(&self) -> Option<u64> {
        self.phase.exit().and_then(|exit| exit.step).or(self.step)
    }

    /// Creates the entry for a process that the kernel does not want to run and about which nothing has been reported.
    /// `why` is the reason in its phase, [`Phase::Pending`]; `now` is the job time at which the entry is created.
    pub(crate) fn pending(incarnation: Incarnation, generation: Generation, why: &str, now: JobTime) -> Proc {
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
    /// Creates the view of a job of which neither processes nor hosts are known.
    #[must_use]
    pub fn new(now: JobTime, spec: Arc<JobSpec>, world: Arc<World>) -> View {
        View {
            now,
            spec,
            world,
            procs: BTreeMap::new(),
            nodes: BTreeMap::new(),
            mending: false,
            replicas: Replicas::default(),
            guards: BTreeMap::new(),
            on_trial: None,
            rendezvous_service: None,
            host_history: None,
            wall: None,
        }
    }

    /// Returns the latest known process of a role (rank or service).
    #[must_use]
    pub fn proc(&self, role: &Role) -> Option<&Proc> {
        self.procs.get(role)
    }

    /// Returns the latest known process of a domain, or `None` if the domain is not a process.
    #[must_use]
    pub fn proc_of(&self, domain: &Domain) -> Option<&Proc> {
        match domain {
            Domain::Process(role) => self.procs.get(role),
            _ => None,
        }
    }

    /// Returns the identifiers of the processes that have not exited, including those that are not meant to run.
    pub fn alive(&self) -> impl Iterator<Item = ProcId> + '_ {
        let alive = self.procs.iter().filter(|(_, p)| !p.phase.is_exited());
        alive.map(|(role, p)| ProcId { role: role.clone(), incarnation: p.incarnation })
    }

    /// Returns the ranks whose process is meant to run and was last reported as running.
    pub fn training(&self) -> impl Iterator<Item = (Rank, &Proc)> + '_ {
        self.procs.iter().filter_map(|(role, p)| {
            let rank = role.rank()?;
            (p.wanted && p.phase == Phase::Running).then_some((rank, p))
        })
    }

    /// Returns true if the processes of all ranks of the world in force are meant to run and were last reported as
    /// running.
    #[must_use]
    pub fn all_train(&self) -> bool {
        let members = self.world.members();
        self.training().filter(|(rank, _)| members.contains_key(rank)).count() == members.len()
    }

    /// Returns true if all ranks of the world in force are training and have joined.
    ///
    /// A rank has joined if it is in its step loop or has completed a step. A rank that has done neither may still be
    /// on its way to the rendezvous.
    #[must_use]
    pub fn all_have_joined(&self) -> bool {
        let is_in = |proc: &Proc| {
            proc.step.is_some() || proc.link.as_ref().is_some_and(|link| link.position == LoopPosition::InLoop)
        };
        self.all_train() && self.training().all(|(_, proc)| is_in(proc))
    }

    /// Returns the ranks of the world in force whose process the kernel does not want to run and has not replaced.
    ///
    /// That is, the kernel ordered the stop of the process, or the launcher could not start it.
    pub fn stopped(&self) -> impl Iterator<Item = Rank> + '_ {
        self.unwanted().map(|(rank, _)| rank)
    }

    /// Returns the ranks of the world in force whose process ended unsuccessfully.
    pub fn failed(&self) -> impl Iterator<Item = Rank> + '_ {
        let failed = |(rank, member): (&Rank, &Member)| {
            let proc = self.procs.get(&Role::Rank(*rank)).filter(|p| p.incarnation == member.incarnation)?;
            (!proc.phase.termination()?.is_success()).then_some(*rank)
        };
        self.world.members().iter().filter_map(failed)
    }

    /// Returns the services of the job that are missing: stopped, lost, or not started yet. If a service is missing, a
    /// strategy that starts only some of the ranks must leave the recovery to another strategy.
    pub fn missing_services(&self) -> impl Iterator<Item = &Name> + '_ {
        let is_there = |proc: &Proc| proc.wanted && proc.phase.termination().is_none_or(|how| how.is_success());
        let proc = |name: &Name| self.procs.get(&Role::Service(name.clone()));
        self.spec.services.keys().filter(move |name| !proc(name).is_some_and(is_there))
    }

    /// Returns the [stopped](View::stopped) ranks that a recovery of `incident` has to start again. Ranks that the
    /// recovery of another open incident will start are excluded.
    pub fn stopped_for(&self, incident: IncidentId) -> impl Iterator<Item = Rank> + '_ {
        self.unwanted().filter(move |(_, p)| p.stopped_for.is_none_or(|by| by == incident)).map(|(rank, _)| rank)
    }

    fn unwanted(&self) -> impl Iterator<Item = (Rank, &Proc)> + '_ {
        self.world.members().iter().filter_map(|(rank, member)| {
            let proc = self.procs.get(&Role::Rank(*rank))?;
            (proc.incarnation == member.incarnation && !proc.wanted).then_some((*rank, proc))
        })
    }

    /// Returns the incarnation number that a plan may give to a new process of `role`.
    ///
    /// Plans are made while other plans run, so counting from the world's members alone could give two processes the
    /// same number. The count therefore also takes the latest known process into account.
    #[must_use]
    pub fn next_incarnation(&self, role: &Role) -> Incarnation {
        let member = role.rank().and_then(|rank| self.world.members().get(&rank));
        let latest = self.procs.get(role).map(|p| p.incarnation).max(member.map(|m| m.incarnation));
        latest.unwrap_or_default().next()
    }

    /// Returns the host of a domain, if it has one.
    #[must_use]
    pub fn node_of<'a>(&'a self, domain: &'a Domain) -> Option<&'a NodeId> {
        match domain {
            Domain::Node(node) | Domain::Device(node, _) | Domain::Guard(node) => Some(node),
            Domain::Process(role) => self.procs.get(role)?.node.as_ref(),
            _ => None,
        }
    }

    /// Returns the device of a rank, if the world names one.
    #[must_use]
    pub fn device_of(&self, rank: Rank) -> Option<Domain> {
        let member = self.world.members().get(&rank)?;
        Some(Domain::Device(member.node.clone()?, member.device?))
    }

    /// Returns true if the host is listed by the launcher and accepts new processes.
    #[must_use]
    pub fn is_ready(&self, host: &NodeId) -> bool {
        self.nodes.get(host).is_some_and(|n| n.state == NodeState::Ready)
    }

    /// Returns the view with the given hosts cordoned: they accept no new process.
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

    /// Returns true if the domain `inner` equals the domain `outer` or is a part of it.
    #[must_use]
    pub fn contains(&self, outer: &Domain, inner: &Domain) -> bool {
        if outer == inner {
            return true;
        }
        if *outer == Domain::Job {
            return !matches!(inner, Domain::Plugin(_)); // a plugin watches the job, but is no part of it
        }
        match (outer, inner) {
            (Domain::Group(group), Domain::Process(Role::Rank(rank))) => self.world.group(group).contains(rank),
            (Domain::Node(node), inner) => self.node_of(inner) == Some(node),
            (Domain::Guard(node), Domain::Process(_)) => self.node_of(inner) == Some(node),
            (Domain::Device(..), Domain::Process(Role::Rank(rank))) => self.device_of(*rank).as_ref() == Some(outer),
            _ => false,
        }
    }

    /// Returns true if two domains are equal or one is a part of the other.
    #[must_use]
    pub fn overlap(&self, a: &Domain, b: &Domain) -> bool {
        self.contains(a, b) || self.contains(b, a)
    }

    /// Returns the hosts whose guard exists but does not respond. No process can be started or stopped on such a host
    /// until its guard responds.
    pub fn silent_guards(&self) -> impl Iterator<Item = &NodeId> + '_ {
        self.guards.values().filter(|guard| matches!(guard.state, GuardState::Silent(_))).map(|guard| &guard.node)
    }

    /// Returns the score of a host in the history of incidents, in millionths; 0 without a history.
    #[must_use]
    pub fn host_score(&self, host: &NodeId) -> u64 {
        let Some(history) = &self.host_history else { return 0 };
        // Scores at any time after the newest incident order hosts by the same incidents.
        self.wall.or_else(|| history.newest()).map_or(0, |now| history.score(host, now))
    }

    /// Returns the hosts on which new processes may start.
    pub fn ready_nodes(&self) -> impl Iterator<Item = &NodeId> + '_ {
        self.nodes.values().filter(|n| n.state == NodeState::Ready).map(|n| &n.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordered_process_is_wanted_and_has_reported_nothing() {
        let proc = Proc::ordered(ProcId::rank(0, 1).incarnation, Generation(1), JobTime::START);
        assert!(proc.wanted && proc.node.is_none() && proc.link.is_none() && proc.step.is_none());
        assert!(matches!(proc.phase, Phase::Pending(_)));
    }
}
