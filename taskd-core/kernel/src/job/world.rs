//! The world: which ranks train together, in which generation.

use super::{Generation, GroupId, Incarnation, NodeId, ProcId, Rank, Role};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// One rank's place in a [`World`]: its process, host and device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Member {
    /// Number of the rank's start (incarnation), which identifies the rank's process in this world.
    pub incarnation: Incarnation,
    /// The host on which the rank is to run; `None` leaves the choice to the launcher.
    pub node: Option<NodeId>,
    /// The accelerator that the rank is to use, by its index on the host.
    pub device: Option<u16>,
}

/// The set of ranks that train together. Immutable; a change creates a [`successor`](World::successor) with the next
/// generation.
///
/// Shared as `Arc<World>`, so that no decision copies up to 10,000 members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct World {
    generation: Generation,
    restarts: u32,
    members: BTreeMap<Rank, Member>,
    /// Ranks that have left the world, with the process, host and device that they had last.
    #[serde(default)]
    absent: BTreeMap<Rank, Member>,
    groups: BTreeMap<GroupId, Vec<Rank>>,
}

/// Selects if a new world counts as a restart of the job. (See [`World::restarts`].)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Counted {
    /// The new world is a recovery: it counts as a restart.
    Yes,
    /// The new world is a planned change, or follows a lost race at start-up: it does not count as a restart.
    No,
}

impl World {
    /// Creates the first world of a job, with generation 1.
    #[must_use]
    pub fn first(members: BTreeMap<Rank, Member>) -> World {
        World { generation: Generation(1), restarts: 0, members, absent: BTreeMap::new(), groups: BTreeMap::new() }
    }

    /// Replaces the communication groups of this world.
    #[must_use]
    pub fn with_groups(mut self, groups: BTreeMap<GroupId, Vec<Rank>>) -> World {
        self.groups = groups;
        self
    }

    /// Sets the ranks that are [absent](World::absent) from the start.
    #[must_use]
    pub(crate) fn with_absent(mut self, absent: BTreeMap<Rank, Member>) -> World {
        self.absent = absent;
        self
    }

    /// Returns this world as if its members were all ranks of the job: the world of processes that form the process
    /// group of their start, and that do not join running ranks.
    #[must_use]
    #[doc(hidden)]
    pub fn without_absent(&self) -> World {
        self.clone().with_absent(BTreeMap::new())
    }

    /// Sets the missing hosts of members and absent ranks. `seen` returns the host of a rank's process, if it is known.
    /// If all known hosts are the same one, ranks whose host is still unknown get this host as well.
    #[must_use]
    #[doc(hidden)]
    pub fn located(mut self, seen: impl Fn(&ProcId) -> Option<NodeId>) -> World {
        let mut all: Vec<(&Rank, &mut Member)> = self.members.iter_mut().chain(&mut self.absent).collect();
        for (rank, member) in &mut all {
            let proc = ProcId { role: Role::Rank(**rank), incarnation: member.incarnation };
            member.node = member.node.take().or_else(|| seen(&proc));
        }
        let known: BTreeSet<NodeId> = all.iter().filter_map(|(_, member)| member.node.clone()).collect();
        let only = known.first().filter(|_| known.len() == 1);
        for (_, member) in all {
            member.node = member.node.take().or_else(|| only.cloned());
        }
        self
    }

    /// Returns this world with the given ranks, members or absent, placed on the host `node`.
    #[must_use]
    #[doc(hidden)]
    pub fn with_on(mut self, node: &NodeId, ranks: &BTreeSet<Rank>) -> World {
        let there = self.members.iter_mut().chain(&mut self.absent).filter(|(rank, _)| ranks.contains(rank));
        there.for_each(|(_, member)| member.node = Some(node.clone()));
        self
    }

    /// Creates the next world: `edit` changes the members, and the generation increases by one. A changed world can be
    /// created in no other way. Ranks that `edit` removes are [absent](World::absent) from then on, until a later edit
    /// adds them again.
    #[must_use]
    pub fn successor(&self, counted: Counted, edit: impl FnOnce(&mut BTreeMap<Rank, Member>)) -> World {
        let mut next = self.clone();
        next.generation = self.generation.next();
        next.restarts = self.restarts.saturating_add(u32::from(counted == Counted::Yes));
        edit(&mut next.members);
        let were_there = self.members.iter().filter(|(rank, _)| !next.members.contains_key(rank));
        next.absent.extend(were_there.map(|(rank, member)| (*rank, member.clone())));
        next.absent.retain(|rank, _| !next.members.contains_key(rank));
        next
    }

    /// Returns the generation (number) of this world, from 1.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns the number of recoveries that led to this world and counted as restarts ([`Counted::Yes`]). Frameworks
    /// show the number as their restart count.
    #[must_use]
    pub const fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Returns the members of the world by rank.
    #[must_use]
    pub const fn members(&self) -> &BTreeMap<Rank, Member> {
        &self.members
    }

    /// Returns the ranks that have left a world that [shrank](crate::recover::Shrink), with their last placement. Their
    /// places are kept for them, and no other process gets their rank numbers.
    #[must_use]
    pub const fn absent(&self) -> &BTreeMap<Rank, Member> {
        &self.absent
    }

    /// Returns members and [absent](World::absent) ranks, in rank order. A process that starts derives its placement
    /// from this list.
    pub fn places(&self) -> impl Iterator<Item = (Rank, &Member)> {
        let all: BTreeMap<Rank, &Member> = self.members.iter().chain(&self.absent).map(|(r, m)| (*r, m)).collect();
        all.into_iter()
    }

    /// Returns the communication groups with their ranks, including absent ones.
    #[must_use]
    pub const fn groups(&self) -> &BTreeMap<GroupId, Vec<Rank>> {
        &self.groups
    }

    /// Returns the ranks of a group; empty for an unknown group.
    #[must_use]
    pub fn group(&self, id: &GroupId) -> &[Rank] {
        self.groups.get(id).map_or(&[], Vec::as_slice)
    }

    /// Returns the process that has this rank in this world; `None` if the rank is not a member.
    #[must_use]
    pub fn proc(&self, rank: Rank) -> Option<ProcId> {
        self.members.get(&rank).map(|m| ProcId { role: Role::Rank(rank), incarnation: m.incarnation })
    }

    /// Returns the number of members; frameworks call it the world size.
    #[must_use]
    pub fn size(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }
}
