//! The decision. (See the [module](super) for its rules.)

use super::assign::{Parts, assign};
use super::policy::Sizes;
use super::refuse::refused;
use super::words::{count, hosts, verb};
use super::{Health, HostError, NodeRanks, Policy, State};
use std::collections::{BTreeMap, BTreeSet};
use taskd_runtime::job::{JobTime, NodeId};

/// What to do, and which hosts cannot take part.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// What to do now.
    pub next: Next,
    /// The hosts that cannot take part, with the reason. Those that are members of the world are replaced.
    pub refused: BTreeMap<NodeId, HostError>,
}

/// What to do now. Every reason is a sentence for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// No world can run now.
    Wait {
        /// Time at which the decision changes if no host changes; `None` if it changes with a host only.
        until: Option<JobTime>,
        /// What is missing.
        reason: String,
    },
    /// Another world begins.
    World {
        /// The hosts of the world by node rank.
        ranks: NodeRanks,
        /// Hosts that are ready and not in the world.
        spares: BTreeSet<NodeId>,
        /// What has changed.
        reason: String,
    },
    /// The world in force continues.
    Keep {
        /// Time at which the decision changes if no host changes; `None` if it changes with a host only.
        until: Option<JobTime>,
        /// Why no other world begins.
        reason: String,
    },
    /// The job cannot continue: it has waited long enough for hosts, or its policy has no solution.
    Impossible {
        /// What is missing, and what to do.
        reason: String,
    },
}

impl Next {
    /// Returns the time at which the decision changes if no host changes, if there is one.
    #[must_use]
    pub const fn until(&self) -> Option<JobTime> {
        match self {
            Next::Wait { until, .. } | Next::Keep { until, .. } => *until,
            Next::World { .. } | Next::Impossible { .. } => None,
        }
    }

    /// Returns the reason, a sentence for the log.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Next::Wait { reason, .. }
            | Next::World { reason, .. }
            | Next::Keep { reason, .. }
            | Next::Impossible { reason } => reason,
        }
    }
}

/// Decides which hosts form the next world. (See the [module](super) for the rules and an example.)
///
/// The same arguments give the same decision. After the world of a decision is put in force, the decision for the new
/// state is [`Keep`](Next::Keep).
#[must_use]
pub fn decide(state: &State, policy: &Policy, now: JobTime) -> Decision {
    if let Some(problem) = policy.problem() {
        return Decision { next: Next::Impossible { reason: problem }, refused: BTreeMap::new() };
    }
    let sizes = policy.sizes();
    let refused = refused(state, policy, sizes.max);
    let view = View::new(state, policy, sizes, now, &refused);
    let next = match &state.world {
        Some(world) if !world.is_empty() => view.change(),
        _ => view.first(),
    };
    Decision { next, refused }
}

/// The state, sorted for the decision.
struct View<'a> {
    state: &'a State,
    policy: &'a Policy,
    sizes: Sizes,
    now: JobTime,
    parts: Parts,
    /// Kept members that are out of sight.
    unseen: BTreeSet<&'a NodeId>,
    /// Members that are lost: left or refused.
    lost: BTreeSet<&'a NodeId>,
    /// Time of the last loss of a member.
    gone_at: JobTime,
    /// Times at which the spares joined, in order.
    joined: Vec<JobTime>,
    /// Hosts outside of the world that cannot join it now, by reason, for the log.
    others: String,
}

impl<'a> View<'a> {
    fn new(
        state: &'a State,
        policy: &'a Policy,
        sizes: Sizes,
        now: JobTime,
        refused: &BTreeMap<NodeId, HostError>,
    ) -> View<'a> {
        let (parts, lost, unseen) = (Parts::default(), BTreeSet::new(), BTreeSet::new());
        let (gone_at, joined, others) = (JobTime::START, Vec::new(), String::new());
        let mut view = View { state, policy, sizes, now, parts, unseen, lost, gone_at, joined, others };
        let mut members: BTreeSet<&NodeId> = BTreeSet::new();
        for (rank, name) in state.world.iter().flatten() {
            // A host that is listed a second time cannot have both node ranks: the second is vacant.
            let gone_at = if members.insert(name) { view.gone(name, refused) } else { Some(JobTime::START) };
            match gone_at {
                Some(at) => {
                    view.gone_at = view.gone_at.max(at);
                    view.parts.gone.insert(*rank, name.clone());
                }
                None => _ = view.parts.kept.insert(*rank, name.clone()),
            }
        }
        let outside: Vec<_> = state.hosts.iter().filter(|(name, _)| !members.contains(name)).collect();
        for (name, host) in
            outside.iter().filter(|(name, host)| host.health == Health::Ready && !refused.contains_key(*name))
        {
            view.parts.spares.insert(NodeId::clone(name));
            view.joined.push(host.joined);
        }
        view.joined.sort_unstable();
        let of = |is: fn(&Health) -> bool| outside.iter().filter(|(_, host)| is(&host.health)).count();
        let refused = outside.iter().filter(|(name, _)| refused.contains_key(*name)).count();
        for (number, what) in [
            (of(|health| matches!(health, Health::OutOfSight { .. })), "out of sight"),
            (of(|health| matches!(health, Health::Cordoned)), "cordoned"),
            (refused, "refused"),
        ] {
            if number > 0 {
                view.others += &format!("; {} {} {what}", count(number, "host"), verb(number, "is", "are"));
            }
        }
        view
    }

    /// Returns the time from which on a member is lost; `None` if it stays. Notes what it is.
    fn gone(&mut self, name: &'a NodeId, refused: &BTreeMap<NodeId, HostError>) -> Option<JobTime> {
        let host = self.state.hosts.get(name);
        match host.map(|host| host.health) {
            None | Some(Health::OutOfSight { .. }) => {
                self.unseen.insert(name);
                None
            }
            Some(Health::Left { since }) => {
                self.lost.insert(name);
                Some(since)
            }
            Some(Health::Ready | Health::Cordoned) if refused.contains_key(name) => {
                self.lost.insert(name);
                host.map(|host| host.joined)
            }
            Some(Health::Ready | Health::Cordoned) => None,
        }
    }

    fn first(&self) -> Next {
        let (ready, sizes) = (self.parts.spares.len(), self.sizes);
        let full = sizes.max.saturating_add(sizes.spares);
        let have = format!("{ready} of {} {} joined{}", count(full, "host"), verb(full, "has", "have"), self.others);
        let Some(enough_at) = self.joined.get(sizes.min - 1) else {
            let until = self.state.since + self.policy.waiting_timeout;
            let have = format!("{ready} of at least {} have joined{}", count(sizes.min, "host"), self.others);
            return if self.now < until {
                let missing = sizes.min - ready;
                let reason = format!("{have}; {missing} more must join until {until}");
                Next::Wait { until: Some(until), reason }
            } else {
                let waited = self.policy.waiting_timeout;
                Next::Impossible { reason: format!("{have} within {waited:?}: add hosts, or reduce min_hosts") }
            };
        };
        let size = sizes.with_spares(ready);
        let until = *enough_at + self.policy.last_call;
        if ready < full && self.now < until {
            let more = full - ready;
            let or = format!("or at {until} with {}", count(size, "host"));
            let reason = format!("{have}; the world begins when {more} more {}, {or}", verb(more, "joins", "join"));
            return Next::Wait { until: Some(until), reason };
        }
        self.world(size, &format!("{} joined", count(ready, "host") + verb(ready, " has", " have")))
    }

    fn change(&self) -> Next {
        if self.parts.gone.is_empty() { self.grow() } else { self.replace() }
    }

    /// Decides if a world without losses grows.
    fn grow(&self) -> Next {
        let sizes = self.sizes;
        let (size, ready) = (self.parts.kept.len(), self.parts.spares.len());
        let next = sizes.with_spares(size + ready);
        let unseen = match self.unseen.len() {
            0 => String::new(),
            n => format!(", of which {} {} out of sight", hosts(self.unseen.iter().copied()), verb(n, "is", "are")),
        };
        let have =
            format!("the world has {}{unseen}, {} outside{}", count(size, "host"), count(ready, "spare"), self.others);
        if next <= size {
            let room = sizes.above(size) <= sizes.max;
            let more = sizes.hosts_for(sizes.above(size)).saturating_sub(size + ready);
            let reason = if room { format!("{have}; it grows with {more} more") } else { have };
            return Next::Keep { until: None, reason };
        }
        if !self.unseen.is_empty() {
            let reason = format!("{have}; it can grow to {next} when all its hosts are in sight");
            return Next::Keep { until: None, reason };
        }
        let needed = sizes.hosts_for(sizes.above(size)).saturating_sub(size).max(1);
        let enough_at = self.joined.get(needed - 1).copied().unwrap_or(self.now);
        let until = enough_at + self.policy.last_call;
        if next < sizes.max && self.now < until {
            return Next::Keep { until: Some(until), reason: format!("{have}; it grows to {next} at {until}") };
        }
        self.world(next, &format!("{} joined", count(ready, "host") + verb(ready, " has", " have")))
    }

    /// Decides how a world goes on without the members that are lost.
    fn replace(&self) -> Next {
        let sizes = self.sizes;
        let all = self.parts.kept.len() + self.parts.gone.len();
        let left = self.parts.kept.len() + self.parts.spares.len();
        let suffices = left >= all;
        let size = if suffices { sizes.largest(all).max(sizes.with_spares(left)) } else { sizes.largest(left) };
        let gone = self.gone_words();
        if size == 0 {
            let missing = sizes.min.saturating_sub(left);
            let have = format!("{gone}; {} left{}, {}", self.left_words(left), self.others, sizes.words());
            if self.lost.is_empty() {
                return Next::Keep { until: None, reason: format!("{have}; {missing} more must join") };
            }
            let until = self.gone_at + self.policy.waiting_timeout;
            if self.now < until {
                let reason = format!("{have}; {missing} more must join until {until}");
                return Next::Wait { until: Some(until), reason };
            }
            let waited = self.policy.waiting_timeout;
            let reason = format!("{have}, and no more have joined within {waited:?}: add hosts, or reduce min_hosts");
            return Next::Impossible { reason };
        }
        let until = self.gone_at + self.policy.shrink_after;
        if !suffices && self.now < until {
            let missing = all - left;
            let reason = format!(
                "{gone}; {} no replacement; the world shrinks to {} at {until}",
                count(missing, "host") + verb(missing, " has", " have"),
                count(size, "host"),
            );
            return self.pause(Some(until), reason);
        }
        if !self.unseen.is_empty() {
            let unseen = hosts(self.unseen.iter().copied());
            let is = verb(self.unseen.len(), "is", "are");
            let reason =
                format!("{gone}; {unseen} {is} out of sight: the next world begins when each is back or has left");
            return self.pause(None, reason);
        }
        self.world(size, &gone)
    }

    /// Waits, or keeps a world that is still complete.
    fn pause(&self, until: Option<JobTime>, reason: String) -> Next {
        if self.lost.is_empty() { Next::Keep { until, reason } } else { Next::Wait { until, reason } }
    }

    fn world(&self, size: usize, why: &str) -> Next {
        let ranks = assign(&self.parts, size, !self.policy.keep_node_rank, self.state);
        let members: BTreeSet<&NodeId> = ranks.values().collect();
        let is_ready = |host: &NodeId| self.state.hosts.get(host).is_some_and(|host| host.health == Health::Ready);
        let dropped = self.parts.kept.values().filter(|host| is_ready(host));
        let outside = self.parts.spares.iter().chain(dropped);
        let spares: BTreeSet<NodeId> = outside.filter(|host| !members.contains(host)).cloned().collect();
        let mut reason = why.to_owned();
        let mut taken_over = self.parts.gone.keys().filter_map(|rank| Some((rank, ranks.get(rank)?)));
        if let Some((rank, host)) = taken_over.next() {
            reason += &format!("; host {} takes over node rank {rank}", host.0);
            let more = taken_over.count();
            if more > 0 {
                reason += &format!(", {more} more {} replaced", verb(more, "is", "are"));
            }
        }
        reason += &format!("; the world has {}", count(size, "host"));
        if !spares.is_empty() {
            reason += &format!(" and {}", count(spares.len(), "spare"));
        }
        Next::World { ranks, spares, reason: reason + &self.others }
    }

    fn left_words(&self, left: usize) -> String {
        format!("{} {}", count(left, "host"), verb(left, "is", "are"))
    }

    /// Returns which members are lost, for a reason. A host that the world lists twice is there, but not for both node ranks.
    fn gone_words(&self) -> String {
        let is_lost = |host: &&NodeId| self.lost.contains(*host);
        let (lost, twice): (Vec<&NodeId>, Vec<&NodeId>) = self.parts.gone.values().partition(is_lost);
        let words = |names: &[&NodeId], one, several| {
            let part = format!("{} {}", hosts(names.iter().copied()), verb(names.len(), one, several));
            (!names.is_empty()).then_some(part)
        };
        let parts = [words(&lost, "has left", "have left"), words(&twice, "is listed twice", "are listed twice")];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}
