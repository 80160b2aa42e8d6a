//! Checkpoints in the memory of ranks: which of them is whole on all, so that the one before it may be overwritten.
//!
//! It copies nothing, and no recovery depends on it: who starts again looks at what is there. It only sees to it that there is
//! always one that everybody has.
//!
//! A rank that has called a copy whole waits: until all have that one, which is then declared, or until one of them has come
//! beyond it without it. Whatever gets lost on the way a rank says again at the next step that is one to copy.

use super::{Drop, Kernel};
use crate::job::{Incarnation, ProcId, Rank, World};
use crate::launch::{DirectBatch, Directive, InMemory, MemoryCopy};
use crate::recover::Action;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long ranks may take to have heard of it.
const HEARD_WITHIN: Duration = Duration::from_secs(30);

/// What is known of the ranks' memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Memory {
    /// What each rank of this world has said last.
    said: BTreeMap<Rank, Said>,
    /// The newest that was declared.
    pub(super) whole: Option<InMemory>,
    /// What each rank's latest process has counted, whatever the world.
    #[serde(default)]
    counted: BTreeMap<Rank, Counted>,
    /// Over all processes of the job.
    #[serde(default)]
    waited: u64,
    #[serde(default)]
    dropped: u64,
}

/// A process counts from its own start.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Counted {
    by: Incarnation,
    bytes: u64,
    waited: u64,
    dropped: u64,
}

/// What checkpoints in memory have cost a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryFigures {
    /// Bytes of one copy of all ranks' state, as far as they have said; their hosts hold two.
    pub bytes: u64,
    /// How often a rank has waited for a copy before it let parameters change.
    pub waited: u64,
    /// How many copies were left out, each by one rank.
    pub dropped: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Said {
    /// Not whole, too, once its rank was told that it may overwrite it.
    copy: MemoryCopy,
    /// The rank has not been told anything since.
    waits: bool,
}

impl Memory {
    /// What was said before holds no more: who takes a lost rank's place may have something else.
    pub(super) fn new_world(&mut self) {
        self.said.clear();
    }

    /// What it has cost so far, if any rank has said something.
    pub(super) fn figures(&self) -> Option<MemoryFigures> {
        let bytes = self.counted.values().fold(0_u64, |sum, counted| sum.saturating_add(counted.bytes));
        (!self.counted.is_empty()).then_some(MemoryFigures { bytes, waited: self.waited, dropped: self.dropped })
    }

    /// Adds what a process has counted since it said so last. A copy that was left out has no bytes: those before stand.
    fn count(&mut self, rank: Rank, by: Incarnation, copy: &MemoryCopy) {
        let MemoryCopy { bytes, waited, dropped, .. } = *copy;
        let known = self.counted.entry(rank).or_default();
        let before = if known.by == by { *known } else { Counted { bytes: known.bytes, ..Counted::default() } };
        self.waited = self.waited.saturating_add(waited.saturating_sub(before.waited));
        self.dropped = self.dropped.saturating_add(dropped.saturating_sub(before.dropped));
        let bytes = if bytes > 0 { bytes } else { before.bytes };
        *known = Counted { by, bytes, waited, dropped };
    }

    /// Takes what a rank says; who is to be told something now, by the number that each has given.
    ///
    /// Who waits was looked at beside all that was said before: what is new, only what is said now can have changed. So each other
    /// rank is looked at once, of however many there are.
    fn hear(&mut self, rank: Rank, copy: MemoryCopy, world: &World) -> Vec<(Rank, u64)> {
        self.said.insert(rank, Said { copy, waits: true });
        let is_complete = world.absent().is_empty(); // one that a rank which is away has no part of is of no use
        let is_everybodys =
            self.said.len() == world.members().len() && self.said.values().all(|said| said.copy.has(copy.of));
        if is_complete && is_everybodys {
            self.whole = Some(copy.of);
        }
        let own_is_lacked = self.said.values().any(|said| said.copy.lacks(copy.of));
        let is_told = |of: Rank, said: &Said| {
            let held = said.copy.of;
            let is_lacked = if of == rank { own_is_lacked } else { copy.lacks(held) };
            said.waits && (!is_complete || !said.copy.whole || self.whole == Some(held) || is_lacked)
        };
        let told = self.said.iter().filter(|(rank, said)| is_told(**rank, said));
        let told: Vec<(Rank, u64)> = told.map(|(rank, said)| (*rank, said.copy.number)).collect();
        for (rank, _) in &told {
            let Some(said) = self.said.get_mut(rank) else { continue };
            said.waits = false;
            said.copy.whole &= self.whole == Some(said.copy.of);
        }
        told
    }
}

impl Kernel {
    /// A rank has copied its state, or has left a copy out.
    pub(super) fn copied_to_memory(&mut self, proc: &ProcId, copy: &MemoryCopy) {
        let world = Arc::clone(&self.state.view.world);
        let member = proc.role.rank().filter(|rank| world.proc(*rank).as_ref() == Some(proc));
        let Some(rank) = member.filter(|_| copy.generation == world.generation()) else {
            return self.state.counts.drop(Drop::OldGeneration);
        };
        self.state.memory.count(rank, proc.incarnation, copy);
        let told = self.state.memory.hear(rank, *copy, &world);
        if told.is_empty() || self.observes() {
            return;
        }
        let whole = self.state.memory.whole;
        let declare = |(rank, number)| Some((world.proc(rank)?, Directive::Declare { number, whole }));
        let orders = told.into_iter().filter_map(declare).collect();
        self.command(None, Action::Direct(DirectBatch { world: Arc::clone(&world), orders }), HEARD_WITHIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Member;
    use proptest::prelude::*;

    const RANKS: u32 = 4;

    proptest! {
        /// Whatever is said in whatever order: after each saying nobody waits for what one of them will never have.
        #[test]
        fn who_still_waits_has_what_all_may_come_to_have(
            sayings in prop::collection::vec((0..RANKS, 0_u64..4, 0_u64..4, any::<bool>()), 0..60),
        ) {
            let member = Member { incarnation: Incarnation(1), node: None, device: None };
            let world = World::first((0..RANKS).map(|rank| (Rank(rank), member.clone())).collect());
            let generation = world.generation();
            let mut memory = Memory::default();
            for (number, (rank, at, of, whole)) in sayings.into_iter().enumerate() {
                let (of, number) = (InMemory { made_in: generation, step: of }, number as u64);
                let copy = MemoryCopy { generation, number, at, of, whole, bytes: 0, waited: 0, dropped: 0 };
                memory.hear(Rank(rank), copy, &world);
                for said in memory.said.values() {
                    let is_lacked = memory.said.values().any(|other| other.copy.lacks(said.copy.of));
                    let is_settled = !said.copy.whole || memory.whole == Some(said.copy.of) || is_lacked;
                    prop_assert!(!said.waits || !is_settled, "{:?}", memory);
                }
            }
        }
    }
}
