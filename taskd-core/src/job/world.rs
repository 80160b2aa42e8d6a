//! The world: who trains together, in which generation.

use super::{Generation, GroupId, Incarnation, NodeId, ProcId, Rank, Role};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// One rank's place in a [`World`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Member {
    /// Which start of the rank belongs to this world.
    pub incarnation: Incarnation,
    /// The host that it is meant to run on; `None` leaves that to the launcher.
    pub node: Option<NodeId>,
    /// The accelerator that it is meant to use, by index on its host.
    pub device: Option<u16>,
}

/// Who trains together. Immutable; a change is a [`successor`](World::successor) with the next generation.
///
/// Shared as `Arc<World>`: 10,000 ranks are never copied for a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct World {
    generation: Generation,
    restarts: u32,
    members: BTreeMap<Rank, Member>,
    /// Ranks that have left: where they were.
    #[serde(default)]
    absent: BTreeMap<Rank, Member>,
    groups: BTreeMap<GroupId, Vec<Rank>>,
}

/// Whether a new world counts as a restart of the job (see [`World::restarts`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Counted {
    /// A recovery: it counts.
    Yes,
    /// A planned change, or a lost race at start-up: it does not.
    No,
}

impl World {
    /// Generation 1 of a job.
    #[must_use]
    pub fn first(members: BTreeMap<Rank, Member>) -> World {
        World { generation: Generation(1), restarts: 0, members, absent: BTreeMap::new(), groups: BTreeMap::new() }
    }

    /// The same world with the given communication groups.
    #[must_use]
    pub fn with_groups(mut self, groups: BTreeMap<GroupId, Vec<Rank>>) -> World {
        self.groups = groups;
        self
    }

    /// The same world, in which those who were placed by their launcher are on the host where it has `seen` them; where all whose host
    /// is known share one, nobody is elsewhere.
    #[must_use]
    pub(crate) fn located(mut self, seen: impl Fn(&ProcId) -> Option<NodeId>) -> World {
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

    /// The same world with these ranks on that host: as they would be there.
    #[must_use]
    pub(crate) fn with_on(mut self, node: &NodeId, ranks: &BTreeSet<Rank>) -> World {
        let there = self.members.iter_mut().chain(&mut self.absent).filter(|(rank, _)| ranks.contains(rank));
        there.for_each(|(_, member)| member.node = Some(node.clone()));
        self
    }

    /// The only way to another world: its generation is one higher, whatever `edit` does to the members. Those that it takes out are
    /// [absent](World::absent) from then on, until an edit puts them in again.
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

    /// Which world this is, from 1.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// How many recoveries brought the job here: what a framework shows as its restart count.
    #[must_use]
    pub const fn restarts(&self) -> u32 {
        self.restarts
    }

    /// The ranks, in order.
    #[must_use]
    pub const fn members(&self) -> &BTreeMap<Rank, Member> {
        &self.members
    }

    /// Ranks that have left a world that [shrank](crate::recover::Shrink), as they were: their places are kept for them, and nobody
    /// else has their numbers.
    #[must_use]
    pub const fn absent(&self) -> &BTreeMap<Rank, Member> {
        &self.absent
    }

    /// All that are members or [absent](World::absent), in order: by this count a process that starts knows its place.
    pub fn places(&self) -> impl Iterator<Item = (Rank, &Member)> {
        let all: BTreeMap<Rank, &Member> = self.members.iter().chain(&self.absent).map(|(r, m)| (*r, m)).collect();
        all.into_iter()
    }

    /// The communication groups, with those of their ranks that are absent.
    #[must_use]
    pub const fn groups(&self) -> &BTreeMap<GroupId, Vec<Rank>> {
        &self.groups
    }

    /// The ranks of a group; none for a group that is not known.
    #[must_use]
    pub fn group(&self, id: &GroupId) -> &[Rank] {
        self.groups.get(id).map_or(&[], Vec::as_slice)
    }

    /// The process that is `rank` in this world.
    #[must_use]
    pub fn proc(&self, rank: Rank) -> Option<ProcId> {
        self.members.get(&rank).map(|m| ProcId { role: Role::Rank(rank), incarnation: m.incarnation })
    }

    /// Number of ranks, as frameworks call it.
    #[must_use]
    pub fn size(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }
}
